"""LangGraph's threads in the daemon: kills, several writers, depth, odd ids, large states, and what `ctx` shows."""

import random
import subprocess
import sysconfig
import threading
from pathlib import Path
from typing import Any

import pytest
from langchain_core.messages import AIMessage, HumanMessage
from langgraph.checkpoint.base import empty_checkpoint
from langgraph.checkpoint.serde.encrypted import EncryptedSerializer
from langgraph.graph import END, START, MessagesState, StateGraph

from ctxd_client import ConnectFailed, Forbidden, connect_sync
from ctxd_client.adapters import commit_log
from ctxd_client.adapters.langgraph import AsyncCtxdSaver, CtxdSaver
from ctxd_protocol.methods.commits import StartContext
from tests.client.running import Running

CTX = Path(sysconfig.get_path("scripts")).parents[1] / ".venv/bin/ctx"


def config(thread: str, id: str | None = None, namespace: str = "") -> Any:
    found = {"thread_id": thread, "checkpoint_ns": namespace}
    return {"configurable": found if id is None else {**found, "checkpoint_id": id}}


def put(saver: CtxdSaver, at: Any, number: int = 0, /, **values: Any) -> Any:
    """A checkpoint after that of ``at``, with ``values``."""
    checkpoint = empty_checkpoint()
    checkpoint["channel_values"] = values
    checkpoint["channel_versions"] = dict.fromkeys(values, number + 1)
    return saver.put(at, checkpoint, {"source": "loop", "step": number}, {})


def chain(saver: CtxdSaver, thread: str, count: int) -> list[Any]:
    """The configs of checkpoints of a list that grows."""
    made, messages = [config(thread)], list[str]()
    for number in range(count):
        messages.append(f"message {number} " + "x" * 500)
        made.append(put(saver, made[-1], number, messages=messages, step=number))
    return made[1:]


def values_of(saver: CtxdSaver, at: Any) -> Any:
    found = saver.get_tuple(at)
    return None if found is None else found.checkpoint["channel_values"]


