"""A systemd of its own for tests: the first process of namespaces of its own, over a root that is this machine's and
whose changes are gone afterwards. The shipped units are installed there as the README says, and run for real.

It needs root, cgroups of version 2 and overlayfs. Where one is missing, ``booted`` says which.
"""

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

REPOSITORY = Path(__file__).parents[2]
WAIT_S = 30.0
"""Seconds that a test waits for what systemd is to do."""

_SYSTEMD = "/lib/systemd/systemd"
_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

_BOOT = """
set -e
place=$1; root=$place/root; shift
mount --make-rprivate /
mount -t tmpfs -o mode=755 tmpfs "$place"
mkdir "$place/changes" "$place/work" "$root"
mount -t overlay -o "lowerdir=/,upperdir=$place/changes,workdir=$place/work" overlay "$root"
for folder in run tmp var/log; do mount -t tmpfs -o mode=755 tmpfs "$root/$folder"; done
chmod 1777 "$root/tmp"
# A daemon of this machine may have these.
rm -rf "$root/var/lib/ctxd" "$root/var/cache/ctxd"
# What lies in somebody's home is to be had by the daemon's user: the interpreter may. Below /tmp it is not there yet.
for seen in "$@"; do
    mkdir -p "$root$seen"
    folder=$seen
    while [ "$folder" != / ]; do chmod a+rx "$root$folder"; folder=$(dirname "$folder"); done
done
# An overlay need not show what changes beneath it.
for seen in "$@"; do mount --bind "$seen" "$root$seen"; done
mount --rbind /dev "$root/dev"
mount -t proc proc "$root/proc"
mount -t sysfs -o ro sysfs "$root/sys"
mount -t cgroup2 cgroup2 "$root/sys/fs/cgroup"
mkdir -p "$root/etc/systemd/system" "$root/home/old"
echo 0123456789abcdef0123456789abcdef > "$root/etc/machine-id"
cd "$root"
pivot_root . home/old
umount -l /home/old
rmdir /home/old
exec env -i container=test PATH="$PATH" /lib/systemd/systemd --system --unit=basic.target --show-status=false
"""

_INSTALL = r"""
set -e
cd "$1/systemd"
install -m644 ctxd.service ctxd.socket xtdb.service /etc/systemd/system/
install -D -m644 ctxd.sysusers.conf /usr/lib/sysusers.d/ctxd.conf && systemd-sysusers
install -D -m644 ctxd.tmpfiles.conf /usr/lib/tmpfiles.d/ctxd.conf && systemd-tmpfiles --create
ln -sf "$2/ctxd" "$2/ctx" /usr/local/bin/
# The services have a /tmp of their own; a checkout below /tmp is shown to them there.
shift 2
for seen in "$@"; do
    case $seen in /tmp/*|/var/tmp/*) ;; *) continue;; esac
    for unit in ctxd xtdb; do
        mkdir -p /etc/systemd/system/$unit.service.d
        printf '[Service]\nBindReadOnlyPaths=%s\n' "$seen" >>/etc/systemd/system/$unit.service.d/checkout.conf
    done
done
systemctl daemon-reload
systemctl enable --now ctxd.socket ctxd.service
"""


class CannotBoot(Exception):
    """Why no systemd can be had here."""


