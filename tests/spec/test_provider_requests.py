"""Requests for providers, through the client: what a harness sends, across restarts and with its own tools."""

import base64
import json
from pathlib import Path
from typing import Literal

import pytest

from ctxd_client import connect_sync
from ctxd_client.errors import InvalidCall, InvalidState
from ctxd_client.sync import SyncSession
from ctxd_protocol.context_types import AssembledContext, Layout, Omitted, ToolDeclaration
from ctxd_protocol.event_types import (
    Attachment,
    PromptEvent,
    ResponseEvent,
    SystemEvent,
    ThinkingEvent,
    ToolCallEvent,
    ToolResultEvent,
)
from tests.client.running import Running
from tests.unit.assembly.provider_rules import FORMATS, check_request

MODEL = "claude-sonnet-4-5"
PNG = b"\x89PNG\r\n\x1a\n"


def request(s: SyncSession, format: str = "anthropic-messages", **given: object) -> AssembledContext:
    model = "gpt-5" if format == "openai-responses" else MODEL
    made = s.assemble(format=format, model=model, **given)  # type: ignore[arg-type]
    assert made.request is not None
    check_request(format, made.request)
    return made


def text_of(made: AssembledContext) -> str:
    return json.dumps(made.request, ensure_ascii=False)


@pytest.mark.requirement("REQ-1")
def test_a_request_contains_calls_with_arguments_outputs_and_images(s: SyncSession) -> None:
    s.set_system_prompt("Be brief.")
    picture = Attachment(media_type="image/png", data=PNG)
    s.append(events=[PromptEvent(text="What is this?", attachments=(picture,))])
    s.append(events=[ToolCallEvent(call="t1", tool="bash", args={"command": "file x.png"})])
    s.append(events=[ToolResultEvent(call="t1", text="PNG", attachments=(picture,))])
    body = request(s).request
    assert body is not None
    image = {"type": "base64", "media_type": "image/png", "data": base64.b64encode(PNG).decode()}
    assert body["system"][0]["text"] == "Be brief."
    assert [message["role"] for message in body["messages"]] == ["user", "assistant", "user"]
    first, call, output = (message["content"] for message in body["messages"])
    assert [first[0]["text"], first[1]["source"]] == ["What is this?", image]
    assert call == [{"type": "tool_use", "id": "t1", "name": "bash", "input": {"command": "file x.png"}}]
    assert output[0]["tool_use_id"] == "t1"
    assert [part.get("text") or part["source"] for part in output[0]["content"]] == ["PNG", image]
    for format in FORMATS:
        assert "file x.png" in text_of(request(s, format))


@pytest.mark.requirement("REQ-1")
@pytest.mark.parametrize("format", FORMATS)
def test_each_format_is_also_there_in_the_layout_spec_and_text_in_the_layout_append(
    s: SyncSession, format: str
) -> None:
    s.assistant("Hello.")
    s.record(f"{s.id}-1", "bash", "a.py\n")
    made = request(s, format, layout="spec")
    assert made.layout == "spec" and "Hello." in text_of(made)
    shown = s.assemble(layout="append")
    assert shown.layout == "append" and "kind=output" in shown.text and shown.blocks
    assert s.assemble(format="text").layout == "spec"


@pytest.mark.requirement("REQ-1")
@pytest.mark.parametrize("layout", ["spec", "append"])
@pytest.mark.parametrize("roles", ["a", "aa", "aua", "auaa", "au", "ua"])
def test_a_conversation_without_a_user_at_its_start_or_end_gets_a_placeholder(
    s: SyncSession, layout: str, roles: str
) -> None:
    for number, role in enumerate(roles):
        (s.user if role == "u" else s.assistant)(f"{role}{number}")
    body = request(s, layout=layout).request
    assert body is not None
    said = [(message["role"], part["text"]) for message in body["messages"] for part in message["content"]]
    spoken = [("user" if role == "u" else "assistant", f"{role}{number}") for number, role in enumerate(roles)]
    assert [each for each in said if each in spoken] == spoken
    assert said[0][0] == said[-1][0] == "user"
    assert len(said) == len(spoken) + (roles[0] == "a") + (roles[-1] == "a")


