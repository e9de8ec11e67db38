"""Stored segments: operations in order, segments of earlier versions, refusal of newer ones."""

import json
from collections.abc import Sequence
from pathlib import Path

import msgspec
import pytest

from ctxd.errors import CtxdError
from ctxd.objects.document import Document
from ctxd.objects.hashing import content_hash, identity_hash
from ctxd.sessions import live_session as sessions
from ctxd.sessions.session_state import SessionState, apply, replay_deltas, snapshot
from ctxd.sessions.stored_session import (
    ActivateObjects,
    AppendChat,
    CollapseCalls,
    DeactivateObjects,
    DiscoverObjects,
    HideObjects,
    PinObjects,
    ReadObjects,
    RecordCalls,
    SessionDelta,
    ShowObjects,
    Snapshot,
    UnpinObjects,
    kept_in_run,
    messages_of,
    read_bundle,
    read_segment,
    segment_document,
)
from ctxd_protocol.event_types import PromptEvent, ResponseEvent, ThinkingEvent
from ctxd_protocol.session_types import Message
from tests.unit.sessions.world import World, record, world

NAMES = {
    RecordCalls: "t",
    CollapseCalls: "c",
    ReadObjects: "r",
    DiscoverObjects: "d",
    ActivateObjects: "a",
    ShowObjects: "v",
    PinObjects: "k",
    UnpinObjects: "u",
    DeactivateObjects: "x",
    HideObjects: "h",
}
"""The names of the lists of version 1, in the order in which they were applied."""
FILE = "ab" * 32
SNAPSHOT_NAMES = ("i", "p", "a", "k", "r", "n", "c", "t", "e", "f")


def version_1(delta: SessionDelta) -> dict:
    """The payload that a program of version 1 wrote for ``delta``."""
    payload: dict = {}
    for operation in delta:
        if isinstance(operation, Snapshot):
            fields = zip(SNAPSHOT_NAMES, msgspec.structs.astuple(operation), strict=True)
            payload["s"] = {name: value for name, value in fields if value}
        elif isinstance(operation, AppendChat):
            payload["m"] = msgspec.to_builtins(messages_of(delta))
        else:
            payload[NAMES[type(operation)]] = list(operation.objects)
    return payload


def document_of(payload: dict, content: str | None = None, id: str = "segment:s#0000000000") -> Document:
    hashed = content_hash(payload, content)
    return Document(
        id=id,
        type="segment",
        identity_hash=identity_hash("segment", None, id),
        content_hash=hashed,
        payload=payload,
        content=content,
    )


def code_and_message(decode, document: Document) -> tuple[str, str]:
    with pytest.raises(CtxdError) as caught:
        decode(document)
    return caught.value.code, caught.value.message


def test_every_list_of_version_1_becomes_an_operation_in_the_order_of_that_version() -> None:
    sets = Snapshot(index=("f",), pool=(0,), read=((0, 3),), turn=2, recency=((0, 1, 0),), chosen=((0, 2),), files=(0,))
    chat = AppendChat((PromptEvent(text="hi", meta={"k": 1}), ResponseEvent(text="yes")))
    lists = tuple(kind((f"{name}-1", f"{name}-2")) for kind, name in NAMES.items())
    payload = version_1((sets, chat, *lists))
    shuffled = dict(sorted(payload.items(), reverse=True))
    assert read_segment(document_of(shuffled)) == (sets, chat, *lists)
    assert read_segment(document_of({})) == ()


def test_a_snapshot_of_version_1_without_kinds_has_files_by_the_form_of_their_ids() -> None:
    before = replay_deltas([(ReadObjects((FILE, "cd" * 32)), RecordCalls(("call-1",)))])
    payload = version_1((snapshot(before),))
    del payload["s"]["f"]
    assert read_segment(document_of(payload)) == (snapshot(before),)


def test_events_of_version_1_are_the_chat_as_they_are() -> None:
    events = (PromptEvent(text="hi"), ThinkingEvent(text="hm", signature="s"))
    assert read_segment(document_of({"e": msgspec.to_builtins(events)})) == (AppendChat(events),)


def test_operations_of_one_segment_are_applied_in_their_order() -> None:
    pinned, unpinned = SessionState(), SessionState()
    apply(pinned, (ReadObjects((FILE,)), UnpinObjects((FILE,)), PinObjects((FILE,))))
    apply(unpinned, (ReadObjects((FILE,)), PinObjects((FILE,)), UnpinObjects((FILE,))))
    assert (list(pinned.pinned), list(unpinned.pinned)) == ([FILE], [])
    delta = (HideObjects(("a",)), ShowObjects(("a",)), HideObjects(("a",)))
    assert read_segment(segment_document("segment:s#0000000000", delta)) == delta


