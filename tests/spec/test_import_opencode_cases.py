"""IMP: sessions of opencode as each of its storages holds them: rows that change in place, compactions, reverts, forks,
and rows that are damaged."""

import json
import sqlite3
import time
from codecs import BOM_UTF8
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from ctxd_client.sync import SyncClient
from ctxd_protocol.event_types import Event, PromptEvent, ResponseEvent, Usage
from tests.client.running import Running
from tests.spec.imported_contexts import head, kept, narrative, spent
from tests.spec.test_import import Record, commits, here, imported
from tests.spec.test_import_opencode import Opencode

_SUMS = "cost, tokens_input, tokens_output, summary_additions, summary_files"
_ROW = f"id, project_id, parent_id, slug, directory, title, version, {_SUMS}, revert, permission, time_created"

SCHEMA: Mapping[str, str] = {
    "session": f"{_ROW}, time_updated, time_archived",
    "message": "id, session_id, time_created, time_updated, data",
    "part": "id, message_id, session_id, time_created, time_updated, data",
    "session_v2": f"{_ROW}, time_updated, time_idle, time_suspended, resume_attempts, fork_session_id, fork_boundary",
    "session_message": "id, session_id, type, seq, time_created, time_updated, data",
}

TOKENS = {"input": 10, "output": 40, "reasoning": 5, "cache": {"read": 900, "write": 1}}


class Store(Opencode):
    """A database with one session of one generation, whose row changes with each of its messages."""

    def __init__(self, path: Path, table: str = "session") -> None:
        super().__init__(path, SCHEMA)
        self.table = table
        self.native = f"ses_{uuid4().hex[:20]}"
        self.id = here("opencode", self.native)
        self.begin(self.native)

    def begin(self, session: str, **more: Any) -> None:
        row = {"project_id": "p", "slug": "calm-fox", "directory": "/srv/app", "title": "New session - x", **more}
        self.add(self.table, id=session, version="1.18.33", cost=0, tokens_input=0, **row)

    def set(self, **row: Any) -> None:
        """Change the row of the session, as each message does."""
        self.at += 1
        row = {name: json.dumps(each) if isinstance(each, dict) else each for name, each in row.items()}
        columns = "".join(f"{name}=?, " for name in row)
        self.database.execute(
            f"UPDATE {self.table} SET {columns}cost=cost+1, tokens_input=tokens_input+9, summary_files=?, "
            "time_updated=? WHERE id=?",
            [*row.values(), self.at, self.at, self.native],
        )

    def says(self, label: str, role: str = "user", *parts: Record, **info: Any) -> None:
        """A message of the first generation with the id ``label``."""
        at = self.at
        if role == "assistant":
            done = {"finish": "stop", "modelID": "m", "tokens": TOKENS, "time": {"created": at, "completed": at + 1}}
            info = {**done, **info}
        self.message(self.native, label, role, *(parts or ({"type": "text", "text": f"text {label}"},)), **info)
        self.set()

    def row(self, label: str, kind: str, **data: Any) -> None:
        """A row of the second generation with the id ``label``."""
        time = {"created": self.at}
        seq = 2 * (self.at % 100_000)  # Numbers have gaps.
        self.add("session_message", id=label, session_id=self.native, type=kind, seq=seq, data={"time": time, **data})
        self.set()

    def turn(self, *labels: str) -> None:
        """Prompts and answers: every second letter names an answer."""
        for label in labels:
            said = {"type": "text", "text": f"text {label}"}
            is_prompt = ord(label) % 2
            if self.table == "session":
                self.says(label, *(("user", said) if is_prompt else ("assistant", {"type": "step-start"}, said)))
            elif is_prompt:
                self.row(label, "user", text=said["text"], files=[])
            else:
                self.row(label, "assistant", content=[said], model={"id": "m"}, finish="stop", tokens=TOKENS)

    def change(self, table: str, id: str, data: Record) -> None:
        """Write a row anew in its place."""
        self.at += 1
        self.database.execute(f"UPDATE {table} SET data=?, time_updated=? WHERE id=?", (json.dumps(data), self.at, id))
        self.set()


