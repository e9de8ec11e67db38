import inspect
import threading
from pathlib import Path
from typing import Any, Literal

import msgspec
import pytest
from msgspec.structs import replace

from ctxd.assembly import recorded_assemblies
from ctxd.assembly.usage_operations import UsageOperations
from ctxd.errors import CtxdError
from ctxd.objects.document import Stored
from ctxd.objects.generated_ids import assembly_id
from ctxd.rpc.caller import Caller
from ctxd.rpc.dispatch import bound
from ctxd.rpc.handlers import context
from ctxd.rpc.handlers.context import ContextCalls
from ctxd.sessions.live_session import Accepted, Actor, WriteRequest, write_request
from ctxd_protocol.context_types import RequestFormat, ToolDeclaration
from ctxd_protocol.methods import METHODS
from ctxd_protocol.methods.context import (
    AssembleParams,
    AssemblyListParams,
    ContextCurrentParams,
    PlanParams,
    ShowParams,
    WhyParams,
)
from ctxd_protocol.methods.usage import UsageParams
from ctxd_protocol.session_types import Message
from tests.spec.secrecy import TOKEN
from tests.unit.assembly.stored_sessions import Household, household
from tests.unit.sessions.test_order import scanning_threads

HOST = Caller(principal="p", capability="host", session=None, connection=1, notify=lambda method, event: True)
INSIDE = Caller(principal="p", capability="observe", session="s", connection=1, notify=lambda method, event: True)


class Methods:
    """The handlers, called as a connection calls them, results decoded as a client decodes them."""

    def __init__(self, home: Household) -> None:
        self.table = bound(ContextCalls(home.sessions, home.assembler, home.archive, home.checkpoints))

    async def __call__(self, name: str, params: Any, caller: Caller = HOST) -> Any:
        request = [write_request(name, caller.principal, params)] if METHODS[name].writes else []
        answer = self.table[name](caller, params, *request)
        if inspect.isawaitable(answer):  # a handler that only looks something up is a plain function
            answer = await answer
        if isinstance(answer, Accepted):
            receipt = None if answer.pending is None else await answer.pending.wait()
            answer = answer.result(receipt)
        return msgspec.json.decode(msgspec.json.encode(answer), type=METHODS[name].result)


@pytest.mark.anyio
@pytest.mark.requirement("CTX-10")
async def test_the_current_context_is_found_for_a_session_or_for_the_only_one(tmp_path: Path) -> None:
    async with household(tmp_path) as home:
        call = Methods(home)
        nowhere = await call("context.current", ContextCurrentParams())
        assert (nowhere.context_id, nowhere.session) == (None, None)
        await home.create()
        made = await home.assemble()
        for params, caller in (
            (ContextCurrentParams(), HOST),
            (ContextCurrentParams(session="s"), HOST),
            (ContextCurrentParams(), INSIDE),
        ):
            told = await call("context.current", params, caller)
            assert (told.session, told.assembly) == ("s", made.number)
            assert await home.store.get(f"commit:{told.context_id}") is not None, "it is a commit, no assembly"
        await home.create("other")
        await home.assemble("other")
        assert (await call("context.current", ContextCurrentParams())).context_id is None
        assert (await call("context.current", ContextCurrentParams(), INSIDE)).session == "s"
        at_once = call.table["context.current"](HOST, ContextCurrentParams())
        assert not inspect.isawaitable(at_once), "hooks wait for it: it is looked up without a task"


@pytest.mark.anyio
async def test_an_answer_comes_with_or_without_its_text_and_its_blocks(tmp_path: Path) -> None:
    async with household(tmp_path) as home:
        call = Methods(home)
        await home.create()
        written = await call("context.assemble", AssembleParams(session="s"))
        assert written.receipt == home.store.head(), "who had it recorded gets the receipt, and nobody after that"
        whole = msgspec.structs.replace(written, receipt=None)
        for text in (True, False):
            for blocks in (True, False):
                expected = msgspec.structs.replace(
                    whole, text=whole.text if text else "", blocks=whole.blocks if blocks else ()
                )
                params = {"session": "s", "text": text, "blocks": blocks}
                assert await call("context.assemble", AssembleParams(**params)) == expected
                assert await call("context.show", ShowParams(**params)) == expected


