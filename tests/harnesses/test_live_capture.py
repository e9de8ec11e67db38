"""The real clients: what their hooks deliver, also while the daemon is killed."""

import json
import re
import sqlite3
from base64 import b64decode
from contextlib import closing
from pathlib import Path

import pytest

from ctxd_client import connect_sync
from tests.client.running import Running
from tests.harnesses.clients import CTX, LOOKS, PICTURE, REAL, TOOLS, Client, captured, compact
from tests.harnesses.scripted_model import (
    ANSWER,
    COMMANDS,
    FIRST_CALL,
    PROMPT,
    SAID,
    SUMMARY,
    ScriptedModel,
    Step,
)
from tests.waiting import block_until


@pytest.mark.timeout(240)
@pytest.mark.requirement("HOK-10")
@pytest.mark.requirement("HOK-16")
@REAL
def test_a_session_of_the_real_client_is_captured_live(harness: str, daemon: Running, tmp_path: Path) -> None:
    """The daemon is killed after the first call of a tool, and starts again before the answer."""
    live: list[str] = []

    def on_step(step: int) -> None:
        if step == 1 and not live:
            live.extend(event["event"] for event in captured(daemon))
            daemon.kill()
        elif step == 2 and len(live) > 0 and live[-1] != "started":
            daemon.start()
            live.append("started")

    with ScriptedModel(TOOLS[harness], on_step) as model:
        client = Client(harness, daemon, model, tmp_path / "client")
        client.connect()
        client.ask()
    step = ["response", "tool_call", "tool_result"]
    assert [each for each in live if each != "system"] == ["prompt", *step, "started"]
    events = [event for event in captured(daemon) if event["event"] != "system"]
    assert [event["event"] for event in events] == ["prompt", *step, *step, "response"]
    assert PROMPT in events[0]["text"]
    assert [event["text"] for event in events if event["event"] == "response"] == [*SAID, ANSWER]
    with connect_sync(daemon.socket) as ctxd:
        session = ctxd.session_list().sessions[0].session
        outputs = [
            ctxd.object_get(event["object"], session=session).object.payload["content"]
            for event in events
            if event["event"] == "tool_result"
        ]
    assert [output.strip() for output in outputs] == [command.removeprefix("echo ") for command in COMMANDS]
    assert "ctx-" in client.ctx("log")


@pytest.mark.timeout(240)
@pytest.mark.requirement("HOK-23")
@REAL
def test_an_image_that_the_model_looks_at_is_captured_once(harness: str, daemon: Running, tmp_path: Path) -> None:
    name, argument = LOOKS[harness]
    picture = tmp_path / "client/tree/one.png"
    scripts = {PROMPT: [Step(SAID[0], ((name, {argument: str(picture)}),)), Step(ANSWER)]}
    with ScriptedModel(TOOLS[harness], scripts=scripts) as model:
        client = Client(harness, daemon, model, tmp_path / "client")
        picture.write_bytes(PICTURE)
        client.connect()
        client.ask()
    (result,) = (event for event in captured(daemon) if event["event"] == "tool_result")
    (image,) = result["attachments"]
    assert (image["media_type"], b64decode(image["data"])) == ("image/png", PICTURE)
    with connect_sync(daemon.socket) as ctxd:
        session = ctxd.session_list().sessions[0].session
        if ctxd.session_get(session).session.state == "active":
            ctxd.session_pause(session)
        client.ctx("import", harness)
        deltas = [
            ctxd.commit_materialize(each.commit, stop=each.commit, format="claude-code-v1").content or ""
            for each in ctxd.commit_list(session=session, limit=1000).commits
        ]
    # Claude Code also logs its requests.
    messages = [line for delta in deltas for line in delta.splitlines() if json.loads(line)["type"] == "user"]
    assert sum(image["data"] in line for line in messages) == 1