def id_of(line: bytes) -> str:
    """The id of a message, nothing for what is of the session itself."""
    record = json.loads(line)
    return str(record.get("info", {}).get("id") or record.get("row") or "")


def ids(client: SyncClient, session: str, stop: str = "root", commit: str | None = None) -> str:
    """The ids of the messages of what a session goes on from, or of a commit."""
    content = client.commit_materialize(commit or head(client, session), stop=stop).content
    return "".join(id_of(line) for line in str(content).encode().splitlines())


def written(client: SyncClient, session: str) -> Counter[str]:
    """How often each message is in the commits of a session."""
    found = kept(client, session)
    return Counter(id for line, times in found.items() for id in [id_of(line)] * times if id)


@pytest.fixture
def old(tmp_path: Path) -> Store:
    """A database of the first generation."""
    return Store(tmp_path / "opencode.db")


@pytest.fixture
def new(tmp_path: Path) -> Store:
    """A database of the second generation."""
    return Store(tmp_path / "opencode.db", "session_v2")


@pytest.mark.requirement("IMP-2")
@pytest.mark.parametrize("table", ["session", "session_v2"])
def test_a_continued_session_is_not_reimported_when_its_row_changes(
    daemon: Running, client: SyncClient, tmp_path: Path, table: str
) -> None:
    store = Store(tmp_path / "opencode.db", table)
    for label in "abcde":
        store.turn(label)
        if label == "c":
            store.set(title="Mend the parser", permission={"edit": "ask"})
        imported(daemon, "opencode", tmp_path)
    assert written(client, store.id) == Counter("abcde") and ids(client, store.id) == "abcde"
    session = client.session_get(store.id).session
    assert session.title == "Mend the parser" and session.recorded is not None
    assert session.recorded.permissions == {"permission": {"edit": "ask"}}
    assert "calm-fox" in str(client.commit_materialize(head(client, store.id), stop="root").content)
    store.set()
    again = imported(daemon, "opencode", tmp_path)
    assert (again["commits"], again["events"]) == (0, {}), "sums alone make nothing"


@pytest.mark.requirement("IMP-2")
def test_a_continued_folder_and_export_are_not_reimported(daemon: Running, client: SyncClient, tmp_path: Path) -> None:
    session, exported = (f"ses_{uuid4().hex[:20]}" for _ in range(2))
    storage = tmp_path / "storage"

    def document(path: Path, content: Any) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(content))

    def info(updated: int) -> Record:
        row = {
            "id": "wrong",
            "version": "1.1.4",
            "projectID": "p",
            "directory": "/srv/app",
            "title": f"Title {updated}",
        }
        return {**row, "time": {"created": 1, "updated": updated}, "summary": {"files": updated}}

    def message(label: str) -> Record:
        return {"id": label, "sessionID": "wrong", "role": "user", "time": {"created": ord(label)}}

    def said(label: str) -> Record:
        return {"id": f"prt_{label}", "type": "text", "text": f"text {label}"}

    for labels in ("ab", "abc"):
        document(storage / f"session/p/{session}.json", info(len(labels)))
        for label in labels:
            document(storage / f"message/{session}/{label}.json", {**message(label), "id": "wrong"})
            document(storage / f"part/{label}/prt_{label}.json", {**said(label), "id": "wrong"})
        messages = [{"info": message(label), "parts": [said(label)]} for label in labels]
        document(tmp_path / "export.json", {"info": {**info(len(labels)), "id": exported}, "messages": messages})
        imported(daemon, "opencode", tmp_path)
    for each in (session, exported):
        id = here("opencode", each)
        assert written(client, id) == Counter("abc") and ids(client, id) == "abc"
        assert client.session_get(id).session.title == "Title 3"


