"""Context epochs, through the client: entries in the baseline and as updates, across restarts, repacks and purges."""

import json
from pathlib import Path

import pytest

from ctxd_client import connect_sync
from ctxd_client.errors import InvalidCall, NotFound, TooLarge
from ctxd_client.sync import SyncSession
from ctxd_protocol.context_types import AssembledContext, ToolDeclaration
from ctxd_protocol.event_types import CompactionEvent, PromptEvent, ResponseEvent, ToolCallEvent, ToolResultEvent
from ctxd_protocol.methods.epochs import EpochShowResult
from tests.client.running import Running
from tests.unit.assembly.provider_rules import FORMATS, check_request

MODEL = {"anthropic-messages": "claude-sonnet-4-5", "openai-responses": "gpt-5", "openai-chat": "gpt-5"}


def request(s: SyncSession, format: str = "anthropic-messages", **given: object) -> AssembledContext:
    made = s.assemble(format=format, model=MODEL[format], **given)  # type: ignore[arg-type]
    assert made.request is not None
    check_request(format, made.request)
    return made


def body(made: AssembledContext) -> str:
    return json.dumps(made.request, ensure_ascii=False)


def told(shown: EpochShowResult) -> list[tuple[str, str, str]]:
    return [(text.key, text.part, text.text) for text in shown.texts]


@pytest.mark.requirement("EPO-1")
@pytest.mark.parametrize("format", FORMATS)
def test_an_entry_is_in_the_baseline_and_its_changes_are_updates(s: SyncSession, format: str) -> None:
    s.set_system_prompt("Be brief.")
    s.set_entry("mode", "Plan only.")
    s.user("Begin.")
    first = request(s, format)
    s.append(events=[ResponseEvent(text="Ready.")])
    s.set_entry("mode", "Write <code>.")
    s.set_entry("limits", {"files": 3})
    s.user("Go on then.")
    second = request(s, format)
    assert second.stable_prefix is not None and second.stable_prefix >= first.bytes - 20
    assert "mode: Plan only." in body(first) and body(second).count("mode: Plan only.") == 1
    update = 'mode is now: Write <code>.\n\nlimits: {"files":3}'
    if format == "anthropic-messages":
        assert second.request is not None
        last = second.request["messages"][-1]["content"]
        assert [part["text"] for part in last] == [f"<system-update>\n{update}\n</system-update>", "Go on then."]
    else:
        assert second.request is not None
        messages = second.request["input" if format == "openai-responses" else "messages"]
        role = "developer" if format == "openai-responses" else "system"
        assert [message["role"] for message in messages[-3:]] == ["assistant", role, "user"]
        assert messages[-2]["content"][0]["text"] == update
    assert told(s.epoch()) == [
        ("api/mode", "baseline", "mode: Plan only."),
        ("api/mode", "changed", "mode is now: Write <code>."),
        ("api/limits", "new", 'limits: {"files":3}'),
    ]


def roles(made: AssembledContext) -> list[str]:
    assert made.request is not None
    return [message["role"] for message in made.request["messages"]]


def system_request(s: SyncSession) -> AssembledContext:
    """A request for a model of Anthropic that takes system messages in the conversation."""
    made = s.assemble(format="anthropic-messages", model="claude-opus-5")
    assert made.request is not None
    check_request("anthropic-messages", made.request)
    assert s.client.context_show(s.id, number=made.number).request == made.request
    return made


def continues(made: AssembledContext, before: AssembledContext) -> bool:
    return made.stable_prefix is not None and made.stable_prefix >= before.bytes - len("]}]}")


@pytest.mark.requirement("EPO-14")
def test_an_update_is_a_system_message_behind_the_user_where_the_model_takes_one(s: SyncSession) -> None:
    s.set_entry("mode", "Plan only.")
    s.user("Begin.")
    first = system_request(s)
    s.append(events=[ToolCallEvent(call="t1", tool="bash", args={}), ToolResultEvent(call="t1", text="a.py")])
    s.set_entry("mode", "Write <code>.")
    second = system_request(s)
    assert continues(second, first) and roles(second) == ["user", "assistant", "user", "system"]
    assert second.request is not None
    said = [{"type": "text", "text": "mode is now: Write <code>."}]
    assert second.request["messages"][-1] == {"role": "system", "content": said}
    output = second.request["messages"][2]["content"][-1]
    assert "cache_control" in output, "the marker stands before what may change places with a reply"
    s.append(events=[ResponseEvent(text="Done."), PromptEvent(text="Why?")])
    s.set_entry("limits", 3)
    third = system_request(s)
    assert continues(third, second)
    assert roles(third) == ["user", "assistant", "user", "system", "assistant", "user", "system"]


