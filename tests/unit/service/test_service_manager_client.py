"""The daemon's side of a service manager, in this process: what is taken for a socket of ours, what is said when."""

import os
import socket
from collections.abc import Iterator
from contextlib import closing, contextmanager
from io import StringIO
from pathlib import Path

import anyio
import anyio.lowlevel
import anyio.to_thread
import pytest

from ctxd.observe.logs import open_log
from ctxd.service import socket_activation
from ctxd.service.sd_notify import Notify
from ctxd.service.service_manager_client import ServiceManager, alone
from ctxd.service.watchdog import ping_watchdog


class TurningClock:
    """A clock whose sleeps last no time, and which counts them."""

    def __init__(self) -> None:
        self.now = 0.0

    def wall_ms(self) -> int:
        return int(self.now * 1000)

    def monotonic(self) -> float:
        return self.now

    async def sleep(self, seconds: float) -> None:
        self.now += seconds
        await anyio.lowlevel.checkpoint()


@pytest.fixture
def manager(tmp_path: Path) -> Iterator[socket.socket]:
    with closing(socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)) as bound:
        bound.bind(str(tmp_path / "notify"))
        bound.settimeout(5)
        yield bound


@contextmanager
def handing(monkeypatch: pytest.MonkeyPatch, *fds: int) -> Iterator[None]:
    """With ``fds`` standing where what is handed over stands."""
    # Beyond all that are open, so that there is no gap between them.
    first = 1 + max(map(int, os.listdir("/proc/self/fd")))
    for number, fd in enumerate(fds, first):
        os.dup2(fd, number)
    monkeypatch.setattr(socket_activation, "FIRST_FD", first)
    yield


def listener(path: Path) -> socket.socket:
    made = socket.socket(socket.AF_UNIX)
    made.bind(str(path))
    made.listen()
    return made


def test_only_listening_unix_sockets_meant_for_this_process_are_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with (
        closing(listener(tmp_path / "a")) as ours,
        closing(socket.socket(socket.AF_UNIX)) as silent,
        closing(socket.create_server(("127.0.0.1", 0))) as network,
        (tmp_path / "file").open("w") as file,
        handing(monkeypatch, ours.fileno(), silent.fileno(), network.fileno(), file.fileno()),
    ):
        environ = {"LISTEN_PID": str(os.getpid()), "LISTEN_FDS": "4", "LISTEN_FDNAMES": "one:two:three:four"}
        taken = socket_activation.take(environ)
        assert list(taken) == ["one"]
        assert socket_activation.path_of(taken["one"][0]) == str(tmp_path / "a")
        assert not os.get_inheritable(taken["one"][0].fileno())
        assert environ == {}, "no child takes it for its own"
        taken["one"][0].close()


@pytest.mark.parametrize(
    "environ",
    [
        {},
        {"LISTEN_PID": "1", "LISTEN_FDS": "1"},
        {"LISTEN_PID": "x", "LISTEN_FDS": "1"},
        {"LISTEN_PID": str(os.getpid()), "LISTEN_FDS": "-1"},
    ],
    ids=["nothing", "another's", "no number", "negative"],
)
def test_descriptors_for_another_process_are_ignored(environ: dict[str, str]) -> None:
    assert socket_activation.take(environ) == {}


@pytest.mark.anyio
async def test_a_reason_cannot_forge_another_message(manager: socket.socket, tmp_path: Path) -> None:
    notify = Notify(str(tmp_path / "notify"))
    await notify.send(STATUS="bad\nREADY=1")
    assert manager.recv(4096) == b"STATUS=bad READY=1\n"
    notify.close()


@pytest.mark.anyio
async def test_a_missing_service_manager_blocks_nothing(tmp_path: Path) -> None:
    notify = Notify(str(tmp_path / "nobody"))
    await notify.send(READY=1)
    notify.close()
    await alone().ready("ready")


@pytest.mark.anyio
async def test_an_abstract_address_is_accepted() -> None:
    with closing(socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)) as bound:
        bound.bind(f"\0ctxd-test-{os.getpid()}")
        bound.settimeout(5)
        notify = Notify.of({"NOTIFY_SOCKET": f"@ctxd-test-{os.getpid()}"})
        await notify.send(READY=1)
        assert bound.recv(4096) == b"READY=1\n"
        notify.close()


@pytest.mark.anyio
async def test_no_watchdog_message_is_sent_while_work_is_stuck(manager: socket.socket, tmp_path: Path) -> None:
    environ = {"NOTIFY_SOCKET": str(tmp_path / "notify"), "WATCHDOG_USEC": "40000"}
    service_manager, said = ServiceManager.of(environ), StringIO()
    assert environ == {}
    stuck = False

    async def works() -> None:
        if stuck:
            await anyio.sleep_forever()

    async with anyio.create_task_group() as group:
        log = open_log(format="json", stream=said)

        async def watch() -> None:
            await ping_watchdog(service_manager, TurningClock(), log, works=works, status=lambda: "ready")

        group.start_soon(watch)
        first = await anyio.to_thread.run_sync(manager.recv, 4096)
        assert first == b"WATCHDOG=1\nSTATUS=ready\n"
        assert await anyio.to_thread.run_sync(manager.recv, 4096) == b"WATCHDOG=1\n", "said once"
        stuck = True
        manager.setblocking(False)
        with anyio.fail_after(30):
            # What was said before is read meanwhile: a full queue would keep it from looking again.
            while "service.no_progress" not in said.getvalue():
                with pytest.raises(BlockingIOError):
                    while True:
                        manager.recv(4096)
                await anyio.lowlevel.checkpoint()
        with pytest.raises(BlockingIOError):
            manager.recv(4096)
        group.cancel_scope.cancel()
    service_manager.close()


def test_only_a_manager_that_is_notified_keeps_sockets(tmp_path: Path) -> None:
    with closing(ServiceManager.of({"NOTIFY_SOCKET": str(tmp_path / "notify")})) as service_manager:
        assert service_manager.present is True
    assert alone().present is False


@pytest.mark.anyio
@pytest.mark.requirement("BOX-1")
async def test_neither_of_two_kept_sockets_with_one_name_is_left_listening(
    manager: socket.socket, tmp_path: Path
) -> None:
    older, newer = listener(tmp_path / "s"), socket.socket(socket.AF_UNIX)
    (tmp_path / "s").unlink()
    newer.bind(str(tmp_path / "s"))
    newer.listen()
    notify = Notify.of({"NOTIFY_SOCKET": str(tmp_path / "notify")})
    with closing(ServiceManager(notify, {"sbx-a": [older, newer]}, None)) as service_manager:
        assert (older.fileno(), newer.fileno()) == (-1, -1)
        with closing(socket.socket(socket.AF_UNIX)) as late, pytest.raises(ConnectionRefusedError):
            late.connect(str(tmp_path / "s"))
        assert service_manager.unclaimed() == ["sbx-a"]
        assert service_manager.kept("sbx-a", str(tmp_path / "s")) is None
        made = listener(tmp_path / "new")
        await service_manager.keep("sbx-a", made)
        assert [manager.recv(4096) for _ in range(2)] == [
            b"FDSTOREREMOVE=1\nFDNAME=sbx-a\n",
            b"FDSTORE=1\nFDNAME=sbx-a\nFDPOLL=0\n",
        ]
        assert service_manager.unclaimed() == []
        made.close()
