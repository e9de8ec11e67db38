"""Secrets: an export lists a session in order, page by page, without secrets."""

import json
from pathlib import Path

import pytest

from ctxd_client import CallFailed
from ctxd_protocol.session_types import Message
from tests.client.running import Running
from tests.spec.secrecy import KEY, OTHER, PASSWORD, TOKEN, Start, ctx, say


@pytest.mark.requirement("SEC-11")
@pytest.mark.parametrize("policy", ["off", "flag", "redact"])
def test_an_export_has_all_records_in_order_and_no_secret_under_any_policy(
    daemon: Running, start: Start, tree: Path, policy: str
) -> None:
    s = start(secrets=policy, labels={"deploy": f"with {OTHER}"})
    id, call = say(s, tree), f"{s.id}-call"
    s.client.session_append(s.id, [Message(role="toolcall", toolcall=call), Message(role="user", content="```\n# no")])
    s.client.toolcall_record(s.id, f"{s.id}-unsaid", "ls", "a\n")
    (tree / f"{TOKEN}.txt").write_text("plain\n")
    s.read(f"{TOKEN}.txt")

    lines = ctx(daemon.socket, "session", "export", s.id, "--json")
    shown = ctx(daemon.socket, "session", "export", s.id)
    assert (lines.returncode, shown.returncode) == (0, 0)
    for text in (lines.stdout, shown.stdout):
        assert not any(secret in text for secret in (TOKEN, OTHER, PASSWORD, KEY.splitlines()[2]))
    records = [json.loads(line) for line in lines.stdout.splitlines()]
    assert [record["record"] for record in records] == [
        "session", "system_prompt", "message", "message", "message", "toolcall", "message", "file", "toolcall", "file"
    ]  # fmt: skip
    assert records[1]["content"].startswith("Use [REDACTED:github-token:")
    assert [record["turn"] for record in records[2:7]] == [1, 1, 1, 1, 2]
    assert records[5]["object"] == call and records[5]["args"]["env"]["DB_PASSWORD"].startswith("[REDACTED:assigned-")
    assert records[7]["object"] == id and records[7]["char_count"] > 0 and "content" not in records[7]
    assert "[REDACTED:github-token:" in records[9]["path"] and records[0]["labels"]["deploy"].startswith("with [REDACT")
    assert "## Turn 2\n\n### user\n\n````text\n```\n# no\n````\n" in shown.stdout, "what is said ends no fence"
    pages, cursor = [], None
    while True:
        page = s.client.session_export(s.id, limit=2, cursor=cursor)
        pages += page.records
        assert 0 < len(page.records) <= 2
        if (cursor := page.next_cursor) is None:
            break
    assert pages == records


@pytest.mark.requirement("SEC-11")
def test_an_export_has_the_entries_of_the_session_without_their_secrets(daemon: Running, start: Start) -> None:
    s = start(secrets="off")
    s.set_entry("mode", {"name": "Plan only.", "limits": [3]})
    s.set_entry("token", f"Use {TOKEN}.")
    s.set_entry("gone", "Not any more.")
    s.delete_entry("gone")
    entries = s.client.session_export(s.id).records[0]["entries"]
    assert entries.pop("token").startswith("Use [REDACTED:github-token:")
    assert entries == {"mode": {"name": "Plan only.", "limits": [3]}}
    shown = ctx(daemon.socket, "session", "export", s.id).stdout
    assert '- entry `mode`: `{"limits": [3], "name": "Plan only."}`\n' in shown and TOKEN not in shown
    s.client.object_purge(f"session_entry:{s.id}#mode")
    assert list(s.client.session_export(s.id).records[0]["entries"]) == ["token"]


@pytest.mark.requirement("SEC-11")
def test_a_page_of_an_export_ends_where_it_would_be_long(start: Start) -> None:
    s = start()
    for number in range(4):
        s.client.session_append(s.id, [Message(role="user", content=f"{number} " * 400_000)])
    begun = s.client.session_export(s.id, limit=100)
    first = s.client.session_export(s.id, limit=100, cursor=begun.next_cursor)
    assert len(first.records) == 3, "the prompt, and two messages of 800,000 characters"
    rest = s.client.session_export(s.id, limit=100, cursor=first.next_cursor)
    assert [record["content"][0] for record in rest.records] == ["2", "3"] and rest.next_cursor is None
    with pytest.raises(CallFailed) as refused:
        s.client.session_export(s.id, cursor="x")
    assert refused.value.code == "invalid_params"