@pytest.mark.anyio
async def test_assemblies_are_listed_in_pages(tmp_path: Path) -> None:
    async with household(tmp_path) as home:
        call = Methods(home)
        live = await home.create()
        made = []
        for n in range(5):
            home.append(live, Message(role="user", content=str(n)))
            made.append(await home.assemble())
        numbers, after = [], 0
        while after is not None:
            page = await call("context.list", AssemblyListParams(session="s", after=after, limit=2))
            numbers += [(row.number, row.context_id, row.bytes) for row in page.assemblies]
            after = page.next_after
        assert numbers == [(one.number, one.context_id, one.bytes) for one in made]


@pytest.mark.anyio
async def test_a_plan_takes_the_sessions_budget_unless_given_another(tmp_path: Path) -> None:
    async with household(tmp_path) as home:
        call = Methods(home)
        live = await home.create(budget_tokens=30)
        home.record(live, "call_1", "x" * 400)
        own = await call("context.plan", PlanParams(session="s"))
        wide = await call("context.plan", PlanParams(session="s", budget_tokens=1000))
        assert (own.plan.budget_tokens, [dropped.object for dropped in own.plan.dropped]) == (30, ["call_1"])
        assert (wide.plan.budget_tokens, wide.plan.dropped) == (1000, ())


@pytest.mark.anyio
async def test_number_and_turn_together_are_refused(tmp_path: Path) -> None:
    async with household(tmp_path) as home:
        await home.create()
        await home.assemble()
        with pytest.raises(CtxdError) as caught:
            await Methods(home)("context.show", ShowParams(session="s", number=1, turn=1))
        assert caught.value.code == "invalid_params"


@pytest.mark.anyio
async def test_the_answer_to_an_assembly_that_is_sent_again_carries_the_first_receipt(tmp_path: Path) -> None:
    async with household(tmp_path) as home:
        call = Methods(home)
        await home.create()
        params = AssembleParams(session="s", op_id="op")
        first = await call("context.assemble", params)
        again = await call("context.assemble", params)
        assert first.receipt is not None and again.receipt == first.receipt
        assert again.text == first.text and again.context_id == first.context_id


@pytest.mark.anyio
@pytest.mark.requirement("BOX-5")
async def test_no_declaration_of_a_sandbox_is_scanned_on_the_loop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with household(tmp_path) as home:
        call, tool = Methods(home), ToolDeclaration(name="look", description="Looks.", input_schema={"type": "object"})
        home.append(await home.create(), Message(role="user", content="Begin."))
        threads = scanning_threads(monkeypatch)
        params = AssembleParams(session="s", format="anthropic-messages", model="m", tools=(tool,))
        await call("context.assemble", params, msgspec.structs.replace(INSIDE, capability="session"))
        threads_of_declarations = len(threads)
        usage = UsageParams(session="s", usage={"input_tokens": 1, "output_tokens": 1, "tier": "standard"})
        await UsageOperations(home.sessions, home.archive).record(
            Actor("sandbox:x", "session"), usage, write_request("session.usage", "sandbox:x", usage)
        )
    assert 0 < threads_of_declarations < len(threads)
    assert threading.main_thread() not in threads


@pytest.mark.anyio
@pytest.mark.requirement("CTX-10")
async def test_a_session_unloaded_while_the_tools_are_scanned_is_loaded_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    capture = context.declarations_captured

    async with household(tmp_path) as home:
        call, tool = Methods(home), ToolDeclaration(name="look", description="Looks.", input_schema={"type": "object"})
        home.append(await home.create(), Message(role="user", content="Begin."))
        await home.store.wait_for_writes()
        home.sessions._live_max = 1

        async def evicting(*given: Any, **more: Any) -> Any:
            captured = await capture(*given, **more)
            await home.create("other")
            assert home.sessions.peek("s") is None
            return captured

        monkeypatch.setattr(context, "declarations_captured", evicting)
        params = AssembleParams(session="s", format="anthropic-messages", model="m", tools=(tool,))
        assert (await call("context.assemble", params)).number == 1