@pytest.mark.requirement("IMP-3")
def test_a_compaction_of_opencode_keeps_its_tail_and_one_that_failed_replaces_nothing(
    daemon: Running, client: SyncClient, tmp_path: Path, old: Store
) -> None:
    def compact(one: str, other: str, tail: Record, **info: Any) -> None:
        old.says(one, "user", {"type": "compaction", "auto": True, "overflow": False, **tail})
        old.says(other, "assistant", summary=True, mode="compaction", parentID=one, **info)

    old.turn("a", "b")
    old.turn("c", "d")
    compact("e", "f", {"tail_start_id": "b"}, error={"name": "APIError", "data": {"message": "overloaded"}})
    imported(daemon, "opencode", tmp_path)
    assert ids(client, old.id, "compaction") == "abcdef", "the failed one"
    compact("g", "h", {"tail_start_id": "c"})
    old.turn("i", "j")
    imported(daemon, "opencode", tmp_path)
    assert ids(client, old.id, "compaction") == "cdefghij"
    assert "text h" in narrative(client, old.id) and "text a" not in narrative(client, old.id)
    compact("k", "l", {"tail_start_id": "i"}, error={"name": "MessageAbortedError"})
    compact("m", "n", {})
    imported(daemon, "opencode", tmp_path)
    assert ids(client, old.id, "compaction") == "n", "without a tail"
    made = [each for each in commits(client, old.id).values() if each.commit_type == "compaction"]
    assert sorted(each.summary for each in made) == ["text h", "text n"]
    assert written(client, old.id) == Counter("abcdefghijklmn") + Counter("cdefg"), "the tail is in the window too"
    assert spent(client, old.id).output == 45 * len("bdfjl")


@pytest.mark.requirement("IMP-7")
@pytest.mark.parametrize("table", ["session", "session_v2"])
@pytest.mark.parametrize(("part", "left"), [({}, "ab"), ({"partID": "c-0"}, "abc")])
def test_messages_that_a_pending_revert_takes_back_are_a_branch_beside(
    daemon: Running, client: SyncClient, tmp_path: Path, table: str, part: Record, left: str
) -> None:
    store = Store(tmp_path / "opencode.db", table)
    store.turn("a", "b")
    store.turn("c", "d")
    imported(daemon, "opencode", tmp_path)
    whole = head(client, store.id)
    store.set(revert={"messageID": "c", "snapshot": "4b82", **part})
    imported(daemon, "opencode", tmp_path)
    assert ids(client, store.id) == left and ids(client, store.id, commit=whole) == "abcd"
    rows, name = ("message", "id") if table == "session" else ("session_message", "id")
    store.database.execute(f"DELETE FROM {rows} WHERE {name} IN ('c', 'd')")
    store.set(revert=None)
    store.turn("e", "f")
    imported(daemon, "opencode", tmp_path)
    assert ids(client, store.id) == "abef" and ids(client, store.id, commit=whole) == "abcd"
    assert written(client, store.id) == Counter("abcdef") + Counter(left[2:]), "a divided turn repeats its beginning"


@pytest.mark.requirement("IMP-7")
def test_a_revert_that_is_pending_when_a_session_is_first_imported_loses_nothing(
    daemon: Running, client: SyncClient, tmp_path: Path, old: Store
) -> None:
    old.turn("a", "b")
    old.turn("c", "d")
    old.set(revert={"messageID": "c"})
    imported(daemon, "opencode", tmp_path)
    assert ids(client, old.id) == "ab" and written(client, old.id) == Counter("abcd")
    old.set(revert=None)
    old.turn("e", "f")
    imported(daemon, "opencode", tmp_path)
    assert ids(client, old.id) == "abcdef" and written(client, old.id) == Counter("abcdef"), "after an unrevert"


@pytest.mark.requirement("IMP-7")
def test_a_call_that_ends_and_an_output_that_is_pruned_change_their_message_in_its_place(
    daemon: Running, client: SyncClient, tmp_path: Path, old: Store
) -> None:
    def call(status: str, **state: Any) -> Record:
        return {"type": "tool", "callID": "c1", "tool": "read", "state": {"status": status, "input": {}, **state}}

    old.says("a")
    unfinished = {"finish": None, "time": {"created": old.at}}
    old.says("b", "assistant", {"type": "step-start"}, call("pending"), **unfinished)
    found = imported(daemon, "opencode", tmp_path)
    assert found["events"]["tool_call"] == 1 and "tool_result" not in found["events"]
    old.change("part", "b-1", call("completed", output="def parse", title="p.py", time={"start": 1, "end": 2}))
    old.turn("c", "d")
    imported(daemon, "opencode", tmp_path)
    assert ids(client, old.id) == "abcd" and narrative(client, old.id).count("def parse") == 1
    assert narrative(client, old.id).count("Tool call: read") == 1
    pruned = call("completed", output="def parse", time={"start": 1, "end": 2, "compacted": 9})
    old.change("part", "b-1", pruned)
    imported(daemon, "opencode", tmp_path)
    assert ids(client, old.id) == "abcd" and '"compacted":9' in str(
        client.commit_materialize(head(client, old.id), stop="root").content
    )
    assert spent(client, old.id) == Usage(input=20, output=90, cache_read=1800, cache_write=2)


