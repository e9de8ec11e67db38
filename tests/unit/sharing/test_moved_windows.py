"""The window of a session that moves to another journal: what was sent there is what goes on here."""

import json
from pathlib import Path
from typing import Any, get_args

import msgspec
import pytest

from ctxd.assembly.recorded_assemblies import Archive
from ctxd.assembly.request_bodies import spec_request
from ctxd.assembly.request_target import Wanted, WantedSpec, target_for
from ctxd.assembly.spec_layout import spec
from ctxd.assembly.token_budget import estimate_tokens
from ctxd.models import BUILT_IN, Models
from ctxd.sessions.live_session import WriteRequest
from ctxd_protocol.context_types import RequestFormat, ToolDeclaration
from tests.unit.assembly.stored_sessions import MODELS, MODELS_OF
from tests.unit.sessions.world import record, say
from tests.unit.sharing.test_session_import import Host, host, two
from tests.unit.store.running import verified

pytestmark = pytest.mark.anyio

LONG = "word " * 20_000


async def request(
    host: Host, tool: ToolDeclaration, session: str = "s1", format: RequestFormat = "openai-responses"
) -> dict[str, Any]:
    live = await host.w.sessions.live(session)
    wanted = Wanted(format, MODELS_OF[format], tools=(tool,))
    made = await host.assembler.assemble(live, WriteRequest("context.assemble", "host"), form=wanted)
    assert made.context.request is not None
    return made.context.request


@pytest.mark.requirement("HST-1")
async def test_a_window_continues_on_another_host_byte_for_byte_with_prompt_files_and_tools(tmp_path: Path) -> None:
    (tmp_path / "1.py").write_text("one")
    tool = ToolDeclaration(name="bash", description="Run.", input_schema={"type": "object"})
    async with two(tmp_path) as (a, b):
        for n in range(5):
            await b.w.call("session.create", agent="other", session=f"other{n}")
        await a.w.call("session.create", agent="a", session="s1", workdir=str(tmp_path), system_prompt="Be brief.")
        await say(a.w, "s1", ("user", "go"))
        requests = [await request(a, tool)]
        file = (await a.w.call("file.index", session="s1", path=str(tmp_path / "1.py"))).object
        await record(a.w, "s1", "c", "made on a")
        requests.append(await request(a, tool))
        await a.w.call("session.set_system_prompt", session="s1", content="Be long.")
        await a.w.call("session.deactivate", session="s1", object=file)
        await a.w.call("session.activate", session="s1", object=file)
        requests.append(await request(a, tool))
        await b.w.call("session.create", agent="b", session="other")
        await record(b.w, "other", "c", "made on b")
        await b.take(a)
        live = await b.w.sessions.live("s1")
        shown = [(await b.archive.show("s1", number=number)).context for number in (1, 2, 3)]
        assert [each.request for each in shown] == requests
        assert await request(b, tool) == requests[-1]
        assert live.assembly == 3
        await say(b.w, "s1", ("user", "next"))
        after = json.dumps((await request(b, tool))["input"])
        assert after.startswith(json.dumps(requests[-1]["input"])[:-1]) and "changed" not in after
    verified(tmp_path / "b")


@pytest.mark.requirement("EPO-13")
@pytest.mark.parametrize("name", ["s1", "branch"])
async def test_a_session_moves_with_its_entries_and_its_models_beliefs(tmp_path: Path, name: str) -> None:
    tool = ToolDeclaration(name="bash", description="Run.", input_schema={"type": "object"})
    async with two(tmp_path) as (a, b):
        await a.w.call("session.create", agent="a", session="s1")
        await a.w.call("session.set_entry", session="s1", key="style", value="Plan.")
        await a.w.call("session.set_entry", session="s1", key="rule", value={"n": 1})
        await say(a.w, "s1", ("user", "go"))
        await request(a, tool)
        await a.w.call("session.set_entry", session="s1", key="style", value="Write.")
        await a.w.call("session.delete_entry", session="s1", key="rule")
        await say(a.w, "s1", ("assistant", "ready"), ("user", "next"))
        before = await request(a, tool)
        await b.take(a, name=name)
        if name == "s1":
            assert (await b.archive.show(name)).context.request == before
        await say(b.w, name, ("user", "more"))
        after = await request(b, tool, name)
        assert json.dumps(after["input"]).startswith(json.dumps(before["input"])[:-1])
        assert json.dumps(after).count("style") == 2 and json.dumps(after).count("rule") == 2
        await b.w.call("session.set_entry", session=name, key="style", value="Stop.")
        assert "style is now: Stop." in json.dumps(await request(b, tool, name))
    verified(tmp_path / "b")


