"""Calls of one session: in the order they arrive, at once where nothing is waited for, and none half done."""

import threading
from pathlib import Path
from typing import Any

import anyio
import msgspec
import pytest

from ctxd.epochs.component_loading import ComponentObserver
from ctxd.secrets.redaction import Capture
from ctxd.secrets.scanner import Hit, Scanner
from ctxd.sessions.export import Exports
from ctxd.sessions.live_session import Accepted, Ticket, WriteRequest
from ctxd.sessions.secret_redaction import INLINE_CHARS_MAX
from tests.unit.sessions.world import CALLER, record, say, settled, world

pytestmark = pytest.mark.anyio


def scanning_threads(monkeypatch: pytest.MonkeyPatch) -> list[threading.Thread]:
    """The threads that search texts for secrets from now on."""
    threads: list[threading.Thread] = []
    hits = Scanner.hits

    def noted(scanner: Scanner, data: bytes, **rest: Any) -> list[Hit]:
        threads.append(threading.current_thread())
        return hits(scanner, data, **rest)

    monkeypatch.setattr(Scanner, "hits", noted)
    return threads


async def test_short_messages_and_views_of_a_session_in_memory_take_no_wait(tmp_path: Path) -> None:
    async with world(tmp_path / "state") as w:
        await w.call("session.create", agent="a", session="s1")
        said = w.now("session.append", session="s1", messages=[{"role": "user", "content": "short"}])
        shown = w.now("session.get", session="s1")
        assert isinstance(said, Accepted) and isinstance(shown, Accepted)
        assert shown.pending is said.pending
        assert (await settled(shown)).session.turn_count == (await settled(said)).turn == 1


async def test_a_call_waits_while_another_holds_the_session(tmp_path: Path) -> None:
    async with world(tmp_path / "state") as w:
        await w.call("session.create", agent="a", session="s1")
        turns: list[tuple[str, int]] = []

        async def say_once() -> None:
            turns.append(("said", (await say(w, "s1", ("user", "x"))).turn))

        async def get_once() -> None:
            turns.append(("got", (await w.call("session.get", session="s1")).session.turn_count))

        async with anyio.create_task_group() as group:
            async with (await w.sessions.live("s1")).lock:
                group.start_soon(say_once)
                await anyio.wait_all_tasks_blocked()
                group.start_soon(get_once)
                await anyio.wait_all_tasks_blocked()
                assert turns == []
        assert sorted(turns) == [("got", 1), ("said", 1)]


async def test_a_long_message_is_searched_for_secrets_beside_the_loop(tmp_path: Path) -> None:
    async with world(tmp_path / "state") as w:
        await w.call("session.create", agent="a", session="s1")
        long = [{"role": "user", "content": "x" * (INLINE_CHARS_MAX + 1)}]
        with pytest.raises(AssertionError, match="suspends"):
            w.now("session.append", session="s1", messages=long)
        assert (await w.call("session.append", session="s1", messages=long)).turn == 1