@pytest.mark.requirement("IMP-7")
def test_a_session_of_both_generations_uses_the_newer_and_first_only_ones_are_kept(
    daemon: Running, client: SyncClient, tmp_path: Path, old: Store
) -> None:
    old.turn("a", "b")
    other, lone = f"ses_{uuid4().hex[:20]}", old.native
    old.begin(other)
    old.native = other
    old.turn("w", "x")
    old.table = "session_v2"
    old.begin(other, title="Newer")
    for label in "wx":
        old.row(label, "user", text=f"newer {label}")
    old.row("z", "user", text="newer z")
    found = imported(daemon, "opencode", tmp_path)
    assert found["sessions"] == sorted(here("opencode", each) for each in (lone, other))
    told = narrative(client, here("opencode", other))
    assert ids(client, here("opencode", other)) == "wxz" and "newer x" in told and "text x" not in told
    assert ids(client, here("opencode", lone)) == "ab"


@pytest.mark.requirement("IMP-7")
def test_a_streamed_and_suspended_turn_is_imported_once_it_has_ended(
    daemon: Running, client: SyncClient, tmp_path: Path, new: Store
) -> None:
    new.row("a", "user", text="text a")
    call = {"type": "tool", "id": "c1", "name": "read", "executed": False}
    streaming = {"content": [{**call, "state": {"status": "streaming", "input": '{"pa'}}], "model": {"id": "m"}}
    new.row("b", "assistant", **streaming)
    new.set(time_suspended=new.at, resume_attempts=1)
    found = imported(daemon, "opencode", tmp_path)
    assert found["events"]["tool_call"] == 1 and "tool_result" not in found["events"]
    assert ids(client, new.id) == "ab"
    assert any(b"time_suspended" in line for line in kept(client, new.id)), "in a chain of its own"
    state = {"status": "completed", "input": {"path": "p"}, "content": [{"type": "text", "text": "1: def"}]}
    done = {"content": [{**call, "state": state}], "model": {"id": "m"}, "finish": "tool-calls", "tokens": TOKENS}
    new.change("session_message", "b", {"time": {"created": new.at}, **done})
    new.row("i", "idle", outcome="succeeded")
    new.set(time_suspended=None)
    imported(daemon, "opencode", tmp_path)
    told = narrative(client, new.id)
    assert ids(client, new.id) == "abi" and told.count("1: def") == told.count("Tool call: read") == 1
    assert "time_suspended" not in str(client.commit_materialize(head(client, new.id), stop="root").content)
    assert spent(client, new.id) == Usage(input=10, output=45, cache_read=900, cache_write=1)


@pytest.mark.requirement("IMP-3")
def test_recent_messages_at_a_second_generation_compaction_stay_in_the_window(
    daemon: Running, client: SyncClient, tmp_path: Path, new: Store
) -> None:
    new.turn("a", "b")
    new.row("k", "compaction", status="running", reason="auto")
    imported(daemon, "opencode", tmp_path)
    assert ids(client, new.id, "compaction") == "abk", "it has not ended"
    done = {"status": "completed", "reason": "auto", "summary": "Tabs.", "recent": "[User]: and spaces", "time": {}}
    new.change("session_message", "k", {**done, "time": {"created": new.at}})
    new.turn("c", "d")
    imported(daemon, "opencode", tmp_path)
    assert ids(client, new.id, "compaction") == "kcd" and ids(client, new.id) == "abcd"
    told = narrative(client, new.id)
    assert told.count("Tabs.") == told.count("[User]: and spaces") == 1 and "text a" not in told


