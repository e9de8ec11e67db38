"""The daemon's figures as Prometheus metrics, with their names and labels.

Owns the names and the labels. Labels are bounded: methods and codes of the protocol, states, kinds of listener. Only
numbers are exported: no id, no path and no name chosen by a client.
"""

import os
import resource
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import msgspec
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from ctxd.clock import SystemClock
from ctxd.observe.call_counts import CallCounter
from ctxd.store.journal_writer import Durations
from ctxd_protocol.status_types import DaemonStatus


class DaemonMetrics(msgspec.Struct, frozen=True, kw_only=True):
    """The daemon at one moment. ``tracked``: the states of the tracked files."""

    status: DaemonStatus
    tally: CallCounter
    commits: Durations
    tracked: Sequence[str]


def exposition(figures: DaemonMetrics) -> bytes:
    """``figures`` in Prometheus' text format, with those of this process. Takes some ms."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Taken([*process(), *families(figures)]))
    return generate_latest(registry)


def process() -> Iterator[Metric]:
    """Resources of this process, under the names that Prometheus defines.

    The library's own collector needs files of ``/proc`` that are hidden from the service, and then reports nothing at
    all.
    """
    # The fields after the process name, which may contain anything; in proc(5) they are numbered from 3.
    fields = Path("/proc/self/stat").read_bytes().rpartition(b") ")[2].split()
    ticks, page = os.sysconf("SC_CLK_TCK"), os.sysconf("SC_PAGE_SIZE")
    since_boot_s = time.clock_gettime(time.CLOCK_BOOTTIME)
    started = SystemClock().wall_ms() / 1000 - since_boot_s + int(fields[19]) / ticks
    cpu_s = (int(fields[11]) + int(fields[12])) / ticks
    yield GaugeMetricFamily("process_virtual_memory_bytes", "Virtual memory size.", value=int(fields[20]))
    yield GaugeMetricFamily("process_resident_memory_bytes", "Resident memory size.", value=int(fields[21]) * page)
    yield GaugeMetricFamily("process_start_time_seconds", "Start, since 1970.", value=started)
    yield CounterMetricFamily("process_cpu_seconds", "User and system time.", value=cpu_s)
    yield GaugeMetricFamily("process_open_fds", "Open descriptors.", value=len(os.listdir("/proc/self/fd")))
    most, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    yield GaugeMetricFamily("process_max_fds", "Maximum number of open file descriptors.", value=most)


def families(figures: DaemonMetrics) -> Iterator[Metric]:
    """Every metric except those of the process."""
    status = figures.status
    info = GaugeMetricFamily("ctxd_build_info", "The version that runs.", labels=["version"])
    info.add_metric([status.version], 1)
    yield info
    yield _by(
        "ctxd_state",
        "1 for the state that the daemon is in.",
        "state",
        [(each, int(each == status.state)) for each in ("ready", "degraded", "draining")],
    )
    yield GaugeMetricFamily("ctxd_uptime_seconds", "Seconds since the daemon was ready.", value=status.uptime_s)
    yield from _store(figures)
    yield from _calls(figures)
    yield GaugeMetricFamily("ctxd_sessions_live", "Sessions in memory.", value=status.sessions_live)
    yield GaugeMetricFamily("ctxd_objects_cached", "Objects in memory.", value=status.objects_cached)
    yield GaugeMetricFamily("ctxd_sandboxes", "Registered sandboxes.", value=status.sandboxes.registered)
    yield from _trackers(figures)


def _store(figures: DaemonMetrics) -> Iterator[Metric]:
    store = figures.status.store
    yield CounterMetricFamily("ctxd_writes", "Rows written to the journal since its creation.", value=store.rows)
    yield CounterMetricFamily("ctxd_commits", "Transactions since the start.", value=store.commits)
    yield GaugeMetricFamily("ctxd_pending_writes", "Writes that wait for their commit.", value=store.pending_writes)
    yield GaugeMetricFamily("ctxd_store_writable", "1 while writes are taken.", value=store.state == "ok")
    yield HistogramMetricFamily(
        "ctxd_commit_duration_seconds",
        "From the start of a flush to its end.",
        buckets=figures.commits.cumulated(),
        sum_value=figures.commits.sum_s,
    )
    found = store.projection
    if found is None:
        return
    up = found.state == "projecting"
    yield GaugeMetricFamily("ctxd_projection_up", "1 while rows flow to the node.", value=up)
    yield GaugeMetricFamily("ctxd_projection_lag_rows", "Rows that the node lacks.", value=found.lag_rows)
    yield GaugeMetricFamily("ctxd_projection_lag_seconds", "How long the oldest has waited.", value=found.lag_s)
    yield GaugeMetricFamily(
        "ctxd_projection_backlog_ratio", "How full the room for them is.", value=found.backlog_share
    )
    quarantined = len(found.quarantined)
    yield GaugeMetricFamily("ctxd_projection_quarantined_rows", "Rows that the node refuses.", value=quarantined)


def _calls(figures: DaemonMetrics) -> Iterator[Metric]:
    status, tally = figures.status, figures.tally
    counts = [("host", status.connections), ("sandbox", status.sandboxes.connections)]
    yield _by("ctxd_connections", "Open connections.", "listener", counts)
    yield GaugeMetricFamily("ctxd_calls_in_flight", "Calls that the host's clients wait for.", value=status.in_flight)
    calls = CounterMetricFamily("ctxd_calls", "Calls that were answered.", labels=["method", "outcome"])
    for method, count in sorted(tally.succeeded.copy().items()):
        calls.add_metric([method, "ok"], count)
    failed = tally.failed.copy()
    for (method, code), count in sorted(failed.items()):
        calls.add_metric([method, code], count)
    yield calls
    # Not the counts of the sandboxes, which end with them: a counter must never fall.
    beyond = sum(count for (_, code), count in failed.items() if code == "quota_exceeded")
    yield CounterMetricFamily("ctxd_quota_refusals", "Calls beyond a sandbox's quota.", value=beyond)


def _trackers(figures: DaemonMetrics) -> Iterator[Metric]:
    watching, states = figures.status.tracking, Counter(figures.tracked)
    counts = [(state, states[state]) for state in ("attached", "orphaned", "resumed")]
    yield _by("ctxd_trackers", "Files that are followed, by how that goes.", "state", counts)
    yield GaugeMetricFamily("ctxd_tracked_directories", "Directories that hold them.", value=watching.directories)
    yield GaugeMetricFamily("ctxd_watches", "Watches of the system.", value=watching.watches)
    yield GaugeMetricFamily("ctxd_polled_directories", "Directories polled instead of watched.", value=watching.polled)
    yield CounterMetricFamily("ctxd_watch_events", "Changes reported by the watcher.", value=watching.events)
    yield CounterMetricFamily("ctxd_tracked_versions", "Versions that were stored for them.", value=watching.versions)
    yield CounterMetricFamily("ctxd_watch_overflows", "How often events were dropped.", value=watching.overflows)


def _by(name: str, meaning: str, label: str, counts: Iterable[tuple[str, int]]) -> GaugeMetricFamily:
    family = GaugeMetricFamily(name, meaning, labels=[label])
    for value, count in counts:
        family.add_metric([value], count)
    return family


class _Taken(Collector):
    """Collector of metrics that were made before."""

    def __init__(self, taken: Iterable[Metric]) -> None:
        self._taken = list(taken)

    def collect(self) -> Iterable[Metric]:
        """All of them."""
        return self._taken
