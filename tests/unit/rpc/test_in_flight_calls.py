"""Calls that take their time: answers, deadlines, cancellation, draining."""

import anyio
import pytest

from ctxd.errors import CtxdError
from ctxd.rpc.listener_state import Timing
from ctxd.rpc.socket_server import Server
from ctxd.sessions.live_session import Accepted
from ctxd.store.write_types import Pending
from ctxd_protocol.context_types import CurrentContext
from ctxd_protocol.methods.declaration import WriteResult
from tests.fakes.loopback import WAIT_S, frame, serving, settings_of
from tests.unit.rpc.families import RECEIPT, Services

pytestmark = pytest.mark.anyio

PLAN = frame("context.plan", {"session": "s"}, id="plan")
APPEND = frame("session.append", {"session": "s", "messages": [{"role": "user", "content": "x"}]}, id="append")
PROMPT = frame("session.set_system_prompt", {"session": "s", "content": "x"}, id="prompt")


def data(answer):
    return answer["error"]["data"]


@pytest.fixture
def services():
    return Services()


async def test_a_write_gets_its_response_when_it_is_durable(tmp_path, services):
    async with serving(tmp_path, services.handlers()) as server, server.connected() as wire:
        await wire.send(APPEND)
        assert (await wire.call("context.current", id=2))["id"] == 2
        services.pending[0].resolve(RECEIPT)
        answer = await wire.answer()
        assert answer["result"] == {"turn": 1, "receipt": {"seq": 1, "chain": "c", "vt": 5, "durable": "disk"}}


async def test_a_lost_write_gets_the_stores_error(tmp_path, services):
    async with serving(tmp_path, services.handlers()) as server, server.connected() as wire:
        await wire.send(APPEND)
        await server.until(lambda: services.pending)
        services.pending[0].resolve(None, CtxdError("disk_full", "no space", outcome="not_applied"))
        refusal = data(await wire.answer())
        assert (refusal["code"], refusal["retryable"], refusal["outcome"]) == ("disk_full", True, "not_applied")


async def test_a_call_without_a_write_gets_its_response_immediately(tmp_path, services):
    async with serving(tmp_path, services.handlers()) as server, server.connected() as wire:
        answer = await wire.call("session.pin", {"session": "s", "object": "o"})
        assert (answer["result"]["changed"], answer["result"]["receipt"]) == (False, None)


async def test_a_coroutine_submitting_a_write_gets_its_response_when_it_is_durable(tmp_path, services):
    async with serving(tmp_path, services.handlers()) as server, server.connected() as wire:
        services.gate.set()
        await wire.send(PROMPT)
        await server.until(lambda: services.pending)
        services.pending[0].resolve(RECEIPT)
        assert (await wire.answer())["result"]["receipt"]["seq"] == 1


async def test_a_write_that_does_not_suspend_begins_after_the_call_before_it(tmp_path, services):
    begun = []

    async def prompt(caller, params, call):
        begun.append("prompt")
        return await services.prompt(caller, params, call)

    async def append(caller, params, call):
        begun.append("append")
        return await services.append(caller, params, call)

    handlers = {**services.handlers(), "session.set_system_prompt": prompt, "session.append": append}
    async with serving(tmp_path, handlers) as server, server.connected() as wire:
        await wire.send(PROMPT + APPEND)
        await server.until(lambda: len(begun) == 2)
        assert begun == ["prompt", "append"]
        services.pending[0].resolve(RECEIPT)
        assert (await wire.answer())["id"] == "append"


async def test_a_read_that_does_not_suspend_begins_after_the_call_before_it(tmp_path, services):
    begun = []

    async def prompt(caller, params, call):
        begun.append("prompt")
        return await services.prompt(caller, params, call)

    async def current(caller, params):
        begun.append("current")
        return await services.current(caller, params)

    handlers = {**services.handlers(), "session.set_system_prompt": prompt, "context.current": current}
    async with serving(tmp_path, handlers) as server, server.connected() as wire:
        await wire.send(PROMPT + frame("context.current", id="current"))
        assert (await wire.answer())["id"] == "current"
        assert begun == ["prompt", "current"]


