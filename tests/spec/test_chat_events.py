"""SES, SEC: the chat as a log of typed events, with everything that a harness records of a conversation."""

import base64
import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from ctxd.transcripts.format_detection import read
from ctxd_client import SyncSession, connect_sync
from ctxd_client.sync import SyncClient
from ctxd_protocol.event_types import (
    Attachment,
    CompactionEvent,
    Event,
    OpaqueEvent,
    PromptEvent,
    ResponseEvent,
    SystemEvent,
    ThinkingEvent,
    ToolCallEvent,
    ToolResultEvent,
    Usage,
)
from ctxd_protocol.limits import FRAME_BYTES_HOST_MAX
from ctxd_protocol.session_types import Message
from tests.client.running import Running
from tests.spec.refusal import refused
from tests.spec.sandboxes import wire
from tests.spec.secrecy import OTHER, TOKEN, Start, ctx, files_with
from tests.spec.sessions import call, said
from tests.spec.test_purge import searched
from tests.unit.transcripts.test_real_transcripts import FILES, ROOT

SMALLEST = [
    min(group, key=lambda path: path.stat().st_size)
    for group in (
        [path for path in FILES if path.suffix != ".db" and path.relative_to(ROOT).parts[0] == folder]
        for folder in sorted({path.relative_to(ROOT).parts[0] for path in FILES if path.suffix != ".db"})
    )
]
"""A transcript of each format; a database is another matter: SQLite makes files beside it."""

PICTURE = Attachment(media_type="image/png", name="shot.png", data=b"\x89PNG\x00\xff")


def conversation(call_object: str) -> list[Event]:
    """An event of every kind, with every field."""
    return [
        SystemEvent(text="Be brief.", kind="instructions"),
        PromptEvent(id="1", at=5, text="fix it", attachments=(PICTURE,), meta={"cwd": "/"}),
        ThinkingEvent(text="hm", signature="c2ln", encrypted="ZW5j", model="m", usage=Usage(output=3), parent="1"),
        ResponseEvent(text="I look.", message="msg", model="m", usage=Usage(input=7, cache_read=9), stop_reason="tool"),
        ToolCallEvent(call="c1", tool="bash", args={"command": "ls", "n": [1, None, 1.5]}),
        ToolResultEvent(call="c1", object=call_object),
        PromptEvent(text="of a sub-agent", sidechain="a1"),
        ToolResultEvent(call="c2", text="unrecorded", is_error=True),
        CompactionEvent(summary="It was fixed.", kept_from="1", tokens_before=900, tokens_after=9),
        OpaqueEvent(kind="snapshot", data={"files": ["a"]}, usage=Usage(cache_write=1)),
        PromptEvent(text="thanks"),
    ]


def log(s: SyncSession, **page: Any) -> list[tuple[int, int, Event]]:
    """The whole log, read in pages of ``limit``: turn, place and event of each."""
    found, cursor = [], None
    while True:
        if cursor:
            page = {**page, "first_turn": 0, "cursor": cursor}
        result = s.events(**page)
        assert len(result.events) <= page.get("limit", 100)
        found += [(row.turn, row.place, msgspec.convert(row.event, Event)) for row in result.events]
        if (cursor := result.next_cursor) is None:
            return found


@pytest.mark.requirement("SES-21")
def test_events_are_kept_as_they_came_and_the_chat_is_a_view_of_them(s: SyncSession) -> None:
    recorded = call(s, "one")
    events = conversation(recorded)
    appended = s.append(events=events, op_id="once")
    assert appended.turn == 2
    assert s.append(events=events, op_id="once").receipt == appended.receipt
    places = [(0, 0), *((1, place) for place in range(9)), (2, 0)]
    for limit in (1, 3, 100):
        assert log(s, limit=limit) == [(*place, event) for place, event in zip(places, events, strict=True)]
    assert [place for *place, _ in log(s, first_turn=2)] == [[2, 0]]
    assert {row.seq for row in s.events().events} == {appended.receipt.seq if appended.receipt else 0}
    assert said(s) == [
        (1, [("user", "fix it"), ("assistant", "I look."), ("toolcall", recorded)]),
        (2, [("user", "thanks")]),
    ]
    meta = s.chat().turns[0]["messages"][1]["meta"]
    assert meta == {"model": "m", "stop_reason": "tool", "usage": {"input": 7, "cache_read": 9}}
    text = s.assemble().text
    shown = [text.find(each) for each in ("It was fixed.", "fix it", "I look.", "thanks")]
    assert -1 not in shown and shown == sorted(shown)
    assert not any(hidden in text for hidden in ("hm", "Be brief.", "sub-agent", "unrecorded"))


