"""The Claude Agent SDK's sessions in the daemon: its conformance suite, unchanged, kills, two processes, odd input."""

import json
import subprocess
import sysconfig
from contextlib import AsyncExitStack, ExitStack
from pathlib import Path
from typing import Any
from uuid import uuid4

import anyio
import pytest
from claude_agent_sdk import (
    delete_session_via_store,
    fold_session_summary,
    get_session_messages_from_store,
    list_sessions_from_store,
    project_key_for_directory,
)
from claude_agent_sdk.testing import run_session_store_conformance

from ctxd_client import ConnectFailed, Forbidden, connect, connect_sync
from ctxd_client.adapters.agent_sdk import CtxdSessionStore
from tests.client.running import Running

pytestmark = pytest.mark.anyio

CTX = Path(sysconfig.get_path("scripts")).parents[1] / ".venv/bin/ctx"


def entry(text: str, role: str = "user", **more: Any) -> Any:
    """A line of a transcript."""
    at = "2026-05-01T12:00:00.000Z"
    message = {"role": role, "content": [{"type": "text", "text": text}]}
    return {"type": role, "uuid": str(uuid4()), "timestamp": at, "message": message, "cwd": "/tmp", **more}


@pytest.fixture
def key() -> Any:
    return {"project_key": "-home-me-project", "session_id": str(uuid4())}


@pytest.mark.requirement("ADP-10")
async def test_the_store_passes_the_conformance_suite(tmp_path: Path) -> None:
    with ExitStack() as daemons:
        async with AsyncExitStack() as stores:
            made: list[CtxdSessionStore] = []

            async def store() -> CtxdSessionStore:
                folder = tmp_path / str(len(made))
                folder.mkdir()
                daemon = daemons.enter_context(Running(folder))
                made.append(await stores.enter_async_context(CtxdSessionStore.connect(daemon.socket)))
                return made[-1]

            await run_session_store_conformance(store)
            assert len(made) >= 14, "no contract of an optional method was left out"


@pytest.mark.requirement("ADP-11")
async def test_acknowledged_appends_survive_a_kill_and_a_repeated_batch_is_stored_once(kept: Running, key: Any) -> None:
    batches = [[entry(f"{number}/{each}") for each in range(3)] for number in range(4)]
    async with CtxdSessionStore.connect(kept.socket) as store:
        await store.append(key, batches[0])
        await store.append(key, batches[0])
        assert await store.load(key) == batches[0]
        kept.kill()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(store.append, key, batches[1])
            await anyio.sleep(0.3)
            await anyio.to_thread.run_sync(kept.start)
        kept.kill()
    kept.start()
    async with CtxdSessionStore.connect(kept.socket) as store:
        assert await store.load(key) == [*batches[0], *batches[1]]
        await store.append(key, batches[2])
        assert await store.load(key) == [each for batch in batches[:3] for each in batch]


@pytest.mark.requirement("ADP-11")
async def test_two_processes_add_to_one_session_and_its_summary_has_both(daemon: Running, key: Any) -> None:
    async with CtxdSessionStore.connect(daemon.socket) as one, CtxdSessionStore.connect(daemon.socket) as two:
        await one.append(key, [entry("the first prompt")])
        async with anyio.create_task_group() as tasks:
            for store, name in ((one, "one"), (two, "two")):
                for number in range(10):
                    tasks.start_soon(store.append, key, [entry(f"{name} {number}", customTitle=name)])
        loaded, again = await one.load(key), await two.load(key)
        assert loaded == again
        assert loaded is not None
        assert len(loaded) == 21
        for name in ("one", "two"):
            texts = [each["message"]["content"][0]["text"] for each in loaded]  # type: ignore[typeddict-item]
            assert [text for text in texts if text.startswith(f"{name} ")] == [f"{name} {n}" for n in range(10)]
        (summary,) = [each for each in await two.list_session_summaries(key["project_key"]) if
                      each["session_id"] == key["session_id"]]  # fmt: skip
        assert summary["data"] == fold_session_summary(None, key, loaded)["data"]
        (listed,) = [each for each in await one.list_sessions(key["project_key"]) if
                     each["session_id"] == key["session_id"]]  # fmt: skip
        assert listed["mtime"] == summary["mtime"]


@pytest.mark.requirement("ADP-11")
@pytest.mark.parametrize(
    "value",
    ["", "é ☃ \U0001f600", "line\nbreaks\r\u2028\x85\0", "\ud800", 1.5e300, -(2**70), None, {"": {}}, "x" * 9_000_000],
    ids=lambda value: ascii(value)[:12],
)
async def test_every_json_value_round_trips(daemon: Running, key: Any, value: Any) -> None:
    entries: list[Any] = [entry("before"), {"type": "odd", "value": value, value if isinstance(value, str) else "k": 1}]
    async with CtxdSessionStore.connect(daemon.socket) as store:
        await store.append(key, entries)
        await store.append({**key, "subpath": "subagents/agent-é"}, entries[:1])
    async with CtxdSessionStore.connect(daemon.socket) as store:
        assert await store.load(key) == entries
        assert await store.list_subkeys(key) == ["subagents/agent-é"]


