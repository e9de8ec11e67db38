"""Explanations: what a window has of an object, since when, and by which rule; every request rendered again."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import pytest

from ctxd_client import connect_sync
from ctxd_client.sync import SyncSession
from ctxd_protocol.context_types import AssembledContext
from ctxd_protocol.event_types import CompactionEvent, PromptEvent, ResponseEvent, ToolCallEvent, ToolResultEvent
from ctxd_protocol.sandbox_types import SandboxView
from tests.client.running import Running
from tests.spec.refusal import refused
from tests.spec.sandboxes import inside

MODEL = "claude-sonnet-4-5"
Start = Callable[..., SyncSession]


def request(s: SyncSession, **given: Any) -> AssembledContext:
    return s.assemble(format="anthropic-messages", model=MODEL, **given)


def called(s: SyncSession, id: str, output: str) -> str:
    """A tool call of the model, recorded with its output."""
    s.append(events=[ToolCallEvent(call=id, tool="bash", args={"command": f"run {id}"}, model=MODEL)])
    s.record(id, tool="bash", args={"command": f"run {id}"}, content=output)
    s.append(events=[ToolResultEvent(call=id, object=id)])
    return id


def looks(s: SyncSession, id: str) -> tuple[str, str, int | None]:
    found = s.why(id)
    return found.shown, found.rule, None if found.since is None else found.since.number


@pytest.mark.requirement("WHY-1")
def test_the_spec_layout_explains_files_by_the_sets_of_the_session(start: Start, tree: Path) -> None:
    s = start()
    (tree / "a.py").write_text("one\n")
    (tree / "b.py").write_text("two\n" * 4_000)
    a = s.read("a.py").object
    assert looks(s, a) == ("none", "not_assembled", None)
    first = s.assemble()
    assert looks(s, a) == ("whole", "read", first.number)
    assert looks(s, a[:12]) == looks(s, a), "a unique prefix will do"
    b = s.read("b.py").object
    s.user("and now?")
    second = s.assemble()
    found = s.why(b)
    assert (found.shown, found.rule, found.layout) == ("whole", "read", "spec")
    assert found.since is not None
    assert (found.since.number, found.since.context_id, found.since.turn) == (second.number, second.context_id, 1)
    assert looks(s, a) == ("whole", "read", first.number), "since the first, not since the newest"
    s.pin(a)
    s.configure(budget_tokens=400)
    s.user("tight")
    third = s.assemble()
    assert looks(s, a)[:2] == ("whole", "pinned")
    assert looks(s, b) == ("line", "dropped_budget", third.number)
    assert s.why(b).detail == "file activated longest ago"
    s.deactivate(b)
    s.user("less")
    fourth = s.assemble()
    assert looks(s, b) == ("line", "not_active", fourth.number)
    with refused("not_in_index"):
        s.why("f" * 64)
    with refused("infrastructure_object"):
        s.why(f"chat:{s.id}")


@pytest.mark.requirement("WHY-1")
def test_a_window_explains_cuts_stubs_loads_and_compactions(s: SyncSession) -> None:
    s.configure(budget_tokens=12_000)
    s.user("Go on.")
    short, long = called(s, "short", "ok\n"), called(s, "long", "line of it\n" * 2_000)
    first = request(s)
    assert looks(s, short) == ("whole", "recorded", first.number)
    assert looks(s, long) == ("cut", "cut_on_entry", first.number)
    s.append(events=[ResponseEvent(text="I see.", model=MODEL)])
    s.activate(long)
    loaded = request(s)
    assert looks(s, long) == ("whole", "activated", loaded.number)
    s.deactivate(long)
    repacked = None
    for nth in range(30):
        s.append(events=[PromptEvent(text=f"Next {nth}")])
        called(s, f"more-{nth}", f"other {nth}\n" * 400)
        s.append(events=[ResponseEvent(text="Yes.", model=MODEL)])
        made = request(s)
        if made.repacked is not None and repacked is None and s.why(short).shown != "whole":
            repacked = made
        if made.repacked is not None and s.why("more-0").shown == "stub":
            break
    why = s.why("more-0")
    assert (why.shown, why.rule) == ("stub", f"repacked_{made.repacked}")
    assert why.since is not None and why.since.number == made.number
    again = request(s)
    assert again.number == made.number
    s.append(events=[CompactionEvent(summary="All was well."), PromptEvent(text="And now?")])
    compacted = request(s)
    assert looks(s, "more-0") == ("none", "compacted", compacted.number)


@pytest.mark.requirement("WHY-1")
@pytest.mark.parametrize("layout", ["spec", "append"])
def test_purged_content_is_explained_by_its_purge(
    s: SyncSession, tree: Path, layout: Literal["spec", "append"]
) -> None:
    def assemble() -> AssembledContext:
        return request(s) if layout == "append" else s.assemble()

    (tree / "a.py").write_text(f"one of {s.id}\n")
    (tree / "b.py").write_text(f"two of {s.id}\n")
    s.user("Go on.")
    file, call = s.read("a.py").object, called(s, f"call-{s.id}", f"{s.id}\n")
    assemble()
    late = s.read("b.py").object
    for id in (file, call, late):
        s.client.object_purge(id)
    assert [looks(s, id) for id in (file, call)] == [("stub", "purged", None)] * 2
    assert looks(s, late) == ("none", "not_assembled", None), "only the next assembly lists it"
    for text in ("And?", "And then?"):
        s.user(text)
        assemble()
        assert {s.why(id).rule for id in (file, call, late)} == {"purged"}
        assert looks(s, late) == ("line", "purged", None)
    assert s.why(file).detail is None
    (tree / "a.py").write_text(f"three of {s.id}\n")
    assemble()
    assert looks(s, file)[0] == "whole", "it has content again"


@pytest.mark.requirement("WHY-1")
@pytest.mark.parametrize("layout", ["spec", "append"])
def test_text_that_is_assembled_between_requests_changes_no_explanation(
    s: SyncSession, tree: Path, layout: Literal["spec", "append"]
) -> None:
    (tree / "a.py").write_text("one\n")
    s.user("Go on.")
    long, file = called(s, "long", "line of it\n" * 20_000), s.read("a.py").object
    first = request(s)
    before = s.why(long), s.why(file)
    assert looks(s, long) == ("cut", "cut_on_entry", first.number)
    s.assemble(layout=layout)
    assert (s.why(long), s.why(file)) == before
    s.user("And?")
    late = called(s, "late", "ok\n")
    s.assemble(layout=layout)
    assert looks(s, late)[:2] == ("none", "not_assembled"), "the model did not get it yet"
    second = request(s)
    assert looks(s, late) == ("whole", "recorded", second.number)
    s.append(events=[CompactionEvent(summary="All was well."), PromptEvent(text="And now?")])
    s.assemble(layout=layout)
    assert looks(s, late) == ("whole", "recorded", second.number)
    compacted = request(s)
    assert looks(s, late) == ("none", "compacted", compacted.number)


@pytest.mark.requirement("REV-4")
def test_a_turn_shows_its_newest_request(s: SyncSession, tree: Path) -> None:
    (tree / "a.py").write_text("one\n")
    s.user("One")
    text = s.assemble()
    s.user("Two")
    s.assemble()
    first = request(s)
    called(s, "more", "ok\n")
    second = request(s)
    for nth in range(3):
        (tree / "a.py").write_text(f"{nth}\n")
        s.read("a.py")
        assert s.assemble().number == second.number + 1 + nth
    assert [s.show(turn=turn).number for turn in (1, 2)] == [text.number, second.number]
    assert first.number < second.number
    assert s.show(turn=2).request == second.request
    assert s.show().number == second.number + 3, "without a turn, the newest of all"


@pytest.mark.requirement("WHY-1")
def test_a_sandbox_gets_explanations_of_its_own_objects_alone(
    boxed: Callable[..., SandboxView], s: SyncSession, tree: Path
) -> None:
    (tree / "a.py").write_text("one\n")
    (tree / "b.py").write_text("two\n")
    theirs = s.read("b.py").object
    box = boxed()
    own = box.sessions[0]
    with inside(box) as agent:
        id = agent.file_index(own, "/workspace/a.py").object
        made = agent.context_assemble(own)
        found = agent.context_why(own, id)
        assert (found.shown, found.rule) == ("whole", "read")
        assert found.since is not None and found.since.number == made.number
        with refused("not_in_index"):
            agent.context_why(own, theirs)
        with refused("session_not_found"):
            agent.context_why(s.id, theirs)


@pytest.mark.requirement("WHY-2")
def test_requests_of_all_kinds_are_rendered_again_after_changes_and_a_kill(tmp_path: Path, tree: Path) -> None:
    tools: list[dict[str, Any]] = [{"name": "bash", "input_schema": {"type": "object"}}]
    with Running(tmp_path, keep_state=True) as daemon, connect_sync(daemon.socket) as client:
        s = client.session("s", agent="a", workdir=str(tree), system_prompt="Be brief.", budget_tokens=9_000)
        (tree / "a.py").write_text("one\n")
        given: list[AssembledContext] = []
        forms: list[tuple[str, str]] = []
        for nth in range(24):
            s.user(f"Question {nth}")
            called(s, f"c{nth}", f"output {nth}\n" * 150)
            if nth % 5 == 0:
                (tree / "a.py").write_text(f"{nth}\n")
                s.activate(s.read("a.py").object)
            if nth % 7 == 0:
                s.set_system_prompt(f"Be brief, {nth}.")
            s.append(events=[ResponseEvent(text=f"Answer {nth}", model=MODEL)])
            form = ("anthropic-messages", "openai-responses", "openai-chat")[nth // 3 % 3]
            model = MODEL if form == "anthropic-messages" else "gpt-5"
            layout = "spec" if nth % 4 == 3 else "append"
            made = s.assemble(format=form, model=model, layout=layout, tools=tools if nth % 2 else (), max_tokens=4_000)  # type: ignore[arg-type]
            assert made.request is not None
            given.append(made)
            forms.append((layout, form))
            if nth % 2:
                s.usage({"input_tokens": made.tokens + 700, "output_tokens": 30})
        assert {made.repacked for made in given} > {None}
        numbers = [made.number for made in given]
        assert numbers == sorted(set(numbers)), "each was recorded"
        daemon.kill()
        daemon.start()
        s = client.session("s")
        (tree / "a.py").write_text("changed since\n")
        s.read("a.py")
        s.set_system_prompt("Talk a lot.")
        s.deactivate("c23")
        s.usage({"input_tokens": 1, "output_tokens": 1})
        for made in given:
            shown = s.show(number=made.number)
            assert (shown.sha256, shown.bytes, shown.request) == (made.sha256, made.bytes, made.request)
            assert (shown.layout, shown.tokens, shown.cost) == (made.layout, made.tokens, made.cost)
        rows = s.assemblies(limit=100).assemblies
        assert [(row.layout, row.format) for row in rows] == forms
        assert {row.policy for row in rows if row.layout == "append"} == {2}
        assert {row.model for row in rows} == {MODEL, "gpt-5"}