@pytest.mark.requirement("SES-21")
def test_messages_and_events_are_one_log(s: SyncSession) -> None:
    s.append([Message(role="assistant", content="before")])
    s.append(events=[PromptEvent(text="first"), ThinkingEvent(text="hm")])
    s.append([Message(role="user", content="second", meta={"n": 1})])
    s.append(events=[SystemEvent(text="a notice")])
    assert log(s) == [
        (0, 0, ResponseEvent(text="before")),
        (1, 0, PromptEvent(text="first")),
        (1, 1, ThinkingEvent(text="hm")),
        (2, 0, PromptEvent(text="second", meta={"n": 1})),
        (2, 1, SystemEvent(text="a notice")),
    ]
    assert said(s) == [(0, [("assistant", "before")]), (1, [("user", "first")]), (2, [("user", "second")])]
    assert s.user("third").turn == 3 and "third" in s.assemble().text


@pytest.mark.requirement("SES-21")
@pytest.mark.parametrize(
    "params",
    [
        {},
        {"messages": [], "events": []},
        {"messages": [{"role": "user", "content": "x"}], "events": [{"event": "prompt", "text": "x"}]},
        {"events": [{"event": "prompt"}]},
        {"events": [{"event": "dream", "text": "x"}]},
        {"events": [{"event": "thinking", "text": "x", "surplus": 1}]},
        {"events": [{"event": "tool_call", "tool": "bash"}]},
        {"events": [{"event": "prompt", "attachments": [{"media_type": "a/b", "data": "aGk=", "url": "http://x"}]}]},
        {"events": [{"event": "opaque", "data": {"n": 2**60}}]},
    ],
)
def test_an_invalid_event_is_refused_and_nothing_is_kept(
    daemon: Running, s: SyncSession, params: dict[str, Any]
) -> None:
    with wire(daemon) as call:
        answer = call("session.append", {"session": s.id, **params})
        assert answer["error"]["data"]["code"] == "invalid_params", answer
    assert s.events().events == ()
    with refused("invalid_params"):
        s.events(cursor="x")


@pytest.mark.requirement("SEC-12")
@pytest.mark.parametrize("policy", ["flag", "redact", "off"])
def test_secrets_in_any_part_of_an_event_are_found_redacted_and_never_exported(
    daemon: Running, start: Start, policy: str
) -> None:
    s = start(secrets=policy)
    events = everywhere(TOKEN)
    s.append(events=events)
    kept = log(s)
    listing = str([msgspec.to_builtins(event) for *_, event in kept])
    if policy == "redact":
        assert TOKEN not in listing and encoded(TOKEN) not in listing
    else:
        assert [msgspec.structs.replace(event, secrets=None) for *_, event in kept] == events
    flagged = [event.secrets is not None and event.secrets.found[0].rule == "github-token" for *_, event in kept]
    assert all(flagged) if policy != "off" else not any(flagged)
    scan = ctx(daemon.socket, "scan", "-s", s.id)
    assert scan.returncode == (0 if policy == "redact" else 8) and TOKEN not in scan.stdout
    for words in ((), ("--json",)):
        exported = ctx(daemon.socket, "session", "export", s.id, *words)
        # One of them is bytes, shown in base64.
        assert exported.returncode == 0 and exported.stdout.count("REDACTED:github-token") >= len(events) - 1
        assert TOKEN not in exported.stdout and encoded(TOKEN) not in exported.stdout
        assert "stays" in exported.stdout


@pytest.mark.requirement("FS-11")
@pytest.mark.parametrize("policy", ["redact", "flag"])
def test_only_image_attachments_are_kept_under_redaction_and_in_an_export(
    daemon: Running, start: Start, policy: str
) -> None:
    s = start(secrets=policy)
    text = Attachment(media_type="text/plain", name="u.txt", data=f"with {TOKEN}".encode("utf-16"))
    image = Attachment(media_type="image/png", name="i.png", data=b"\x89PNG\r\n\x1a\n\xff")
    s.append(events=[PromptEvent(text="first", attachments=(text, image)), PromptEvent(attachments=(image,))])
    left = msgspec.structs.replace(text, data=None if policy == "redact" else text.data)
    first, second = (event for *_, event in log(s))
    assert isinstance(first, PromptEvent) and first.attachments == (left, image)
    assert (first.secrets is not None) == (policy == "redact"), "an event names the policy that left something out"
    assert second == PromptEvent(attachments=(image,))
    exported = ctx(daemon.socket, "session", "export", s.id, "--json").stdout
    assert base64.b64encode(text.data or b"").decode() not in exported
    assert exported.count(base64.b64encode(image.data or b"").decode()) == 2


