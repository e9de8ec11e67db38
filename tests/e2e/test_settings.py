"""Every setting has its effect: a daemon is started with a file that sets them all, and each is looked for."""

import grp
import json
import os
import signal
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anyio
import msgspec
import pytest

from ctxd.config import SETTINGS
from tests.crash.daemon import DaemonProcess
from tests.crash.wire import Gone, Refused, Wire
from tests.waiting import until

WAIT_S_MAX = 30.0
SILENT_CALLS = 200
"""Calls whose answers nobody reads: several MiB, more than kernel and daemon hold for a reader."""

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(120)]


class Configured(DaemonProcess):
    """A daemon that is told everything by a file."""

    def __init__(self, folder: Path, settings: dict[str, str | int | float]) -> None:
        super().__init__(folder)
        self._file = folder / "ctxd.toml"
        # JSON's texts and numbers are TOML's too, and a dotted key stands for its section.
        self._file.write_text("".join(f"{key} = {json.dumps(value)}\n" for key, value in settings.items()))
        self.socket, self.state_dir = Path(str(settings["socket"])), Path(str(settings["state_dir"]))

    def launch(self, *arguments: str, failpoints: str = "") -> None:
        command = [sys.executable, "-m", "ctxd", "run", "--config", str(self._file), *arguments]
        env = {name: value for name, value in os.environ.items() if not name.startswith("CTXD_")}
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                command, env=env | {"CTXD_FAILPOINTS": failpoints}, stdin=subprocess.DEVNULL, stderr=log, stdout=log
            )


def some_group() -> grp.struct_group:
    """A group that this user may give a file to, another than its first if there is one."""
    mine = [row for row in grp.getgrall() if os.geteuid() == 0 or row.gr_gid in (os.getgid(), *os.getgroups())]
    if not mine:
        pytest.skip("this user is in no group that has a name")
    return max(mine, key=lambda row: row.gr_gid != os.getgid())


@pytest.fixture
def group() -> grp.struct_group:
    return some_group()


@pytest.fixture
def daemon(tmp_path: Path, group: grp.struct_group) -> Iterator[Configured]:
    """None of these values is a default, but that other hosts are none of its business: ``tests/xtdb/test_hosts.py``
    is about those."""
    rules = tmp_path / "rules.toml"
    rules.write_text('[[rule]]\nname = "badge"\npattern = "badge-[0-9]{6}"\n')
    models = tmp_path / "models.toml"
    models.write_text("[models.gpt-5]\ninput = 1\n")
    settings: dict[str, str | int | float] = {
        "socket": str(tmp_path / "run" / "c.sock"),
        "socket_group": group.gr_name,
        "socket_group_as_root": True,
        "state_dir": str(tmp_path / "kept"),
        "cache_dir": str(tmp_path / "made again"),
        "log.level": "warning",
        "log.format": "console",
        "limits.request_deadline_s": 3.0,
        "limits.drain_s": 0.1,
        "limits.frame_s": 0.25,
        "limits.stall_s": 0.2,
        "limits.connections_max": 2,
        "limits.frame_bytes": 70_000,
        "limits.in_flight": 3,
        "collapse.per_turn": 2,
        "collapse.turns": 7,
        "tracking.watcher": "polling",
        "metrics.socket": str(tmp_path / "metrics" / "m.sock"),
        "models.file": str(models),
        "window.aim": "recall",
        "secrets.policy": "redact",
        "artifacts.bytes_max": 1_000_000,
        "secrets.rules": str(rules),
        "store.backend": "xtdb",
        "store.url": f"unix:{tmp_path / 'nobody.sock'}",
        "store.shared": False,
        "store.host": "north",
        "store.lease_s": 7.0,
        "store.backlog_rows": 100,
        "store.backlog_bytes": 2**20,
    }
    assert settings.keys() == {setting.key for setting in SETTINGS}, "a setting that nobody looks for here"
    made = Configured(tmp_path, settings)
    try:
        yield made
    finally:
        if made._process is not None and made.exit_code is None:
            made._process.kill()
            made._process.wait()


async def refusal(wire: Wire) -> Any:
    return msgspec.json.decode(await wire.line())["error"]


async def until_logged(daemon: Configured, text: str) -> None:
    await until(lambda: text in daemon.said())


async def test_places_rights_and_logs_are_as_configured(
    daemon: Configured, group: grp.struct_group, tmp_path: Path
) -> None:
    await daemon.start()
    found = daemon.socket.stat()
    assert (stat.S_IMODE(found.st_mode), found.st_gid) == (0o660, group.gr_gid)
    assert any(daemon.state_dir.iterdir())
    await until(lambda: list((tmp_path / "made again").glob("*/search.db")))
    async with await Wire.open(daemon.socket) as silent:
        # The document is made for the first caller; meanwhile calls would be refused, with short answers.
        await silent.call("rpc.discover")
        await silent.send(b'{"jsonrpc":"2.0","id":1,"method":"rpc.discover"}\n' * SILENT_CALLS)
        await until_logged(daemon, "rpc.slow_reader")
    (record,) = [line for line in daemon.said().splitlines() if "rpc.slow_reader" in line]
    assert "seconds=0.2" in record, "console records are no JSON"
    assert "daemon.ready" not in daemon.said(), "info is below the level"