@pytest.mark.timeout(240)
@pytest.mark.requirement("HOK-8")
@pytest.mark.requirement("HOK-9")
@REAL
def test_the_model_sees_a_long_output_cut_and_its_tools_know_the_context(
    harness: str, daemon: Running, tmp_path: Path
) -> None:
    # On a busy machine the 200 ms of `ctx current` may end before the daemon has replied.
    lookup = f"for _ in $(seq 20); do {CTX} current && break; done"
    with ScriptedModel(TOOLS[harness], commands=("seq 1 2000", lookup)) as model:
        client = Client(harness, daemon, model, tmp_path / "client")
        client.connect("--shorten", "1000")
        client.ask()
    seen = json.dumps(model.requests[-1])
    assert "are left out; all of it: ctx object cat" in seen and "1000\\n1001" not in seen
    results = [event for event in captured(daemon) if event["event"] == "tool_result"]
    with connect_sync(daemon.socket) as ctxd:
        (session,) = (each.session for each in ctxd.session_list().sessions)
        texts = [ctxd.object_get(event["object"], session=session).object.payload["content"] for event in results]
        commits = {commit.commit for commit in ctxd.commit_list().commits}
    assert "\n1000\n1001\n" in texts[0]
    assert texts[1].strip() in commits


@pytest.mark.timeout(240)
@pytest.mark.requirement("HOK-17")
@pytest.mark.requirement("HOK-20")
@REAL
def test_a_resumed_and_compacted_session_continues(harness: str, daemon: Running, tmp_path: Path) -> None:
    again = "Go on with it."
    with ScriptedModel(TOOLS[harness], scripts={again: [Step("Well then.")]}) as model:
        client = Client(harness, daemon, model, tmp_path / "client")
        client.connect()
        client.ask()
        native = client.session()
        client.ask(again, session=native)
        compact(client, native)
        client.ask(again, session=native)
        assert client.session() == native
        last = json.dumps(model.requests[-1])
    assert SUMMARY in last and COMMANDS[0].removeprefix("echo ") not in last
    events = captured(daemon)
    texts = [event["text"] for event in events if event["event"] in ("prompt", "response")]
    # opencode puts quotation marks around a prompt.
    texts = [again if again in text else text for text in texts]
    assert [text for text in texts if text in (again, *SAID, ANSWER, "Well then.")] == (
        [*SAID, ANSWER, again, "Well then.", again, "Well then."]
    )
    kinds = [event.get("kind") if event["event"] == "system" else event["event"] for event in events]
    assert kinds.count("compaction") == 1
    assert kinds.index("response") < kinds.index("compaction") < len(kinds) - 1 - kinds[::-1].index("prompt")
    if harness == "opencode":
        # Its own "Continue if you have next steps" follows the summary.
        assert kinds[kinds.index("compaction") + 1] == "synthetic"
    if harness == "claude":
        # The answer that it keeps behind the summary, and the last one.
        with connect_sync(daemon.socket) as ctxd:
            made = ctxd.context_current(session=ctxd.session_list().sessions[0].session).context_id
            context = str(ctxd.commit_materialize(made, format="narrative-v1").content)
        assert [context.count(text) for text in (SUMMARY, again, "Well then.", ANSWER)] == [1, 1, 2, 0], context
    assert SUMMARY in next(event["summary"] for event in events if event["event"] == "compaction")


@pytest.mark.timeout(240)
@pytest.mark.requirement("HOK-1")
@REAL
def test_the_calls_of_one_answer_are_recorded_in_their_order(harness: str, daemon: Running, tmp_path: Path) -> None:
    name, argument = TOOLS[harness]
    calls = tuple((name, {argument: f"echo {letter}"}) for letter in "abcdef")
    with ScriptedModel(TOOLS[harness], scripts={PROMPT: [Step(SAID[0], calls), Step(ANSWER)]}) as model:
        client = Client(harness, daemon, model, tmp_path / "client")
        client.connect()
        client.ask()
    events = captured(daemon)
    assert [event["call"] for event in events if event["event"] == "tool_call"] == model.calls
    assert sorted(event["call"] for event in events if event["event"] == "tool_result") == sorted(model.calls)