def everywhere(secret: str) -> list[Event]:
    """Events each of which holds ``secret`` in another place, in turn 1."""
    text = f"with {secret}"
    return [
        PromptEvent(text="first", attachments=(Attachment(media_type="text/plain", data=text.encode()),)),
        SystemEvent(text=text),
        ThinkingEvent(text=text),
        ThinkingEvent(signature=text),
        ThinkingEvent(encrypted=text),
        ToolCallEvent(call="c1", tool="bash", args={"command": text, "stays": 1}),
        ToolCallEvent(call="c2", tool="bash", args=text),
        ToolResultEvent(call="c1", text=text),
        CompactionEvent(summary=text),
        OpaqueEvent(kind="raw", data=[text, "stays"]),
        OpaqueEvent(meta={"line": text}),
        ResponseEvent(text=text, sidechain="a1"),
        ResponseEvent(attachments=(Attachment(media_type="image/png", url=f"http://x/?{secret}"),)),
        ResponseEvent(attachments=(Attachment(media_type=f"image/png; key={secret}", artifact="a"),)),
    ]


def encoded(text: str) -> str:
    """A part of ``text`` as it is in the base64 of ``with TEXT``."""
    return base64.b64encode(f"with {text}".encode()).decode()[12:-8]


@pytest.mark.requirement("SEC-12")
def test_a_purge_of_a_turn_takes_text_that_is_only_inside_events(kept: Running, tmp_path: Path) -> None:
    state = tmp_path / "state"
    with connect_sync(kept.socket) as client:
        s = client.session("s", agent="a", secrets="off")
        s.append(events=[*everywhere(TOKEN), PromptEvent(text="second"), ThinkingEvent(text=f"with {TOKEN}")])
        s.append(events=[PromptEvent(text="third"), ThinkingEvent(text=f"only {OTHER}")])
        for n in range(300):
            s.append(events=[OpaqueEvent(data=n)])
        assert files_with(state, TOKEN, OTHER, encoded(TOKEN))
        done = client.object_purge("chat:s", turns=(1,))
        assert (done.residue, done.complete, done.objects, done.texts) == ((), True, ("chat:s",), len(everywhere("")))
        assert searched(state, TOKEN) == set(), "equal text in another turn goes as well"
        assert files_with(state, TOKEN, encoded(TOKEN)) == set()
        after = log(s, first_turn=1)
        assert [type(event) for *_, event in after[: len(everywhere(""))]] == [type(event) for event in everywhere("")]
        assert isinstance(after[5][2], ToolCallEvent) and (after[5][2].call, after[5][2].args) == ("c1", None)
        assert after[len(everywhere(""))][2] == PromptEvent(text="second")
        assert client.object_purge("chat:s", turns=(3,)).texts == 302
        assert files_with(state, TOKEN, OTHER) == set()
        before = log(s)
    kept.kill()
    kept.start()
    with connect_sync(kept.socket) as client:
        s = client.session("s", agent="a")
        assert log(s) == before and [turn for turn, _ in said(s)] == [1, 2, 3]
        assert ctx(kept.socket, "scan", "--all", "--history").returncode == 0


@pytest.mark.requirement("SEC-12")
def test_a_purge_of_a_turn_takes_copies_of_its_attachments_and_leaves_the_others(
    s: SyncSession, client: SyncClient
) -> None:
    link = Attachment(media_type="text/html", url="http://x")
    copy = msgspec.structs.replace(PICTURE, name="copy.png", media_type="image/*")
    purged = Attachment(media_type="application/octet-stream", name="[purged]")
    s.append(events=[PromptEvent(text="first", attachments=(PICTURE,))])
    s.append(events=[PromptEvent(text="second", attachments=(link, copy, link)), ResponseEvent(attachments=(copy,))])
    s.append(events=[PromptEvent(text="third", attachments=(link,))])
    assert client.object_purge(f"chat:{s.id}", turns=(1,)).complete
    assert [event for *_, event in log(s)] == [
        PromptEvent(text="[purged]"),
        PromptEvent(text="second", attachments=(link, purged, link)),
        ResponseEvent(attachments=(purged,)),
        PromptEvent(text="third", attachments=(link,)),
    ]
    assert client.object_purge(f"chat:{s.id}", turns=(1,)).texts == 0, "a purge that is repeated has nothing left"


