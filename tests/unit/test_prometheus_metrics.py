"""The figures of the process, held against what Prometheus' own library tells where it can."""

import msgspec
import pytest
from prometheus_client import ProcessCollector
from prometheus_client.registry import CollectorRegistry

from ctxd.observe.call_counts import CallCounter
from ctxd.prometheus_metrics import DaemonMetrics, exposition, process
from ctxd.store.journal_writer import Durations
from ctxd_protocol.status_types import DaemonStatus
from tests.fakes.daemon import smallest


@pytest.mark.requirement("SVC-8")
def test_the_processs_figures_are_those_of_prometheus_own_collector() -> None:
    theirs = {metric.name: metric for metric in ProcessCollector(registry=CollectorRegistry()).collect()}
    ours = {metric.name: metric for metric in process()}
    assert ours.keys() == theirs.keys()
    for name, metric in theirs.items():
        assert ours[name].type == metric.type
        ((theirs_sample,), (our_sample,)) = metric.samples, ours[name].samples
        assert our_sample.name == theirs_sample.name
        # They are taken one after the other, and the boot's time is in whole seconds there.
        assert our_sample.value == pytest.approx(theirs_sample.value, rel=0.05, abs=2.0), name


@pytest.mark.requirement("SVC-8")
def test_writes_count_rows_and_commits_count_transactions() -> None:
    status = smallest(DaemonStatus)
    status["store"] |= {"rows": 70, "commits": 7}
    figures = DaemonMetrics(
        status=msgspec.convert(status, DaemonStatus), tally=CallCounter(), commits=Durations([0.1]), tracked=[]
    )
    text = exposition(figures).decode()
    assert "\nctxd_writes_total 70.0\n" in text
    assert "\nctxd_commits_total 7.0\n" in text