@pytest.mark.requirement("IMP-4")
def test_a_second_generation_fork_continues_from_its_copied_messages(
    daemon: Running, client: SyncClient, tmp_path: Path, new: Store
) -> None:
    origin = new.native
    new.turn("a", "b")
    new.row("i", "idle", outcome="succeeded")
    new.turn("c", "d")
    # Settled messages up to the boundary are copied under new ids.
    copied = new.database.execute(
        "SELECT type, seq, data FROM session_message WHERE id IN ('a', 'b') ORDER BY seq"
    ).fetchall()
    new.native = f"ses_{uuid4().hex[:20]}"
    new.begin(new.native, fork_session_id=origin, fork_boundary={"messageID": "b", "mode": "through"})
    for number, (kind, seq, data) in enumerate(copied):
        new.add("session_message", id=f"{number}", session_id=new.native, type=kind, seq=seq, data=data)
    new.turn("w", "x")
    found = imported(daemon, "opencode", tmp_path)
    fork = here("opencode", new.native)
    assert found["copied"] == 2 and ids(client, here("opencode", origin)) == "abicd"
    assert ids(client, fork) == "abiwx", "the end of the turn that it has copied belongs to that"
    assert written(client, fork) == Counter("wx")
    new.turn("y", "z")
    imported(daemon, "opencode", tmp_path)
    assert ids(client, fork) == "abiwxyz" and written(client, fork) == Counter("wxyz")


def forked(store: Store, labels: str, copies: str) -> str:
    """Let the store go on with a fork of its session, which has copies of the messages ``labels`` under other ids; the
    id of the origin's session."""
    origin, store.native = store.native, f"ses_{uuid4().hex[:20]}"
    store.begin(store.native, title="New session - x (fork #1)")
    ids = dict(zip(labels, copies, strict=True))
    for label, copy in ids.items():
        ((at, data),) = store.database.execute("SELECT time_created, data FROM message WHERE id = ?", (label,))
        info = json.loads(data)
        if info.get("parentID"):
            info["parentID"] = ids[info["parentID"]]
        store.add("message", id=copy, session_id=store.native, data=info)
        store.database.execute("UPDATE message SET time_created = ? WHERE id = ?", (at, copy))
        parts = store.database.execute("SELECT data FROM part WHERE message_id = ? ORDER BY id", (label,)).fetchall()
        for number, (part,) in enumerate(parts):
            store.add("part", id=f"{copy}-{number}", message_id=copy, session_id=store.native, data=part)
    return here("opencode", origin)


@pytest.mark.requirement("IMP-4")
@pytest.mark.parametrize("is_early", [False, True])
def test_a_first_generation_fork_continues_from_its_unnamed_origin(
    daemon: Running, client: SyncClient, tmp_path: Path, old: Store, is_early: bool
) -> None:
    old.turn("a")
    state: Record = {"status": "completed", "input": {}, "output": "out", "time": {"start": 1, "end": 2}}
    call = {"type": "tool", "callID": "c1", "tool": "bash", "state": state}
    old.says("b", "assistant", call, parentID="a")
    old.turn("c", "d")
    if is_early:
        imported(daemon, "opencode", tmp_path)
    origin = forked(old, "ab", "ij")
    # opencode changes messages of the origin afterwards.
    ((said,),) = old.database.execute("SELECT data FROM message WHERE id = 'a'")
    old.change("message", "a", {**json.loads(said), "summary": {"diffs": []}})
    old.change("part", "b-0", {**call, "state": {**state, "time": {**state["time"], "compacted": 3}}})
    old.turn("w", "x")
    fork = here("opencode", old.native)
    assert imported(daemon, "opencode", tmp_path)["copied"] == 2
    assert ids(client, fork) == "abwx" and written(client, fork) == Counter("wx")
    another = forked(old, "ijwx", "klmn")
    old.turn("y")
    imported(daemon, "opencode", tmp_path)
    assert another == fork and ids(client, here("opencode", old.native)) == "abwxy"
    assert written(client, here("opencode", old.native)) == Counter("y")
    assert sum((written(client, each) for each in (origin, fork)), Counter[str]())["w"] == 1
    assert imported(daemon, "opencode", tmp_path)["commits"] == 0


