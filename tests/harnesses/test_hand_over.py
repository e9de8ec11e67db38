"""The real clients continue sessions that were handed over to them, with the same messages in their requests."""

import json
from base64 import b64encode
from pathlib import Path
from typing import Any

import pytest

from ctxd_client import connect_sync
from ctxd_protocol.event_types import Attachment, Event, PromptEvent, ResponseEvent, ToolCallEvent, ToolResultEvent
from tests.client.running import Running
from tests.harnesses.clients import PICTURE, REAL, TOOLS, Client, compact
from tests.harnesses.scripted_model import ANSWER, PROMPT, SUMMARY, ScriptedModel, Step

TALK: list[Event] = [
    PromptEvent(text="ASKED: what do they say?"),
    ResponseEvent(text="LOOKING", message="m1"),
    ToolCallEvent(call="call/1", tool="files.read", args={"path": "b.txt"}, message="m1"),
    ToolCallEvent(call="call/2", tool="files.read", args={"path": "c.txt"}, message="m1"),
    ToolResultEvent(call="call/2", text="SECOND-OUTPUT", is_error=True),
    ToolResultEvent(
        call="call/1", text="FIRST-OUTPUT", attachments=(Attachment(media_type="image/png", data=PICTURE),)
    ),
    ResponseEvent(text="ANSWERED", message="m2"),
    PromptEvent(text="ASKED-AGAIN"),
]
AGAIN = "Go on with it."


def handed_over(client: Client, commit: str) -> dict[str, Any]:
    """The outcome of a hand-over of ``commit`` to the harness of ``client``, ready to be continued."""
    made: dict[str, Any] = json.loads(
        client.ctx("resume", commit, "--in", client.harness, "--cwd", str(client.tree), "--json")
    )
    if client.harness == "opencode":
        client.run(*made["imports"][1:])
    return made


def newest_commit(daemon: Running) -> str:
    """The newest commit of the only session."""
    with connect_sync(daemon.socket) as ctxd:
        (session,) = ctxd.session_list().sessions
        commit = ctxd.commit_resolve(session=session.session).commit
    assert commit is not None
    return commit.commit


def native(client: Client, made: dict[str, Any]) -> str:
    """What names a handed-over session on the harness's own command line."""
    return str(made["file"] if client.harness == "pi" else made["native_session"])


def continued_both(client: Client, model: ScriptedModel, session: str, commit: str) -> tuple[Any, Any, dict[str, Any]]:
    """The conversations with which the client continues its own ``session``, and ``commit`` handed over to it; and the
    outcome of the hand-over."""
    client.ask(AGAIN, session=session)
    own = model.conversation()
    made = handed_over(client, commit)
    client.ask(AGAIN, session=native(client, made))
    return own, model.conversation(), made


@pytest.mark.timeout(240)
@pytest.mark.requirement("HND-6")
@REAL
def test_the_real_client_continues_a_session_of_another_harness(harness: str, daemon: Running, tmp_path: Path) -> None:
    with connect_sync(daemon.socket) as ctxd:
        ctxd.session_create("another", session="source")
        ctxd.session_append("source", events=TALK)
        commit = ctxd.context_current(session="source").context_id or ""
    with ScriptedModel(TOOLS[harness]) as model:
        client = Client(harness, daemon, model, tmp_path / "client")
        client.connect()
        made = handed_over(client, commit)
        client.ask(session=native(client, made))
    texts = [json.dumps(body.get("messages", body.get("input"))) for body in model.requests]
    first = next(text for text in texts if PROMPT in text and "ASKED" in text)
    parts = ["ASKED:", "LOOKING", "b.txt", "c.txt", "FIRST-OUTPUT", "SECOND-OUTPUT", "ANSWERED", "ASKED-AGAIN", PROMPT]
    places = [first.index(part) for part in parts]
    assert places == sorted(places)
    assert first.count(b64encode(PICTURE).decode()) == 1
    with connect_sync(daemon.socket) as ctxd:
        newest = ctxd.context_current(session=made["session"]).context_id
        story = ctxd.commit_materialize(newest, stop="root", format="narrative-v1").content or ""
    assert story.index("ANSWERED") < story.index(PROMPT) < story.index(ANSWER)