@pytest.mark.requirement("BOX-5")
@pytest.mark.parametrize(
    "long",
    [
        {"args": {"command": "x" * INLINE_CHARS_MAX}},
        {"args": {str(n): 0 for n in range(INLINE_CHARS_MAX // 8)}},
        {"args_display": "x" * INLINE_CHARS_MAX},
        {"file_refs": [f"{n:08}" for n in range(INLINE_CHARS_MAX // 8)]},
    ],
    ids=["one argument", "many arguments", "args_display", "file_refs"],
)
async def test_a_long_tool_call_is_searched_for_secrets_beside_the_loop(tmp_path: Path, long: dict[str, Any]) -> None:
    async with world(tmp_path / "state") as w:
        await w.call("session.create", agent="a", session="s1")
        call = {"session": "s1", "id": "call-1", "tool": "Bash", "content": "", **long}
        with pytest.raises(AssertionError, match="suspends"):
            w.now("toolcall.record", **call)
        assert (await w.call("toolcall.record", **call)).outcome == "created"
        with pytest.raises(AssertionError, match="suspends"):
            w.now("toolcall.record", **call)
        assert (await w.call("toolcall.record", **call)).outcome == "unchanged"


@pytest.mark.requirement("BOX-5")
@pytest.mark.parametrize(
    ("method", "params"),
    [
        ("toolcall.record", {"id": "call-1", "tool": "Bash", "content": "short"}),
        (
            "toolcall.record",
            {
                "id": "call-1",
                "tool": "Bash",
                "content": "",
                "args": {"key": "AKIA" + "IMNOJVGFDXXXE4OA"},
                "chat": "call_and_result",
            },
        ),
        ("session.append", {"messages": [{"role": "user", "content": "short"}]}),
        ("session.set_system_prompt", {"content": "short"}),
        ("session.set_entry", {"key": "mode", "value": "short"}),
        ("file.index", {"path": "/only/here", "content": "short"}),
    ],
)
async def test_no_text_of_a_sandbox_is_scanned_on_the_loop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, method: str, params: dict[str, Any]
) -> None:
    sandbox = msgspec.structs.replace(CALLER, principal="sandbox:x", capability="session", session="s1")
    async with world(tmp_path / "state") as w:
        await w.call("session.create", agent="a", session="s1", filesystem_id="b" * 64)
        threads = scanning_threads(monkeypatch)
        await w.call(method, caller=sandbox, session="s1", **params)
    assert threads and threading.main_thread() not in threads


async def test_a_tool_call_without_secrets_is_searched_once_also_for_the_chat(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with world(tmp_path / "state") as w:
        await w.call("session.create", agent="a", session="s1")
        threads = scanning_threads(monkeypatch)
        call = {"id": "call-1", "tool": "Bash", "args": {"command": "ls"}, "content": "a.py"}
        await w.call("toolcall.record", session="s1", chat="call_and_result", **call)
    assert len(threads) == 1


@pytest.mark.requirement("BOX-5")
async def test_no_component_of_a_sandbox_is_scanned_on_the_loop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with world(tmp_path / "state") as w:
        await w.call("session.create", agent="a", session="s1")
        await w.call("session.set_entry", session="s1", key="mode", value="short")
        observer, live = ComponentObserver(w.store, w.sessions.guard, {}), await w.sessions.live("s1")
        threads = scanning_threads(monkeypatch)
        await observer.observe(live, WriteRequest("context.assemble", "sandbox:x"), confined=True)
    assert threads and threading.main_thread() not in threads


@pytest.mark.requirement("BOX-5")
async def test_an_export_scans_nothing_on_the_loop_as_it_may_be_of_a_sandbox(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with world(tmp_path / "state") as w:
        await w.call("session.create", agent="a", session="s1")
        await say(w, "s1", ("user", "short"))
        exports, live = Exports(w.store, w.sessions.guard), await w.sessions.live("s1")
        threads = scanning_threads(monkeypatch)
        records, cursor = await exports.page(live, None, 10)
        assert cursor is not None
        more, _ = await exports.page(live, cursor, 10)
    assert [record["record"] for record in (*records, *more)] == ["session", "system_prompt", "message"]
    assert threads and threading.main_thread() not in threads


async def test_a_long_first_system_prompt_is_searched_for_secrets_beside_the_loop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads: list[threading.Thread] = []
    text = Capture.text

    def noted(capture: Capture, given: str) -> str:
        threads.append(threading.current_thread())
        return text(capture, given)

    monkeypatch.setattr(Capture, "text", noted)
    async with world(tmp_path / "state") as w:
        await w.call("session.create", agent="a", session="s1", system_prompt="x" * (INLINE_CHARS_MAX + 1))
    assert threads and threading.main_thread() not in threads


@pytest.mark.requirement("RPC-7")
@pytest.mark.parametrize("anyio_backend", ["asyncio"])  # trio starts tasks in an order of its own
async def test_calls_of_a_session_take_effect_in_the_order_they_arrive(tmp_path: Path) -> None:
    async with world(tmp_path / "state") as w:
        await w.call("session.create", agent="a", session="s1")
        async with anyio.create_task_group() as group:
            for n in range(40):
                if n % 4:
                    op = {"op_id": f"op-{n}"} if n % 2 else {}
                    group.start_soon(lambda n=n, op=op: record(w, "s1", f"call-{n}", **op))
                else:
                    group.start_soon(lambda n=n: say(w, "s1", ("user", str(n)), op_id=f"op-{n}"))
        live = await w.sessions.live("s1")
        assert list(live.state.index) == [f"call-{n}" for n in range(40) if n % 4]
        assert live.state.calls == dict.fromkeys(range(1, 11), 3)


async def test_a_cancelled_call_leaves_the_queue_and_the_session_as_they_were(tmp_path: Path) -> None:
    async with world(tmp_path / "state") as w:
        await w.call("session.create", agent="a", session="s1")
        live = await w.sessions.live("s1")
        holding = Ticket(live.lock.queue).__enter__()
        scope = anyio.CancelScope()

        async def send() -> None:
            with scope:
                await say(w, "s1", ("user", "never"), op_id="op-1")

        async with anyio.create_task_group() as group:
            group.start_soon(send)
            await anyio.wait_all_tasks_blocked()
            scope.cancel()
        holding.leave()
        assert live.lock.free
        assert live.state.turn == 0
        assert (await say(w, "s1", ("user", "now"), op_id="op-1")).turn == 1