@pytest.mark.anyio
@pytest.mark.requirement("CTX-10")
@pytest.mark.parametrize("method", ["dry_run", "plan"])
async def test_a_session_unloaded_while_a_dry_run_waits_for_writes_is_loaded_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    """The text is rendered again if what it showed was lost or purged meanwhile."""
    async with household(tmp_path) as home:
        call = Methods(home)
        home.append(await home.create(), Message(role="user", content="Begin."))
        await home.store.wait_for_writes()
        home.sessions._live_max = 1
        wait, waited = home.store.wait_for_writes, list[str]()

        async def evicting() -> None:
            await wait()
            if not waited:
                waited.append(method)
                await home.create("other")
                assert home.sessions.peek("s") is None
                home.assembler._cache.cleared += 1

        monkeypatch.setattr(home.store, "wait_for_writes", evicting)
        if method == "dry_run":
            assert (await call("context.assemble", AssembleParams(session="s", dry_run=True))).number == 0
        else:
            assert (await call("context.plan", PlanParams(session="s"))).plan.tokens > 0


@pytest.mark.anyio
@pytest.mark.requirement("RPC-9")
@pytest.mark.parametrize("format", [None, "anthropic-messages"])
async def test_records_are_read_a_few_at_a_time_however_many_there_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, format: RequestFormat | None
) -> None:
    made = {"model": "m", "format": format} if format else {}
    async with household(tmp_path) as home:
        call, live = Methods(home), await home.create()
        id = home.record(live, "call_one", "output")
        for turn in range(20):
            home.append(live, Message(role="user", content=f"turn {turn}"))
            await call("context.assemble", AssembleParams(session="s", **made))
    monkeypatch.setattr(recorded_assemblies, "_PAGE_BYTES", 2_000)
    async with household(tmp_path) as home:
        call, scan, read = Methods(home), home.store.scan, list[int]()

        async def scanned(prefix: str, *args: Any, **rest: Any) -> list[Stored]:
            found: list[Stored] = await scan(prefix, *args, **rest)
            read.append(len(found) if prefix == "assembly:s#" else 0)
            return found

        monkeypatch.setattr(home.store, "scan", scanned)
        why = await call("context.why", WhyParams(session="s", object=id))
        assert (why.shown, why.since.number) == (("line", 3) if format is None else ("whole", 1))
        listed = await call("context.list", AssemblyListParams(session="s", limit=15))
        assert ([row.number for row in listed.assemblies], listed.next_after) == ([*range(1, 16)], 15)
        again = await call("context.assemble", AssembleParams(session="s", **made))
        assert again.number == 20
        assert sum(read) > 50 and max(read) < 15


@pytest.mark.anyio
@pytest.mark.requirement("SEC-1")
@pytest.mark.parametrize("layout", ["append", "spec"])
async def test_the_record_of_a_request_names_the_secrets_in_its_tools(
    tmp_path: Path, layout: Literal["append", "spec"]
) -> None:
    tool = ToolDeclaration(name="push", description=f"Pushes with {TOKEN}.", input_schema={"type": "object"})
    async with household(tmp_path) as home:
        live = await home.create()
        live.submit(WriteRequest("session.configure", "p"), settings=replace(live.settings, secrets="redact"))
        params = AssembleParams(session="s", format="anthropic-messages", model="m", tools=(tool,), layout=layout)
        made = await Methods(home)("context.assemble", params)
        assert TOKEN not in str(made.request) and "[REDACTED:github-token:" in str(made.request)
        id = assembly_id("s", made.number)
        head = (await home.store.heads((id,)))[id]
        assert head is not None
        assert [found["rule"] for found in head.document.payload["secrets"]["found"]] == ["github-token"]


@pytest.mark.anyio
@pytest.mark.requirement("USE-3")
async def test_a_context_is_found_by_its_id_without_reading_those_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with household(tmp_path) as home:
        live = await home.create()
        ids = []
        for nth in range(40):
            home.record(live, f"c{nth}", "x")
            ids.append((await home.assemble(live)).context_id)
        known = await home.archive.recordings(live)
        assert [known.numbers[id] for id in ids] == list(range(1, 41)) and (known.spec, known.append) == (40, 0)
        home.record(live, "next", "x")
        last = await home.assemble(live)
        rows: list[int] = []
        scan = home.store.scan

        async def counted(*args: Any, **more: Any) -> Any:
            found = await scan(*args, **more)
            rows.append(len(found))
            return found

        monkeypatch.setattr(home.store, "scan", counted)
        known = await home.archive.recordings(live)
        assert known.numbers[last.context_id] == 41 and sum(rows) == 1