@pytest.mark.timeout(240)
@pytest.mark.requirement("HOK-18")
@pytest.mark.requirement("HOK-19")
@pytest.mark.parametrize("is_reported", [True, False])
def test_the_context_after_a_compaction_of_codex_is_its_own(daemon: Running, tmp_path: Path, is_reported: bool) -> None:
    """Also after an import, which corrects the context if no hook has reported the compaction."""
    again = "Go on with it."

    def window() -> dict[str, int]:
        with connect_sync(daemon.socket) as ctxd:
            (session,) = ctxd.session_list().sessions
            if session.state == "active":
                ctxd.session_pause(session.session)
            ctxd.context_current(session=session.session)  # The commit of a pause is made after the pause.
            made = ctxd.commit_resolve(session=session.session).commit
            assert made is not None
            context = str(ctxd.commit_materialize(made.commit, format="narrative-v1").content)
        return {text: context.count(text) for text in (PROMPT, ANSWER, SUMMARY, again, "Well then.")}

    with ScriptedModel(TOOLS["codex"], scripts={again: [Step("Well then.")]}) as model:
        client = Client("codex", daemon, model, tmp_path / "client")
        client.connect()
        client.ask()
        native = client.session()
        settings = client.home / ".codex/config.toml"
        trusted = settings.read_text()
        if not is_reported:
            settings.write_text(
                re.sub(r'(?m)(^\[hooks\.state\."[^"]*:post_compact:[^"]*"\]\n.*\nenabled = )true', r"\1false", trusted)
            )
        compact(client, native)
        settings.write_text(trusted)
        client.ask(again, session=native)
        # Hooks that wait for the transcript deliver in processes that outlive the client.
        block_until(lambda: "Well then." in [event.get("text") for event in captured(daemon)])
        last = json.dumps(model.requests[-1])
        own = {text: last.count(text) for text in (PROMPT, ANSWER, SUMMARY, again, "Well then.")}
        own["Well then."] = 1  # The answer to this request.
        assert is_reported == any(event["event"] == "compaction" for event in captured(daemon))
        assert not is_reported or window() == own
        window()
        client.ctx("import", "codex")
        assert window() == own
        client.ask(again, session=native)
        window()
        client.ctx("import", "codex")
        assert window() == {**own, again: 2, "Well then.": 2}


@pytest.mark.timeout(240)
@pytest.mark.requirement("HOK-18")
@REAL
def test_a_session_that_is_older_than_its_hooks_is_completed_by_an_import(
    harness: str, daemon: Running, tmp_path: Path
) -> None:
    again = "Go on with it."
    with ScriptedModel(TOOLS[harness], scripts={again: [Step("Well then.")]}) as model:
        client = Client(harness, daemon, model, tmp_path / "client")
        client.ask()
        if harness == "opencode":
            (file,) = client.home.rglob("opencode.db")
            with closing(sqlite3.connect(file)) as database:
                ((native,),) = database.execute("SELECT id FROM session")
        else:
            places = {"claude": ".claude/projects/*/*.jsonl"}
            (file,) = client.home.glob(places.get(harness, ".*/**/sessions/**/*.jsonl"))
            native = file.stem[-36:]
        client.connect()
        client.ask(again, session=native)
    with connect_sync(daemon.socket) as ctxd:
        (session,) = ctxd.session_list().sessions
        ctxd.session_pause(session.session)  # codex reports no end.
    client.ctx("import", harness)
    with connect_sync(daemon.socket) as ctxd:
        made = ctxd.commit_resolve(session=session.session).commit
        assert made is not None
        context = str(ctxd.commit_materialize(made.commit, format="narrative-v1").content)
    steps = [text for step in zip(SAID, COMMANDS, strict=True) for text in step]
    texts = (PROMPT, *steps, ANSWER, again, "Well then.")
    places = [context.find(text) for text in texts]
    assert min(places) >= 0 and places == sorted(places) and context.count(again) == 1, context