@pytest.mark.requirement("DUR-13")
def test_a_newer_segment_is_not_empty_to_a_version_1_program() -> None:
    class Delta(msgspec.Struct):
        v: tuple[str, ...] = ()

    payload = segment_document("segment:s#0000000000", (PinObjects(("f",)),)).payload
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert(payload, Delta)


@pytest.mark.requirement("DUR-13")
@pytest.mark.parametrize(
    ("payload", "code", "message"),
    [
        ({"v": 3, "ops": []}, "unsupported", "segment segment:s#0000000000 is of version 3"),
        ({"v": 3}, "unsupported", "is of version 3"),
        ({"v": 2, "ops": [["compact", 1, 2]]}, "unsupported", "'compact'"),
        ({"v": 2, "ops": [["chat", [{"event": "dream"}]]]}, "unsupported", "'dream'"),
        ({"v": 2}, "corrupt", "cannot be read"),
        ({"v": 2, "ops": [["pin", "f"]]}, "corrupt", "cannot be read"),
        ({"t": "f"}, "corrupt", "cannot be read"),
    ],
)
def test_a_segment_that_is_newer_or_damaged_is_refused_by_name(payload: dict, code: str, message: str) -> None:
    found = code_and_message(read_segment, document_of(payload))
    assert found[0] == code and message in found[1]


@pytest.mark.requirement("DUR-13")
@pytest.mark.parametrize(
    ("bundle", "code", "message"),
    [
        ('[3,{"another":"form"}]', "unsupported", "segment:s#0000000000 is of version 3"),
        ('[2,[1],[[["compact",1,2]]]]', "unsupported", "'compact'"),
        ("[[1],[7]]", "corrupt", "cannot be read"),
        ("", "corrupt", "cannot be read"),
        ("[", "corrupt", "cannot be read"),
    ],
)
def test_a_bundle_that_is_newer_or_damaged_is_refused_by_name(bundle: str, code: str, message: str) -> None:
    found = code_and_message(read_bundle, document_of({}, bundle))
    assert found[0] == code and message in found[1]


async def lived(w: World, first: int, calls: int) -> None:
    for n in range(first, first + calls):
        text = f"message {n}"
        await w.begin("session.append", session="s", messages=[{"role": "user", "content": text, "meta": {"n": n}}])
        await record(w, "s", f"call-{n}")
        await w.begin("session.append", session="s", messages=[{"role": "toolcall", "toolcall": f"call-{n}"}])
        if n % 5 == 0:
            await w.call("session.pin", session="s", object=f"call-{n}")
        if n % 7 == 0:
            await w.call("session.pool_remove", session="s", object=f"call-{n}")


def old_bundle(seqs: Sequence[int], deltas: Sequence[SessionDelta | None]) -> str:
    kept = [None if kept_in_run(delta) is None else version_1(delta or ()) for delta in deltas]
    return json.dumps([list(seqs), kept])


def old_segment(id: str, delta: SessionDelta, bundle: str | None = None) -> Document:
    return document_of(version_1(delta), bundle, id)


@pytest.mark.requirement("DUR-13")
@pytest.mark.anyio
async def test_a_session_that_version_1_wrote_opens_and_continues(tmp_path: Path, monkeypatch) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(sessions, "segment_document", old_segment)
        patched.setattr(sessions, "to_text", old_bundle)
        async with world(tmp_path / "state") as w:
            await w.call("session.create", agent="a", session="s")
            await lived(w, 0, 100)
            before = (await w.sessions.live("s")).state
            chat = await w.call("session.chat", session="s", limit=1000)
            assert before.segments > 300
            stored = await w.store.scan("segment:s#")
            assert not any(isinstance(each.document.payload.get("v"), int) for each in stored)
    async with world(tmp_path / "state") as w:
        assert (await w.sessions.live("s")).state == before
        assert await w.call("session.chat", session="s", limit=1000) == chat
        await lived(w, 100, 100)
        state = (await w.sessions.live("s")).state
        w.sessions.unload("s")
        assert (await w.sessions.live("s")).state == state
        turns = (await w.call("session.chat", session="s", limit=1000)).turns
        assert turns[:100] == chat.turns[:100]
        assert turns[150].messages[0] == Message(role="user", content="message 150", meta={"n": 150})
