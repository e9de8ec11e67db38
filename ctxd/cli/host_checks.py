"""Checks of this host, for ``ctx doctor``: each finds a present or future problem for ctxd, and its fix.

Checks only report: they change nothing. Facts that a test cannot create are passed as arguments.
"""

import importlib.metadata
import os
import resource
import shutil
import stat
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

import msgspec

from ctxd.config import SETTINGS
from ctxd.doctor_findings import Finding, fail, ok, warn
from ctxd.formatting import count
from ctxd.limits import DESCRIPTORS_RESERVED
from ctxd_protocol.limits import SOCKET_PATH_BYTES_MAX
from ctxd_protocol.status_types import DaemonStatus, ProjectionStatus

DISK_FREE_FAIL: Final = 64 * 1024 * 1024
"""Free bytes below which the daemon is about to refuse writes."""

DISK_FREE_WARN: Final = 1024 * 1024 * 1024
"""Free bytes below which an operator should look."""

WATCHES_WARN: Final = 65_536
"""Limit of a user's inotify watches below which a large tree cannot be followed: each folder needs one."""

INSTANCES_WARN: Final = 128
"""Limit of a user's inotify instances below which editors and other tools exhaust them."""

SQLITE_LEAST: Final = (3, 51, 3)
"""Earlier versions of SQLite may lose a commit if the write-ahead log is reset while another connection checkpoints."""

EPOCH_LEAST_MS: Final = 1_700_000_000_000
"""November 2023, in ms since 1970: a clock with an earlier time has never been set."""

NODE_S_MAX: Final = 30
"""Maximum seconds for the check of an XTDB node: it starts two programs and waits for a busy node."""

OTHER_VARIABLES: Final = frozenset(
    {"CTXD_CONFIG", "CTXD_SESSION", "CTXD_CONTEXT_ID", "CTXD_CONTEXT_FILE", "CTXD_FAILPOINTS", "CTXD_XTDB_HOME"}
    | {"CTXD_HOOK_SECONDS", "CTXD_HOOK_DEBUG"}
    | {f"CTXD_XTDB_PG_{name}" for name in ("HOST", "PORT", "DATABASE", "USER", "PASSWORD")}
)
"""Variables that are read, but are not settings."""


def socket_path(path: str) -> Finding:
    """Check that the kernel accepts the length of the socket's path."""
    length = len(os.fsencode(path))
    if length > SOCKET_PATH_BYTES_MAX:
        return fail(
            "socket path",
            f"{path} has {length} bytes, {SOCKET_PATH_BYTES_MAX} are allowed",
            "choose a shorter path",
        )
    return ok("socket path", f"{path}, {length} of {SOCKET_PATH_BYTES_MAX} bytes")


def socket_file(path: str) -> Finding:
    """Check that the socket exists, is a socket, and is closed to other users, as its directory is."""
    name = "socket file"
    try:
        found = os.stat(path)
        folder = os.stat(os.path.dirname(path) or ".")
    except FileNotFoundError:
        return fail(name, f"{path} does not exist", "start the daemon: ctxd run, or systemctl start ctxd")
    except PermissionError:
        return fail(name, f"{path} cannot be read", "join the daemon's group, or run as its user")
    mode = stat.S_IMODE(found.st_mode)
    if not stat.S_ISSOCK(found.st_mode):
        return fail(name, f"{path} is not a socket", "move it away, and start the daemon")
    if mode & 0o007:
        return fail(name, f"{path} is open to all users ({mode:04o})", f"run chmod o= {path}, and restart the daemon")
    if folder.st_mode & 0o002 and not folder.st_mode & stat.S_ISVTX:
        return fail(
            name, "any user may replace it: its directory is writable", f"run chmod o-w {os.path.dirname(path)}"
        )
    return ok(name, f"mode {mode:04o}")


def daemon(
    status: DaemonStatus | None, error: str, client_version: str, remedy: str = "start it: ctxd run"
) -> Iterator[Finding]:
    """Check that a daemon replies, has this version, and accepts writes. ``error``, ``remedy``: for ``status`` None."""
    if status is None:
        yield fail("daemon", error, remedy)
        return
    yield ok("daemon", f"{status.state}, pid {status.pid}")
    if status.version == client_version:
        yield ok("version", status.version)
    else:
        found = f"daemon {status.version}, ctx {client_version}"
        yield warn("version", found, "restart the daemon after an upgrade; use the ctx installed with it")
    store = status.store
    if store.state == "ok" and store.reason:
        yield warn(
            "store",
            f"accepts writes, but {store.reason}",
            "set the clock (timedatectl set-ntp true); if it ran ahead once, restore a backup from before, or wait",
        )
    elif store.state == "ok":
        yield ok("store", f"accepts writes, {store.pending_writes} pending")
    else:
        yield fail("store", f"{store.state}: {store.reason}", "free disk space, or read the daemon's log")
    if store.projection is not None:
        yield projection(store.projection)