async def test_an_id_in_use_is_refused_and_the_first_call_is_unaffected(tmp_path, services):
    async with serving(tmp_path, services.handlers()) as server, server.connected() as wire:
        await wire.send(PLAN + PLAN)
        refusal = await wire.answer()
        assert (refusal["id"], data(refusal)["code"]) == (None, "duplicate_id")
        services.gate.set()
        answer = await wire.answer()
        assert (answer["id"], answer["result"]["context_id"]) == ("plan", "ctx-00000000")
        assert (await wire.call("context.current", id="plan"))["id"] == "plan"


async def test_two_connections_may_use_the_same_id(tmp_path, services):
    async with serving(tmp_path, services.handlers()) as server, server.connected() as one, server.connected() as two:
        await one.send(PLAN)
        await two.send(PLAN)
        await server.until(lambda: server.server.in_flight == 2)
        services.gate.set()
        assert [(await wire.answer())["id"] for wire in (one, two)] == ["plan", "plan"]


async def test_several_calls_with_a_null_id_all_get_a_response(tmp_path, services):
    call = frame("context.plan", {"session": "s"}, id=None)
    async with serving(tmp_path, services.handlers()) as server, server.connected() as wire:
        await wire.send(call + call)
        await server.until(lambda: server.server.in_flight == 2)
        services.gate.set()
        assert [(await wire.answer())["id"] for _ in range(2)] == [None, None]


async def test_a_batch_gets_its_response_when_its_last_call_completes(tmp_path, services):
    async with serving(tmp_path, services.handlers()) as server, server.connected() as wire:
        await wire.send(b"[%s,%s,%s]\n" % (PLAN.strip(), frame("context.current", id=2).strip(), APPEND.strip()))
        await server.until(lambda: services.pending)
        services.pending[0].resolve(RECEIPT)
        services.gate.set()
        assert {answer["id"] for answer in await wire.answer()} == {2, "plan", "append"}


async def test_a_batch_beyond_the_bound_on_open_calls_is_served_completely(tmp_path, services):
    members = b",".join(frame("context.plan", {"session": "s"}, id=number).strip() for number in range(100))
    async with serving(tmp_path, services.handlers()) as server, server.connected() as wire:
        await wire.send(b"[" + members + b"]\n")
        await server.until(lambda: server.server.in_flight == 32)
        services.gate.set()
        assert {answer["id"] for answer in await wire.answer()} == set(range(100))


@pytest.mark.requirement("RPC-5")
async def test_a_cancelled_read_stops_and_gets_a_cancelled_error(tmp_path, services):
    async with serving(tmp_path, services.handlers()) as server, server.connected() as wire:
        await wire.send(PLAN)
        await services.entered.wait()
        await wire.send(b'{"jsonrpc":"2.0","method":"$/cancelRequest","params":{"id":"plan"}}\n')
        answer = await wire.answer()
        assert (answer["id"], answer["error"]["code"], data(answer).get("outcome")) == ("plan", -32800, None)
        await server.until(lambda: services.cancelled)


@pytest.mark.requirement("RPC-5")
async def test_a_write_cancelled_after_submission_continues_with_an_unknown_outcome(tmp_path, services):
    async with serving(tmp_path, services.handlers()) as server, server.connected() as wire:
        await wire.send(APPEND + b'{"jsonrpc":"2.0","method":"$/cancelRequest","params":{"id":"append"}}\n')
        answer = await wire.answer()
        assert (answer["id"], data(answer)["code"], data(answer)["outcome"]) == ("append", "cancelled", "unknown")
        services.pending[0].resolve(RECEIPT)
        assert (await wire.call("context.current", id=2))["id"] == 2


async def test_a_call_cancelled_right_after_its_first_step_stops_there(tmp_path, services):
    async with serving(tmp_path, services.handlers()) as server, server.connected() as wire:
        await wire.send(PLAN + b'{"jsonrpc":"2.0","method":"$/cancelRequest","params":{"id":"plan"}}\n')
        assert data(await wire.answer())["code"] == "cancelled"
        assert (await wire.call("context.current", id=2))["id"] == 2
        assert services.cancelled == ["context.plan"]


