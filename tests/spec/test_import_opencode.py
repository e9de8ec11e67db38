"""IMP: ``ctx import opencode``: databases of both generations beside their writer, and folders of JSON files."""

import json
import os
import sqlite3
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from ctxd_client.sync import SyncClient
from ctxd_protocol.event_types import PromptEvent, SystemEvent
from tests.client.running import Running
from tests.spec.test_import import Record, commits, ctx, here, imported, text

SCHEMA: Mapping[str, str] = {
    "session": "id, parent_id, directory, time_updated, revert",
    "message": "id, session_id, time_created, time_updated, data",
    "part": "id, message_id, session_id, time_created, time_updated, data",
    "session_v2": "id, parent_id, directory, time_updated, fork_session_id, time_suspended",
    "session_message": "id, session_id, type, seq, time_created, time_updated, data",
}


class Opencode:
    """A database of both generations."""

    def __init__(self, path: Path, schema: Mapping[str, str] = SCHEMA) -> None:
        self.schema = schema
        self.database = sqlite3.connect(path, isolation_level=None)
        self.database.execute("PRAGMA journal_mode=WAL")
        for table, columns in schema.items():
            self.database.execute(f"CREATE TABLE {table} ({columns})")
        self.at = 1_700_000_000_000

    def add(self, table: str, **row: Any) -> None:
        self.at += 1000
        row = {name: json.dumps(each) if isinstance(each, dict) else each for name, each in row.items()}
        columns = [name.strip() for name in self.schema[table].split(",")]
        if "time_updated" in columns:
            row["time_updated"] = self.at
        if "time_created" in columns:
            row["time_created"] = self.at
        self.database.execute(
            f"INSERT INTO {table} ({','.join(row)}) VALUES ({','.join('?' * len(row))})", [*row.values()]
        )

    def message(self, session: str, id: str, role: str, *parts: Record, **info: Any) -> None:
        data = {"role": role, "time": {"created": self.at}, "label": id[-1], **info}
        self.add("message", id=id, session_id=session, data=data)
        for number, part in enumerate(parts):
            self.add("part", id=f"{id}-{number}", message_id=id, session_id=session, data=part)


def told(client: SyncClient, session: str) -> list[str]:
    """The ids of the messages in each of the newest contexts of a session."""
    tips = client.commit_list(session=session, tips=True, limit=1000).commits
    found = []
    for tip in tips:
        records = [json.loads(line) for line in text(client, tip.commit).splitlines()]
        ids = (record.get("info", {}).get("id") or record.get("row") or "s" for record in records)
        found.append("".join(id[-1] for id in ids))
    return sorted(found)


