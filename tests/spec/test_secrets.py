"""Secrets: captures and reports of them under each policy."""

import hashlib
import json
import subprocess
from pathlib import Path

import pytest
from blake3 import blake3

from ctxd.secrets.redaction import KEY_BYTES, Guard
from ctxd.secrets.scanner import Scanner
from ctxd_client import connect_sync
from ctxd_protocol.context_types import ToolDeclaration
from ctxd_protocol.secret_types import SecretPolicy
from tests.client.running import Running
from tests.spec.secrecy import ENVIRON, KEY, OTHER, PASSWORD, SCRIPTS, TOKEN, Start, files_with, say


@pytest.mark.requirement("SEC-1")
def test_redact_keeps_no_byte_of_a_secret_from_any_source(kept: Running, tree: Path, tmp_path: Path) -> None:
    with connect_sync(kept.socket) as client:
        s = client.session("s", agent="a", workdir=str(tree), secrets="redact", labels={"deploy": f"with {TOKEN}"})
        assert client.session_get("s").session.labels["deploy"].startswith("with [REDACTED:github-token:")
        client.session_configure("s", labels={"deploy": f"now {TOKEN}"})
        id = say(s, tree)
        text = s.assemble().text
        secret = client.object_get(id).object.payload["secrets"]["found"][0]
        span = f"[REDACTED:github-token:{secret['tag']}]"
        # The same in prompt, chat and file: equal secrets have equal tags.
        assert text.count(span) == 3
        assert "[REDACTED:private-key:" in text and "MODE=test" in text
        call = client.object_get("s-call").object.payload
        assert call["args"]["env"]["DB_PASSWORD"].startswith("[REDACTED:assigned-password:")
        assert client.session_get("s").session.secrets == "redact"
    line = KEY.splitlines()[2]
    assert files_with(tmp_path / "state", TOKEN, PASSWORD, line) == set()
    assert TOKEN not in (tmp_path / "ctxd.log").read_text()


@pytest.mark.requirement("SEC-1")
def test_the_policy_is_the_sessions_own_and_may_be_changed(start: Start, tree: Path) -> None:
    off = start(secrets="off")
    assert off.client.session_get(off.id).session.secrets == "off"
    off.user(TOKEN)
    off.client.session_configure(off.id, secrets="redact")
    off.user(TOKEN)
    first, second = [turn["messages"][0] for turn in off.client.session_chat(off.id).turns]
    assert first["content"] == TOKEN and "secrets" not in {name for name, value in first.items() if value}
    assert second["content"].startswith("[REDACTED:github-token:")


@pytest.mark.requirement("SEC-2")
def test_flag_keeps_the_context_and_adds_only_rule_and_tag_to_metadata(start: Start, tree: Path) -> None:
    flagged = start()
    id = say(flagged, tree)
    text = flagged.assemble().text
    assert text.count(TOKEN) == 3 and KEY in text and "REDACTED" not in text
    shown = flagged.client.object_get(id, content=False).object
    told = shown.payload["secrets"]
    assert told["policy"] == "flag" and [found["rule"] for found in told["found"]] == ["github-token"]
    assert TOKEN not in json.dumps(shown.payload)
    chat = flagged.client.session_chat(flagged.id).turns[0]["messages"]
    assert chat[0]["secrets"]["found"] == [{"rule": "github-token", "tag": told["found"][0]["tag"]}]
    listed = {row.object: row.secrets for row in flagged.client.object_list(session=flagged.id).objects}
    assert listed[id] == ("github-token",)
    assert set(listed[f"{flagged.id}-call"]) == {"private-key", "assigned-password"}


@pytest.mark.requirement("SEC-3")
def test_a_redacted_files_source_hash_is_keyed_and_indexing_it_again_writes_nothing(start: Start, tree: Path) -> None:
    s = start(secrets="redact")
    (tree / "pin").write_text(f"token={TOKEN}\n")
    first = s.read("pin")
    assert first.outcome == "created" and first.source_hash != hashlib.sha256((tree / "pin").read_bytes()).hexdigest()
    again = s.read("pin")
    assert (again.outcome, again.receipt, again.source_hash) == ("unchanged", None, first.source_hash)
    assert s.client.file_index(s.id, "pin", content=f"token={TOKEN}\n").outcome == "unchanged"
    assert len(s.client.object_history(first.object).versions) == 1
    (tree / "pin").write_text(f"token={OTHER}\n")
    assert s.read("pin").outcome == "updated"


