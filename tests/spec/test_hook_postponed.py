"""Events that the daemon accepts later, such as those of a session that another host owns."""

import json
import os
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from ctxd.cli import spool_maintenance
from ctxd.hook import delivery
from ctxd.hook.daemon_connection import RETRIED, RETRY_S, now
from ctxd.hook.event_spool import LOST, EventSpool
from ctxd.hook.spool_delivery import SpoolDelivery
from tests.spec.test_hooks import HOOK
from tests.waiting import block_until

AWAY, HERE = "away", "here"


class Daemon:
    """The replies of a daemon: it refuses ``refused``, each a session or a prompt with an error code, and notes the
    prompts that it accepts. ``calls`` counts all."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.path = str(home / "stub.sock")
        self.environ = {"PATH": "/usr/bin:/bin", "HOME": str(home), "CTXD_SOCKET": self.path}
        self.refused: dict[str, str] = {}
        self.accepted: list[str] = []
        self.calls = 0
        self.reply_s = 0.0
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(self.path)
        self._listener.listen()
        self._threads = ThreadPoolExecutor(8)
        self._threads.submit(self._accept)

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._threads.shutdown()

    def _accept(self) -> None:
        while True:
            try:
                wire, _ = self._listener.accept()
            except OSError:
                return
            self._threads.submit(self._serve, wire)

    def _serve(self, wire: socket.socket) -> None:
        with wire, wire.makefile("rwb") as lines:
            for line in lines:
                self.calls += 1
                time.sleep(self.reply_s)
                event = json.loads(json.loads(line)["params"]["input"])
                code = self.refused.get(event["session_id"]) or self.refused.get(event["prompt"])
                if code is None:
                    self.accepted.append(event["prompt"])
                    reply: dict[str, Any] = {"result": {"output": f"reply to {event['prompt']}"}}
                else:
                    reply = {"error": {"code": -32007, "message": code, "data": {"code": code, "retryable": False}}}
                try:
                    lines.write(json.dumps({"jsonrpc": "2.0", **reply}, separators=(",", ":")).encode() + b"\n")
                    lines.flush()
                except OSError:
                    return

    def hook(self, session: str, prompt: str, seconds: float = 30.0) -> str:
        """Run the hook of a prompt. Returns: what it printed."""
        event = {"session_id": session, "hook_event_name": "UserPromptSubmit", "prompt": prompt, "cwd": "/"}
        environ = {**self.environ, "CTXD_HOOK_SECONDS": str(seconds)}
        done = subprocess.run(
            [HOOK, "claude"], input=json.dumps(event).encode(), capture_output=True, timeout=60, env=environ
        )
        assert (done.returncode, done.stderr) == (0, b""), done
        return done.stdout.decode()

    def fill(self, session: str, number: int) -> None:
        """Let ``number`` events of ``session`` wait, older than all others."""
        spool = self.spool()
        folder = Path(spool.path)
        spool.close()
        for each in range(number):
            (folder / f"{each + 1:020}-1-claudecode-{session}.event").write_bytes(frame(session, f"old {each}"))

    def spool(self) -> EventSpool:
        return delivery.make_spool(self.path, self.environ)

    def names(self) -> list[str]:
        spool = self.spool()
        try:
            return spool.all_names()
        finally:
            spool.close()

    def is_held(self) -> bool:
        return (Path(delivery.folder_of(self.path, self.environ)) / "held").exists()

    def age(self) -> None:
        """As if the last retry had been long enough ago."""
        long_ago = time.time() - 2 * RETRY_S
        os.utime(Path(delivery.folder_of(self.path, self.environ)) / RETRIED, (long_ago, long_ago))


def frame(session: str, prompt: str) -> bytes:
    event = json.dumps({"session_id": session, "hook_event_name": "UserPromptSubmit", "prompt": prompt})
    call = {"jsonrpc": "2.0", "id": 1, "method": "session.hook", "params": {"harness": "claude-code", "input": event}}
    return json.dumps(call).encode() + b"\n"


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[Daemon]:
    made = Daemon(tmp_path)
    yield made
    made.close()


def owned_elsewhere(daemon: Daemon) -> None:
    daemon.refused[AWAY] = "session_owned_elsewhere"


@pytest.mark.requirement("HOK-3")
def test_many_events_of_a_session_of_another_host_delay_no_other_session(daemon: Daemon) -> None:
    owned_elsewhere(daemon)
    daemon.fill(AWAY, 3_000)
    assert daemon.hook(HERE, "one") == "reply to one"
    assert daemon.calls == 2, "one call for the session of the other host, and one for the event"
    assert daemon.hook(HERE, "two") == "reply to two"
    assert (daemon.calls, daemon.accepted, daemon.is_held()) == (3, ["one", "two"], False)
    # An event of that session costs one call as well.
    assert daemon.hook(AWAY, "new") == ""
    assert (daemon.calls, len(daemon.names())) == (4, 3_001)
    assert daemon.hook(HERE, "three") == "reply to three"
    assert daemon.calls == 5


@pytest.mark.requirement("HOK-3")
def test_postponed_events_are_delivered_once_and_in_order_with_the_next_event_of_their_session(daemon: Daemon) -> None:
    owned_elsewhere(daemon)
    for prompt in ("one", "two", "three"):
        daemon.hook(AWAY, prompt)
        daemon.hook(HERE, f"beside {prompt}")
    assert daemon.accepted == ["beside one", "beside two", "beside three"]
    daemon.refused.clear()
    assert daemon.hook(AWAY, "four") == "reply to four"
    assert daemon.accepted[3:] == ["one", "two", "three", "four"]
    assert daemon.names() == []
    calls = daemon.calls
    daemon.hook(AWAY, "five")
    assert (daemon.calls, daemon.accepted[7:]) == (calls + 1, ["five"])


@pytest.mark.requirement("HOK-3")
def test_hooks_of_other_sessions_retry_postponed_events_at_intervals(daemon: Daemon) -> None:
    owned_elsewhere(daemon)
    daemon.hook(AWAY, "one")
    daemon.hook(AWAY, "two")
    calls = daemon.calls
    for prompt in ("a", "b"):
        daemon.hook(HERE, prompt)
    assert daemon.calls == calls + 2
    daemon.age()
    daemon.hook(HERE, "c")
    assert daemon.calls == calls + 4
    daemon.hook(HERE, "d")
    assert daemon.calls == calls + 5
    daemon.refused.clear()
    daemon.age()
    assert daemon.hook(HERE, "e") == "reply to e"
    assert daemon.accepted == ["a", "b", "c", "d", "e", "one", "two"]
    assert daemon.names() == []


@pytest.mark.requirement("HOK-3")
def test_a_retry_that_takes_long_is_continued_by_the_next_hook(daemon: Daemon) -> None:
    owned_elsewhere(daemon)
    daemon.fill(AWAY, 40)
    daemon.hook(HERE, "a")
    daemon.refused.clear()
    daemon.reply_s = 0.02
    daemon.age()
    began = time.monotonic()
    assert daemon.hook(HERE, "b") == "reply to b"
    assert time.monotonic() - began < 20
    assert 0 < len(daemon.names()) < 40
    block_until(lambda: (daemon.hook(HERE, "c"), not daemon.names())[1])
    # A hook whose time ends may lose a reply: the daemon knows the event by its operation id.
    old = [each for each in daemon.accepted if each.startswith("old")]
    assert list(dict.fromkeys(old)) == [f"old {each}" for each in range(40)]
    assert not daemon.is_held()


@pytest.mark.requirement("HOK-3")
def test_an_event_that_alone_is_not_accepted_holds_up_no_later_one_of_its_session(daemon: Daemon) -> None:
    daemon.refused["odd"] = "frame_too_large"
    for prompt in ("odd", "two", "three"):
        daemon.hook(HERE, prompt)
    assert daemon.accepted == ["two", "three"]
    assert len(daemon.names()) == 1
    daemon.refused.clear()
    daemon.age()
    daemon.hook(HERE, "four")
    assert daemon.accepted == ["two", "three", "four", "odd"]


@pytest.mark.requirement("HOK-3", "HOK-5")
def test_an_event_for_which_there_is_no_room_follows_the_postponed_ones(daemon: Daemon) -> None:
    owned_elsewhere(daemon)
    daemon.hook(AWAY, "one")
    daemon.hook(AWAY, "two")
    own, unkept = "9-1-claudecode-away.event", {"9-1-claudecode-away.event": frame(AWAY, "three")}
    for accepted in ([], ["one", "two", "three"]):
        spool = daemon.spool()
        reply = SpoolDelivery(spool, daemon.path, now() + 30).deliver(own, unkept)
        spool.close()
        assert daemon.accepted == accepted
        assert (b"reply to three" in reply, not unkept) == (bool(accepted), bool(accepted))
        daemon.refused.clear()


@pytest.mark.requirement("HOK-3", "HOK-4")
def test_a_call_that_began_shortly_before_the_end_of_the_time_is_no_sign_of_a_hanging_daemon(daemon: Daemon) -> None:
    daemon.fill(HERE, 200)
    daemon.reply_s = 0.01
    numbers = []
    while daemon.names():
        daemon.hook(HERE, "new", seconds=0.5)
        numbers.append(len(daemon.names()))
        assert not daemon.is_held()
    assert numbers == sorted(set(numbers), reverse=True), "each hook delivers some"
    # A hook whose time ends may lose a reply: the daemon knows the event by its operation id.
    old = [each for each in daemon.accepted if each != "new"]
    assert list(dict.fromkeys(old)) == [f"old {each}" for each in range(200)]


def endless(wire: socket.socket) -> None:
    """Reply with bytes until the hook ends."""
    with wire, suppress(OSError):
        wire.recv(1 << 16)
        while True:
            wire.sendall(bytes(1 << 16))


def nested(wire: socket.socket) -> None:
    """Refuse the event with an error that is nested too deeply."""
    with wire:
        wire.recv(1 << 16)
        wire.sendall(b'{"jsonrpc":"2.0","error":{"data":' + b"[" * 100_000 + b"]" * 100_000 + b"}}\n")


@pytest.mark.requirement("HOK-3", "HOK-4")
@pytest.mark.parametrize("reply", [endless, nested])
def test_an_event_whose_reply_never_ends_or_cannot_be_decoded_waits(
    daemon: Daemon, monkeypatch: pytest.MonkeyPatch, reply: Callable[[socket.socket], None]
) -> None:
    monkeypatch.setattr(daemon, "_serve", reply)
    began = time.monotonic()
    assert daemon.hook(HERE, "new", seconds=1.0) == ""
    assert time.monotonic() - began < 1.0 + delivery.REST_S
    assert len(daemon.names()) == 1 and not (Path(delivery.folder_of(daemon.path, daemon.environ)) / LOST).exists()


@pytest.mark.requirement("HOK-5")
def test_an_event_that_cannot_be_read_blocks_no_other(daemon: Daemon, monkeypatch: pytest.MonkeyPatch) -> None:
    daemon.fill(HERE, 3)
    real = EventSpool.read

    def read(spool: EventSpool, name: str) -> bytes:
        if "00001-" in name:
            raise PermissionError(13, "Permission denied", name)
        return real(spool, name)

    with monkeypatch.context() as unreadable:
        unreadable.setattr(EventSpool, "read", read)
        for _ in range(2):
            spool = daemon.spool()
            SpoolDelivery(spool, daemon.path, now() + 30).deliver(retries_all=True)
            spool.close()
        assert daemon.accepted == ["old 1", "old 2"]
        assert len(daemon.names()) == 1
    daemon.hook(HERE, "new")
    assert daemon.calls == 3
    daemon.age()
    daemon.hook(HERE, "newer")
    assert daemon.accepted == ["old 1", "old 2", "new", "newer", "old 0"]


@pytest.fixture
def own_environment(daemon: Daemon, monkeypatch: pytest.MonkeyPatch) -> Daemon:
    monkeypatch.setenv("HOME", str(daemon.home))
    monkeypatch.delenv("XDG_STATE_HOME", raising=False)
    owned_elsewhere(daemon)
    for prompt in ("one", "SECRET a.py", "three"):
        daemon.hook(AWAY, prompt)
    return daemon


@pytest.mark.requirement("HOK-5")
def test_postponed_events_are_counted_and_delivered_before_an_import(own_environment: Daemon) -> None:
    daemon = own_environment
    (found,) = spool_maintenance.findings(daemon.path)
    assert (found.verdict, found.found) == ("warn", "3 spooled events, 3 of them postponed by the daemon")
    assert "once this host owns their sessions" in (found.fix or "")
    daemon.fill(HERE, 2)
    (found,) = spool_maintenance.findings(daemon.path)
    assert "5 spooled events, 3 of them postponed" in found.found
    daemon.hook(HERE, "other")
    spool_maintenance.deliver_waiting(daemon.path)
    assert daemon.accepted == ["old 0", "old 1", "other"]
    daemon.refused.clear()
    spool_maintenance.deliver_waiting(daemon.path)
    assert daemon.accepted[3:] == ["one", "SECRET a.py", "three"]
    (found,) = spool_maintenance.findings(daemon.path)
    assert found.verdict == "ok"


@pytest.mark.requirement("HOK-6")
def test_a_purge_erases_postponed_events_and_goes_on_after_one_that_cannot_be_read(
    own_environment: Daemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    daemon = own_environment
    daemon.hook(HERE, "other")
    real = EventSpool.read
    first = daemon.names()[0]

    def read(spool: EventSpool, name: str) -> bytes:
        if name == first:
            raise PermissionError(13, "Permission denied", name)
        return real(spool, name)

    with monkeypatch.context() as unreadable, spool_maintenance.hold(daemon.path) as held:
        unreadable.setattr(EventSpool, "read", read)
        with pytest.raises(PermissionError):
            held.erase(["a.py"])
    daemon.refused.clear()
    daemon.hook(AWAY, "four")
    assert daemon.accepted == ["other", "one", "three", "four"]


@pytest.mark.requirement("HOK-5")
def test_postponed_events_count_for_the_limit_of_waiting_events(daemon: Daemon) -> None:
    owned_elsewhere(daemon)
    daemon.hook(AWAY, "one")
    daemon.hook(AWAY, "two")
    spool = daemon.spool()
    counted = spool._counted()
    sizes = [len(spool.read(name)) for name in spool.all_names()]
    assert (counted.number, counted.size, counted.newest > 10**18) == (2, sum(sizes), True)
    spool.close()
