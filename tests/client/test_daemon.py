"""The client against the daemon as it is, on three loops: one session's life, exactly once over kill -9, notices."""

from collections.abc import Iterator

import anyio
import pytest
from anyio.lowlevel import checkpoint

from ctxd_client import Client, Conflict, InvalidState, NotFound, connect, connect_sync
from ctxd_protocol.context_types import AssembledContext
from ctxd_protocol.methods import METHODS
from ctxd_protocol.session_types import Message
from tests.client.running import Running

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(120)]


@pytest.fixture(scope="module")
def running(tmp_path_factory) -> Iterator[Running]:
    with Running(tmp_path_factory.mktemp("daemon")) as daemon:
        yield daemon


@pytest.fixture
def tree(tmp_path):
    (tmp_path / "a.py").write_text("print(1)\n")
    (tmp_path / "b.py").write_text("print(2)\n")
    return tmp_path.resolve()


async def test_the_daemon_has_a_method_for_each_that_the_client_has(running):
    async with connect(running.socket) as client:
        document = await client.rpc_discover()
    assert {method["name"] for method in document["methods"]} == set(METHODS)


@pytest.mark.requirement("CLT-1")
async def test_a_session_lives_from_its_first_message_to_its_end(running, tree):
    async with connect(running.socket) as client:
        s = await client.session(
            agent="demo", system_prompt="Be brief.", workdir="/w", mounts={"/w": str(tree)}, labels={"k": "v"}
        )
        assert (await s.user("fix it")).turn == 1
        ran = await s.tool("bash", {"command": "ls"}, output="a.py\nb.py\n", command="ls", cwd="/w", id=f"{s.id}/1")
        await s.append([Message(role="toolcall", toolcall=ran.record.object)])
        assert [found.path for found in ran.observed.objects] == ["/w/a.py", "/w/b.py"]
        read = await s.read("/w/a.py")
        assert (await s.resolve("/w/a.py")).object == read.object
        await s.assistant("Fixed.", meta={"model": "m"})
        first = await s.assemble()
        assert "print(1)" in first.text
        assert "print(2)" not in first.text

        (tree / "a.py").write_text("print(3)\n")
        assert (await s.edited("/w/a.py")).outcome == "updated"
        assert (await s.pin(read.object)).pinned
        await s.user("and now?")
        second = await s.assemble()
        assert isinstance(second, AssembledContext)
        assert "print(3)" in second.text
        assert (await s.show(turn=1)).text == first.text, "an earlier turn is rendered again byte for byte"
        assert [each.number for each in (await s.assemblies()).assemblies] == [first.number, second.number]
        assert (await s.plan(budget_tokens=1)).plan.over_by > 0
        assert (await s.current()).assembly == second.number

        history = (await client.object_history(read.object)).versions
        assert len(history) == 3  # the stub of the listing, what was read, what was edited
        old = await client.object_get(read.object, valid_time=history[1].valid_time)
        assert old.object.payload["content"] == "print(1)\n"
        assert s.id in (await client.object_sessions(read.object)).sessions
        assert read.object in [each.object for each in (await client.object_list(session=s.id)).objects]
        assert s.id in [each.session for each in (await client.session_list(agent="demo", label="k=v")).sessions]

        await s.pause()
        with pytest.raises(InvalidState):
            await s.user("more")
        assert (await s.resume()).reconciled.unchanged == 1
        await s.close()
        assert (await s.view()).session.state == "closed"
        with pytest.raises(NotFound):
            await client.session_get("nobody")


async def test_other_methods_return_results_the_client_can_decode(running, tree):
    async with connect(running.socket) as client:
        assert (await client.hello(client="again")).server == "ctxd"
        assert (await client.daemon_status()).state == "ready"
        mountinfo = f"36 35 98:0 {tree} /w rw,noatime - ext3 /dev/root rw\n"
        assert isinstance((await client.mount_detect(mountinfo=mountinfo)).mounts, tuple)
        s = await client.session(agent="demo", workdir=str(tree))
        assert (await s.configure(budget_tokens=500, labels={"a": "b"})).session.budget_tokens == 500
        assert (await s.set_system_prompt("Be exact.")).receipt.seq > 0
        found = await s.discover([str(tree / "a.py"), str(tree / "none.py")])
        assert [each.outcome for each in found.objects] == ["created", "ignored"]
        stub = found.objects[0].object
        assert (await s.pool_remove(stub)).level == "indexed"
        assert (await s.pool_add(stub)).level == "inactive"
        assert (await s.activate(stub)).level == "active"
        assert (await s.deactivate(stub)).level == "inactive"
        await s.pin(stub)
        assert not (await s.unpin(stub)).pinned
        bulk = await client.object_bulk([stub, "0" * 64])
        assert ([each.id for each in bulk.objects], bulk.missing) == ([stub], ("0" * 64,))
        assert (await s.notices()).notices == ()
        subscribed = await client.events_subscribe(s.id)
        await client.events_unsubscribe(subscribed.subscription)