@pytest.mark.requirement("IMP-7")
def test_databases_of_opencode_are_read_beside_their_writer(
    daemon: Running, client: SyncClient, tmp_path: Path
) -> None:
    mark = uuid4().hex
    parent, child, newer = f"ses_{mark}a", f"ses_{mark}b", f"ses_{mark}c"
    source = Opencode(tmp_path / "opencode.db")
    text = {"type": "text", "text": "x"}
    for id, above in ((parent, None), (child, parent), (newer, None)):
        source.add("session", id=id, parent_id=above, directory="/srv", revert=None)
    source.message(parent, "msg_1", "user", text)
    task = {
        "type": "tool", "callID": "c1", "tool": "task",
        "state": {"status": "completed", "input": {}, "output": "", "metadata": {"sessionId": child}},
    }  # fmt: skip
    pruned = {"type": "tool", "callID": "c2", "tool": "read", "state": {
        "status": "completed", "input": {}, "output": "old", "time": {"compacted": 5}}}  # fmt: skip
    pending = {"type": "tool", "callID": "c3", "tool": "read", "state": {"status": "pending", "input": {}}}
    source.message(parent, "msg_2", "assistant", task, pruned, pending)
    source.message(parent, "msg_3", "user", {"type": "compaction", "auto": True, "tail_start_id": "msg_2"})
    source.message(parent, "msg_4", "assistant", text, summary=True, parentID="msg_3", finish="stop")
    source.message(parent, "msg_5", "user", text)
    source.message(child, "msg_x", "user", text)
    source.message(newer, "msg_y", "user", text)
    source.add("session_v2", id=newer, parent_id=None, directory="/srv", fork_session_id=None, time_suspended=1)
    source.add("session_message", id="evt_0", session_id=parent, type="model-switched", seq=1, data={})
    row = {"text": "hi", "time": {"created": 1}}
    source.add("session_message", id="msg_1", session_id=newer, type="user", seq=4, data=row)
    call = {"type": "tool", "id": "c4", "name": "read", "state": {"status": "streaming"}}
    source.add("session_message", id="msg_2", session_id=newer, type="assistant", seq=9, data={"content": [call]})
    source.add("session_message", id="msg_3", session_id=newer, type="user", seq=12, data="{broken")
    summary = {"status": "completed", "summary": "short", "recent": "[User]: hi"}
    source.add("session_message", id="msg_4", session_id=newer, type="compaction", seq=20, data=summary)
    assert (tmp_path / "opencode.db-wal").stat().st_size
    found = imported(daemon, "opencode", tmp_path)
    assert not found["skipped"] and found["sessions"] == [here("opencode", each) for each in (parent, child, newer)]
    assert told(client, here("opencode", parent)) == ["s1235"]
    (tip,) = [each for each in commits(client, here("opencode", parent)).values() if each.depth == 3]
    window = str(client.commit_materialize(tip.commit).content).splitlines()
    assert [json.loads(line)["info"]["id"] for line in window] == ["msg_2", "msg_3", "msg_4", "msg_5"], "with its tail"
    assert told(client, here("opencode", child)) == ["s12sx"], "from the message with the call"
    assert told(client, here("opencode", newer)) == ["s", "s123"], "all but the summary, and the state beside it"
    kinds = {commit.commit_type for commit in commits(client, here("opencode", newer)).values()}
    assert kinds == {"delta", "compaction"}
    assert imported(daemon, "opencode", tmp_path)["unchanged"] == 3
    source.database.execute("UPDATE session_message SET data = ?, time_updated = 1 WHERE seq = 20", (json.dumps(row),))
    source.add("session_message", id="msg_6", session_id=newer, type="user", seq=22, data=row)
    changed = imported(daemon, "opencode", tmp_path)
    assert (changed["unchanged"], changed["rewritten"], changed["sessions"]) == (2, 1, [here("opencode", newer)])
    assert sorted(told(client, here("opencode", newer))) == ["s", "s123", "s12346"]


@pytest.mark.requirement("IMP-7")
def test_a_locked_or_damaged_database_is_listed_and_read_the_next_time(
    daemon: Running, client: SyncClient, tmp_path: Path
) -> None:
    id = f"ses_{uuid4().hex}"
    source = Opencode(tmp_path / "opencode.db")
    source.add("session", id=id, parent_id=None, directory="/", revert='{"messageID": "msg_2"}')
    source.message(id, "msg_1", "user", {"type": "text", "text": "x"})
    source.message(id, "msg_2", "user", {"type": "text", "text": "y"})
    (tmp_path / "bad.db").write_bytes(b"SQLite format 3\x00" + b"\xff" * 4096)
    source.database.execute("PRAGMA journal_mode=DELETE")
    source.database.execute("BEGIN EXCLUSIVE")
    found = imported(daemon, "opencode", tmp_path)
    reasons = {Path(each["path"]).name: each["reason"] for each in found["skipped"]}
    assert reasons["opencode.db"] == "database is locked" and "bad.db" in reasons
    source.database.execute("COMMIT")
    assert imported(daemon, "opencode", tmp_path)["sessions"] == [here("opencode", id)]
    assert told(client, here("opencode", id)) == ["s12", "s1s"], "a revert is pending"


@pytest.mark.requirement("IMP-7")
@pytest.mark.parametrize("is_first", [True, False], ids=["first layout", "second layout"])
def test_json_storage_of_opencode_has_its_ids_from_its_paths(
    daemon: Running, client: SyncClient, tmp_path: Path, is_first: bool
) -> None:
    id = f"ses_{uuid4().hex}"
    storage = tmp_path / "project" / "srv" / "storage"
    # The first version has no directory in the session, and everything below the folder of sessions.
    paths = {"path": {"cwd": "/srv", "root": "/srv"}} if is_first else {}
    folders = (
        ("session/info", "session/message", f"session/part/{id}") if is_first else ("session/p", "message", "part")
    )

    def document(place: str, **content: Any) -> None:
        (storage / place).parent.mkdir(parents=True, exist_ok=True)
        (storage / place).write_text(json.dumps(content))

    document(f"{folders[0]}/{id}.json", id="wrong", **({} if is_first else {"directory": "/srv"}))
    for name, created in (("msg_2", 1), ("msg_1", 2)):
        document(f"{folders[1]}/{id}/{name}.json", id="wrong", role="user", time={"created": created}, **paths)
        document(f"{folders[2]}/{name}/prt_{name}.json", id="wrong", type="text", text=name)
    found = imported(daemon, "opencode", tmp_path)
    assert found["sessions"] == [here("opencode", id)] and found["events"] == {"prompt": 2, "opaque": 3}
    assert told(client, here("opencode", id)) == ["s21"]
    assert client.session_get(here("opencode", id)).session.workdir == "/srv"
    assert imported(daemon, "opencode", tmp_path)["unchanged"] == 1


