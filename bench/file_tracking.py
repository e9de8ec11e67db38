"""Following files on disk: what it takes of the kernel, how soon a change is told, and what one more directory costs.

Expected order of growth: a change costs O(1), whatever is followed; watches grow with the directories that hold
followed files, not with files or sessions; taking one directory up is O(1).

``watch_sharing`` counts the kernel's watches in /proc: those for 100 sessions on one tree over those for one session,
and those over the directories that hold followed files. ``watch_latency`` is the time from a change to the notice at a
subscriber, the new version read, hashed and stored by then, over the time from the same change to the event at a
subscriber of Watchman with its default settings, which only reports; both follow the same tree and see the same
changes, and the medians count. ``watch_burst`` counts the versions that a thousand writes of one file in a second make;
the last write must be one. ``watch_add`` is the time to take up one more directory when 10,000 are followed over that
when 100 are, in this process: the medians of as many each.
"""

import contextlib
import os
import random
import selectors
import shutil
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import anyio
import msgspec

from bench.figures import Figure
from bench.running import Caller, daemon, folder, quick
from ctxd.clock import SystemClock
from ctxd.sources.confinement import Confinement
from ctxd.trackers.tracker import FILES_MAX, Followed, file_trackers

DIRECTORIES = 2_000
SESSIONS = 100
CHANGES = 200
BURST = 1_000
PIPELINED = 30
"""Calls in flight: below the daemon's bound."""
WAIT_S_MAX = 60.0
FEW, MANY, AROUND = 100, 10_000, 100


def run() -> Iterator[Figure]:
    """See the module."""
    with folder() as place:
        yield from followed(place)
    with folder() as place:
        yield anyio.run(adding, place)


def followed(place: Path) -> Iterator[Figure]:
    """The figures that a daemon gives."""
    tree = place / "tree"
    files = [tree / f"d{number:04}" / "file.txt" for number in range(DIRECTORIES)]
    for file in files:
        file.parent.mkdir(parents=True)
        file.write_text("text\n")
    path = place / "ctxd.sock"
    sessions = 20 if quick() else SESSIONS
    with daemon(path, place / "state") as process, Caller(path) as caller:
        follow(path, caller, "s0", files)
        until_followed(caller, DIRECTORIES)
        one = kernel_watches(process.pid)
        for number in range(1, sessions):
            follow(path, caller, f"s{number}", files)
        until_followed(caller, DIRECTORIES)
        all_of_them = kernel_watches(process.pid)
        shared = f"{all_of_them:,} for {sessions} sessions on {DIRECTORIES:,} directories, {one:,} for one"
        yield Figure(name="watch_sharing", value=all_of_them / one, goal=1.0, better="lower", detail=shared)
        yield Figure(
            name="watch_sharing_directories", value=all_of_them / DIRECTORIES, goal=1.0, better="lower", detail=shared
        )
        for number in range(1, sessions):
            caller.call("session.close", session=f"s{number}")
        with watchman(place, tree) as theirs:
            yield latency(path, theirs, files, 60 if quick() else CHANGES)
        yield burst(caller, files[0])


def follow(path: Path, caller: Caller, session: str, files: Sequence[Path]) -> None:
    """A session that has read all ``files``; the content is sent along, for reading is not what is measured."""
    caller.call("session.create", agent="bench", session=session)
    with contextlib.closing(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)) as connection:
        connection.connect(str(path))
        reader = connection.makefile("rb")
        for start in range(0, len(files), PIPELINED):
            some = files[start : start + PIPELINED]
            connection.sendall(
                b"".join(
                    _line("file.index", {"session": session, "path": str(file), "content": "text\n"}, number)
                    for number, file in enumerate(some)
                )
            )
            for _ in some:
                if b'"error"' in (reply := reader.readline()):
                    raise RuntimeError(reply.decode())


def _line(method: str, params: Mapping[str, object], number: int = 1) -> bytes:
    return msgspec.json.encode({"jsonrpc": "2.0", "id": number, "method": method, "params": params}) + b"\n"


def until_followed(caller: Caller, directories: int) -> None:
    """Wait until so many directories are watched."""
    deadline = time.monotonic() + WAIT_S_MAX
    while (watching := caller.call("tracker.list", limit=1)["watching"])["watches"] < directories:  # type: ignore[index,call-overload]
        if time.monotonic() > deadline:
            raise RuntimeError(f"not all are followed: {watching}")
        time.sleep(0.05)


def kernel_watches(pid: int) -> int:
    """The watches that a process holds, as the kernel counts them."""
    found = 0
    for descriptor in os.scandir(f"/proc/{pid}/fdinfo"):
        with contextlib.suppress(FileNotFoundError):
            found += Path(descriptor.path).read_text().count("inotify wd:")
    return found


@contextlib.contextmanager
def watchman(place: Path, tree: Path) -> Iterator[socket.socket]:
    """Watchman with its default settings, following ``tree``: a connection that is sent its events."""
    if shutil.which("watchman") is None:
        raise RuntimeError("there is no watchman to compare with: apt-get install watchman")
    home = place / "watchman"
    home.mkdir(mode=0o700)
    path = home / "sock"
    command = ["watchman", "--foreground", "--no-save-state", f"--sockname={path}", f"--logfile={home}/log"]
    command += [f"--statefile={home}/state", f"--pidfile={home}/pid"]
    with subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    ) as it:
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            deadline = time.monotonic() + WAIT_S_MAX
            while connection.connect_ex(str(path)) != 0:
                if time.monotonic() > deadline or it.poll() is not None:
                    raise RuntimeError(f"watchman does not answer: {(home / 'log').read_text()[-1000:]}")
                time.sleep(0.05)
            reader = connection.makefile("rb")
            for request in (
                ["watch", str(tree)],
                ["subscribe", str(tree), "bench", {"fields": ["name"], "expression": ["type", "f"]}],
            ):
                connection.sendall(msgspec.json.encode(request) + b"\n")
                answer = msgspec.json.decode(reader.readline())
                if "error" in answer:
                    raise RuntimeError(f"watchman: {answer['error']}")
            # The first event names all that is there.
            while b"is_fresh_instance" not in reader.readline():
                pass
            yield connection
        finally:
            connection.close()
            it.terminate()


