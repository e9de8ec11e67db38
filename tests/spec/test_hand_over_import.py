"""HND: a session that was handed over and went on in its harness without hooks is imported behind what it has."""

import json
from pathlib import Path
from typing import Any

import pytest

from ctxd_client.sync import SyncClient, SyncSession
from tests.client.running import Running
from tests.spec.harness_files import Pi, Thread
from tests.spec.test_hand_over import talked
from tests.spec.test_import import append, ctx, imported


def says(harness: str, file: Path, session: str, text: str, time: str) -> dict[str, Any]:
    """A prompt as a harness appends it to its file."""
    last = json.loads(file.read_text().splitlines()[-1])
    if harness == "claude":
        return {
            "type": "user", "uuid": text, "parentUuid": last.get("uuid"), "sessionId": session, "timestamp": time,
            "message": {"role": "user", "content": text},
        }  # fmt: skip
    if harness == "codex":
        item = {"type": "message", "role": "user", "content": [{"type": "input_text", "text": text}]}
        return {"type": "response_item", "timestamp": time, "payload": item}
    message = {"role": "user", "content": [{"type": "text", "text": text}]}
    return {"type": "message", "id": text, "parentId": last.get("id"), "timestamp": time, "message": message}


@pytest.mark.requirement("HND-4")
@pytest.mark.parametrize("harness", ["claude", "codex", "pi"])
def test_turns_after_a_hand_over_continue_it_across_repeated_imports(
    harness: str, s: SyncSession, client: SyncClient, daemon: Running, tree: Path, tmp_path: Path
) -> None:
    commit = talked(s)
    words = ("resume", commit, "--in", harness, "--cwd", str(tree), "--json")
    done = ctx(daemon, *words, HOME=str(tmp_path), TMPDIR=str(tmp_path))
    made = json.loads(done.stdout)
    file, session = Path(made["file"]), made["session"]
    refused = imported(daemon, harness, file)["skipped"]
    assert f"ctx session pause {session}" in refused[0]["reason"]
    client.session_pause(session)
    for number, text in enumerate(("And spaces?", "And line feeds?")):
        line = says(harness, file, made["native_session"], text, f"2099-01-02T03:04:0{number}Z")
        append(file, line)
        imported(daemon, harness, file)
        newest = client.commit_resolve(session=session).commit
        assert newest is not None
        context = client.commit_materialize(newest.commit, format="narrative-v1", stop="root").content or ""
        assert context.count("Does the parser accept tabs?") == 1
        assert context.count("It does not.") == 1
        assert context.count("And spaces?") == 1 and context.count(text) == 1
    tips = [each for each in client.commit_list(session=session, tips=True).commits if each.message_count]
    assert [each.commit for each in tips] == [newest.commit]
    assert imported(daemon, harness, file)["commits"] == 0


@pytest.mark.requirement("HND-4")
@pytest.mark.parametrize("harness", ["claude", "codex", "pi"])
def test_an_import_keeps_the_title_of_the_session_that_a_hand_over_continues(
    harness: str, s: SyncSession, client: SyncClient, daemon: Running, tree: Path, tmp_path: Path
) -> None:
    s.user("Fix the parser")
    s.append(events=[{"event": "compaction", "summary": "The parser is fixed."}])
    commit = client.context_current(session=s.id).context_id
    assert commit is not None
    words = ("resume", s.id, "--in", harness, "--cwd", str(tree), "--json")
    made = json.loads(ctx(daemon, *words, HOME=str(tmp_path), TMPDIR=str(tmp_path)).stdout)
    file, session = Path(made["file"]), made["session"]
    client.session_pause(session)
    for second in range(2):
        text = f"Go on with it {second}"
        append(file, says(harness, file, made["native_session"], text, f"2099-01-02T03:04:0{second}Z"))
        imported(daemon, harness, file)
        assert client.session_get(session).session.title == "Fix the parser"


@pytest.mark.requirement("HND-4")
def test_a_branch_after_a_hand_over_continues_it(
    s: SyncSession, client: SyncClient, daemon: Running, tree: Path, tmp_path: Path
) -> None:
    words = ("resume", talked(s), "--in", "claude", "--cwd", str(tree), "--json")
    made = json.loads(ctx(daemon, *words, HOME=str(tmp_path), TMPDIR=str(tmp_path)).stdout)
    file, session, native = Path(made["file"]), made["session"], made["native_session"]
    client.session_pause(session)
    prompt = says("claude", file, native, "And spaces?", "2099-01-02T03:04:00Z")
    message = {"role": "assistant", "id": "m", "content": [{"type": "text", "text": "Neither."}]}
    answer = {**prompt, "type": "assistant", "uuid": "answer", "parentUuid": prompt["uuid"], "message": message}
    append(file, prompt, answer)
    imported(daemon, "claude", file)
    other = says("claude", file, native, "Rather semicolons?", "2099-01-02T03:04:01Z")
    append(file, {**other, "parentUuid": prompt["uuid"]})
    imported(daemon, "claude", file)
    newest = client.commit_resolve(session=session).commit
    assert newest is not None
    context = client.commit_materialize(newest.commit, format="narrative-v1", stop="root").content or ""
    texts = ("Does the parser accept tabs?", "And spaces?", "Rather semicolons?", "Neither.")
    assert [context.count(text) for text in texts] == [1, 1, 1, 0]