@pytest.mark.requirement("WHY-2")
@pytest.mark.parametrize("format", get_args(RequestFormat))
async def test_every_request_renders_again_under_another_name_of_its_session(
    tmp_path: Path, format: RequestFormat
) -> None:
    tool = ToolDeclaration(name="bash", description="Run.", input_schema={"type": "object"})
    async with two(tmp_path) as (a, b):
        await b.w.call("session.create", agent="other", session="other")
        await record(b.w, "other", "c", "of another session")
        await a.w.call("session.create", agent="a", session="s1", system_prompt="Be brief.")
        await say(a.w, "s1", ("user", "go"))
        sent = [await request(a, tool, format=format)]
        # The texts of what is cut name the object, whose id is taken in the other journal.
        await a.w.call("toolcall.record", session="s1", id="c", tool="bash", args={"x": LONG}, content=LONG)
        sent.append(await request(a, tool, format=format))
        assert "activate c to load it" in json.dumps(sent[-1])
        live = await a.w.sessions.live("s1")
        target = target_for("s1", Wanted(format, MODELS_OF[format], tools=(tool,)), None, MODELS)
        made = await a.assembler.assemble(live, WriteRequest("context.assemble", "host"), form=WantedSpec(target))
        assert target is not None
        sent.append(spec_request(made.context.blocks, target).body)
        await a.w.call("session.activate", session="s1", object="c")
        sent.append(await request(a, tool, format=format))
        await b.take(a, name="branch")
        await b.take(b, "branch", "again")
        for name in ("branch", "again"):
            shown = [(await b.archive.show(name, number=number)).context.request for number in (1, 2, 3, 4)]
            assert shown == sent
        await say(b.w, "again", ("user", "next"))
        after = await request(b, tool, "again", format)
        assert after.get("prompt_cache_key", "again") == "again"
        assert (await b.archive.show("again")).context.request == after
    verified(tmp_path / "b")


@pytest.mark.requirement("WHY-2")
@pytest.mark.parametrize("format", get_args(RequestFormat))
async def test_requests_render_again_after_settings_and_the_table_of_models_changed(
    tmp_path: Path, format: RequestFormat
) -> None:
    tool = ToolDeclaration(name="bash", description="Run.", input_schema={"type": "object"})
    async with host(tmp_path / "a") as a:
        await a.w.call("session.create", agent="a", session="s1", system_prompt="Be brief.")
        await say(a.w, "s1", ("user", "go"))
        await a.w.call("toolcall.record", session="s1", id="c", tool="bash", args={"x": LONG}, content=LONG)
        sent = [await request(a, tool, format=format)]
        await say(a.w, "s1", ("assistant", "done"), ("user", "again"))
        sent.append(await request(a, tool, format=format))
        await a.w.call("session.configure", session="s1", budget_tokens=100, workdir="/elsewhere")
        await a.w.call("session.set_system_prompt", session="s1", content="Be long.")
        a.w.sessions.unload("s1")
        small = msgspec.structs.replace(MODELS.get("m"), context_tokens=20, output_tokens_max=10, provider="openai")
        for table in ({}, {MODELS_OF[format]: small}):
            archive = Archive(a.w.store, a.w.sessions, spec, estimate_tokens, Models(table, (BUILT_IN,)))
            shown = [(await archive.show("s1", number=number)).context.request for number in (1, 2)]
            assert shown == sent