class Told:
    """A connection that is sent events, a line each."""

    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection
        self._buffer = b""

    def names(self, name: bytes) -> bool:
        """Whether what there is to read now names ``name``."""
        self._buffer += self.connection.recv(1 << 20)
        *lines, self._buffer = self._buffer.split(b"\n")
        return any(name in line for line in lines)


def latency(path: Path, theirs: socket.socket, files: Sequence[Path], changes: int) -> Figure:
    """How soon each of ``changes`` is told by either."""
    ours = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    ours.connect(str(path))
    ours.sendall(_line("events.subscribe", {"session": "s0"}))
    assert b'"result"' in ours.recv(1 << 16)
    taken: dict[str, list[float]] = {"ours": [], "theirs": []}
    with contextlib.closing(ours), selectors.DefaultSelector() as selector:
        selector.register(ours, selectors.EVENT_READ, ("ours", Told(ours)))
        selector.register(theirs, selectors.EVENT_READ, ("theirs", Told(theirs)))
        for number, file in enumerate(random.Random(7).sample(list(files), changes)):
            name = f"{file.parent.name}/{file.name}".encode()
            began = time.perf_counter()
            file.write_text(f"change {number}\n")
            missing = {"ours", "theirs"}
            while missing:
                ready = selector.select(WAIT_S_MAX)
                now = time.perf_counter()
                if not ready:
                    raise RuntimeError(f"{missing} did not tell of {file}")
                for key, _ in ready:
                    who, told = key.data
                    if told.names(name) and who in missing:
                        missing.discard(who)
                        taken[who].append(now - began)
            time.sleep(0.05)
    mine, its = (statistics.median(taken[who]) for who in ("ours", "theirs"))
    worst = sorted(taken["ours"])[len(taken["ours"]) * 99 // 100]
    detail = f"medians of {changes} changes: {mine * 1e3:.1f} ms over {its * 1e3:.1f} ms; our p99 {worst * 1e3:.1f} ms"
    return Figure(name="watch_latency", value=mine / its, goal=1.0, better="lower", detail=detail)


def burst(caller: Caller, file: Path) -> Figure:
    """The versions that a thousand writes in a second make."""
    (resolved,) = [caller.call("file.resolve", session="s0", path=str(file))["object"]]
    before = versions(caller, str(resolved))
    began = time.monotonic()
    for number in range(BURST):
        file.write_text(f"write {number}\n")
        time.sleep(max(0.0, began + number / BURST - time.monotonic()))
    seconds = time.monotonic() - began
    deadline = time.monotonic() + WAIT_S_MAX
    while f"write {BURST - 1}\n" != content(caller, str(resolved)):
        if time.monotonic() > deadline:
            raise RuntimeError("the last write is not a version")
        time.sleep(0.02)
    made = versions(caller, str(resolved)) - before
    detail = f"versions of {BURST:,} writes in {seconds:.2f} s, the last one among them"
    return Figure(name="watch_burst", value=made, goal=100, better="lower", detail=detail)


def versions(caller: Caller, id: str) -> int:
    """How many versions an object has."""
    return len(caller.call("object.history", object=id, limit=1_000)["versions"])  # type: ignore[arg-type]


def content(caller: Caller, id: str) -> object:
    """The newest text of an object."""
    return caller.call("object.get", object=id)["object"]["payload"]["content"]  # type: ignore[index,call-overload]


class Unchanged:
    """Observer of trackers that finds every file there."""

    async def changed(self, keys: Sequence[str]) -> dict[str, bool | None]:
        return dict.fromkeys(keys, True)

    def is_busy(self, key: str) -> bool:
        return False

    def keeps(self, session: str) -> bool:
        return False

    def room(self, session: str) -> int:
        return FILES_MAX


async def adding(place: Path) -> Figure:
    """How long one more directory takes, early and late."""
    total = MANY + AROUND // 2
    for number in range(total):
        (place / f"d{number:05}").mkdir()
        (place / f"d{number:05}" / "file.txt").write_text("text\n")
    trackers = file_trackers(SystemClock(), Confinement(), lambda event, directory, reason: None)
    taken: list[float] = []

    async with anyio.create_task_group() as tasks:
        await tasks.start(trackers.run, Unchanged())
        for number in range(total):
            file = Followed(str(place / f"d{number:05}" / "file.txt"), 1)
            began = time.perf_counter()
            trackers.lease("s", {str(number): file})
            await trackers.wait_until_attached()
            taken.append(time.perf_counter() - began)
        assert trackers.watches == total, f"{trackers.watches} watches for {total} directories"
        tasks.cancel_scope.cancel()
    few, many = (statistics.median(taken[n - AROUND // 2 : n + AROUND // 2]) for n in (FEW, MANY))
    middle = statistics.median(taken[1_000 - AROUND // 2 : 1_000 + AROUND // 2])
    print(
        f"  at 100: {few * 1e6:.0f} us, 1,000: {middle * 1e6:.0f}, 10,000: {many * 1e6:.0f}",
        file=sys.stderr,
        flush=True,
    )
    detail = f"{many * 1e6:.0f} us for the {MANY:,}th directory over {few * 1e6:.0f} us for the {FEW}th"
    return Figure(name="watch_add", value=many / few, goal=2.0, better="lower", detail=detail)