@pytest.mark.requirement("SEC-3")
def test_the_keyed_hash_depends_on_the_key() -> None:
    source_hash = hashlib.sha256(TOKEN.encode()).hexdigest()
    one, other = (Guard(Scanner(), bytes([number]) * KEY_BYTES).keyed_hash(source_hash) for number in (1, 2))
    plain = blake3(bytes.fromhex(source_hash)).hexdigest()
    assert len({one, other, plain, source_hash}) == 4


@pytest.mark.requirement("SEC-4")
def test_content_redacted_by_one_session_is_not_restored_by_another(start: Start, tree: Path) -> None:
    strict, lax = start(secrets="redact"), start(secrets="off")
    (tree / "a.env").write_text(f"A={TOKEN}\n")
    id = lax.read("a.env").object
    assert TOKEN in lax.assemble().text
    assert strict.read("a.env").outcome == "updated"
    assert TOKEN not in strict.assemble().text and TOKEN not in lax.assemble().text
    assert lax.read("a.env").outcome == "unchanged"
    (tree / "a.env").write_text(f"A={TOKEN}\nB={OTHER}\n")
    assert lax.read("a.env").outcome == "updated"
    newest = strict.client.object_get(id).object.payload["content"]
    assert TOKEN not in newest and OTHER not in newest


@pytest.mark.requirement("SEC-4")
def test_enabling_redaction_rereads_the_content_of_a_session(start: Start, tree: Path) -> None:
    s = start()
    (tree / "b.env").write_text(f"B={TOKEN}\n")
    s.read("b.env")
    assert TOKEN in s.assemble().text
    s.client.session_configure(s.id, secrets="redact")
    assert TOKEN not in s.assemble().text


@pytest.mark.requirement("SEC-5")
def test_invalid_secret_rules_prevent_the_start_and_are_named(tmp_path: Path) -> None:
    rules = tmp_path / "rules.toml"
    rules.write_text("[[rule]]\nname = 'back-reference'\npattern = '(a)\\1'\n")
    environ = {**ENVIRON, "CTXD_SECRETS_RULES": str(rules)}
    command = [SCRIPTS / "ctxd", "run", "--ephemeral", "--socket", str(tmp_path / "ctxd.sock")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, env=environ)
    assert done.returncode == 78
    assert "rules.toml" in done.stderr and "back-reference" in done.stderr and "RE2" in done.stderr


@pytest.mark.requirement("SEC-13")
@pytest.mark.own_daemon
@pytest.mark.parametrize("policy", ["redact", "flag", "off"])
def test_declared_tools_are_subject_to_the_policy(daemon: Running, tmp_path: Path, policy: SecretPolicy) -> None:
    schema = {"type": "object", "properties": {"token": {"type": "string", "default": TOKEN}}}
    tools = [ToolDeclaration(name="deploy", description=f"Use {TOKEN}.", input_schema=schema)]
    with connect_sync(daemon.socket) as client:
        s = client.session("declares", agent="a", secrets=policy)
        s.user("Deploy.")
        made = [s.assemble(format="anthropic-messages", model="claude-sonnet-4-5", tools=tools) for _ in range(2)]
        assert made[0].number == made[1].number
        shown = s.show(number=made[0].number)
        assert shown.sha256 == made[0].sha256
        for each in (made[0], shown):
            assert (json.dumps(each.request).count(TOKEN) == 0) is (policy == "redact")
            assert json.dumps(each.request).count("[REDACTED:github-token:") == (2 if policy == "redact" else 0)
        spec = s.assemble(format="anthropic-messages", model="claude-sonnet-4-5", tools=tools, layout="spec")
        assert (TOKEN in json.dumps(spec.request)) is (policy != "redact")
    assert (files_with(tmp_path / "state", TOKEN) == set()) is (policy == "redact")
    assert TOKEN not in (tmp_path / "ctxd.log").read_text()