@pytest.mark.requirement("SES-22")
def test_a_transcript_becomes_a_session_with_every_event_of_it(daemon: Running, client: SyncClient, tree: Path) -> None:
    prompt = {"type": "user", "sessionId": "S", "uuid": "1", "message": {"content": "hi"}}
    parts = [{"type": "thinking", "thinking": "hm", "signature": "c2ln"}, {"type": "text", "text": "hello"}]
    answer = {"type": "assistant", "sessionId": "S", "uuid": "2", "message": {"id": "m", "content": parts}}
    file = tree / "session.jsonl"
    file.write_text("".join(json.dumps(line) + "\n" for line in [prompt, answer] * 700))
    done = ctx(daemon.socket, "session", "import", str(file), "--session", f"from-{tree.parent.name}", "--json")
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    s = client.session(told["session"])
    assert log(s) == [(turn, place, event) for turn, place, event in placed(entry.event for entry in read(file)[1])]
    assert told["events"] == len(log(s)) >= 2100 and s.view().session.turn_count == 700
    assert "hello" in s.assemble().text
    assert ctx(daemon.socket, "session", "import", str(tree / "none")).returncode == 1
    (tree / "other.txt").write_text("no transcript\n")
    assert ctx(daemon.socket, "session", "import", str(tree / "other.txt")).returncode == 2


@pytest.mark.requirement("SES-22")
def test_a_transcript_that_cannot_be_stored_whole_leaves_no_session(
    daemon: Running, client: SyncClient, tree: Path
) -> None:
    before = [row.session for row in client.session_list().sessions]
    lines = [
        {"type": "user", "sessionId": "S", "uuid": str(size), "message": {"content": "x" * size}}
        for size in (2, FRAME_BYTES_HOST_MAX)
    ]
    file = tree / "large.jsonl"
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    done = ctx(daemon.socket, "session", "import", str(file))
    assert done.returncode == 1 and "large.jsonl:2" in done.stderr and "nothing was imported" in done.stderr
    assert [row.session for row in client.session_list().sessions] == before


@pytest.mark.requirement("SES-22")
def test_an_import_that_breaks_off_names_its_session(daemon: Running, client: SyncClient, tree: Path) -> None:
    nested: Any = 1
    for _ in range(100):
        nested = [nested]
    parts = [{"type": "tool_use", "id": "c", "name": "bash", "input": {"deep": nested}}]
    prompt = {"type": "user", "sessionId": "S", "uuid": "1", "message": {"content": "x" * 1_500_000}}
    answer = {"type": "assistant", "sessionId": "S", "uuid": "2", "message": {"id": "m", "content": parts}}
    file = tree / "deep.jsonl"
    file.write_text("".join(json.dumps(line) + "\n" for line in [prompt, answer]))
    session = f"cut-{tree.parent.name}"
    done = ctx(daemon.socket, "session", "import", str(file), "--session", session)
    assert done.returncode != 0
    assert f"session {session} holds the first 1 event" in done.stderr and f"ctx session close {session}" in done.stderr
    assert len(log(client.session(session))) == 1


@pytest.mark.requirement("SES-22")
@pytest.mark.skipif(not FILES, reason=f"no transcripts below {ROOT}: set CTXD_TRANSCRIPTS")
@pytest.mark.parametrize("source", SMALLEST, ids=lambda path: path.relative_to(ROOT).parts[0])
def test_a_real_transcript_of_each_format_is_stored_whole(daemon: Running, client: SyncClient, source: Path) -> None:
    done = ctx(daemon.socket, "session", "import", str(source), "--json")
    assert done.returncode == 0, done.stderr
    s = client.session(json.loads(done.stdout)["session"])
    kept = [(turn, place, msgspec.structs.replace(event, secrets=None)) for turn, place, event in log(s)]
    assert kept == list(placed(entry.event for entry in read(source)[1]))


def placed(events: Iterable[Event]) -> Iterator[tuple[int, int, Event]]:
    """Each event with its turn and its place within that."""
    turn, place = 0, 0
    for event in events:
        if isinstance(event, PromptEvent) and event.sidechain is None:
            turn, place = turn + 1, 0
        yield turn, place, event
        place += 1