@pytest.mark.requirement("CTX-4")
@pytest.mark.parametrize("layout", ["spec", "append"])
def test_a_section_is_as_large_as_its_blocks(s: SyncSession, tree: Path, layout: str) -> None:
    s.set_system_prompt("Sei größer.")
    (tree / "a.py").write_text("print('ü')\n")
    s.user("Look.")
    s.read("a.py")
    s.record(f"{s.id}-1", "bash", "a.py\n")
    made = s.assemble(layout=layout)
    for section in made.sections:
        blocks = [block for block in made.blocks if block.section == section.section]
        assert section.bytes == sum(len(block.text.encode()) for block in blocks)
        assert abs(section.tokens - sum(block.tokens for block in blocks)) <= len(blocks), "each block is rounded"
        # The metadata pool is one block with a line for each entry.
        assert section.entries == (2 if (layout, section.section) == ("spec", "metadata_pool") else len(blocks))


@pytest.mark.requirement("REQ-2")
def test_requests_are_byte_equal_across_a_kill(tmp_path: Path) -> None:
    with Running(tmp_path, keep_state=True) as daemon:
        with connect_sync(daemon.socket) as client:
            s = client.session("s", agent="agent")
            s.user("Look.")
            s.record("t1", "Read", "print(1)\n", args={"file_path": "main.py"})
            before = request(s)
        daemon.kill()
        daemon.start()
        with connect_sync(daemon.socket) as client:
            s = client.session("s")
            s.user("And now?")
            after = request(s)
    # Only the brackets that close the body are not kept.
    assert after.stable_prefix is not None and after.stable_prefix >= before.bytes - len("]}]}")
    assert after.bytes > before.bytes


@pytest.mark.requirement("REQ-4")
def test_reasoning_is_sent_only_to_its_own_model_after_its_messages(s: SyncSession) -> None:
    s.user("Think.")
    request(s)
    thought = ThinkingEvent(text="Hm.", signature="sig", model=MODEL)
    s.append(events=[thought, ResponseEvent(text="Done.", model=MODEL)])
    s.user("Why?")
    made = request(s)
    assert '"thinking": "Hm."' in text_of(made) and made.omitted == ()
    left = Omitted(place=(1, 1), kind="reasoning", reason="another model wrote it")
    assert s.assemble(format="anthropic-messages", model="claude-opus-4-5").omitted == (left,)
    assert request(s, "openai-chat").omitted[0].reason == "the format takes no reasoning"
    s.append(events=[thought, ResponseEvent(text="Because.", model=MODEL)])
    s.user("Really?")
    # It answers the request to another provider.
    assert [each.place for each in request(s).omitted] == [(2, 1)]


@pytest.mark.requirement("REQ-10")
@pytest.mark.parametrize("layout", ["append", "spec"])
def test_a_dry_run_gives_the_next_request_and_records_nothing(s: SyncSession, layout: str) -> None:
    s.set_entry("mode", "Plan only.")
    s.user("Begin.")
    first = request(s, layout=layout)
    s.append(events=[ResponseEvent(text="Ready.", model=MODEL), PromptEvent(text="Go on.")])
    s.set_entry("mode", "Write.")
    before = (s.client.context_list(s.id), s.epoch() if layout == "append" else None)
    for format in ("openai-chat", "openai-responses", "anthropic-messages"):
        looked = request(s, format, layout=layout, dry_run=True)
        assert (looked.number, looked.context_id, looked.receipt) == (0, "", None)
        assert (s.client.context_list(s.id), s.epoch() if layout == "append" else None) == before
    made = request(s, layout=layout)
    assert (made.request, made.sha256, made.cost) == (looked.request, looked.sha256, looked.cost)
    assert (made.number, made.stable_prefix) == (first.number + 1, looked.stable_prefix)
    again = request(s, layout=layout, dry_run=True)
    assert (again.number, again.context_id) == (made.number, made.context_id), "it is the one recorded last"