@pytest.mark.requirement("HND-4")
@pytest.mark.parametrize("harness", ["claude", "codex", "pi"])
@pytest.mark.parametrize("at_once", [True, False])
def test_a_return_to_a_handed_over_turn_removes_later_turns_from_the_context(
    harness: str, at_once: bool, s: SyncSession, client: SyncClient, daemon: Running, tree: Path, tmp_path: Path
) -> None:
    s.user("A turn to go back to.")
    s.append(events=[{"event": "response", "text": "It is answered."}])
    words = ("resume", talked(s), "--in", harness, "--cwd", str(tree), "--json")
    made = json.loads(ctx(daemon, *words, HOME=str(tmp_path), TMPDIR=str(tmp_path)).stdout)
    file, session, native = Path(made["file"]), made["session"], made["native_session"]
    client.session_pause(session)
    records = [json.loads(line) for line in file.read_text().splitlines()]
    (answered,) = (
        each for each in records if each.get("type") != "event_msg" and "It is answered." in json.dumps(each)
    )
    if not at_once:
        append(file, says(harness, file, native, "And spaces?", "2099-01-02T03:04:00Z"))
        imported(daemon, harness, file)
    other = says(harness, file, native, "Rather semicolons?", "2099-01-02T03:04:01Z")
    if harness == "codex":
        payload = {"type": "thread_rolled_back", "num_turns": 1 if at_once else 2}
        append(file, {"type": "event_msg", "timestamp": "2099-01-02T03:04:01Z", "payload": payload}, other)
    else:
        parent = "parentUuid" if harness == "claude" else "parentId"
        append(file, {**other, parent: answered["uuid" if harness == "claude" else "id"]})
    imported(daemon, harness, file)
    newest = client.commit_resolve(session=session).commit
    assert newest is not None
    context = client.commit_materialize(newest.commit, format="narrative-v1", stop="root").content or ""
    texts = (
        "A turn to go back to.",
        "It is answered.",
        "Rather semicolons?",
        "Does the parser accept tabs?",
        "And spaces?",
    )
    assert [context.count(text) for text in texts] == [1, 1, 1, 0, 0]
    assert imported(daemon, harness, file)["commits"] == 0


@pytest.mark.requirement("HND-4")
@pytest.mark.parametrize("harness", ["claude", "codex", "pi"])
@pytest.mark.parametrize("by", ["commit", "session"])
def test_the_import_of_a_hand_over_of_imported_work_adds_nothing_and_hides_nothing(
    harness: str, by: str, client: SyncClient, daemon: Running, tree: Path, tmp_path: Path
) -> None:
    # pi names calls as its providers do, in a form that others refuse.
    pi = Pi()
    call = {"type": "toolCall", "id": "call_1|fc_2", "name": "bash", "arguments": {"command": "ls"}}
    output = {"role": "toolResult", "toolCallId": "call_1|fc_2", "toolName": "bash", "isError": False}
    records = [
        pi.says("a"),
        pi.says("b", "assistant", content=[call]),
        pi("c", "message", message={**output, "content": [{"type": "text", "text": "README"}], "timestamp": 1}),
        pi.says("d", "assistant"),
    ]
    imported(daemon, "pi", pi.write(tmp_path / "pi", *records))
    newest = client.commit_resolve(session=pi.id).commit
    assert newest is not None
    named = newest.commit if by == "commit" else pi.id
    words = ("resume", named, "--in", harness, "--cwd", str(tree), "--json")
    made = json.loads(ctx(daemon, *words, HOME=str(tmp_path), TMPDIR=str(tmp_path)).stdout)
    before = client.session_events(made["session"]).events
    assert [each.event["event"] for each in before][1:] == ["prompt", "tool_call", "tool_result", "response"]
    for more in (("--dry-run",), ()):
        found = imported(daemon, harness, Path(made["file"]), *more)
        assert (found["skipped"], found["commits"]) == ([], 0)
    (current,) = {client.context_current(session=each).context_id for each in (pi.id, made["session"])}
    assert current == newest.commit
    again = ctx(daemon, "resume", made["session"], *words[2:], HOME=str(tmp_path), TMPDIR=str(tmp_path))
    assert again.returncode == 0, again.stderr