@pytest.mark.requirement("IMP-4")
@pytest.mark.parametrize("is_first_layout", [False, True])
def test_a_fork_in_json_storage_continues_from_its_origin(
    daemon: Running, client: SyncClient, tmp_path: Path, is_first_layout: bool
) -> None:
    origin, fork, other = (f"ses_{number}{uuid4().hex[:20]}" for number in range(3))
    storage = tmp_path / "storage"
    sessions, base = ("session/info", "session/") if is_first_layout else ("session/p", "")

    def document(path: str, content: Any) -> None:
        (storage / path).parent.mkdir(parents=True, exist_ok=True)
        (storage / path).write_text(json.dumps(content))

    def write(session: str, created: int, copied: str, own: str = "", start: int = 100) -> None:
        row = {"version": "1.1.4", "directory": "/srv/app", "title": "New session", "time": {"created": created}}
        document(f"{sessions}/{session}.json", row)
        said = dict(zip(copied, range(start, start + 100), strict=False)) | {each: created + ord(each) for each in own}
        texts = dict(zip(copied, "abcdef", strict=False))
        for label, at in said.items():
            info = {"role": "user", "time": {"created": at}, "path": {"cwd": "/srv/app"}}
            document(f"{base}message/{session}/msg_{label}.json", info)
            part = {"type": "text", "text": f"text {texts.get(label, label)}"}
            folder = f"session/part/{session}/msg_{label}" if is_first_layout else f"part/msg_{label}"
            document(f"{folder}/prt_{label}.json", part)

    write(origin, 99, "abc")
    write(other, 150, "opq", start=160)
    imported(daemon, "opencode", tmp_path)
    write(fork, 200, "ij", "w")
    assert imported(daemon, "opencode", tmp_path)["copied"] == 2
    forked_session = here("opencode", fork)
    assert ids(client, forked_session) == "msg_amsg_bmsg_w"
    assert written(client, forked_session) == Counter(["msg_w"])
    assert written(client, here("opencode", other)) == Counter(["msg_o", "msg_p", "msg_q"])
    write(fork, 200, "ij", "wx")
    imported(daemon, "opencode", tmp_path)
    assert written(client, forked_session) == Counter(["msg_w", "msg_x"])


@pytest.mark.requirement("HOK-18")
def test_a_fork_that_hooks_record_begins_with_the_messages_that_it_has_copied(
    daemon: Running, client: SyncClient, tmp_path: Path, old: Store
) -> None:
    old.turn("a", "b")
    imported(daemon, "opencode", tmp_path)
    old.at = time.time_ns() // 1_000_000
    forked(old, "ab", "ij")
    fork = here("opencode", old.native)
    client.session_create("opencode", session=fork, checkpoint="turn")
    copied: list[int] = []
    for prompt, answer in ("wx", "yz"):
        old.turn(prompt, answer)
        events: list[Event] = [PromptEvent(text=f"text {prompt}"), ResponseEvent(text=f"text {answer}")]
        client.session_append(fork, events=events)
        client.session_pause(fork)
        copied.append(imported(daemon, "opencode", tmp_path)["copied"])
        told = str(client.commit_materialize(head(client, fork), stop="root", format="narrative-v1").content)
        assert [told.count(f"text {label}") for label in f"ab{prompt}{answer}"] == [1, 1, 1, 1]
        client.session_resume(fork)
    assert copied == [2, 0]


@pytest.mark.requirement("IMP-2")
def test_a_fork_that_was_imported_as_a_chain_of_its_own_continues_it(
    daemon: Running, client: SyncClient, tmp_path: Path, old: Store
) -> None:
    old.turn("a", "b")
    forked(old, "ab", "ij")
    old.turn("w")
    # It is not recognised, as by an earlier version.
    old.database.execute("UPDATE message SET time_created = time_created + 1 WHERE id = 'a'")
    imported(daemon, "opencode", tmp_path)
    old.database.execute("UPDATE message SET time_created = time_created - 1 WHERE id = 'a'")
    old.turn("x")
    imported(daemon, "opencode", tmp_path)
    fork = here("opencode", old.native)
    assert ids(client, fork) == "ijwx" and written(client, fork) == Counter("ijwx")


