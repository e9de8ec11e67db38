"""IMP: messages in rollouts of codex that a person did not type as they stand there: context, images and IDE texts."""

import json
from pathlib import Path
from uuid import uuid4

import pytest

from ctxd_client.sync import SyncClient
from tests.client.running import Running
from tests.spec.harness_files import Thread
from tests.spec.imported_contexts import narrative, window
from tests.spec.test_import import Record, ctx, imported, write


@pytest.mark.requirement("IMP-3")
@pytest.mark.requirement("IMP-14")
def test_a_rollback_takes_back_the_turn_that_a_hook_continued(
    daemon: Running, client: SyncClient, tmp_path: Path
) -> None:
    rollout = Thread()
    rollout.turn("a", "b")
    rollout.begin()
    rollout.ask("c")
    rollout.answer("d")
    told = '<hook_prompt hook_run_id="stop:0:hooks.json">Run the linter.</hook_prompt>'
    rollout.add("e", type="message", role="user", content=[{"type": "input_text", "text": told}])
    rollout.answer("f")
    rollout.end()
    path = rollout.write(tmp_path)
    found = imported(daemon, "codex", path)
    assert found["events"]["prompt"] == 2
    assert window(client, rollout.id) == "mabcdef", "the model has seen the text of the hook"
    rollout.event("thread_rolled_back", "r", num_turns=1)
    rollout.turn("g", "h")
    rollout.write(tmp_path)
    imported(daemon, "codex", path)
    assert window(client, rollout.id) == "mabrgh"


IDE = "# Context from my IDE setup:\n\n## Active file: p.py\n\n## Open tabs:\n- p.py: src/p.py\n"
PICTURE = {"type": "input_image", "image_url": "data:image/png;base64,iVBORw0KGgo="}


@pytest.mark.requirement("IMP-14")
def test_the_title_of_a_session_is_the_request_and_not_the_context_of_an_ide(
    daemon: Running, client: SyncClient, tmp_path: Path
) -> None:
    text = f"{IDE}{'- other.py: src/other.py' * 20}\n\n## My request for Codex:\nAccept tabs\n"
    rollout = Thread()
    rollout.turn("a", "b")
    rollout.records[-5]["payload"]["content"][0]["text"] = text
    imported(daemon, "codex", rollout.write(tmp_path))
    hooked = client.session_create(agent="codex").session.session
    client.session_append(hooked, [{"role": "user", "content": text}])
    rows = {row.session: row for row in client.session_list(limit=1000).sessions}
    assert {rows[rollout.id].title, rows[hooked].title, rows[hooked].preview.strip()} == {"Accept tabs"}
    assert "  Accept tabs" in ctx(daemon, "log", "-s", rollout.id).stdout
    assert "Active file: p.py" in narrative(client, rollout.id), "the model has seen the context too"


@pytest.mark.requirement("IMP-14")
def test_a_prompt_with_an_image_has_its_text_without_the_tags_of_codex(
    daemon: Running, client: SyncClient, tmp_path: Path
) -> None:
    tags = [{"type": "input_text", "text": each} for each in ('<image name=[Image #1] path="a.png">', "</image>")]
    said = {"type": "input_text", "text": "Look at it."}
    rollout = Thread()
    rollout.add("a", type="message", role="user", content=[tags[0], PICTURE, tags[1], said])
    rollout.answer("b")
    imported(daemon, "codex", rollout.write(tmp_path))
    assert (
        next(row.title for row in client.session_list(limit=1000).sessions if row.session == rollout.id) == said["text"]
    )


def said(role: str, text: str) -> Record:
    kind = "output_text" if role == "assistant" else "input_text"
    return {"type": "message", "role": role, "content": [{"type": kind, "text": text}]}


@pytest.mark.requirement("IMP-16")
@pytest.mark.parametrize("indent", [None, 2])
def test_a_rollout_in_one_json_document_is_imported_as_it_grows(
    daemon: Running, client: SyncClient, tmp_path: Path, indent: int | None
) -> None:
    native = str(uuid4())
    path = tmp_path / "sessions" / f"rollout-2025-05-05-{native}.json"
    path.parent.mkdir()
    session = {"timestamp": "2025-05-05T19:24:54.000Z", "id": native, "instructions": ""}
    call = {"type": "function_call", "name": "shell", "arguments": '{"command":["ls"]}', "call_id": "c1"}
    output = {"type": "function_call_output", "call_id": "c1", "output": '{"output":"a.py","metadata":{}}'}
    items = [said("user", "Fix it."), call, output, said("assistant", "Fixed.")]
    path.write_text(json.dumps({"session": session, "items": items}, indent=indent))
    (path.parent / "settings.json").write_text("{}")
    found = imported(daemon, "codex", path.parent)
    assert found["skipped"] == [] and found["events"] == {
        "prompt": 1, "tool_call": 1, "tool_result": 1, "response": 1, "opaque": 1,
    }  # fmt: skip
    (row,) = (each for each in client.session_list(limit=1000).sessions if each.session == f"codex-{native}")
    assert (row.title, row.created_at) == ("Fix it.", 1746473094000)
    assert imported(daemon, "codex", path.parent)["commits"] == 0
    items += [said("user", "Test it."), said("assistant", "Tested.")]
    path.write_text(json.dumps({"session": session, "items": items}, indent=indent))
    assert imported(daemon, "codex", path)["rewritten"] == 0
    told = narrative(client, f"codex-{native}")
    assert [told.count(text) for text in ("Fix it.", "a.py", "Fixed.", "Test it.", "Tested.")] == [1] * 5
    assert ctx(daemon, "transcript", str(path)).stdout.count("prompt") == 2


@pytest.mark.requirement("IMP-16")
@pytest.mark.parametrize(
    "stated",
    [
        "Current working directory: {}\nApproval policy: never\nSandbox mode: read-only",
        "  <approval_policy>never</approval_policy>\n  <cwd>{}</cwd>",
    ],
)
def test_an_old_rollout_has_the_directory_of_its_environment_context(
    daemon: Running, client: SyncClient, tmp_path: Path, stated: str
) -> None:
    native = str(uuid4())
    head = {"id": native, "timestamp": "2025-08-05T19:24:54.000Z", "instructions": None}
    context = f"<environment_context>\n{stated.format(tmp_path)}\n</environment_context>"
    other = "<environment_context>\n<cwd>/other</cwd>\n</environment_context>"
    write(tmp_path / "rollout.jsonl", [head, said("user", context), said("user", "Fix it."), said("user", other)])
    imported(daemon, "codex", tmp_path)
    (row,) = (each for each in client.session_list(limit=1000).sessions if each.session == f"codex-{native}")
    assert row.project is not None and row.project.directory == str(tmp_path)
