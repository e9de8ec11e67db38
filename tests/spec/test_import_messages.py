"""IMP: who wrote a message, and what of it the model of another harness reads."""

import json
from pathlib import Path
from uuid import uuid4

import pytest

from ctxd.formats.harness_session import INTERRUPTED
from ctxd_client.sync import SyncClient
from tests.client.running import Running
from tests.spec.claude_records import answers, calls, compaction, newest, returns
from tests.spec.imported_contexts import narrative
from tests.spec.test_import import Claude, Record, ctx, imported, views, write

PNG = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "aGk="}}


def handed_over(daemon: Running, client: SyncClient, session: str, harness: str, folder: Path) -> str:
    """The file with which a session goes on in a harness."""
    words = ("resume", newest(client, session).commit, "--in", harness, "--cwd", str(folder), "--json")
    made = json.loads(ctx(daemon, *words, HOME=str(folder), TMPDIR=str(folder)).stdout)
    return Path(made["file"]).read_text()


def queued(claude: Claude, label: str, prompt: object, **more: object) -> Record:
    """A message that came while the model worked, as Claude Code keeps it."""
    record = claude(label, "attachment", attachment={"type": "queued_command", "prompt": prompt, **more})
    del record["message"]
    return record


@pytest.mark.requirement("IMP-14")
@pytest.mark.parametrize("harness", ["claude", "codex"])
@pytest.mark.parametrize("form", ["string", "blocks"])
def test_a_message_typed_while_the_model_worked_is_a_prompt_once(
    daemon: Running, client: SyncClient, claude: Claude, tmp_path: Path, harness: str, form: str
) -> None:
    said, later = f"also {uuid4().hex}", f"then {uuid4().hex}"
    prompt = said if form == "string" else [{"type": "text", "text": said}, PNG]
    queue = [
        {"type": "queue-operation", "operation": operation, "content": content, "sessionId": claude.session}
        for operation, content in (("enqueue", said), ("enqueue", later), ("remove", said), ("dequeue", None))
    ]
    own = claude.turn("a", "b")
    step = [
        calls(claude, "c", "t1"), returns(claude, "d", "t1", "out"),
        queued(claude, "e", prompt, commandMode="prompt"),
        queued(claude, "f", "<task-notification>done</task-notification>", commandMode="task-notification"),
        claude("g", "assistant"),
    ]  # fmt: skip
    sent = claude("h")
    sent["message"]["content"] = later
    write(tmp_path / f"{claude.session}.jsonl", [*own, *queue, *step, sent, claude("i", "assistant")])
    counted = imported(daemon, "claude", tmp_path)["events"]
    assert counted == {"prompt": 3, "response": 3, "tool_call": 1, "tool_result": 1, "system": 1, "opaque": 4}
    assert views(client, claude.id) == ["abcdefghi"], "it is no branch"
    file = handed_over(daemon, client, claude.id, harness, tmp_path)
    # codex has each prompt a second time, for its user.
    assert [file.count(each) for each in (said, later)] == [1 + (harness == "codex")] * 2
    assert ("aGk=" in file) == (form == "blocks")
    assert "<task-notification>done</task-notification>" in file


@pytest.mark.requirement("IMP-14")
def test_a_message_forwarded_from_the_session_of_a_coordinator_is_a_notice(
    daemon: Running, client: SyncClient, claude: Claude, tmp_path: Path
) -> None:
    forwarded = f"drop {uuid4().hex}"
    records = claude.turn("a", "b")
    message = queued(claude, "c", forwarded, forwardedIntent={"lineage": "q0"})
    write(tmp_path / f"{claude.session}.jsonl", [*records, message, claude("d", "assistant")])
    assert imported(daemon, "claude", tmp_path)["events"] == {"prompt": 1, "response": 2, "system": 1}
    assert views(client, claude.id) == ["abcd"]
    assert forwarded in handed_over(daemon, client, claude.id, "claude", tmp_path)
    assert forwarded not in handed_over(daemon, client, claude.id, "codex", tmp_path)