@pytest.mark.timeout(240)
@pytest.mark.requirement("HND-7")
@REAL
def test_an_imported_session_that_is_handed_back_has_the_same_messages(
    harness: str, daemon: Running, tmp_path: Path
) -> None:
    """The client resumes its own session and the one that was imported and handed back: both requests are equal."""
    name, argument = TOOLS[harness]
    both = tuple((name, {argument: f"echo {word}"}) for word in ("one", "two"))
    scripts = {
        PROMPT: [
            Step("I call both.", both),
            Step("", both[:1]),
            Step("And again.", ((name, {argument: "exit 3"}),)),
            Step(ANSWER),
        ],
        AGAIN: [Step("Well then.")],
    }
    with ScriptedModel(TOOLS[harness], scripts=scripts) as model:
        client = Client(harness, daemon, model, tmp_path / "client")
        client.ask()
        imported = json.loads(client.ctx("import", harness, "--json"))
        assert imported["commits"] > 0 and imported["skipped"] == []
        session, commit = client.session(), newest_commit(daemon)
        own, handed, made = continued_both(client, model, session, commit)
        assert len(own) >= 9 and handed == own
        if harness == "opencode":
            return
        # Without hooks an import adds what followed, by the bytes that were written.
        with connect_sync(daemon.socket) as ctxd:
            ctxd.session_pause(made["session"])
            client.ctx("import", harness, made["file"])
            newest = ctxd.commit_resolve(session=made["session"]).commit
            assert newest is not None
            story = ctxd.commit_materialize(newest.commit, stop="root", format="narrative-v1").content or ""
            assert commit in [each.commit for each in ctxd.commit_history(newest.commit, depth=5).commits]
    assert [story.count(text) for text in (PROMPT, AGAIN, "Well then.")] == [1, 1, 1]


@pytest.mark.timeout(240)
@pytest.mark.requirement("HND-7")
@REAL
def test_a_compacted_session_that_is_handed_back_has_the_same_messages(
    harness: str, daemon: Running, tmp_path: Path
) -> None:
    with ScriptedModel(TOOLS[harness], scripts={AGAIN: [Step("Well then.")]}) as model:
        client = Client(harness, daemon, model, tmp_path / "client")
        client.ask()
        client.ctx("import", harness)
        session = client.session()
        compact(client, session)
        client.ask(session=session)
        client.ctx("import", harness)
        own, handed, _ = continued_both(client, model, session, newest_commit(daemon))
        assert SUMMARY in json.dumps(own) and handed == own


@pytest.mark.timeout(240)
@pytest.mark.requirement("IMP-17")
@pytest.mark.parametrize("harness", ["claude"])
@pytest.mark.parametrize("is_marked", [True, False])
def test_a_rewound_session_is_handed_back_as_the_harness_itself_resumes_it(
    harness: str, daemon: Running, tmp_path: Path, is_marked: bool
) -> None:
    """Claude Code alone notes a rewind before the next prompt."""
    with ScriptedModel(TOOLS[harness], scripts={AGAIN: [Step("Well then.")]}) as model:
        client = Client(harness, daemon, model, tmp_path / "client")
        client.ask()
        client.ctx("import", harness)
        session = client.session()
        (file,) = (path for path in client.home.rglob("*.jsonl") if path.stem == session)
        answered = [each for each in map(json.loads, file.read_text().splitlines()) if each.get("type") == "assistant"]
        client.ask("A turn that is taken back.", session=session)
        leaf = {"type": "last-prompt", "leafUuid": answered[-1]["uuid"], "sessionId": session}
        with file.open("a") as lines:
            lines.write(json.dumps({**leaf, "explicit": True} if is_marked else leaf) + "\n")
        client.ctx("import", harness, "--json")
        own, handed, _ = continued_both(client, model, session, newest_commit(daemon))
        assert handed == own
        assert ("taken back" in json.dumps(own)) is not is_marked