@pytest.mark.requirement("HND-4")
@pytest.mark.parametrize("harness", ["claude", "codex", "pi"])
def test_handed_over_entries_without_hooks_are_recognised_by_their_bytes(
    harness: str, client: SyncClient, daemon: Running, tree: Path, tmp_path: Path
) -> None:
    pi = Pi()
    image = {"type": "image", "mimeType": "image/png", "data": "iVBORw0KGgo="}
    call = {"type": "toolCall", "id": "call_1", "name": "bash", "arguments": {"command": "ls"}}
    records = [
        pi.says("a", content=[{"type": "text", "text": "What is this?"}, image]),
        pi.says("b", "assistant", content=[{"type": "thinking", "thinking": "hm", "thinkingSignature": "x"}, call]),
        pi.says("c", content=[{"type": "text", "text": "Never mind."}]),
        pi.says("d", "assistant"),
    ]
    imported(daemon, "pi", pi.write(tmp_path / "pi", *records))
    words = ("resume", pi.id, "--in", harness, "--cwd", str(tree), "--json")
    made = json.loads(ctx(daemon, *words, HOME=str(tmp_path), TMPDIR=str(tmp_path)).stdout)
    file, session = Path(made["file"]), made["session"]
    client.session_pause(session)
    assert imported(daemon, harness, file)["commits"] == 0
    assert client.context_current(session=session).context_id == made["commit"]
    append(file, says(harness, file, made["native_session"], "And then?", "2099-01-02T03:04:05Z"))
    for commits in (1, 0):
        assert imported(daemon, harness, file)["commits"] == commits
    newest = client.commit_resolve(session=session).commit
    assert newest is not None and newest.parent == made["commit"]
    context = client.commit_materialize(newest.commit, format="narrative-v1").content or ""
    assert [context.count(text) for text in ("What is this?", "Never mind.", "And then?")] == [1, 1, 1]


@pytest.mark.requirement("HND-1", "HND-4")
@pytest.mark.parametrize("harness", ["claude", "codex", "pi"])
@pytest.mark.parametrize("prompts", [None, "a"])
def test_prompts_kept_by_a_codex_compaction_are_handed_over(
    harness: str, prompts: str | None, client: SyncClient, daemon: Running, tree: Path, tmp_path: Path
) -> None:
    thread = Thread()
    thread.turn("a", "b")
    thread.compact("s", prompts)
    thread.turn("c", "d")
    imported(daemon, "codex", thread.write(tmp_path / "codex"))
    newest = client.commit_resolve(session=thread.id).commit
    assert newest is not None
    words = ("resume", newest.commit, "--in", harness, "--cwd", str(tree), "--json")
    made = json.loads(ctx(daemon, *words, HOME=str(tmp_path), TMPDIR=str(tmp_path)).stdout)
    content = Path(made["file"]).read_text()
    assert [text in content for text in ("text a", "text b", "summary s", "text c", "text d")] == [1, 0, 1, 1, 1]
    if prompts is None:
        found = imported(daemon, harness, Path(made["file"]))
        assert (found["skipped"], found["commits"]) == ([], 0)


@pytest.mark.requirement("HND-4")
def test_a_hand_over_to_opencode_is_known_by_its_ids(
    client: SyncClient, daemon: Running, tree: Path, tmp_path: Path
) -> None:
    pi = Pi()
    image = {"type": "image", "mimeType": "image/png", "data": "iVBORw0KGgo="}
    records = [
        pi.says("b", "assistant", content=[{"type": "text", "text": "I am ready."}]),
        pi.says("a", content=[{"type": "text", "text": "What is this?"}, image]),
    ]
    imported(daemon, "pi", pi.write(tmp_path / "pi", *records))
    config = tmp_path / ".config/opencode/opencode.json"
    config.parent.mkdir(parents=True)
    config.write_text('{"model": "a/b"}')
    words = ("resume", pi.id, "--in", "opencode", "--cwd", str(tree), "--json")
    made = json.loads(ctx(daemon, *words, HOME=str(tmp_path), TMPDIR=str(tmp_path)).stdout)
    document = json.loads(Path(made["file"]).read_text())
    exported = tmp_path / "exported.json"

    def imports(*more: dict[str, Any]) -> list[str]:
        exported.write_text(json.dumps({**document, "messages": [*document["messages"], *more]}))
        assert imported(daemon, "opencode", exported)["skipped"] == []
        newest = client.commit_resolve(session=made["session"]).commit
        assert newest is not None
        commits = client.commit_list(session=made["session"]).commits
        assert [each for each in commits if each.message_count and each.commit != newest.commit] == []
        context = client.commit_materialize(newest.commit, format="narrative-v1", stop="root").content or ""
        return [text for text in ("I am ready.", "What is this?", "goes on here", "And then?") if text in context]

    client.session_pause(made["session"])
    assert imports() == ["I am ready.", "What is this?"]
    assert client.context_current(session=made["session"]).context_id == made["commit"]
    info = {"id": "msg_ffff00000001AAAAAAAAAAAAAA", "role": "user", "time": {"created": 4_070_908_800_000}}
    for _ in range(2):
        said = {"info": info, "parts": [{"id": "prt_1", "type": "text", "text": "And then?"}]}
        assert imports(said) == ["I am ready.", "What is this?", "And then?"]