async def test_the_bounds_of_a_connection_are_as_configured(daemon: Configured) -> None:
    await daemon.start()
    async with await Wire.open(daemon.socket) as first, await Wire.open(daemon.socket) as second:
        limits = (await first.call("hello"))["limits"]
        assert (limits["frame_bytes"], limits["in_flight"]) == (70_000, 3)
        async with await Wire.open(daemon.socket) as third:
            refused = await refusal(third)
            assert (refused["data"]["code"], refused["message"]) == ("rate_limited", "2 connections open already")
        await second.send(b"{")
        refused = await refusal(second)
        assert refused["data"]["code"] == "timeout"
        assert "0.25 s" in refused["message"]
        await first.send(b"x" * 70_001)
        assert (await refusal(first))["data"]["code"] == "frame_too_large"


async def test_a_session_that_asks_for_no_collapse_window_gets_the_configured_one(daemon: Configured) -> None:
    await daemon.start()
    async with await Wire.open(daemon.socket) as wire:
        made = await wire.call("session.create", agent="a", session="s")
        assert made["session"]["collapse"] == {"per_turn": 2, "turns": 7}
        recorded = [
            await wire.call("toolcall.record", session="s", id=f"call-{number:04}", tool="t", content="x")
            for number in range(3)
        ]
        assert [each["collapsed"] for each in recorded] == [[], [], ["call-0000"]]
        own = {"per_turn": 4, "turns": 1}
        assert (await wire.call("session.create", agent="a", collapse=own))["session"]["collapse"] == own
        await daemon.kill()
    await daemon.start()
    async with await Wire.open(daemon.socket) as wire:
        assert (await wire.call("session.get", session="s"))["session"]["collapse"] == {"per_turn": 2, "turns": 7}


async def test_files_are_followed_as_configured(daemon: Configured) -> None:
    await daemon.start()
    async with await Wire.open(daemon.socket) as wire:
        assert (await wire.call("tracker.list"))["watching"]["watcher"] == "polling"


async def test_secrets_are_looked_for_as_configured(daemon: Configured) -> None:
    await daemon.start()
    async with await Wire.open(daemon.socket) as wire:
        await wire.call("session.create", agent="a", session="s")
        await wire.call("toolcall.record", session="s", id="call", tool="t", content="here is badge-123456")
        kept = await wire.call("object.get", object="call", content=True)
    assert "[REDACTED:badge:" in str(kept) and "123456" not in str(kept)


async def test_the_node_backlog_is_bounded_as_configured(daemon: Configured) -> None:
    await daemon.start()
    async with await Wire.open(daemon.socket) as wire:
        made = await wire.call("session.create", agent="a", session="s")
        projection = (await wire.call("daemon.status"))["store"]["projection"]
        assert projection["url"] == f"unix:{daemon.state_dir.parent / 'nobody.sock'}"
        assert projection["backlog_share"] == made["receipt"]["seq"] / 100
        for number in range(5):
            await wire.call("toolcall.record", session="s", id=f"c{number}", tool="t", content="x" * 60_000)
        share = (await wire.call("daemon.status"))["store"]["projection"]["backlog_share"]
        assert 5 * 60_000 / 2**20 <= share < 0.8, "bytes count too"


async def test_calls_get_the_configured_time_and_less_when_the_daemon_stops(daemon: Configured, tmp_path: Path) -> None:
    held = tmp_path / "held"
    await daemon.start(failpoints=f"journal.precommit=hold:{held}")
    held.touch()
    async with await Wire.open(daemon.socket) as wire:
        with pytest.raises(Refused, match=r"timeout: no response within 3 s"):
            await wire.call("session.create", agent="a", session="one")
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(_ended_by_a_stop, wire)
            await until_in_flight(daemon)
            daemon.send(signal.SIGTERM)
    held.unlink()


async def until_in_flight(daemon: Configured) -> None:
    """Wait for an unanswered call of another connection."""
    async with await Wire.open(daemon.socket) as wire:
        with anyio.fail_after(WAIT_S_MAX):
            while (await wire.call("daemon.status"))["in_flight"] == 0:
                await anyio.sleep(0.01)


async def _ended_by_a_stop(wire: Wire) -> None:
    # Were it given longer, the call would be answered with timeout.
    with pytest.raises(Gone):
        await wire.call("session.create", agent="a", session="two")
