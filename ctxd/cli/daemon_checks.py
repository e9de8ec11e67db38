"""Checks of a running daemon from outside, for ``ctx doctor``: its limits, its watches, its sandboxes and their mounts.

Checks only report: they change nothing.
"""

import os
import re
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from ctxd.doctor_findings import Finding, fail, ok, warn
from ctxd.formatting import count
from ctxd_protocol.default_paths import CONTEXT_FILE_NAME, SOCKET_NAME
from ctxd_protocol.sandbox_types import SandboxView
from ctxd_protocol.tracker_types import Watching

TRIED_MAX: Final = 3
"""Maximum number of sandboxes that are tried from inside: each takes about 100 ms."""

INSIDE_S_MAX: Final = 10
"""Maximum seconds for one of them to start and receive a reply."""

DESCRIPTORS_SHARE_WARN: Final = 0.8
"""Share of descriptors in use above which a daemon is about to refuse connections."""

_OWN_VIEW: Final = "add BindReadOnlyPaths= for it to the unit, whose PrivateTmp or ProtectHome hides it"

_INSIDE: Final = """
import socket, sys
with socket.socket(socket.AF_UNIX) as s:
    s.settimeout(5)
    s.connect("/run/ctxd/" + sys.argv[1])
    s.sendall(b'{"jsonrpc":"2.0","id":1,"method":"context.current"}\\n')
    sys.exit(0 if s.recv(1) == b"{" else 9)
"""


def daemon_descriptors(pid: int, proc: Path = Path("/proc")) -> Finding:
    """Check that the daemon has descriptors left."""
    name = "daemon open files"
    try:
        used = len(os.listdir(proc / str(pid) / "fd"))
        found = re.search(r"^Max open files\s+(\d+)", (proc / str(pid) / "limits").read_text(), re.MULTILINE)
    except OSError:
        return ok(name, "not visible to this user")
    if found is None:
        return ok(name, f"{used:,} used, no limit")
    most = int(found[1])
    usage = f"{used:,} of {most:,} used"
    if used > most * DESCRIPTORS_SHARE_WARN:
        return warn(name, usage, f"set LimitNOFILE={2 * most} in the unit, or end connections that are idle")
    return ok(name, usage)


def watching(found: Watching) -> Finding:
    """Check that tracked files are watched rather than polled."""
    name = "tracked files"
    if found.watcher is None:
        return ok(name, "none: tracking.watcher is off")
    figures = f"{found.files:,} in {count(found.directories, 'directory')} by {found.watcher}"
    if found.refused:
        return warn(name, f"{figures}, {found.refused:,} not tracked: limit reached", "close sessions that are done")
    if found.polled and found.watcher != "polling":
        fix = "raise fs.inotify.max_user_watches (sysctl); ctx tracker ls shows the reason of each"
        return warn(name, f"{figures}, {found.polled:,} polled instead", fix)
    return ok(name, figures)


def sandboxes(found: Sequence[SandboxView]) -> Finding:
    """Check that each sandbox's directory holds its files and a socket that accepts connections."""
    broken = [f"{each.sandbox}: {why}" for each in found if (why := _problem_of(Path(each.directory)))]
    if broken:
        more = f", and {len(broken) - 1:,} more" if len(broken) > 1 else ""
        return fail("sandbox sockets", broken[0] + more, "restart the daemon: it creates them again at the same paths")
    return ok("sandbox sockets", f"{count(len(found), 'sandbox')} with a socket each")


def mounts(found: Sequence[SandboxView], pid: int, proc: Path = Path("/proc")) -> Finding:
    """Check that mounted directories exist, for the daemon too."""
    name = "sandbox mounts"
    roots = sorted({mount.canonical_prefix for each in found for mount in each.mounts})
    for root in roots:
        try:
            here = os.stat(root)
        except OSError as error:
            return warn(name, f"{root}: {error.strerror}", "register the sandbox with the mounts that it has")
        try:
            there = os.stat(f"{proc}/{pid}/root{root}")
        except PermissionError:
            continue
        except OSError as error:
            return fail(name, f"{root}: the daemon does not see it: {error.strerror}", _OWN_VIEW)
        if (here.st_dev, here.st_ino) != (there.st_dev, there.st_ino):
            return fail(name, f"{root}: the daemon sees another directory there", _OWN_VIEW)
    return ok(name, f"{count(len(roots), 'directory')}")


def check_sandbox_access(found: Sequence[SandboxView], bubblewrap: str | None = None) -> Iterator[Finding]:
    """Check that a program in a real sandbox, without network and with only its directory mounted, gets a reply."""
    program = bubblewrap or shutil.which("bwrap")
    if not found:
        yield ok("sandbox reachability", "no sandbox is registered")
        return
    if program is None:
        yield warn("sandbox reachability", "cannot be tried without bubblewrap", "install bubblewrap")
        return
    for each in found[:TRIED_MAX]:
        yield _tried(program, each)


def _tried(bubblewrap: str, box: SandboxView) -> Finding:
    name = f"sandbox {box.sandbox}"
    user = os.stat(box.directory).st_uid if box.uid is None and os.path.exists(box.directory) else box.uid
    if os.geteuid() not in (0, user):
        return ok(name, f"not tested: it belongs to user {user}; run ctx doctor as root")
    command = [bubblewrap, "--unshare-all", "--die-with-parent", "--ro-bind", "/", "/", "--dev", "/dev"]
    command += ["--proc", "/proc", "--tmpfs", "/run", "--ro-bind", box.directory, "/run/ctxd"]
    command += ["--", sys.executable, "-I", "-S", "-c", _INSIDE, SOCKET_NAME]
    try:
        # The host's root has no rights inside, so the program runs as the user of the socket.
        other = None if user == os.geteuid() else user
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            timeout=INSIDE_S_MAX,
            check=False,
            user=other,
            group=other,
            extra_groups=None if other is None else (),
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return fail(name, f"no reply from inside: {error}", "run ctx status, then restart the daemon")
    message = done.stderr.strip().rpartition("\n")[2]
    if done.returncode == 0:
        return ok(name, "reachable inside a sandbox without network")
    if "PermissionError" in message:
        return fail(name, f"user {user} is refused inside a sandbox", "register it with the uid of the user inside")
    if message.startswith("bwrap:"):
        return warn(name, f"cannot be tried: {message}", "allow user namespaces, or run ctx doctor as root")
    return fail(name, f"no reply inside a sandbox: {message}", "restart the daemon: it opens the socket again there")


def _problem_of(directory: Path) -> str:
    """Return the problem of a sandbox's directory; empty without one."""
    try:
        if not (directory / CONTEXT_FILE_NAME).exists():
            return f"{CONTEXT_FILE_NAME} does not exist"
        with socket.socket(socket.AF_UNIX) as probe:
            probe.settimeout(1.0)
            probe.connect(str(directory / SOCKET_NAME))
    except PermissionError:
        # Another user's directory cannot be checked from here.
        return ""
    except OSError as error:
        return error.strerror or str(error)
    return ""