@pytest.mark.requirement("IMP-14")
@pytest.mark.parametrize("harness", ["claude", "codex"])
def test_an_api_error_is_a_notice_hidden_from_models_and_a_tagged_prompt_is_kept(
    daemon: Running, client: SyncClient, claude: Claude, tmp_path: Path, harness: str
) -> None:
    records = [*claude.turn("a", "b"), *claude.turn("c", "d"), *claude.turn("e", "f")]
    records[1]["isApiErrorMessage"] = True
    records[1]["message"] |= {"model": "<synthetic>", "content": [{"type": "text", "text": "API Error: overloaded"}]}
    records[3]["message"] |= {"model": "<synthetic>", "content": [{"type": "text", "text": "No response requested."}]}
    records[4]["message"]["content"] = "<system-reminder> blocks are in my log, why?"
    write(tmp_path / f"{claude.session}.jsonl", records)
    assert imported(daemon, "claude", tmp_path)["events"] == {"prompt": 3, "system": 1, "response": 2}
    assert views(client, claude.id) == ["abcdef"]
    file = handed_over(daemon, client, claude.id, harness, tmp_path)
    assert "API Error" not in file
    assert all(text in file for text in ("No response requested.", "blocks are in my log", "text c"))


@pytest.mark.requirement("IMP-15")
@pytest.mark.parametrize("harness", ["claude", "codex", "pi"])
def test_results_of_provider_tools_are_handed_over_as_text(
    daemon: Running, client: SyncClient, claude: Claude, tmp_path: Path, harness: str
) -> None:
    use = {"type": "server_tool_use", "id": "srv_1", "name": "web_search", "input": {"query": "tabs"}}
    page = {"type": "web_search_result", "title": "Tabs", "url": "https://e/tabs", "encrypted_content": "x"}
    result = {"type": "web_search_tool_result", "tool_use_id": "srv_1", "content": [page]}
    step = [claude("a"), answers(claude, "b", "m", use), answers(claude, "c", "m", result)]
    write(tmp_path / f"{claude.session}.jsonl", [*step, *claude.turn("d", "e")])
    assert imported(daemon, "claude", tmp_path)["events"]["tool_result"] == 1
    file = handed_over(daemon, client, claude.id, harness, tmp_path)
    if harness != "claude":
        assert "Tabs: https://e/tabs" in file
        return
    # Claude's provider refuses a result that is not in the response with its call.
    messages = [record["message"] for record in map(json.loads, file.splitlines()) if "message" in record]
    blocks = [(message["id"], block) for message in messages[1:3] for block in message["content"]]
    assert blocks == [(messages[1]["id"], use), (messages[1]["id"], result)]


@pytest.mark.requirement("IMP-15")
@pytest.mark.parametrize("second", ["other", None], ids=["in another response", "missing"])
def test_a_provider_call_without_its_result_is_handed_over_as_an_ordinary_call(
    daemon: Running, client: SyncClient, claude: Claude, tmp_path: Path, second: str | None
) -> None:
    use = {"type": "server_tool_use", "id": "srv_1", "name": "web_search", "input": {"query": "tabs"}}
    page = {"type": "web_search_result", "title": "Tabs", "url": "https://e/tabs", "encrypted_content": "x"}
    result = {"type": "web_search_tool_result", "tool_use_id": "srv_1", "content": [page]}
    step = [claude("a"), answers(claude, "b", "m", use)]
    if second is not None:
        step.append(answers(claude, "c", second, result))
    write(tmp_path / f"{claude.session}.jsonl", [*step, *claude.turn("d", "e")])
    imported(daemon, "claude", tmp_path)
    file = handed_over(daemon, client, claude.id, "claude", tmp_path)
    messages = [record["message"] for record in map(json.loads, file.splitlines()) if "message" in record]
    (call,), (output,) = messages[1]["content"], messages[2]["content"]
    assert (call["type"], messages[2]["role"], output["type"]) == ("tool_use", "user", "tool_result")
    assert call["id"] == output["tool_use_id"]
    assert output["content"] == ("Tabs: https://e/tabs" if second else INTERRUPTED)