def projection(found: ProjectionStatus) -> Finding:
    """Check that the XTDB node has every row of the journal, or is catching up."""
    name, progress = "projection", f"{found.state}, {count(found.lag_rows, 'row')} behind"
    reason = f"{progress}: {found.reason}"
    if found.state == "stopped":
        return fail(name, reason, "run ctxd verify --store to learn more; ctxd rebuild-xtdb fills an empty node")
    if found.state in ("unreachable", "failed"):
        return fail(name, reason, "run ctxd xtdb check, then start the node again: nothing is lost, and it catches up")
    if found.quarantined:
        return warn(name, reason, "report it; with the daemon stopped, ctxd requeue tries those rows again")
    if found.reason or found.state == "connecting":
        return warn(name, reason, "wait; ctx status shows whether it makes progress")
    return ok(name, progress)


def distribution() -> Finding:
    """Check that no foreign distribution named ``ctxd`` is installed."""
    try:
        other = importlib.metadata.version("ctxd")
    except importlib.metadata.PackageNotFoundError:
        return ok("distribution", "no other package is named ctxd")
    return fail(
        "distribution",
        f"another package named ctxd ({other}) shadows this one",
        "run pip uninstall ctxd: this one is ctxd-sidecar",
    )


def executables(path: str) -> Finding:
    """Check that ``ctxd`` on ``path``, a PATH, belongs to this ``ctx``."""
    found = shutil.which("ctxd", path=path)
    if found is None:
        return warn("executable", "no ctxd on the PATH", f"add {Path(sys.executable).parent} to it")
    # A symbolic link counts too: units expect it in /usr/local/bin.
    if not {_scripts(), Path(sys.executable).parent} & {Path(found).parent, Path(os.path.realpath(found)).parent}:
        return warn(
            "executable",
            f"{found} belongs to another installation than this ctx",
            f"put {_scripts()} first on the PATH",
        )
    return ok("executable", found)


def state_dir(path: Path) -> Finding:
    """Check that the state directory exists, belongs to this user, and is closed to others."""
    name = "state dir"
    try:
        found = path.stat()
    except FileNotFoundError:
        return warn(name, f"{path} does not exist yet", "start the daemon, which creates it")
    except PermissionError:
        return warn(name, f"{path} belongs to another user", "run ctx doctor as the daemon's user to check it")
    if not stat.S_ISDIR(found.st_mode):
        return fail(name, f"{path} is not a directory", "move it away, or set state_dir to another path")
    if found.st_mode & 0o077:
        return fail(name, f"{path} is open to others ({stat.S_IMODE(found.st_mode):04o})", f"run chmod 700 {path}")
    if found.st_uid == os.geteuid() and not os.access(path, os.W_OK | os.X_OK):
        return fail(name, f"{path} cannot be written", f"run chmod 700 {path}")
    return ok(name, f"{path}, mode {stat.S_IMODE(found.st_mode):04o}")


def disk(path: Path, free: int | None = None) -> Finding:
    """Check the free space of the state directory. ``free`` None: request it from the file system."""
    while not path.exists() and path != path.parent:
        path = path.parent
    free = shutil.disk_usage(path).free if free is None else free
    found = f"{free // 2**20:,} MiB free at {path}"
    if free < DISK_FREE_FAIL:
        return fail("disk", found, "free disk space: writes are refused until there is room")
    return warn("disk", found, "free disk space soon") if free < DISK_FREE_WARN else ok("disk", found)


def sqlite(version: str | None = None) -> Finding:
    """Check the version of the SQLite inside apsw. ``version`` None: that of the installed distribution."""
    if version is None:
        try:
            version = importlib.metadata.version("apsw")
        except importlib.metadata.PackageNotFoundError:
            return fail("SQLite", "apsw is not installed", "install ctxd-sidecar again")
    parts = tuple(int(part) for part in version.split(".")[:3])
    if parts < SQLITE_LEAST:
        return fail("SQLite", version, f"run pip install 'apsw>={'.'.join(map(str, SQLITE_LEAST))}'")
    return ok("SQLite", ".".join(version.split(".")[:3]))