@pytest.mark.requirement("RPC-5")
async def test_hundreds_of_cancelled_calls_leave_sessions_consistent_with_their_receipts(running):
    """Each append is either applied whole or not at all, and the connection goes on."""
    async with connect(running.socket) as client:
        s = await client.session(agent="demo")
        done = []

        async def append(number, scope):
            with scope:
                done.append((await s.user(f"m{number}")).turn)

        async with anyio.create_task_group() as group:
            scopes = [anyio.CancelScope() for _ in range(200)]
            for number, scope in enumerate(scopes):
                group.start_soon(append, number, scope)
            for number, scope in enumerate(scopes):
                if number % 3:
                    await checkpoint()
                    scope.cancel()
        await s.user("last")
        view = (await s.view()).session
        turns = (await client.session_chat(s.id, limit=1000)).turns
    contents = [message["content"] for turn in turns for message in turn["messages"]]
    assert len(contents) == len(set(contents)) == view.turn_count
    assert {f"m{number}" for number in range(0, 200, 3)} <= set(contents), "what was not cancelled was applied"
    assert contents[-1] == "last"
    assert set(done) <= set(range(1, view.turn_count + 1))


@pytest.mark.requirement("RPC-4")
async def test_a_write_sent_twice_under_one_op_id_is_applied_once_and_another_under_it_is_refused(running):
    async with connect(running.socket) as client:
        s = await client.session(agent="demo")
        message = [Message(role="user", content="once")]
        first = await s.append(message, op_id=f"op-{s.id}")
        again = await s.append(message, op_id=f"op-{s.id}")
        assert first == again
        assert (await s.view()).session.turn_count == 1
        with pytest.raises(Conflict) as caught:
            await s.append([Message(role="user", content="other")], op_id=f"op-{s.id}")
        assert caught.value.code == "idempotency_mismatch"


async def test_the_synchronous_client_sees_writes_of_the_asynchronous_client(running):
    async with connect(running.socket) as client:
        s = await client.session(agent="demo")
        await s.user("hello")

        def look():
            with connect_sync(running.socket) as other:
                return other.session(s.id).chat().turns, other.last_receipt

        turns, _ = await anyio.to_thread.run_sync(look)
        assert len(turns) == 1


async def test_an_edit_in_one_session_notifies_the_other(running, tree):
    async with connect(running.socket) as client:
        reader = await client.session(agent="reader", workdir=str(tree))
        writer = await client.session(agent="writer", workdir=str(tree))
        read = await reader.read(str(tree / "a.py"))
        async with client.follow(reader.id) as notices:
            (tree / "a.py").write_text("print('new')\n")
            await writer.edited(str(tree / "a.py"))
            with anyio.fail_after(20):
                notice = await anext(notices)
        assert (notice.object, notice.change, notice.by_session) == (read.object, "updated", writer.id)


async def append_all(client: Client, session: str, first: int, count: int) -> None:
    for number in range(first, first + count):
        await client.session_append(session, [Message(role="user", content=f"m{number}")])


@pytest.mark.requirement("DUR-1")
@pytest.mark.requirement("NOT-3")
@pytest.mark.requirement("CLT-2")
async def test_every_append_is_applied_exactly_once_over_a_kill_and_the_follower_misses_nothing(tmp_path, tree):
    with Running(tmp_path, keep_state=True) as daemon:
        async with connect(daemon.socket, deadline_s=60) as client:
            s = await client.session(agent="demo", workdir=str(tree))
            other = await client.session(agent="other", workdir=str(tree))
            await s.read(str(tree / "a.py"))
            async with client.follow(s.id) as notices, anyio.create_task_group() as group:
                for worker in range(4):
                    group.start_soon(append_all, client, s.id, worker * 25, 25)
                (tree / "a.py").write_text("print('a')\n")
                await other.edited(str(tree / "a.py"))
                await anyio.to_thread.run_sync(daemon.kill)
                (tree / "a.py").write_text("print('b')\n")
                await anyio.to_thread.run_sync(daemon.start)
                await other.edited(str(tree / "a.py"))
                with anyio.fail_after(60):
                    seen = [await anext(notices), await anext(notices)]
            assert [notice.change for notice in seen] == ["updated", "updated"]
            assert seen[0].seq < seen[1].seq
            view = (await s.view()).session
            assert view.turn_count == 100
            turns = (await client.session_chat(s.id, limit=1000)).turns
    contents = [message["content"] for turn in turns for message in turn["messages"]]
    assert sorted(contents) == sorted(f"m{number}" for number in range(100))


async def test_a_receipt_of_another_journal_does_not_stop_a_new_daemon(tmp_path):
    with Running(tmp_path) as first:
        async with connect(first.socket) as client:
            s = await client.session(agent="demo")
            for number in range(3):
                await s.user(f"message {number}")
            first.kill()
            first.start()  # an ephemeral daemon: another journal, without a row
            await client.session_create("demo", session="s2")
            assert (await client.daemon_status()).store.state == "ok"
            assert client.last_receipt is not None
            assert client.last_receipt.seq == 1