class Booted:
    """A systemd that runs, with the units installed. ``pid`` is its number out here."""

    def __init__(self, pid: int) -> None:
        self.pid = pid

    def inside(self, *command: str) -> list[str]:
        """``command`` as it is started from out here in order to run in there, as root."""
        root = f"/proc/{self.pid}/root"
        enter = ["nsenter", "-t", str(self.pid), "--mount", "--pid", "--uts", "--ipc", "--cgroup", "--net"]
        return [*enter, f"--root={root}", f"--wd={root}", "env", "-i", f"PATH={_PATH}", "HOME=/root", *command]

    def run(self, *command: str, fails: bool = False) -> str:
        """What ``command`` wrote. Raises: AssertionError if it fails, or with ``fails`` if it does not."""
        done = subprocess.run(self.inside(*command), capture_output=True, text=True, timeout=WAIT_S * 2)
        assert bool(done.returncode) == fails, (command, done.returncode, done.stdout, done.stderr, self.journal())
        return done.stdout + (done.stderr if fails else "")

    def python(self, program: str, *arguments: str, user: str = "root") -> str:
        """What the Python ``program`` wrote, run by ``user``."""
        become = [] if user == "root" else ["setpriv", f"--reuid={user}", f"--regid={user}", "--init-groups"]
        return self.run(*become, sys.executable, "-c", program, *arguments)

    def show(self, name: str, unit: str = "ctxd.service") -> str:
        """A property of ``unit``."""
        return self.run("systemctl", "show", unit, f"--property={name}", "--value").strip()

    def journal(self, unit: str = "ctxd.service") -> str:
        """What the journal has of ``unit``."""
        command = self.inside("journalctl", "--no-pager", "--output=cat", "--unit", unit)
        return subprocess.run(command, capture_output=True, text=True, timeout=WAIT_S).stdout

    def until(self, name: str, value: str, unit: str = "ctxd.service") -> None:
        """Wait until a property has ``value``. Raises: TimeoutError."""
        deadline = time.monotonic() + WAIT_S
        while (found := self.show(name, unit)) != value:
            if time.monotonic() > deadline:
                raise TimeoutError(f"{name} of {unit} is {found}, not {value}: {self.journal(unit)}")
            time.sleep(0.05)

    def until_other(self, name: str, unit: str = "ctxd.service") -> None:
        """Wait until a property has another value than now. Raises: TimeoutError."""
        before, deadline = self.show(name, unit), time.monotonic() + WAIT_S
        while self.show(name, unit) == before:
            if time.monotonic() > deadline:
                raise TimeoutError(f"{name} of {unit} stays {before}: {self.journal(unit)}")
            time.sleep(0.05)

    def until_logged(self, text: str, unit: str = "ctxd.service", *, times: int = 1) -> None:
        """Wait until the journal of ``unit`` holds ``text`` so many times. Raises: TimeoutError."""
        deadline = time.monotonic() + WAIT_S
        while (told := self.journal(unit)).count(text) < times:
            if time.monotonic() > deadline:
                raise TimeoutError(f"{text}: {told}")
            time.sleep(0.05)

    def drop_in(self, name: str, text: str, unit: str = "ctxd.service") -> None:
        """Add to ``unit`` what an operator adds with ``systemctl edit``."""
        place = f"/run/systemd/system/{unit}.d"
        self.run("sh", "-c", f'mkdir -p {place} && printf %s "$1" > {place}/{name}.conf', "sh", text)
        self.run("systemctl", "daemon-reload")


@contextmanager
def booted(folder: Path) -> Iterator[Booted]:
    """A systemd with the daemon's units enabled and started, gone afterwards. Takes some two seconds.

    Raises: CannotBoot.
    """
    _require_means()
    place, group = folder / "machine", _control_groups() / f"ctxd-test-{os.getpid()}"
    place.mkdir()
    group.mkdir()
    seen = sorted({str(REPOSITORY), sys.prefix, sys.base_prefix})
    unshare = ["unshare", "--mount", "--pid", "--fork", "--uts", "--ipc", "--cgroup", "--net", "--kill-child"]
    with (folder / "console").open("w+") as console:
        process = subprocess.Popen(
            ["sh", "-c", 'echo $$ > "$0/cgroup.procs"; exec "$@"', str(group), *unshare, "sh", "-c", _BOOT, "sh",
             str(place), *seen],
            stdin=subprocess.DEVNULL, stdout=console, stderr=console, start_new_session=True,
        )  # fmt: skip
        try:
            made = Booted(_first_process(process, folder / "console"))
            made.run("sh", "-c", _INSTALL, "sh", str(REPOSITORY), str(Path(sys.executable).parent), *seen)
            yield made
        finally:
            process.send_signal(signal.SIGKILL)
            process.wait()
            _remove(group)


def _require_means() -> None:
    if os.geteuid() != 0:
        raise CannotBoot("needs root")
    for program in (_SYSTEMD, "unshare", "nsenter", "pivot_root", "journalctl", "setpriv"):
        if shutil.which(program, path=_PATH) is None:
            raise CannotBoot(f"needs {program}: apt-get install systemd util-linux")
    if "overlay" not in Path("/proc/filesystems").read_text():
        raise CannotBoot("needs overlayfs")


def _control_groups() -> Path:
    for line in Path("/proc/mounts").read_text().splitlines():
        _, place, kind, options, *_ = line.split()
        if kind == "cgroup2" and "rw" in options.split(","):
            return Path(place)
    raise CannotBoot("needs cgroups of version 2 that may be written")


def _first_process(process: "subprocess.Popen[bytes]", console: Path) -> int:
    """The number out here of the systemd in there, once it is up. Raises: CannotBoot."""
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
    deadline = time.monotonic() + WAIT_S
    while time.monotonic() < deadline:
        if process.poll() is not None:
            raise CannotBoot(f"it ended with {process.returncode}: {console.read_text()[-500:]}")
        with suppress(OSError, LookupError):
            found = int(children.read_text().split()[0])
            if Path(f"/proc/{found}/comm").read_text() == "systemd\n":
                asked = Booted(found).inside("systemctl", "is-system-running")
                if subprocess.run(asked, capture_output=True, text=True).stdout.strip() in ("running", "degraded"):
                    return found
        time.sleep(0.05)
    raise CannotBoot(f"it is not up after {WAIT_S:.0f} s: {console.read_text()[-500:]}")


def _remove(group: Path) -> None:
    deadline = time.monotonic() + WAIT_S
    for folder, _, _ in os.walk(group, topdown=False):
        while True:
            try:
                os.rmdir(folder)
                break
            except OSError:
                # Its processes are being killed with the namespace.
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.02)