@pytest.mark.requirement("IMP-3")
@pytest.mark.requirement("HOK-21")
@pytest.mark.parametrize("order", ["caller first", "agent first"])
@pytest.mark.parametrize(("began", "before"), [(5, ""), (15, "s1"), (25, "s12"), (35, "s123")])
def test_a_sub_agent_whose_call_is_gone_begins_at_the_time_of_its_start(
    daemon: Running, client: SyncClient, tmp_path: Path, order: str, began: int, before: str
) -> None:
    """An undo in opencode deletes the turn with the call."""
    caller, agent = (f"ses_{uuid4().hex}" for _ in range(2))
    documents = {
        "caller": exported(caller, 1, {"1": 10, "2": 20, "3": 30}),
        "agent": exported(agent, began, {"a": began}, parentID=caller),
    }
    for name in sorted(documents, reverse=order == "caller first"):
        (tmp_path / f"{name}.json").write_text(json.dumps(documents[name]))
        imported(daemon, "opencode", tmp_path / f"{name}.json")
    assert told(client, here("opencode", agent)) == ["sa" if order == "agent first" else f"{before}sa"]
    (spawned,) = client.session_list(label=f"spawned_by={here('opencode', caller)}").sessions
    assert spawned.session == here("opencode", agent)


def exported(id: str, created: int, prompts: dict[str, int], **info: str) -> Record:
    """An export with prompts, by the last characters of their ids."""
    messages = [
        {
            "info": {"id": f"msg_{name}", "role": "user", "time": {"created": at}},
            "parts": [{"id": f"prt_{name}", "type": "text", "text": name}],
        }
        for name, at in prompts.items()
    ]
    return {"info": {"id": id, "directory": "/srv", "time": {"created": created}, **info}, "messages": messages}


@pytest.mark.requirement("IMP-7")
def test_a_row_whose_text_is_damaged_hides_no_other_session(
    daemon: Running, client: SyncClient, tmp_path: Path
) -> None:
    stored = Opencode(tmp_path / "opencode.db")
    sessions = [f"ses_{uuid4().hex[:20]}" for _ in range(2)]
    for session in sessions:
        stored.add("session", id=session, directory="/srv/app")
        stored.message(session, f"{session}-a", "user", {"type": "text", "text": "a"})
    stored.database.execute("UPDATE session SET directory=CAST(x'ff' AS TEXT) WHERE id=?", (sessions[0],))
    found = imported(daemon, "opencode", tmp_path / "opencode.db")
    assert (found["sessions"], found["skipped"]) == (sorted(here("opencode", each) for each in sessions), [])


@pytest.mark.requirement("IMP-7")
@pytest.mark.parametrize("odd", [None, 5, b"\xff", 1e999], ids=repr)
def test_a_value_that_is_not_text_hides_no_other_session(
    daemon: Running, client: SyncClient, tmp_path: Path, odd: object
) -> None:
    stored = Opencode(tmp_path / "opencode.db")
    sessions = [f"ses_{uuid4().hex[:20]}" for _ in range(2)]
    for session in (odd, *sessions):
        stored.add("session", id=session, directory="/srv/app")
        stored.message(session, f"{session}-a", "user", {"type": "text", "text": "a"})  # type: ignore[arg-type]
    stored.add("session_message", id="r", session_id=odd, type="user", seq=1, data={"text": "x"})
    stored.database.execute("UPDATE message SET data=? WHERE session_id=?", (odd, sessions[0]))
    found = imported(daemon, "opencode", tmp_path)
    assert found["sessions"] == sorted(here("opencode", each) for each in sessions)
    assert {each["reason"] for each in found["skipped"]} == {"a session whose id is not text"}