@pytest.mark.timeout(240)
@pytest.mark.requirement("HOK-17")
def test_a_claude_code_sub_agent_is_captured_separately(daemon: Running, tmp_path: Path) -> None:
    wanted = {"description": "look", "prompt": "Look into it.", "subagent_type": "general-purpose"}
    scripts = {
        PROMPT: [Step("I delegate.", (("Agent", wanted),)), Step(ANSWER)],
        "Look into it.": [Step("I look.", (("Bash", {"command": "echo found"}),)), Step("It is there.")],
    }
    with ScriptedModel(TOOLS["claude"], scripts=scripts) as model:
        client = Client("claude", daemon, model, tmp_path / "client")
        client.connect()
        client.ask()
    events = captured(daemon)
    main = [event["event"] for event in events if event.get("sidechain") is None and event["event"] != "system"]
    # The agent runs in the background, and the model answers once more when it has ended.
    assert main == ["prompt", "response", "tool_call", "tool_result", "response", "response"]
    assert "task-notification" in [event.get("kind") for event in events]
    (agent,) = {event.get("sidechain") for event in events} - {None}
    own = [event for event in events if event.get("sidechain") == agent]
    assert [event["event"] for event in own] == ["system", "tool_call", "tool_result", "response"]
    assert own[2]["text"] == "found" and own[3]["text"] == "It is there."
    # What the hooks have recorded is there once after an import too.
    client.ctx("import", "claude")
    with connect_sync(daemon.socket) as ctxd:
        deltas = "".join(
            str(ctxd.commit_materialize(each.commit, stop=each.commit, format="narrative-v1").content)
            for each in ctxd.commit_list(limit=100).commits
        )
    assert [deltas.count(text) for text in (PROMPT, "I delegate.", "I look.", "<task-id>")] == [1, 1, 1, 1], deltas


@pytest.mark.timeout(240)
@pytest.mark.requirement("MCP-7")
@REAL
def test_the_model_arranges_and_commits_its_context(harness: str, daemon: Running, tmp_path: Path) -> None:
    name, argument = TOOLS[harness]
    with ScriptedModel(TOOLS[harness]) as model:
        client = Client(harness, daemon, model, tmp_path / "client")
        client.connect()
        client.add_tools()
        model.scripts[PROMPT] = [
            Step("", ((name, {argument: "seq 1 50"}),)),
            Step("", ((client.named("context_list"), {"contains": "seq"}),)),
            Step("", ((client.named("context_deactivate"), {"id": FIRST_CALL}),)),
            Step("", ((client.named("context_activate"), {"id": FIRST_CALL}),)),
            Step("", ((client.named("context_checkpoint"), {"summary": "By the model."}),)),
            Step("", ((client.named("context_pin"), {"id": "no-such-object"}),)),
            Step(ANSWER),
        ]
        client.ask()
    outputs = [text for role, text in model.conversation() if role == "tool"]
    for output, part in zip(
        outputs, ("50", model.calls[0], "no longer active", "is active", "ctx-", "Call "), strict=True
    ):
        assert part in output, outputs
    with connect_sync(daemon.socket) as ctxd:
        (session,) = ctxd.session_list().sessions
        (made,) = [commit for commit in ctxd.commit_list(limit=100).commits if commit.summary == "By the model."]
        assert made.session == session.session and made.commit in outputs[4]
    if harness == "pi":
        assert "49\n50" in outputs[3], "pi reads no resources, so that the content comes with the result"


@pytest.mark.timeout(240)
@pytest.mark.requirement("IMP-25")
def test_a_failed_command_of_codex_is_recorded_as_failed(daemon: Running, tmp_path: Path) -> None:
    name, argument = TOOLS["codex"]
    steps = [Step(SAID[0], ((name, {argument: command}),)) for command in ("exit 3", "true", "exit 127", "false")]
    with ScriptedModel(TOOLS["codex"], scripts={PROMPT: [*steps, Step(ANSWER)]}) as model:
        client = Client("codex", daemon, model, tmp_path / "client")
        client.connect()
        client.ask()
    with connect_sync(daemon.socket) as ctxd:
        session = ctxd.session_list().sessions[0].session
        found = [ctxd.object_get(call, session=session).object.payload["status"] for call in model.calls]
    assert found == ["fail", "ok", "fail", "fail"]