@pytest.mark.requirement("ADP-2")
def test_deep_thread_checkpoints_are_restored_exactly_and_storage_grows_linearly(tmp_path: Path) -> None:
    count = 1_000
    with Running(tmp_path, keep_state=True) as daemon, CtxdSaver.connect(daemon.socket) as saver:
        made = chain(saver, "deep", count)
    size = sum(path.stat().st_size for path in (tmp_path / "state").rglob("*") if path.is_file())
    # The text of all is 0.5 MB; each state whole would be 250 MB.
    assert size < 8_000_000
    with Running(tmp_path, keep_state=True) as daemon, CtxdSaver.connect(daemon.socket) as saver:
        for number in (0, 1, count // 2, count - 1):
            found = values_of(saver, made[number])
            assert (len(found["messages"]), found["step"]) == (number + 1, number)
        listed = [each.checkpoint["channel_values"] for each in saver.list(config("deep"))]
        assert [(each["step"], len(each["messages"])) for each in listed] == [(n, n + 1) for n in range(count)][::-1]
        assert {text for each in listed for text in each["messages"]} == {
            f"message {n} " + "x" * 500 for n in range(count)
        }


@pytest.mark.requirement("ADP-2")
def test_randomly_changing_states_round_trip(daemon: Running) -> None:
    chance = random.Random(7)
    put_states: dict[str, Any] = {}
    with CtxdSaver.connect(daemon.socket) as saver:
        at = [config("random")]
        state: dict[str, Any] = {}
        for number in range(120):
            name = chance.choice("abcd")
            match chance.randrange(5):
                case 0:
                    state.pop(name, None)
                case 1:
                    state[name] = chance.choice([None, b"\xff", "", [], {}, 7, True, "é" * 50])
                case 2:
                    state[name] = [*(state[name] if isinstance(state.get(name), list) else ()), chance.random()]
                case 3 if isinstance(state.get(name), list) and state[name]:
                    kept_some = [*state[name]]
                    kept_some[chance.randrange(len(kept_some))] = "changed"
                    state[name] = kept_some
                case _:
                    state[name] = {str(n): "v" * n for n in range(chance.randrange(30))}
            at.append(put(saver, chance.choice(at[-3:]), number, **state))
            put_states[at[-1]["configurable"]["checkpoint_id"]] = dict(state)
    for fresh in (False, True):
        with CtxdSaver.connect(daemon.socket) as saver:
            if fresh:
                for id in chance.sample(sorted(put_states), 40):
                    assert values_of(saver, config("random", id)) == put_states[id]
            found = {each.checkpoint["id"]: each.checkpoint["channel_values"] for each in saver.list(config("random"))}
            assert found == put_states


@pytest.mark.requirement("ADP-3")
def test_acknowledged_checkpoints_survive_a_kill(kept: Running) -> None:
    with CtxdSaver.connect(kept.socket) as saver:
        first = put(saver, config("t"), 0, n=1)
        kept.kill()
        started = threading.Timer(0.3, kept.start)
        started.start()
        saver.put_writes(first, [("n", 2), ("other", [3])], "task-1")
        started.join()
        second = put(saver, first, 1, n=2)
        saver.put_writes(second, [("n", 3)], "task-2")
        kept.kill()
    kept.start()
    with CtxdSaver.connect(kept.socket) as saver:
        newest = saver.get_tuple(config("t"))
        assert newest is not None
        assert (newest.config, newest.checkpoint["channel_values"]) == (second, {"n": 2})
        assert newest.pending_writes == [("task-2", "n", 3)]
        assert newest.parent_config == first
        before = saver.get_tuple(first)
        assert before is not None
        assert before.pending_writes == [("task-1", "n", 2), ("task-1", "other", [3])]


@pytest.mark.requirement("ADP-3")
def test_without_a_daemon_the_error_names_the_socket_and_nothing_is_lost(kept: Running) -> None:
    with connect_sync(kept.socket, deadline_s=0.5) as client:
        saver = CtxdSaver(client)
        first = put(saver, config("t"), 0, n=1)
        kept.kill()
        with pytest.raises(ConnectFailed, match=r"no daemon at .*ctxd\.sock"):
            put(saver, first, 1, n=2)
        with pytest.raises(ConnectFailed):
            saver.get_tuple(config("t"))
        kept.start()
        again = put(saver, first, 1, n=2)
        assert values_of(saver, config("t")) == {"n": 2}
        assert [each.config for each in saver.list(config("t"))] == [again, first]


@pytest.mark.requirement("ADP-4")
def test_two_writers_of_one_thread_lose_nothing_and_see_each_other(daemon: Running) -> None:
    failures: list[BaseException] = []

    def work(name: str) -> None:
        try:
            with CtxdSaver.connect(daemon.socket) as saver:
                at = start
                for number in range(30):
                    at = put(saver, at, number, **{name: list(range(number + 1)), "who": name})
                    saver.put_writes(at, [("who", number)], f"task-{name}")
        except BaseException as error:
            failures.append(error)
            raise

    with CtxdSaver.connect(daemon.socket) as saver:
        start = put(saver, config("shared"), 0, who="nobody")
        seen_before = saver.get_tuple(config("shared"))
        workers = [threading.Thread(target=work, args=(name,)) for name in ("one", "two")]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        assert failures == []
        assert seen_before is not None
        found = [*saver.list(config("shared"))]
    assert len(found) == 61
    for name in ("one", "two"):
        own = [each for each in found if each.checkpoint["channel_values"]["who"] == name]
        assert [each.checkpoint["channel_values"][name] for each in own] == [list(range(n + 1)) for n in range(30)][
            ::-1
        ]
        assert {tuple(each.pending_writes or ()) for each in own} == {((f"task-{name}", "who", n),) for n in range(30)}


@pytest.mark.requirement("ADP-4")
def test_a_writer_continues_while_another_deletes_or_prunes_the_thread(daemon: Running) -> None:
    with CtxdSaver.connect(daemon.socket) as one, CtxdSaver.connect(daemon.socket) as two:
        made = chain(one, "gone", 5)
        assert values_of(two, config("gone"))["step"] == 4
        two.prune(["gone"])
        kept_one = values_of(one, config("gone"))
        assert (kept_one["step"], len(kept_one["messages"])) == (4, 5)
        assert values_of(one, made[2]) is None
        on = put(one, made[-1], 5, messages=[*kept_one["messages"], "on"], step=5)
        assert values_of(two, on) == {"messages": [*kept_one["messages"], "on"], "step": 5}
        two.delete_thread("gone")
        assert values_of(one, config("gone")) is None
        again = put(one, on, 6, messages=[*kept_one["messages"], "on", "and on"], step=6)
        for saver in (one, two):
            assert values_of(saver, again)["messages"][-1] == "and on"
            assert [each.config for each in saver.list(config("gone"))] == [again]


@pytest.mark.requirement("ADP-5")
def test_a_deleted_thread_leaves_nothing_of_its_values(kept: Running) -> None:
    with CtxdSaver.connect(kept.socket) as saver:
        at = put(saver, config("secretive"), 0, text="something that goes away")
        saver.put_writes(at, [("text", "something that goes away")], "task")
        put(saver, config("other"), 0, text="this stays")
        saver.delete_thread("secretive")
        assert [*saver.list(config("secretive"))] == []
        assert [each.config["configurable"]["thread_id"] for each in saver.list(None)] == ["other"]
    kept.kill()
    held = [path for path in (kept.folder / "state").rglob("*") if path.is_file()]
    assert [path for path in held if b"that goes away" in path.read_bytes()] == []


@pytest.mark.requirement("ADP-6")
@pytest.mark.parametrize(
    "name", ["", "a/b/../c", "é ☃ \U0001f600", "x" * 10_240, "'; DROP TABLE", "\n\t\0", "-"], ids=ascii
)
def test_threads_and_namespaces_have_any_name(daemon: Running, name: str) -> None:
    with CtxdSaver.connect(daemon.socket) as saver:
        at = put(saver, config(f"n{name}", namespace=name), 0, v=[name.encode("utf-8", "replace")])
        second = put(saver, at, 1, v=[1, 2])
        saver.put_writes(second, [("v", 3)], "task")
    with CtxdSaver.connect(daemon.socket) as saver:
        assert [each.config for each in saver.list(config(f"n{name}", namespace=name))] == [second, at]
        newest = saver.get_tuple(config(f"n{name}", namespace=name))
        assert newest is not None
        assert newest.pending_writes == [("task", "v", 3)]
        assert saver.get_tuple(config(f"n{name}x", namespace=name)) is None
        saver.delete_thread(f"n{name}")
        assert saver.get_tuple(config(f"n{name}", namespace=name)) is None


@pytest.mark.requirement("ADP-6")
def test_invalid_checkpoints_and_configs_are_rejected_with_the_reason(daemon: Running) -> None:
    with CtxdSaver.connect(daemon.socket) as saver:
        for id in ("", "x" * 10_240, 7):
            with pytest.raises(ValueError, match="it must be text of 1 to 256 characters"):
                saver.put(config("t"), {**empty_checkpoint(), "id": id}, {}, {})  # type: ignore[typeddict-item]
        for wrong in (config("\ud800"), config("t", namespace="\ud800")):
            with pytest.raises(ValueError, match="is not Unicode text"):
                put(saver, wrong, 0, v=1)
        with pytest.raises(ValueError, match="names no thread"):
            saver.get_tuple({"configurable": {}})
        with pytest.raises(ValueError, match="it must be 'keep_latest' or 'delete'"):
            saver.prune(["t"], strategy="keep_all")
        with pytest.raises(TypeError):
            put(saver, config("t"), 0, v=threading.Lock())
        assert [*saver.list(config("t"))] == []


@pytest.mark.requirement("ADP-6")
def test_a_state_of_50_mb_is_kept_whole_and_its_change_is_small(kept: Running) -> None:
    large = random.Random(1).randbytes(50_000_000)
    with CtxdSaver.connect(kept.socket) as saver:
        first = put(saver, config("large"), 0, blob=large, n=1)
        second = put(saver, first, 1, blob=large + b"!", n=2)
    size = sum(path.stat().st_size for path in (kept.folder / "state").rglob("*") if path.is_file())
    assert size < 70_000_000
    with CtxdSaver.connect(kept.socket) as saver:
        assert values_of(saver, second) == {"blob": large + b"!", "n": 2}
        assert values_of(saver, first) == {"blob": large, "n": 1}


@pytest.mark.requirement("ADP-7")
def test_a_sandbox_keeps_threads_in_the_session_that_it_was_given(daemon: Running) -> None:
    with connect_sync(daemon.socket) as client:
        session = client.session_create("boxed", filesystem_id="box").session.session
        box = client.sandbox_register([session], grace_s=0).sandbox
        try:
            with CtxdSaver.connect(box.socket, session=session) as saver:
                made = chain(saver, "in a box", 20)
                saver.put_writes(made[-1], [("n", 1)], "task")
                put(saver, config("another"), 0, n=1)
            with CtxdSaver.connect(box.socket, session=session) as saver:
                assert len([*saver.list(config("in a box"))]) == 20
                assert len([*saver.list(None)]) == 21
                assert values_of(saver, config("in a box"))["step"] == 19
                with pytest.raises(Forbidden):
                    saver.delete_thread("in a box")
                assert values_of(saver, config("in a box"))["step"] == 19
        finally:
            client.sandbox_release(box.sandbox)


@pytest.mark.requirement("ADP-8")
def test_ctx_lists_threads_and_logs_their_checkpoints(daemon: Running) -> None:
    with CtxdSaver.connect(daemon.socket) as saver:
        made = chain(saver, "support-42", 3)
        saver.put_writes(made[-1], [("n", 1)], "task")
    with connect_sync(daemon.socket) as client:
        (row,) = client.session_list(label="thread=support-42").sessions
        assert (row.agent, row.state) == ("langgraph", "paused")
        assert client.context_current().session != row.session, "a thread is no command's default"
    shown = subprocess.run(
        [CTX, "log", "-s", row.session], capture_output=True, text=True, env={"CTXD_SOCKET": daemon.socket, "PATH": ""}
    )
    assert shown.returncode == 0, shown.stderr
    assert [text for text in ("loop step 0", "loop step 2", "writes to n") if text not in shown.stdout] == []


@pytest.mark.requirement("ADP-1")
def test_encrypted_values_are_kept_as_they_are(daemon: Running) -> None:
    serde = EncryptedSerializer(_Reversed())
    with CtxdSaver.connect(daemon.socket, serde=serde) as saver:
        made = chain(saver, "encrypted", 3)
    with CtxdSaver.connect(daemon.socket, serde=serde) as saver:
        assert values_of(saver, made[1])["step"] == 1


class _Reversed:
    def encrypt(self, plaintext: bytes) -> tuple[str, bytes]:
        return "reversed", plaintext[::-1]

    def decrypt(self, ciphername: str, ciphertext: bytes) -> bytes:
        assert ciphername == "reversed"
        return ciphertext[::-1]


@pytest.mark.requirement("ADP-1")
def test_a_graph_is_interrupted_resumed_and_forked(daemon: Running) -> None:
    def reply(state: MessagesState) -> Any:
        return {"messages": [AIMessage(f"reply to {state['messages'][-1].content}")]}

    builder = StateGraph(MessagesState)
    builder.add_node("reply", reply)
    builder.add_edge(START, "reply")
    builder.add_edge("reply", END)
    run = {"configurable": {"thread_id": "graph"}}
    with CtxdSaver.connect(daemon.socket) as saver:
        graph = builder.compile(checkpointer=saver, interrupt_before=["reply"])
        graph.invoke({"messages": [HumanMessage("one")]}, run)
        assert graph.get_state(run).next == ("reply",)
    with CtxdSaver.connect(daemon.socket) as saver:
        graph = builder.compile(checkpointer=saver)
        graph.invoke(None, run)
        graph.invoke({"messages": [HumanMessage("two")]}, run)
        assert [m.content for m in graph.get_state(run).values["messages"]] == [
            "one", "reply to one", "two", "reply to two"
        ]  # fmt: skip
        past = [each for each in graph.get_state_history(run) if len(each.values["messages"]) == 2][0]
        fork = graph.update_state(past.config, {"messages": [HumanMessage("other")]})
        assert graph.get_state(fork).values["messages"][-1].content == "other"
        assert len(graph.get_state(run).values["messages"]) == 3


@pytest.mark.anyio
@pytest.mark.requirement("ADP-1")
async def test_an_asynchronous_graph_runs_many_threads_at_once(daemon: Running) -> None:
    import asyncio

    async def reply(state: MessagesState) -> Any:
        return {"messages": [AIMessage(f"reply to {state['messages'][-1].content}")]}

    builder = StateGraph(MessagesState)
    builder.add_node("reply", reply)
    builder.add_edge(START, "reply")
    builder.add_edge("reply", END)
    async with AsyncCtxdSaver.connect(daemon.socket) as saver:
        graph = builder.compile(checkpointer=saver)

        async def talk(number: int) -> int:
            run = {"configurable": {"thread_id": f"many-{number}"}}
            for turn in range(3):
                await graph.ainvoke({"messages": [HumanMessage(f"{number}/{turn}")]}, run)
            return len((await graph.aget_state(run)).values["messages"])

        assert await asyncio.gather(*map(talk, range(20))) == [6] * 20


@pytest.mark.requirement("ADP-2")
def test_a_history_of_many_pages_is_read_again_after_a_removal(
    daemon: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(commit_log, "PAGE_ITEMS_MAX", 7)
    with CtxdSaver.connect(daemon.socket) as one, CtxdSaver.connect(daemon.socket) as two:
        made = chain(one, "pages", 40)
        assert len([*two.list(config("pages"))]) == 40
        one.prune(["pages"])
        assert [each.config for each in two.list(config("pages"))] == made[-1:]
        put(two, made[-1], 40, messages=[], step=40)
        assert len([*one.list(config("pages"))]) == 2
    with CtxdSaver.connect(daemon.socket) as fresh:
        assert len([*fresh.list(config("pages"))]) == 2


@pytest.mark.requirement("ADP-5")
def test_a_thread_with_an_emptied_session_starts_over(kept: Running) -> None:
    with CtxdSaver.connect(kept.socket) as saver, CtxdSaver.connect(kept.socket) as other:
        for number in range(3):
            made = put(saver, config("again"), number, n=number)
            assert values_of(other, config("again")) == {"n": number}
            saver.put_writes(made, [("n", 7)], "task")
            assert [each.config for each in other.list(None)] == [made]
            saver.delete_thread("again")
            with connect_sync(kept.socket) as client:
                assert [each.action for each in client.session_gc(0, force=True).sessions] == ["emptied"]
            assert values_of(saver, config("again")) is None
    with CtxdSaver.connect(kept.socket) as fresh:
        assert fresh.get_tuple(config("again")) is None
        made = put(fresh, config("again"), 4, n=4)
        assert [each.config for each in fresh.list(config("again"))] == [made]


@pytest.mark.requirement("ADP-4")
def test_threads_of_one_process_share_a_saver(daemon: Running) -> None:
    failures: list[BaseException] = []

    def work(number: int) -> None:
        try:
            at = config(f"shared-saver-{number % 3}")
            for step in range(15):
                at = put(saver, at, step, n=step, who=number)
                saver.put_writes(at, [("n", step)], f"task-{number}")
                assert values_of(saver, at) == {"n": step, "who": number}
        except BaseException as error:
            failures.append(error)
            raise

    with CtxdSaver.connect(daemon.socket) as saver:
        workers = [threading.Thread(target=work, args=(number,)) for number in range(9)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        assert failures == []
        for number in range(3):
            found = [*saver.list(config(f"shared-saver-{number}"))]
            assert (len(found), {len(each.pending_writes or ()) for each in found}) == (45, {1})


@pytest.mark.requirement("ADP-8")
def test_ctx_resume_passes_checkpoints_of_a_graph_over(kept: Running) -> None:
    with connect_sync(kept.socket) as client, CtxdSaver.connect(kept.socket) as saver:
        session = client.session(agent="demo")
        session.user("Fix the parser.")
        put(saver, config("graph"), 0, n=1)
        went_on = client.session(context=StartContext(principal=""))
        assert "Fix the parser." in went_on.assemble().text