@pytest.mark.requirement("EPO-14")
def test_a_system_message_keeps_its_place_when_the_user_continues_without_a_reply(s: SyncSession) -> None:
    s.set_entry("mode", "Plan only.")
    s.user("Begin.")
    system_request(s)
    s.append(events=[ResponseEvent(text="Ready."), PromptEvent(text="Go on.")])
    s.set_entry("mode", "Write.")
    first = system_request(s)
    s.set_entry("mode", "Stop.")
    second = system_request(s)
    s.user("Wait.")
    third = system_request(s)
    assert continues(second, first) and continues(third, second)
    assert roles(second) == ["user", "assistant", "user", "system", "assistant", "user"]
    assert "<system-update>" in body(second) and "[no reply to this came]" in body(second)
    assert roles(third) == roles(second) and body(third).count("no reply") == 1


@pytest.mark.requirement("EPO-14")
def test_only_a_model_that_takes_system_messages_gets_them(s: SyncSession) -> None:
    s.set_entry("mode", "Plan only.")
    s.append(events=[PromptEvent(text="Begin."), ResponseEvent(text="Ready.", model="claude-opus-5")])
    s.user("Go on.")
    s.assemble(format="anthropic-messages")
    s.set_entry("mode", "Write.")
    s.append(events=[ResponseEvent(text="Done.", model="claude-sonnet-4-5"), PromptEvent(text="And now?")])
    made = s.assemble(format="anthropic-messages")
    assert made.request is not None and made.request["model"] == "claude-sonnet-4-5"
    check_request("anthropic-messages", made.request)
    assert "system" not in roles(made) and "<system-update>" in body(made)
    s.append(events=[ResponseEvent(text="Done.", model="claude-opus-5"), CompactionEvent(summary="All was said.")])
    s.set_entry("mode", "Stop.")
    after = s.assemble(format="anthropic-messages")
    assert after.request is not None and after.request["model"] == "claude-opus-5" and roles(after)[-1] == "system"


@pytest.mark.requirement("EPO-2")
def test_a_deleted_entry_is_announced_once(s: SyncSession) -> None:
    s.set_entry("mode", "Plan only.")
    s.user("Begin.")
    request(s)
    s.delete_entry("mode")
    s.delete_entry("mode")
    s.append(events=[ResponseEvent(text="Done.")])
    for words in ("Go on.", "And on."):
        s.user(words)
        made = request(s)
    assert body(made).count("mode no longer applies.") == 1
    assert [text.part for text in s.epoch().texts] == ["baseline", "removed"]
    s.set_entry("mode", "Plan only.")
    s.user("Again.")
    assert body(request(s)).count("mode: Plan only.") == 2


@pytest.mark.requirement("EPO-3")
def test_an_update_is_never_between_a_call_and_its_output(s: SyncSession) -> None:
    s.user("Begin.")
    request(s)
    s.append(events=[ToolCallEvent(call="t1", tool="bash", args={"command": "a"})])
    s.append(events=[ToolCallEvent(call="t2", tool="bash", args={"command": "b"})])
    s.append(events=[ToolResultEvent(call="t1", text="one")])
    s.set_entry("mode", "Plan only.")
    assert "mode: Plan only." in body(request(s))
    s.append(events=[ToolResultEvent(call="t2", text="two")])
    made = request(s)
    assert made.request is not None
    parts = [part["type"] for message in made.request["messages"] for part in message["content"]]
    assert parts == ["text", "text", "tool_use", "tool_use", "tool_result", "tool_result"]


@pytest.mark.requirement("EPO-4")
def test_a_compaction_begins_an_epoch_with_the_belief_as_its_baseline(s: SyncSession) -> None:
    s.set_entry("mode", "Plan only.")
    s.user("Begin.")
    request(s)
    s.set_entry("mode", "Write.")
    s.append(events=[ResponseEvent(text="Ready."), PromptEvent(text="Go on.")])
    request(s)
    s.set_entry("mode", "Stop.")
    s.append(events=[CompactionEvent(summary="All was said.")])
    s.user("Now?")
    made = request(s)
    assert "Plan only" not in body(made)
    shown = s.epoch()
    assert (shown.epoch, shown.begins) == (2, "compaction")
    assert told(shown) == [
        ("api/mode", "baseline", "mode: Write."),
        ("api/mode", "changed", "mode is now: Stop."),
    ]
    assert [text.text for text in s.epoch(turn=1).texts] == ["mode: Plan only."]