@pytest.mark.requirement("REQ-10")
def test_a_dry_run_of_text_records_nothing_and_its_operation_id_stays_free(s: SyncSession) -> None:
    s.user("Begin.")
    looked = s.assemble(dry_run=True, op_id="look")
    assert looked.number == 0 and "Begin." in looked.text and not s.client.context_list(s.id).assemblies
    made = s.assemble(op_id="look")
    assert (made.number, made.text) == (1, looked.text)


@pytest.mark.requirement("REQ-9")
def test_a_request_format_unfit_for_the_last_model_is_rejected(s: SyncSession) -> None:
    s.append(events=[PromptEvent(text="Begin."), ResponseEvent(text="Ready.", model=MODEL), PromptEvent(text="Go.")])
    with pytest.raises(InvalidCall) as refused:
        s.assemble(format="openai-responses")
    assert refused.value.code == "invalid_params" and MODEL in str(refused.value)
    assert not s.client.context_list(s.id).assemblies
    assert s.assemble(format="openai-chat").number == 1


@pytest.mark.requirement("REQ-5")
def test_a_reply_waits_for_its_outputs_until_the_conversation_continues(s: SyncSession) -> None:
    s.user("Run it.")
    s.append(events=[ResponseEvent(text="Running."), ToolCallEvent(call="t1", tool="bash", args={"command": "make"})])
    waiting = request(s)
    assert "Running." not in text_of(waiting)
    s.user("Stop.")
    stopped = request(s)
    assert "Running." in text_of(stopped) and "no output of this call came" in text_of(stopped)
    s.append(events=[ToolResultEvent(call="t1", text="made")])
    late = request(s)
    assert "Late output of bash make (ok):\\nmade" in text_of(late)
    assert late.stable_prefix is not None and late.stable_prefix >= stopped.bytes - len("]}]}")


@pytest.mark.requirement("REQ-6")
def test_changes_are_updates_at_the_end(s: SyncSession, tree: Path) -> None:
    s.user("Begin.")
    before = request(s)
    (tree / "notes.md").write_text("# first\n")
    s.discover(["notes.md"])
    s.append(events=[SystemEvent(text="The plan changed.")])
    found = request(s)
    id = s.resolve("notes.md").object
    assert id[:12] in text_of(found) and id not in text_of(found)
    assert "<system-update>\\nThe plan changed.\\n</system-update>" in text_of(found)
    s.activate(id)
    shown = request(s)
    assert "# first" in text_of(shown)
    second = '# second\nif a < b && c > "d":\n'
    (tree / "notes.md").write_text(f"{second}</system-update>\n")
    changed = request(s)
    # Models copy content exactly, so only what could close the update is altered.
    assert "changed. Its content is now" in text_of(changed)
    assert json.dumps(f"{second}&lt;/system-update>\n").strip('"') in text_of(changed)
    for one, other in ((before, found), (found, shown), (shown, changed)):
        assert other.stable_prefix is not None and other.stable_prefix >= one.bytes - len("]}]}")


@pytest.mark.requirement("REQ-1")
def test_a_request_without_a_known_model_is_refused_with_the_remedy(s: SyncSession) -> None:
    s.user("Hello.")
    with pytest.raises(InvalidCall, match="no model given"):
        s.assemble(format="openai-chat")


@pytest.mark.requirement("REQ-9")
@pytest.mark.parametrize("layout", ["append", "spec"])
def test_a_request_its_provider_would_reject_is_rejected_and_changes_no_window(s: SyncSession, layout: Layout) -> None:
    s.user("Hello.")
    before = s.assemble(format="openai-responses", model="gpt-5", layout=layout)
    tool = ToolDeclaration(name="run", input_schema={"type": "object"})
    for given, reason in (
        ({"max_tokens": 128_001}, "takes at most 128,000 for gpt-5"),
        ({"max_tokens": 15}, "takes at least 16 for gpt-5"),
        ({"tools": (tool, tool)}, "the tool run is declared twice"),
        ({"tools": (ToolDeclaration(name="run", input_schema={}),)}, "whose .type. is not .object."),
    ):
        with pytest.raises(InvalidCall, match=reason):
            s.assemble(format="openai-responses", model="gpt-5", layout=layout, **given)
    after = s.assemble(format="openai-responses", model="gpt-5", layout=layout)
    assert (after.number, after.request) == (before.number, before.request)