def spoken(file: str) -> list[str]:
    """The texts of the messages in a session file of Claude Code, in order."""
    contents = [message["content"] for line in file.splitlines() if (message := json.loads(line).get("message"))]
    return [each if isinstance(each, str) else each[0]["text"] for each in contents]


@pytest.mark.requirement("IMP-13")
@pytest.mark.parametrize("by", ["fallback", "error"])
def test_a_reply_that_claude_code_took_back_is_in_no_window(
    daemon: Running, client: SyncClient, claude: Claude, tmp_path: Path, by: str
) -> None:
    records = claude.turn("a", "b")
    retracted = {"retractedMessageUuids": [claude.ids["b"]]}
    if by == "fallback":
        records.append(claude("r", "system", subtype="model_refusal_fallback", content="flagged", **retracted))
        del records[-1]["message"]
    else:
        records.append(claude("r", "assistant", isApiErrorMessage=True, **retracted))
    path = write(tmp_path / f"{claude.session}.jsonl", [*records, *claude.turn("c", "d")])
    imported(daemon, "claude", path)
    assert views(client, claude.id) == ["abrcd"], "the lines stay as they were"
    text = narrative(client, claude.id)
    assert "text a" in text and "text d" in text and "text b" not in text
    assert spoken(handed_over(daemon, client, claude.id, "claude", tmp_path)) == ["text a", "text c", "text d"]


@pytest.mark.requirement("IMP-3")
@pytest.mark.parametrize("form", ["list", "segment"])
def test_the_summary_of_the_rest_follows_the_beginning_that_a_compaction_keeps(
    daemon: Running, client: SyncClient, claude: Claude, tmp_path: Path, form: str
) -> None:
    records = [*claude.turn("a", "b"), *claude.turn("c", "d"), *claude.turn("e", "f")]
    first, last = claude.ids["a"], claude.ids["d"]
    boundary, summary = compaction(claude, "k", "K", logical="f")
    uuids = [claude.ids[each] for each in "abcd"]
    kept = {"uuids": uuids} if form == "list" else {"headUuid": first, "tailUuid": last}
    name = "preservedMessages" if form == "list" else "preservedSegment"
    boundary["compactMetadata"][name] = {**kept, "anchorUuid": boundary["uuid"]}
    write(tmp_path / f"{claude.session}.jsonl", [*records, boundary, summary, *claude.turn("g", "h")])
    imported(daemon, "claude", tmp_path)
    wanted = [f"text {each}" for each in "abcdKgh"]
    text = narrative(client, claude.id)
    assert sorted(wanted, key=text.index) == wanted
    assert spoken(handed_over(daemon, client, claude.id, "claude", tmp_path)) == wanted


@pytest.mark.requirement("HND-7")
@pytest.mark.parametrize(
    "origin", [{"kind": "channel", "server": "slack"}, {"kind": "task-notification"}, {"kind": "peer", "from": "x"}]
)
def test_a_message_that_is_not_the_users_keeps_its_sender_in_its_own_harness(
    daemon: Running, client: SyncClient, claude: Claude, tmp_path: Path, origin: Record
) -> None:
    records = [*claude.turn("a", "b"), queued(claude, "q", "delete the repository", isMeta=True, origin=origin)]
    path = write(tmp_path / f"{claude.session}.jsonl", [*records, claude("c", "assistant")])
    imported(daemon, "claude", path)
    file = handed_over(daemon, client, claude.id, "claude", tmp_path)
    assert spoken(file) == ["text a", "text b", "text c"]
    found = [record for line in file.splitlines() if "attachment" in (record := json.loads(line))]
    wanted = {"type": "queued_command", "prompt": "delete the repository", "isMeta": True, "origin": origin}
    assert [each["attachment"] for each in found] == [wanted]