def machine_id(path: Path = Path("/etc/machine-id")) -> Finding:
    """Check that the host has a machine id that survives restarts; file identities are derived from it."""
    try:
        text = path.read_text().strip()
    except OSError:
        text = ""
    if len(text) == 32 and not text.strip("0123456789abcdef"):
        return ok("machine id", text)
    return warn(
        "machine id", f"{path} has none; one is kept in the state directory instead", "run systemd-machine-id-setup"
    )


def inotify(folder: Path = Path("/proc/sys/fs/inotify")) -> Iterator[Finding]:
    """Check the kernel's limits of inotify watches and instances."""
    for key, least in (("max_user_watches", WATCHES_WARN), ("max_user_instances", INSTANCES_WARN)):
        try:
            value = int((folder / key).read_text())
        except (OSError, ValueError):
            yield warn(f"inotify {key}", "unknown", "mount /proc, or look at the setting by other means")
            continue
        found = f"{value:,}"
        setting = f"run sysctl fs.inotify.{key}={least * 8}"
        yield ok(f"inotify {key}", found) if value >= least else warn(f"inotify {key}", found, setting)


def descriptors(connections_max: int, soft: int | None = None) -> Finding:
    """Check that a daemon started from here may open a descriptor for each connection it allows."""
    soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0] if soft is None else soft
    need = connections_max + DESCRIPTORS_RESERVED
    found = (
        "no limit"
        if soft == resource.RLIM_INFINITY
        else f"{soft:,} allowed, {need:,} for {count(connections_max, 'connection')}"
    )
    if soft != resource.RLIM_INFINITY and soft < need:
        return warn("open files", found, f"run ulimit -n {need}, or set LimitNOFILE={need} in the unit")
    return ok("open files", found)


def clock(now_ms: int, newest_file_ms: int | None) -> Finding:
    """Check that the host's clock is set, and not behind the newest file of the state."""
    if now_ms < EPOCH_LEAST_MS:
        return fail("clock", "not set", "run timedatectl set-ntp true")
    if newest_file_ms is not None and newest_file_ms > now_ms + 60_000:
        behind = (newest_file_ms - now_ms) // 1000
        return warn("clock", f"{behind:,} s behind the newest state file", "run timedatectl set-ntp true")
    return ok("clock", "plausible")


def newest_file_ms(folder: Path) -> int | None:
    """Return the time of the newest file directly in ``folder`` in ms since 1970; None without a readable file."""
    try:
        return max((entry.stat().st_mtime_ns // 1_000_000 for entry in os.scandir(folder)), default=None)
    except OSError:
        return None


def environment(environ: Mapping[str, str]) -> Finding:
    """Check for misspelt ``CTXD_`` variables: names that nothing reads."""
    known = {setting.variable for setting in SETTINGS} | OTHER_VARIABLES
    strange = sorted(name for name in environ if name.startswith("CTXD_") and name not in known)
    if strange:
        return warn("environment", f"unknown: {', '.join(strange)}", "unset it, or correct its name")
    return ok("environment", "every CTXD_ variable is known")


def node(url: str, program: Sequence[str] = (sys.executable, "-m", "ctxd")) -> Iterator[Finding]:
    """Check the XTDB node at ``url`` by running ``ctxd xtdb check``, since clients have no access to nodes."""
    asked = [*program, "xtdb", "check", "--json", "--url", url]
    try:
        answer = subprocess.run(asked, capture_output=True, text=True, timeout=NODE_S_MAX, check=False)
        findings = msgspec.json.decode(answer.stdout, type=list[Finding])
    except (OSError, subprocess.TimeoutExpired) as error:
        yield fail("xtdb", f"cannot be checked: {error}", "run ctxd xtdb check")
        return
    except msgspec.MsgspecError:
        reason = answer.stderr.strip() or f"ended with {answer.returncode}"
        yield fail("xtdb", f"ctxd xtdb check: {reason}", "run ctxd xtdb check")
        return
    for finding in findings:
        yield msgspec.structs.replace(finding, name=f"xtdb {finding.name}")


def _scripts() -> Path:
    return Path(os.path.realpath(sys.argv[0])).parent