@pytest.mark.requirement("IMP-6")
@pytest.mark.requirement("IMP-7")
def test_a_session_in_json_storage_with_a_file_that_cannot_be_read_hides_no_other(
    daemon: Running, client: SyncClient, tmp_path: Path
) -> None:
    sessions = [f"ses_{number}{uuid4().hex[:20]}" for number in range(3)]
    (tmp_path / "session" / "p").mkdir(parents=True)
    os.mkfifo(tmp_path / "session" / "p" / f"{sessions[0]}.json")
    for session in sessions[1:]:
        (tmp_path / "session" / "p" / f"{session}.json").write_text('{"directory": "/srv"}')
        (tmp_path / "message" / session).mkdir(parents=True)
        (tmp_path / "message" / session / "msg_1.json").write_text('{"role": "user"}')
    (tmp_path / "part" / "msg_1").mkdir(parents=True)
    (tmp_path / "message" / sessions[1] / "msg_2.json").symlink_to("gone")
    found = imported(daemon, "opencode", tmp_path)
    assert found["sessions"] == [here("opencode", sessions[2])]
    assert {each["path"].rpartition("#")[2]: each["reason"] for each in found["skipped"]} == {
        sessions[0]: "not a regular file",
        sessions[1]: "No such file or directory",
    }


@pytest.mark.requirement("IMP-7")
@pytest.mark.requirement("HOK-14")
def test_a_session_that_hooks_recorded_is_imported_once_it_is_paused_though_the_database_is_the_same(
    daemon: Running, client: SyncClient, tmp_path: Path
) -> None:
    source = Opencode(tmp_path / "opencode.db")
    recorded, other = (f"ses_{uuid4().hex[:20]}" for _ in range(2))
    for native in (recorded, other):
        source.add("session", id=native, directory="/srv")
        source.message(native, f"{native}-a", "user", {"type": "text", "text": "unseen"})
    session = here("opencode", recorded)
    client.session_create("opencode", session=session)
    client.session_append(session, events=[PromptEvent(text="by a hook")])
    first = imported(daemon, "opencode", tmp_path)
    assert "import it again once it is paused" in first["skipped"][0]["reason"]
    assert first["sessions"] == [here("opencode", other)]
    assert imported(daemon, "opencode", tmp_path)["skipped"] == first["skipped"], "it is still listed"
    client.session_pause(session)
    assert imported(daemon, "opencode", tmp_path)["sessions"] == [session]
    assert "unseen" in "".join(text(client, commit) for commit in commits(client, session))


@pytest.mark.requirement("HOK-20")
def test_texts_that_opencode_adds_are_not_imported_again(daemon: Running, client: SyncClient, tmp_path: Path) -> None:
    source = Opencode(tmp_path / "opencode.db")
    native = f"ses_{uuid4().hex[:20]}"
    source.add("session", id=native, directory="/srv")
    added = {"type": "text", "text": "go on", "synthetic": True}
    source.message(native, f"{native}-a", "user", {"type": "text", "text": "first"}, added)
    source.message(native, f"{native}-b", "user", added)
    source.message(native, f"{native}-c", "user", {"type": "text", "text": "unseen", "synthetic": True})
    session = here("opencode", native)
    client.session_create("opencode", session=session, checkpoint="turn")
    notices = [SystemEvent(text="go on", kind="synthetic")] * 2
    client.session_append(session, events=[PromptEvent(text="first"), *notices])
    client.session_pause(session)
    assert imported(daemon, "opencode", tmp_path)["recorded"] == 2
    lines = [
        text(client, commit.commit) for commit in commits(client, session).values() if commit.format == "opencode-v1"
    ]
    assert [sum(each.count(known) for each in lines) for known in ("first", "go on", "unseen")] == [0, 0, 1]


@pytest.mark.requirement("IMP-6")
def test_a_database_of_a_schema_that_is_not_known_is_listed(daemon: Running, tmp_path: Path) -> None:
    source = Opencode(tmp_path / "opencode.db")
    for table in ("part", "session_message"):
        source.database.execute(f"ALTER TABLE {table} RENAME TO {table}_of_a_newer_version")
    Opencode(tmp_path / "new.db")
    for _ in range(2):
        found = imported(daemon, "opencode", tmp_path)
        assert [Path(each["path"]).name for each in found["skipped"]] == ["opencode.db"], "one without sessions is not"
    assert ctx(daemon, "import", "opencode", str(tmp_path / "opencode.db")).returncode == 1