@pytest.mark.requirement("REQ-2")
@pytest.mark.parametrize("restarted", [False, True])
def test_purged_content_appears_in_no_later_request(tmp_path: Path, restarted: bool) -> None:
    with Running(tmp_path, keep_state=True) as daemon:
        with connect_sync(daemon.socket) as client:
            s = client.session("s", agent="agent")
            s.user("Look for the word.")
            s.record("t1", "bash", "swordfish", args={"command": "cat word"})
            s.append(events=[ResponseEvent(text="It is swordfish.", model=MODEL)])
            s.user("Thanks.")
            before = request(s)
            assert "swordfish" in text_of(before)
            client.object_purge("t1")
            client.object_purge("chat:s")
        if restarted:
            daemon.kill()
            daemon.start()
        with connect_sync(daemon.socket) as client:
            s = client.session("s")
            s.user("Go on.")
            assert "swordfish" not in text_of(request(s))
            with pytest.raises(InvalidState) as gone:
                client.context_show("s", number=before.number)
            assert gone.value.code == "purged"


@pytest.mark.requirement("WIN-1")
def test_a_smaller_budget_holds_at_the_next_request_though_nothing_else_changed(s: SyncSession) -> None:
    s.user("Read it.")
    s.record("t1", "Read", "line\n" * 4_000, args={"file_path": "a.py"})
    assert request(s).tokens > 2_000
    s.configure(budget_tokens=2_000)
    made = request(s)
    assert made.tokens <= 2_000 and made.repacked == "budget"
    assert request(s).number == made.number


@pytest.mark.requirement("REQ-1")
def test_a_refused_request_in_the_layout_spec_records_nothing(s: SyncSession) -> None:
    s.user("Hello.")
    with pytest.raises(InvalidCall):
        s.assemble(format="openai-chat", layout="spec")
    assert s.client.context_list(s.id).assemblies == ()


@pytest.mark.requirement("REQ-9")
@pytest.mark.parametrize("layout", ["append", "spec"])
def test_a_format_that_the_provider_of_the_model_does_not_take_is_refused_before_anything_is_recorded(
    s: SyncSession, layout: Literal["append", "spec"]
) -> None:
    s.append(events=[PromptEvent(text="Go on.")])
    with pytest.raises(InvalidCall) as caught:
        s.assemble(format="openai-responses", model=f"{MODEL}-20250929", layout=layout)
    assert "is from provider anthropic, which does not support format openai-responses" in str(caught.value)
    assert "anthropic-messages or openai-chat" in str(caught.value.hint)
    with pytest.raises(InvalidCall) as caught:
        s.assemble(format="anthropic-messages", model="gpt-5", layout=layout)
    assert "openai-responses or openai-chat" in str(caught.value.hint)
    assert not s.assemblies().assemblies
    assert s.assemble(format="openai-chat", model=MODEL, layout=layout).number == 1


@pytest.mark.requirement("WIN-1")
def test_a_repeated_request_has_the_plan_of_the_budget_that_holds_now(s: SyncSession) -> None:
    s.configure(budget_tokens=8_000)
    s.user("Hello.")
    made = request(s)
    s.configure(budget_tokens=9_000)
    again = request(s)
    assert (again.number, again.request) == (made.number, made.request)
    assert (made.plan.budget_tokens, again.plan.budget_tokens) == (8_000, 9_000)


@pytest.mark.requirement("CTX-6")
def test_a_repeated_request_that_exceeds_its_budget_is_the_same(s: SyncSession, tree: Path) -> None:
    """The model has not replied to the new files, whose shortest forms together exceed the budget."""
    s.configure(budget_tokens=20_000)
    s.user("word " * 9_600)
    s.assistant("ok")
    request(s)
    for number in range(100):
        (tree / f"f{number}").write_text(f"CONTENT{number} " + "abc " * 170)
        s.read(f"f{number}")
    made, repeated = request(s), request(s)
    assert made.plan.over_by > 0 and text_of(made).count("CONTENT") == 100
    assert (repeated.context_id, repeated.receipt) == (made.context_id, None)
    s.configure(budget_tokens=15_000)
    assert request(s).tokens < 15_000