@pytest.mark.parametrize("params", ['{"id":"other"}', '{"id":1.5}', "{}", "[]", '["plan",1]'])
async def test_cancelling_a_missing_call_changes_nothing(tmp_path, services, params):
    async with serving(tmp_path, services.handlers()) as server, server.connected() as wire:
        await wire.send(PLAN)
        await wire.send(f'{{"jsonrpc":"2.0","method":"$/cancelRequest","params":{params}}}\n'.encode())
        services.gate.set()
        assert (await wire.answer())["id"] == "plan"


async def test_a_client_that_leaves_stops_its_reads_and_not_its_writes(tmp_path, services):
    async with serving(tmp_path, services.handlers()) as server:
        async with server.connected() as wire:
            await wire.send(PROMPT + PLAN + APPEND)
            await server.until(lambda: services.pending and len(services.calls) == 1)
        await server.until(lambda: services.cancelled)
        services.gate.set()
        await server.until(lambda: len(services.pending) == 2)
        assert services.cancelled == ["context.plan"]
        for pending in services.pending:
            pending.resolve(RECEIPT)
        assert server.server.in_flight == 0


@pytest.mark.requirement("RPC-5")
async def test_a_call_past_its_deadline_gets_a_timeout_error(tmp_path, services):
    async with serving(tmp_path, services.handlers(), timing=Timing(deadline_s=0.05)) as server:
        async with server.connected() as wire:
            await wire.send(PLAN + APPEND + PROMPT)
            answers = {answer["id"]: data(answer) for answer in [await wire.answer() for _ in range(3)]}
            assert {id: (error["code"], error.get("outcome")) for id, error in answers.items()} == {
                "plan": ("timeout", None),
                "append": ("timeout", "unknown"),
                "prompt": ("timeout", "unknown"),
            }
            services.pending[0].resolve(RECEIPT)
            await server.until(lambda: len(services.cancelled) == 2)
            assert (await wire.call("context.current", id=2))["id"] == 2
            await wire.send(PLAN)
            assert data(await wire.answer())["code"] == "timeout"


async def test_a_result_that_cannot_be_encoded_fails_its_own_call_only(tmp_path, services):
    async def current(caller, params):
        return CurrentContext(context_id=None, session=None, turn=object() if params.session else 0, assembly=0)

    async with serving(tmp_path, {"context.current": current}) as server, server.connected() as wire:
        await wire.send(frame("context.current", id=1) + frame("context.current", {"session": "s"}, 2))
        assert (await wire.answer())["result"]["turn"] == 0
        answer = await wire.answer()
        assert (answer["id"], data(answer)["code"]) == (2, "internal_error")


@pytest.mark.requirement("OPS-2")
async def test_a_draining_server_refuses_new_calls_answers_open_ones_and_closes(tmp_path, services):
    async with serving(tmp_path, services.handlers()) as server:
        async with server.connected() as busy, server.connected() as idle, anyio.create_task_group() as group:
            await busy.send(PLAN)
            await idle.call("context.current")
            await services.entered.wait()
            group.start_soon(server.server.drain)
            assert await idle.closed()
            refusal = await busy.call("context.current", id=2)
            assert data(refusal) | {"hint": ""} == {
                "code": "draining",
                "hint": "",
                "retryable": True,
                "retry_after_ms": 1000,
                "outcome": "not_applied",
            }
            with pytest.raises(OSError):
                async with server.connected():
                    pass
            services.gate.set()
            assert (await busy.answer())["id"] == "plan"
            assert await busy.closed()


async def test_draining_does_not_wait_for_a_call_beyond_its_time(tmp_path, services):
    async with serving(tmp_path, services.handlers(), timing=Timing(drain_s=0.05)) as server:
        async with server.connected() as wire:
            await wire.send(PLAN)
            await services.entered.wait()
            with anyio.fail_after(30):
                await server.server.drain()
            assert await wire.closed()
            await server.until(lambda: services.cancelled)