@pytest.mark.requirement("ADP-11")
async def test_invalid_keys_and_entries_are_rejected_with_the_reason(daemon: Running, key: Any) -> None:
    async with CtxdSessionStore.connect(daemon.socket) as store:
        for wrong in ({"project_key": ""}, {"session_id": "x" * 10_240}, {"session_id": "\ud800"}, {"subpath": ""}):
            with pytest.raises(ValueError, match="it must be Unicode text of 1 to 256 characters"):
                await store.append({**key, **wrong}, [entry("a")])
        for unfit in (float("nan"), {1, 2}):
            with pytest.raises((ValueError, TypeError)):
                await store.append(key, [{"type": "x", "value": unfit}])  # type: ignore[typeddict-unknown-key]
        assert await store.load(key) is None
        for name in ("a/b", "..", "-", "'; --", "é", "\n"):
            odd: Any = {"project_key": f"p{name}", "session_id": name}
            await store.append(odd, [entry(name)])
            assert [each["session_id"] for each in await store.list_sessions(f"p{name}")] == [name]


@pytest.mark.requirement("ADP-11")
async def test_without_a_daemon_and_in_a_sandbox_the_error_names_the_remedy(kept: Running, key: Any) -> None:
    with connect_sync(kept.socket) as client:
        session = client.session_create("boxed", filesystem_id="box").session.session
        box = client.sandbox_register([session], grace_s=0).sandbox
        async with CtxdSessionStore.connect(box.socket) as store:
            with pytest.raises(Forbidden, match="Use a socket of the host"):
                await store.append(key, [entry("a")])
    async with connect(kept.socket, deadline_s=0.3) as away:
        kept.kill()
        with pytest.raises(ConnectFailed, match=r"no daemon at .*ctxd\.sock"):
            await CtxdSessionStore(away).append(key, [entry("a")])


@pytest.mark.requirement("ADP-10")
async def test_the_helpers_of_the_sdk_list_read_and_delete_sessions(daemon: Running, tmp_path: Path) -> None:
    key: Any = {"project_key": project_key_for_directory(tmp_path), "session_id": str(uuid4())}
    prompt = entry("Fix the parser.", sessionId=key["session_id"])
    answer = entry("Fixed.", "assistant", parentUuid=prompt["uuid"], sessionId=key["session_id"])
    async with CtxdSessionStore.connect(daemon.socket) as store:
        await store.append(key, [prompt])
        await store.append(key, [answer])
        (found,) = await list_sessions_from_store(store, directory=str(tmp_path))
        assert (found.session_id, found.summary, found.cwd) == (key["session_id"], "Fix the parser.", "/tmp")
        messages = await get_session_messages_from_store(store, key["session_id"], directory=str(tmp_path))
        assert [each.type for each in messages] == ["user", "assistant"]
        await delete_session_via_store(store, key["session_id"], directory=str(tmp_path))
        assert await list_sessions_from_store(store, directory=str(tmp_path)) == []


@pytest.mark.requirement("ADP-12")
async def test_ctx_lists_logs_and_resumes_the_session(daemon: Running, key: Any) -> None:
    prompt = entry("Why does the parser fail?")
    boundary = {"type": "system", "subtype": "compact_boundary", "uuid": str(uuid4()), "content": "Compacted."}
    async with CtxdSessionStore.connect(daemon.socket) as store:
        await store.append(key, [prompt, entry("A tab.", "assistant", parentUuid=prompt["uuid"])])
        await store.append(key, [boundary, entry("Summary: a tab.", isCompactSummary=True)])
        await store.append({**key, "subpath": "subagents/agent-1"}, [entry("a sub-agent", isSidechain=True)])
    with connect_sync(daemon.socket) as client:
        (row,) = client.session_list(label=f"native_session={key['session_id']}").sessions
        assert (row.agent, row.labels["harness"], row.labels["project_key"]) == (
            "claude-code", "claude-code", key["project_key"]
        )  # fmt: skip
        commits = client.commit_list(session=row.session, oldest_first=True).commits
        assert [(each.checkpoint, each.thread_id) for each in commits] == [
            ("turn_boundary", ""), ("compaction", ""), ("turn_boundary", "subagents/agent-1")
        ]  # fmt: skip
        whole = client.commit_materialize(commits[1].commit, stop="root").content or ""
        assert [json.loads(line)["type"] for line in whole.splitlines()] == ["user", "assistant", "system", "user"]
        went_on = client.session(agent="claude-code", context={"commit": commits[0].commit})  # type: ignore[arg-type]
        assert "Why does the parser fail?" in went_on.assemble().text
    logged = subprocess.run(
        [CTX, "log", "-s", row.session], capture_output=True, text=True, env={"CTXD_SOCKET": daemon.socket, "PATH": ""}
    )
    assert logged.returncode == 0, logged.stderr
    assert "Why does the parser fail?" in logged.stdout


@pytest.mark.requirement("ADP-11")
async def test_a_deleted_transcript_is_gone_for_other_programs_too(kept: Running, key: Any) -> None:
    sub = {**key, "subpath": "subagents/agent-1"}
    async with CtxdSessionStore.connect(kept.socket) as one, CtxdSessionStore.connect(kept.socket) as two:
        await one.append(key, [entry("something that goes away")])
        await one.append(sub, [entry("something that goes away as well")])
        assert len(await two.load(sub) or ()) == 1
        await one.delete(sub)
        assert (await two.load(sub), await two.list_subkeys(key)) == (None, [])
        await one.delete(key)
        assert (await two.load(key), await two.list_sessions(key["project_key"])) == (None, [])
        for again in ([entry("and on")], [entry("and on again")]):
            await two.append(key, again)
            assert await one.load(key) == again
            assert [each["session_id"] for each in await one.list_sessions(key["project_key"])] == [key["session_id"]]
            await one.delete(key)
            with connect_sync(kept.socket) as client:
                assert [each.action for each in client.session_gc(0, force=True).sessions] == ["emptied"]
    kept.kill()
    held = [path for path in (kept.folder / "state").rglob("*") if path.is_file()]
    assert [path for path in held if b"that goes away" in path.read_bytes()] == []
