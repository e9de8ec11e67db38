"""Messages that a compaction leaves in the window, in sessions that are handed over."""

import json
from typing import Any

import msgspec
import pytest

from ctxd.formats.harness_session import written
from ctxd.formats.losses import Losses
from ctxd.transcripts.harness_names import HarnessCommand
from ctxd_protocol import event_types as typed
from tests.unit.formats.test_session_writers import NEW, READERS, Events, made

SAID: Events = [typed.PromptEvent(text="KEPT-PROMPT"), typed.ResponseEvent(text="KEPT-ANSWER")]
NEXT: Events = [typed.PromptEvent(text="NEXT"), typed.ResponseEvent(text="DONE")]
SEALED = {"type": "compaction", "encrypted_content": "SEALED"}


def texts(events: Events) -> list[str]:
    """What is said, each once: codex shows what it has as an item."""
    found = (getattr(event, "summary", "") or getattr(event, "text", "") for event in events)
    return [text for text in found if text.isupper()]


def user(text: str) -> dict[str, Any]:
    return {"type": "message", "role": "user", "content": [{"type": "input_text", "text": text}]}


def window(events: Events) -> tuple[list[Any], Losses]:
    """The items of the window with which codex goes on."""
    losses = Losses()
    lines = written(events, "codex", NEW, own=True, losses=losses, first_format="codex-v1").splitlines()
    payloads = [json.loads(line)["payload"] for line in lines]
    (history,) = (each["replacement_history"] for each in payloads if "replacement_history" in each)
    return history, losses


@pytest.mark.requirement("HND-1")
@pytest.mark.parametrize("harness", READERS)
def test_messages_that_pi_and_opencode_keep_stay(harness: HarnessCommand) -> None:
    older = typed.CompactionEvent(summary="OLDER", meta={"firstKeptEntryIndex": 1})
    compaction = typed.CompactionEvent(summary="SUMMARY", meta={"firstKeptEntryIndex": 3})
    found, left_out = made(harness, [older, *SAID, compaction, *NEXT])
    assert texts(found) == ["SUMMARY", "KEPT-PROMPT", "KEPT-ANSWER", "NEXT", "DONE"] and left_out == {}
    told = [of_message(event, f"msg_{place}") for place, event in enumerate([*NEXT, *SAID])]
    asked = typed.OpaqueEvent(kind="compaction", data={"type": "compaction", "tail_start_id": "msg_2"})
    summary = typed.CompactionEvent(summary="SUMMARY", message="msg_5", meta={"info": {"id": "msg_5"}, "parts": []})
    found, left_out = made(harness, [*told, asked, summary, *NEXT])
    assert texts(found) == ["SUMMARY", "KEPT-PROMPT", "KEPT-ANSWER", "NEXT", "DONE"]
    assert left_out["compaction"] == 1


@pytest.mark.requirement("HND-6")
def test_opencode_gets_a_compaction_of_its_own_and_times_in_the_order_of_the_messages() -> None:
    """opencode sorts messages by their times, and a summary is written after the messages that it keeps."""
    said = [msgspec.structs.replace(event, at=1000 + place) for place, event in enumerate([*SAID, *NEXT])]
    compaction = typed.CompactionEvent(summary="SUMMARY", at=1002, meta={"firstKeptEntryIndex": 0})
    events = [*said[:2], compaction, *(msgspec.structs.replace(event, at=(event.at or 0) + 5) for event in said[2:])]
    document = json.loads(written(events, "opencode", NEW, own=False, losses=Losses()))
    infos = [message["info"] for message in document["messages"]]
    assert [info["time"]["created"] for info in infos] == [1000, 1000, 1000, 1001, 1007, 1008]
    assert infos == sorted(infos, key=lambda info: (info["time"]["created"], info["id"]))
    assert [part["type"] for part in document["messages"][0]["parts"]] == ["compaction"]
    assert infos[1]["summary"] is True and infos[1]["parentID"] == infos[0]["id"]
    (summary,) = document["messages"][1]["parts"]
    assert (summary["text"], summary["messageID"]) == ("SUMMARY", infos[1]["id"])


def of_message(event: typed.Event, id: str) -> typed.Event:
    return (
        typed.PromptEvent(text=event.text, message=id)
        if isinstance(event, typed.PromptEvent)
        else (typed.ResponseEvent(text=getattr(event, "text", ""), message=id))
    )


@pytest.mark.requirement("HND-1")
@pytest.mark.parametrize("harness", READERS)
@pytest.mark.parametrize("history", [None, [user("KEPT-PROMPT"), user("Earlier: SUMMARY")]])
def test_prompts_that_codex_repeats_beside_a_summary_stay(harness: HarnessCommand, history: list[Any] | None) -> None:
    meta = {"window_number": 2} if history is None else {"replacement_history": history}
    events = [SAID[0], typed.CompactionEvent(summary="SUMMARY", meta=meta), *NEXT]
    losses = Losses()
    content = written(events, harness, NEW, own=False, losses=losses, first_format="codex-v1")
    assert texts(READERS[harness](content)) == ["SUMMARY", "KEPT-PROMPT", "NEXT", "DONE"]
    assert losses.found() == ()
    if history is None:
        # Of no other format's summary is it known.
        assert "KEPT-PROMPT" not in texts(made(harness, events)[0])


@pytest.mark.requirement("HND-1")
@pytest.mark.parametrize("harness", READERS)
def test_a_summary_only_codex_can_read_is_kept_there_and_its_prompts_everywhere(
    harness: HarnessCommand,
) -> None:
    events = [
        typed.PromptEvent(text="GONE"),
        typed.CompactionEvent(meta={"replacement_history": [user("KEPT-PROMPT"), SEALED]}),
        *NEXT,
    ]
    found, left_out = made(harness, events)
    assert texts(found) == ["KEPT-PROMPT", "NEXT", "DONE"] and left_out == {"compaction": 1}
    history, losses = window(events)
    assert history == [user("KEPT-PROMPT"), SEALED] and losses.found() == ()


@pytest.mark.requirement("HND-7")
def test_codex_finds_the_window_that_it_had() -> None:
    compaction = typed.CompactionEvent(summary="SUMMARY")
    assert window([*SAID, compaction, *NEXT])[0] == [user("KEPT-PROMPT"), user("SUMMARY")]
    recorded = [user("KEPT-PROMPT"), user("Earlier: SUMMARY")]
    compaction = typed.CompactionEvent(summary="SUMMARY", meta={"replacement_history": recorded, "window_number": 2})
    assert window([*SAID, compaction, *NEXT])[0] == recorded
    long = typed.PromptEvent(text="x" * 90_000)
    assert window([long, *SAID, typed.CompactionEvent(summary="SUMMARY")])[0][0] == user("KEPT-PROMPT")