@pytest.mark.requirement("EPO-4")
def test_another_model_begins_an_epoch_and_takes_the_updates_into_the_baseline(s: SyncSession) -> None:
    s.set_entry("mode", "Plan only.")
    s.user("Begin.")
    request(s)
    s.set_entry("mode", "Write.")
    s.append(events=[ResponseEvent(text="Ready."), PromptEvent(text="Go on.")])
    request(s)
    made = request(s, "openai-chat")
    assert made.repacked == "cache_expired" and body(made).count("Write.") == 1 and "Plan only" not in body(made)
    assert (s.epoch().epoch, s.epoch().begins, told(s.epoch())) == (
        2,
        "provider",
        [("api/mode", "baseline", "mode: Write.")],
    )
    s.append(events=[ResponseEvent(text="Ready."), PromptEvent(text="Go on.")])
    made = s.assemble(format="openai-chat", model="gpt-5.5")
    assert made.repacked is None and (s.epoch().epoch, s.epoch().begins) == (3, "model")


@pytest.mark.requirement("EPO-5")
def test_the_epoch_survives_a_kill(tmp_path: Path) -> None:
    with Running(tmp_path, keep_state=True) as daemon:
        with connect_sync(daemon.socket) as client:
            s = client.session("s", agent="agent")
            s.set_entry("mode", "Plan only.")
            s.user("Begin.")
            request(s)
            s.set_entry("mode", "Write.")
            s.append(events=[ResponseEvent(text="Ready."), PromptEvent(text="Go on.")])
            before, shown = request(s), s.epoch()
        daemon.kill()
    with Running(tmp_path, keep_state=True) as daemon, connect_sync(daemon.socket) as client:
        s = client.session("s")
        assert s.epoch() == shown
        again = request(s)
        assert (again.number, again.sha256) == (before.number, before.sha256)
        s.append(events=[ResponseEvent(text="Done."), PromptEvent(text="More.")])
        assert request(s).stable_prefix == before.bytes - len("]}")
        assert s.epoch().texts[-1].number == shown.number


@pytest.mark.requirement("EPO-6")
def test_a_purge_leaves_a_marker_in_baseline_updates_and_history(s: SyncSession) -> None:
    s.set_entry("mode", "The password is swordfish.")
    s.user("Begin.")
    request(s)
    text = s.epoch().texts[0]
    assert text.object is not None and text.sources[0].path == "mode"
    s.client.object_purge(text.sources[0].object)
    assert "swordfish" not in json.dumps([each.text for each in s.epoch().texts])
    shown = s.epoch().texts[0]
    assert (shown.text, shown.purged, shown.sources) == ("[purged]", True, ())
    s.user("Go on.")
    assert "swordfish" not in body(request(s)) and "[purged]" in body(request(s))


@pytest.mark.requirement("EPO-7")
def test_epoch_texts_have_their_time_and_whether_the_model_received_them(s: SyncSession) -> None:
    s.set_entry("mode", "Plan only.")
    s.user("Begin.")
    first = request(s)
    assert [(text.number, text.turn, text.at, text.sent) for text in s.epoch().texts] == [
        (first.number, first.turn, first.assembled_at, False)
    ]
    s.append(events=[ResponseEvent(text="Ready.")])
    assert [text.sent for text in s.epoch().texts] == [True]
    s.set_entry("mode", "Write.")
    s.user("Go on.")
    second = request(s)
    assert [text.sent for text in s.epoch().texts] == [True, False]
    assert len(s.epoch(number=first.number).texts) == 1
    assert s.epoch(at=second.assembled_at).number == second.number
    page = s.epoch(limit=1)
    assert page.next_after == 1 and s.epoch(after=1).texts == s.epoch().texts[1:]
    with pytest.raises(NotFound):
        s.epoch(number=99)
    with pytest.raises(InvalidCall, match="one of"):
        s.epoch(number=1, turn=1)


@pytest.mark.requirement("EPO-8")
def test_declared_tools_are_recorded(s: SyncSession) -> None:
    tool = ToolDeclaration(name="look", description="Looks.", input_schema={"type": "object"})
    s.user("Begin.")
    request(s, tools=(tool,))
    assert s.epoch().tools == ("look",)
    request(s)
    assert s.epoch().tools == () and s.epoch(number=1).tools == ("look",)


@pytest.mark.requirement("EPO-9")
def test_entries_are_bounded_and_captured_under_the_policy_for_secrets(s: SyncSession) -> None:
    with pytest.raises(TooLarge, match="8,192"):
        s.set_entry("long", "x" * 8192)
    with pytest.raises(InvalidCall):
        s.set_entry("no key", 1)
    secret = "AKIA" + "IMNOJVGFDXXXE4OA"
    s.configure(secrets="redact")
    s.set_entry("token", {"value": secret})
    s.user("Begin.")
    assert secret not in body(request(s)) and "token: " in body(request(s))
    assert s.client.session_get(s.id).session.entries == ("token",)