@pytest.mark.parametrize("ending", [CtxdError("session_closed", "too late"), None])
async def test_a_write_that_ends_after_its_client_left_disturbs_nothing(tmp_path, services, ending):
    ended = anyio.Event()

    async def prompt(caller, params, call):
        services.entered.set()
        await services.gate.wait()
        ended.set()
        if ending is not None:
            raise ending
        return WriteResult(receipt=None)

    async with serving(tmp_path, services.handlers() | {"session.set_system_prompt": prompt}) as server:
        async with server.connected() as wire:
            await wire.send(PROMPT)
            await services.entered.wait()
        await server.until(lambda: server.server.connections == 0)
        services.gate.set()
        await ended.wait()
        async with server.connected() as wire:
            assert "result" in await wire.call("context.current")


@pytest.mark.parametrize("code", ["store_failed", "draining", "corrupt"])
@pytest.mark.parametrize("suspends", [True, False])
async def test_a_write_rejected_before_submission_is_not_applied(tmp_path, code, suspends):
    async def refuse(caller, params, *call):
        if suspends:
            await anyio.lowlevel.checkpoint()
        raise CtxdError(code, "the database cannot be read")

    handlers = {"session.append": refuse, "context.plan": refuse}
    async with serving(tmp_path, handlers) as server, server.connected() as wire:
        await wire.send(APPEND)
        refusal = data(await wire.answer())
        assert (refusal["code"], refusal["outcome"]) == (code, "not_applied")
        await wire.send(PLAN)
        assert "outcome" not in data(await wire.answer())


@pytest.mark.parametrize("suspends", [True, False])
async def test_a_write_failing_after_submission_has_an_unknown_outcome(tmp_path, suspends):
    async def fail(caller, params, call):
        call.submitted = True
        if suspends:
            await anyio.lowlevel.checkpoint()
        raise CtxdError("store_failed", "the database cannot be read")

    async with serving(tmp_path, {"session.append": fail}) as server, server.connected() as wire:
        await wire.send(APPEND)
        assert data(await wire.answer())["outcome"] == "unknown"


@pytest.mark.parametrize("is_durable", [True, False])
async def test_a_write_with_an_unbuildable_reply_reports_its_outcome(tmp_path, is_durable):
    def fail(_):
        raise CtxdError("corrupt", "a row cannot be read")

    async def append(caller, params, call):
        pending = Pending(seq=1, vt=1, size=1, done=True, receipt=RECEIPT)
        return Accepted(pending if is_durable else None, fail)

    async def plan(caller, params):
        return Accepted(None, fail)

    async with serving(tmp_path, {"session.append": append, "context.plan": plan}) as server:
        async with server.connected() as wire:
            await wire.send(APPEND)
            assert data(await wire.answer())["outcome"] == ("applied" if is_durable else "unknown")
            await wire.send(PLAN)
            assert "outcome" not in data(await wire.answer())


async def test_a_handler_may_enter_scopes_and_locks_before_it_first_suspends(tmp_path):
    lock, gate, order = anyio.Lock(), anyio.Event(), []

    async def plan(caller, params):
        with anyio.fail_after(30):
            async with lock:
                order.append(params.session)
                await gate.wait()
                async with anyio.create_task_group() as group:
                    group.start_soon(anyio.lowlevel.checkpoint)
        return CurrentContext(context_id=None, session=params.session, turn=0, assembly=0)

    async with serving(tmp_path, {"context.plan": plan}) as server, server.connected() as wire:
        names = [f"s{number}" for number in range(20)]
        await wire.send(b"".join(frame("context.plan", {"session": name}, id=name) for name in names))
        await server.until(lambda: server.server.in_flight == 20)
        gate.set()
        assert [(await wire.answer())["id"] for _ in names] == names == order


@pytest.mark.parametrize("iterations", range(8))
async def test_a_cancelled_server_ends_though_a_connection_wants_more_tasks(tmp_path, services, iterations):
    """Connections receive until the server has ended; a task that starts after the others ended is not cancelled."""
    server = Server(tmp_path / "ctxd.sock", settings_of(services.handlers()))
    with anyio.fail_after(WAIT_S):
        async with anyio.create_task_group() as group:
            await group.start(server.run)
            tasks = server._listening.tasks
            group.cancel_scope.cancel()
            with anyio.CancelScope(shield=True):
                for _ in range(iterations):
                    await anyio.lowlevel.checkpoint()
                tasks.grow()