@pytest.mark.requirement("IMP-4")
def test_a_fork_stays_with_its_origin_after_that_is_deleted(
    daemon: Running, client: SyncClient, tmp_path: Path, old: Store
) -> None:
    old.turn("a", "b")
    origin = old.native
    forked(old, "ab", "ij")
    imported(daemon, "opencode", tmp_path)
    for table, column in (("session", "id"), ("message", "session_id"), ("part", "session_id")):
        old.database.execute(f"DELETE FROM {table} WHERE {column} = ?", (origin,))
    old.at = time.time_ns() // 1_000_000
    old.turn("w")
    imported(daemon, "opencode", tmp_path)
    fork = here("opencode", old.native)
    assert ids(client, fork) == "abw" and written(client, fork) == Counter("w")


@pytest.mark.requirement("IMP-7")
@pytest.mark.parametrize("table", ["message", "part", "session_message"])
def test_a_row_without_valid_json_is_kept_and_hides_nothing(
    daemon: Running, client: SyncClient, tmp_path: Path, table: str
) -> None:
    store = Store(tmp_path / "opencode.db", "session_v2" if table == "session_message" else "session")
    store.turn("a", "b")
    store.turn("c", "d")
    broken = '{"role": "assistant", "te'
    row = {"message": "b", "part": "b-1", "session_message": "b"}[table]
    store.database.execute(f"UPDATE {table} SET data=? WHERE id=?", (broken, row))
    found = imported(daemon, "opencode", tmp_path)
    assert not found["skipped"] and ids(client, store.id) == "abcd"
    lines = str(client.commit_materialize(head(client, store.id), stop="root").content)
    assert json.dumps(broken)[1:-1] in lines, "as it is"
    assert "text c" in narrative(client, store.id)
    assert imported(daemon, "opencode", tmp_path)["commits"] == 0


@pytest.mark.requirement("IMP-1")
def test_all_lines_of_a_copied_database_are_counted_as_copies(
    daemon: Running, client: SyncClient, old: Store, tmp_path: Path
) -> None:
    old.turn("a", "b")
    imported(daemon, "opencode", tmp_path / "opencode.db")
    (tmp_path / "copy").mkdir()
    with sqlite3.connect(tmp_path / "copy/opencode.db") as copy:
        old.database.backup(copy)
    found = imported(daemon, "opencode", tmp_path / "copy")
    assert found["commits"] == 0 and found["copied"] == found["lines"] > 0


@pytest.mark.requirement("IMP-4")
def test_an_export_of_a_session_of_a_database_is_a_copy_of_it(
    daemon: Running, client: SyncClient, old: Store, tmp_path: Path
) -> None:
    old.turn("a", "b", "c")

    def exported() -> None:
        """Write the session as ``opencode export`` does, which repeats the ids of the columns in the documents."""
        messages: list[Record] = []
        for id, data in old.database.execute("SELECT id, data FROM message WHERE session_id=?", (old.native,)):
            parts = old.database.execute("SELECT id, data FROM part WHERE message_id=?", (id,)).fetchall()
            of = {"sessionID": old.native}
            shown = [{**json.loads(part), "id": each, **of, "messageID": id} for each, part in parts]
            messages.append({"info": {"id": id, **of, **json.loads(data)}, "parts": shown})
        document = {"info": {"id": old.native, "directory": "/srv/app"}, "messages": messages}
        (tmp_path / "export.json").write_text(json.dumps(document))

    imported(daemon, "opencode", tmp_path / "opencode.db")
    exported()
    assert imported(daemon, "opencode", tmp_path / "export.json")["copied"] == 4
    (tmp_path / "old.json").write_bytes(BOM_UTF8 + (tmp_path / "export.json").read_bytes())
    old.turn("d")
    exported()
    for source in ("export.json", "opencode.db", "export.json", "old.json"):
        assert imported(daemon, "opencode", tmp_path / source)["skipped"] == []
    assert written(client, old.id) == Counter("abcd") and ids(client, old.id) == "abcd"
