"""IMP: ``ctx import``, in processes of its own: what becomes of files that grow, are copied, replaced or damaged."""

import json
import os
import subprocess
import sysconfig
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any
from uuid import uuid4

import anyio
import pytest

from ctxd.imports.import_result import ImportResult
from ctxd.imports.importer import TranscriptImport
from ctxd.transcripts.discovery import Transcript
from ctxd.transcripts.source_lines import zstd
from ctxd.transcripts.transcript_files import Stat, default_places
from ctxd_client import connect
from ctxd_client.sync import SyncClient
from ctxd_protocol.methods.commits import Commit
from tests import programs
from tests.client.running import Running
from tests.spec.refusal import refused
from tests.spec.secrecy import TOKEN

CTX = Path(sysconfig.get_path("scripts")) / "ctx"

Record = dict[str, Any]

LISTED = "44444444-5555-4666-8777-888888888888"


def ctx(daemon: Running, *words: str, **environment: str) -> "subprocess.CompletedProcess[str]":
    environ = {**os.environ, "CTXD_SOCKET": daemon.socket, **environment}
    return programs.run("ctx", words, env=environ)


def imported(daemon: Running, harness: str, path: Path, *more: str) -> Record:
    """The outcome of an import."""
    done = ctx(daemon, "import", harness, str(path), *more, "--json")
    assert done.returncode == 0, done.stderr
    found: Record = json.loads(done.stdout)
    return found


def here(harness: str, session: str) -> str:
    """The session that has an imported one."""
    return f"{harness}-{session}"


def commits(client: SyncClient, session: str) -> dict[str, Commit]:
    return {commit.commit: commit for commit in client.commit_list(session=session, limit=1000).commits}


def text(client: SyncClient, commit: str | None) -> str:
    """What a context at a commit holds, back to the root."""
    return str(client.commit_materialize(commit, stop="root").content)


def labels(client: SyncClient, commit: str | None) -> str:
    """The labels of the records in it."""
    return "".join(json.loads(line).get("label", "") for line in text(client, commit).splitlines())


def views(client: SyncClient, session: str) -> list[str]:
    """The labels in each of the newest contexts of a session."""
    tips = client.commit_list(session=session, tips=True, limit=1000).commits
    return sorted(labels(client, tip.commit) for tip in tips)


def write(path: Path, records: Sequence[Record]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"".join(json.dumps(record).encode() + b"\n" for record in records))
    return path


def append(path: Path, *records: Record) -> None:
    with path.open("ab") as file:
        file.write(b"".join(json.dumps(record).encode() + b"\n" for record in records))


class Claude:
    """Records of one session of Claude Code, each the child of the one before; ``label`` names it."""

    def __init__(self, session: str | None = None) -> None:
        self.session = session or str(uuid4())
        self.id = here("claude-code", self.session)
        self.ids: dict[str, str] = {}
        self.last: str | None = None

    def __call__(self, label: str, kind: str = "user", *, after: str | None = None, **more: Any) -> Record:
        parent = self.ids[after] if after is not None else self.last
        self.last = self.ids[label] = str(uuid4())
        content: Any = f"text {label}" if kind == "user" else [{"type": "text", "text": f"text {label}"}]
        message = {"role": kind, "content": content, "id": f"msg-{label}"}
        return {
            "type": kind, "uuid": self.last, "parentUuid": parent, "sessionId": self.session, "label": label,
            "timestamp": f"2026-01-02T03:04:{len(self.ids):02}.000Z", "cwd": "/srv/app", "message": message, **more,
        }  # fmt: skip

    def turn(self, one: str, other: str) -> list[Record]:
        return [self(one), self(other, "assistant")]


@pytest.mark.requirement("IMP-1")
def test_an_import_keeps_native_ids_and_lines_at_the_times_at_which_they_were_written(
    daemon: Running, client: SyncClient, claude: Claude, tmp_path: Path
) -> None:
    records = [*claude.turn("a", "b"), {"type": "news", "uuid": str(uuid4()), "label": "n"}, *claude.turn("c", "d")]
    path = write(tmp_path / f"{claude.session}.jsonl", records)
    before = path.stat()
    found = imported(daemon, "claude", tmp_path)
    assert found["events"] == {"prompt": 2, "response": 2, "opaque": 1} and found["lines"] == 5
    assert found["sessions"] == [claude.id] and not found["skipped"]
    made = commits(client, claude.id)
    assert sorted(commit.created_at for commit in made.values()) == ["2026-01-02T03:04:02Z", "2026-01-02T03:04:04Z"]
    (tip,) = client.commit_list(session=claude.id, tips=True).commits
    assert text(client, tip.commit) == path.read_text(), "the lines, as they are"
    assert tip.format == "claude-code-v1" and tip.message_count == 2
    session = client.session_get(claude.id).session
    assert session.agent == "claude-code" and session.state == "paused" and session.workdir == "/srv/app"
    assert session.labels["parser"].startswith("claude-code-v1/")
    assert (path.stat().st_mtime_ns, path.stat().st_size) == (before.st_mtime_ns, before.st_size)


@pytest.mark.requirement("IMP-2")
def test_a_repeated_import_makes_no_commit_and_reads_only_new_lines(
    daemon: Running, client: SyncClient, claude: Claude, tmp_path: Path
) -> None:
    path = write(tmp_path / f"{claude.session}.jsonl", claude.turn("a", "b"))
    assert imported(daemon, "claude", tmp_path)["commits"] == 1
    again = imported(daemon, "claude", tmp_path)
    assert (again["unchanged"], again["commits"], again["lines"], again["events"]) == (1, 0, 0, {})
    tail = json.dumps(claude("c")).encode()
    with path.open("ab") as file:
        file.write(tail[:50])
    assert imported(daemon, "claude", tmp_path)["lines"] == 0, "the line is not there yet"
    with path.open("ab") as file:
        file.write(tail[50:])
    grown = imported(daemon, "claude", tmp_path)
    assert (grown["lines"], grown["events"], grown["rewritten"]) == (1, {"prompt": 1}, 0), "whole without a line feed"
    with path.open("ab") as file:
        file.write(b"\n")
    append(path, claude("d", "assistant"))
    imported(daemon, "claude", tmp_path)
    assert views(client, claude.id) == ["abcd"]
    os.utime(path)
    touched = imported(daemon, "claude", tmp_path)
    assert (touched["commits"], touched["lines"]) == (0, 0)


@pytest.mark.requirement("LST-11")
def test_an_imported_session_has_the_title_times_and_grants_of_its_transcript(
    daemon: Running, client: SyncClient, tmp_path: Path
) -> None:
    stamp = "2026-05-01T10:00:{:02d}.000Z"
    first = {"type": "user", "uuid": "u1", "sessionId": LISTED, "timestamp": stamp.format(1), "cwd": str(tmp_path)}
    file = write(
        tmp_path / f"{LISTED}.jsonl",
        [
            {"type": "permission-mode", "permissionMode": "plan", "sessionId": LISTED},
            {**first, "message": {"role": "user", "content": "Mend it"}, "permissionMode": "acceptEdits"},
        ],
    )
    imported(daemon, "claude", file)
    session = here("claude-code", LISTED)
    row = next(row for row in client.session_list(limit=1000).sessions if row.session == session)
    assert (row.title, row.created_at, row.updated_at) == ("Mend it", 1777629601000, 1777629601000)
    assert row.harness == "claude-code" and row.project is not None and row.project.directory == str(tmp_path)
    append(file, {"type": "ai-title", "aiTitle": "Mending", "sessionId": LISTED})
    append(
        file, {**first, "uuid": "u2", "parentUuid": "u1", "timestamp": stamp.format(9), "message": {"content": "On"}}
    )
    imported(daemon, "claude", file)
    view = client.session_get(session).session
    assert view.recorded is not None and view.title == "Mending"
    assert view.recorded.permissions == {"permission_mode": "acceptEdits"}
    assert (view.recorded.began_at, view.recorded.ended_at) == (1777629601000, 1777629609000)
    shown = ctx(daemon, "session", "show", session).stdout
    assert "granted   permission_mode acceptEdits\n" in shown
    assert f"turns     in its commits (ctx log {session})\n" in shown
    # The old time is that of the list too, whenever it was imported.
    assert session in [row.session for row in client.session_list(until=1777629609000, limit=1000).sessions]


@pytest.mark.requirement("IMP-2")
def test_a_replaced_or_truncated_file_continues_from_its_common_prefix(
    daemon: Running, client: SyncClient, claude: Claude, tmp_path: Path
) -> None:
    records = [*claude.turn("a", "b"), *claude.turn("c", "d"), *claude.turn("e", "f")]
    path = write(tmp_path / f"{claude.session}.jsonl", records)
    assert imported(daemon, "claude", tmp_path)["commits"] == 3
    write(path, records[:4])
    shorter = imported(daemon, "claude", tmp_path)
    assert (shorter["rewritten"], shorter["commits"]) == (1, 0)
    claude.last = claude.ids["d"]
    write(tmp_path / "new", [*records[:4], *claude.turn("x", "y")]).rename(path)
    assert imported(daemon, "claude", tmp_path)["commits"] == 1
    assert views(client, claude.id) == ["abcdef", "abcdxy"]


@pytest.mark.requirement("IMP-2")
def test_a_dry_run_reports_the_same_and_stores_nothing(
    daemon: Running, client: SyncClient, claude: Claude, tmp_path: Path
) -> None:
    write(tmp_path / f"{claude.session}.jsonl", [*claude.turn("a", "b"), *claude.turn("c", "d")])
    dry = imported(daemon, "claude", tmp_path, "--dry-run")
    with refused("session_not_found"):
        client.session_get(claude.id)
    assert imported(daemon, "claude", tmp_path) == {**dry, "dry_run": False}


@pytest.mark.requirement("IMP-4")
@pytest.mark.parametrize("marked", [True, False], ids=["forkedFrom", "unmarked"])
def test_a_fork_continues_from_the_commit_of_its_origin(
    daemon: Running, client: SyncClient, claude: Claude, tmp_path: Path, marked: bool
) -> None:
    records = [*claude.turn("a", "b"), *claude.turn("c", "d")]
    write(tmp_path / f"{claude.session}.jsonl", records)
    imported(daemon, "claude", tmp_path)
    fork = Claude()
    fork.ids, fork.last = {**claude.ids}, claude.ids["b"]
    copied = [
        {**each, "sessionId": fork.session}
        | ({"forkedFrom": {"sessionId": claude.session, "messageUuid": each["uuid"]}} if marked else {})
        for each in records[:2]
    ]
    title = {"type": "custom-title", "title": "fork", "label": "t"}
    write(tmp_path / f"{fork.session}.jsonl", [title, *copied, *fork.turn("x", "y")])
    found = imported(daemon, "claude", tmp_path)
    assert (found["copied"], found["lines"]) == (2, 5)
    assert views(client, fork.id) == ["abtxy"]
    (made,) = commits(client, fork.id).values()
    assert made.parent in commits(client, claude.id)


@pytest.mark.requirement("IMP-4")
def test_the_same_session_from_two_machines_is_there_once(
    daemon: Running, client: SyncClient, claude: Claude, tmp_path: Path
) -> None:
    records = [*claude.turn("a", "b"), *claude.turn("c", "d")]
    write(tmp_path / "one" / f"{claude.session}.jsonl", records[:3])
    write(tmp_path / "two" / f"{claude.session}.jsonl", records)
    imported(daemon, "claude", tmp_path / "one")
    found = imported(daemon, "claude", tmp_path / "two")
    assert found["copied"] == 3 and found["events"] == {"response": 1}
    assert views(client, claude.id) == ["abcd"]
    assert imported(daemon, "claude", tmp_path)["unchanged"] == 2


@pytest.mark.requirement("IMP-4")
def test_a_continuation_begins_with_the_records_of_another_session(
    daemon: Running, client: SyncClient, claude: Claude, tmp_path: Path
) -> None:
    records = claude.turn("a", "b")
    write(tmp_path / f"{claude.session}.jsonl", records)
    later = Claude()
    later.ids, later.last = {**claude.ids}, claude.last
    write(tmp_path / f"{later.session}.jsonl", [*records, *later.turn("c", "d")])
    imported(daemon, "claude", tmp_path)
    (origin,) = commits(client, claude.id)
    assert (labels(client, origin), views(client, later.id)) == ("ab", ["abcd"])


@pytest.mark.requirement("IMP-3")
@pytest.mark.parametrize("place", ["beside", "directory"])
def test_sub_agents_begin_where_they_were_spawned(
    daemon: Running, client: SyncClient, claude: Claude, tmp_path: Path, place: str
) -> None:
    call = [{"type": "tool_use", "id": "t1", "name": "Task", "input": {}}]
    done = [{"type": "tool_result", "tool_use_id": "t1", "content": "ok"}]
    first, second = claude.turn("a", "b")
    second["message"]["content"] = call
    third = claude("c", toolUseResult={"agentId": "k1"})
    third["message"]["content"] = done
    write(tmp_path / f"{claude.session}.jsonl", [first, second, third, claude("d", "assistant")])
    side = Claude(claude.session)
    agent = [{**each, "isSidechain": True, "agentId": "k1"} for each in side.turn("x", "y")]
    folder = tmp_path if place == "beside" else tmp_path / claude.session / "subagents"
    write(folder / "agent-k1.jsonl", agent)
    imported(daemon, "claude", tmp_path)
    assert views(client, claude.id) == ["abcd", "abxy"]
    (chain,) = [commit for commit in commits(client, claude.id).values() if commit.thread_id]
    assert chain.thread_id == "k1"


@pytest.mark.requirement("IMP-6")
def test_lines_without_a_record_are_kept_and_other_files_are_listed(
    daemon: Running, client: SyncClient, claude: Claude, tmp_path: Path
) -> None:
    path = tmp_path / f"{claude.session}.jsonl"
    first = json.dumps(claude("a")).encode() + b"\n"
    nul = b'{"type": "x\x00"}\n'
    invalid = b'{"type": "note", "uuid": "n", "text": "\xff\xfe"}\n'
    rest = json.dumps(claude("b", "assistant")).encode() + b"\n"
    path.write_bytes(first + b"garbage\n" + nul + invalid + b"\n" + rest + b'{"type": "us')
    (tmp_path / "empty.jsonl").touch()
    (tmp_path / "other.jsonl").write_text('{"a": 1}\n')
    (tmp_path / "loop").symlink_to(tmp_path)
    (tmp_path / "gone.jsonl").symlink_to(tmp_path / "nowhere")
    os.mkfifo(tmp_path / "pipe.jsonl")
    found = imported(daemon, "claude", tmp_path)
    reasons = {Path(each["path"]).name: each["reason"] for each in found["skipped"]}
    assert reasons == {
        "empty.jsonl": "no complete line",
        "other.jsonl": "not a transcript",
        "gone.jsonl": "No such file or directory",
        "pipe.jsonl": "not a regular file",
    }
    alone = ctx(daemon, "import", "claude", str(tmp_path / "other.jsonl"))
    assert alone.returncode == 1 and f"{tmp_path}/other.jsonl was not imported: not a transcript" in alone.stderr
    (tip,) = client.commit_list(session=claude.id, tips=True).commits
    kept = [json.loads(line) for line in text(client, tip.commit).splitlines()]
    assert [each["type"] for each in kept] == ["user", "damaged", "damaged", "ctxd-part", "assistant"]
    assert kept[1]["text"] == "garbage" and kept[2]["text"].encode() == nul.strip()
    assert kept[3]["latin1"].encode("latin-1") == invalid.strip(), "every byte"


@pytest.mark.requirement("IMP-6")
def test_a_line_that_is_too_long_is_kept_in_parts_that_are_read_as_one(
    daemon: Running, client: SyncClient, claude: Claude, tmp_path: Path
) -> None:
    records = claude.turn("a", "b")
    records[1]["message"]["content"][0]["text"] = "word é " * 1_400_000
    write(tmp_path / f"{claude.session}.jsonl", records)
    imported(daemon, "claude", tmp_path)
    (tip,) = client.commit_list(session=claude.id, tips=True).commits
    found = client.commit_materialize(tip.commit, stop="root", format="narrative-v1", content=False)
    assert found.message_count == 2


@pytest.mark.requirement("IMP-5")
@pytest.mark.parametrize("policy", ["flag", "redact"])
def test_secrets_are_handled_before_a_line_is_stored(
    daemon: Running, client: SyncClient, claude: Claude, tmp_path: Path, policy: str
) -> None:
    client.session_create("claude-code", session=claude.id, secrets=policy)  # type: ignore[arg-type]
    records = claude.turn("a", "b")
    records[0]["message"]["content"] = f"use {TOKEN}"
    path = write(tmp_path / f"{claude.session}.jsonl", records)
    with path.open("ab") as file:
        file.write(b"garbage " + TOKEN.encode() + b"\xff\n")
    imported(daemon, "claude", tmp_path)
    (tip,) = client.commit_list(session=claude.id, tips=True).commits
    assert text(client, tip.commit).count(TOKEN) == (2 if policy == "flag" else 0)
    assert imported(daemon, "claude", tmp_path)["unchanged"] == 1


@pytest.mark.requirement("IMP-1")
def test_invalid_past_times_do_not_abort_an_import(
    daemon: Running, client: SyncClient, claude: Claude, tmp_path: Path
) -> None:
    records = [*claude.turn("a", "b"), *claude.turn("c", "d"), *claude.turn("e", "f")]
    records[0]["timestamp"] = records[1]["timestamp"] = "1960-01-01T00:00:00Z"
    records[3]["timestamp"] = "2999-01-01T00:00:00Z"
    records[4]["timestamp"] = "soon"
    records[5]["timestamp"] = "never"
    path = write(tmp_path / f"{claude.session}.jsonl", records)
    # A number that no double holds.
    path.write_bytes(path.read_bytes().replace(b'"never"', b"1e999"))
    assert imported(daemon, "claude", tmp_path)["commits"] == 3
    assert views(client, claude.id) == ["abcdef"]


@pytest.mark.requirement("IMP-6")
def test_a_file_removed_or_replaced_meanwhile_does_not_abort_an_import(
    daemon: Running, client: SyncClient, tmp_path: Path
) -> None:
    first, second, third = Claude(), Claude(), Claude()
    for each in (first, second, third):
        write(tmp_path / f"{each.session}.jsonl", each.turn("a", "b"))

    async def run() -> ImportResult:
        async with connect(daemon.socket) as connected:
            work = TranscriptImport(connected, "claude", progress=lambda _: None)
            find = work._sources.find

            def then_gone(
                places: Sequence[Path], live: Mapping[str, Stat | None], result: ImportResult
            ) -> Iterator[Transcript]:
                found = list(find(places, live, result))
                (tmp_path / f"{first.session}.jsonl").unlink()
                (tmp_path / f"{second.session}.jsonl").unlink()
                (tmp_path / f"{second.session}.jsonl").mkdir()
                return iter(found)

            work._sources.find = then_gone  # type: ignore[method-assign]
            return await work.run([tmp_path])

    result = anyio.run(run)
    assert sorted(each.reason for each in result.skipped) == ["Is a directory", "No such file or directory"]
    assert result.sessions == [third.id] and views(client, third.id) == ["ab"]


# --- codex ---


class Codex:
    """Lines of one rollout."""

    def __init__(self, **meta: Any) -> None:
        self.thread = str(uuid4())
        self.id = here("codex", self.thread)
        self.records: list[Record] = []
        self.add("m", "session_meta", id=self.thread, cwd="/srv/app", **meta)

    def add(self, label: str, kind: str = "response_item", **payload: Any) -> None:
        stamp = f"2026-01-02T03:04:{len(self.records):02}.000Z"
        ordinal = len(self.records)
        self.records.append({"timestamp": stamp, "ordinal": ordinal, "type": kind, "label": label, "payload": payload})

    def turn(self, one: str, other: str) -> None:
        self.add(one, type="message", role="user", content=[{"type": "input_text", "text": one}])
        self.add(other, type="message", role="assistant", content=[{"type": "output_text", "text": other}])

    def bytes(self) -> bytes:
        return b"".join(json.dumps(record).encode() + b"\n" for record in self.records)

    def write(self, folder: Path, more: str = "") -> Path:
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / f"rollout-2026-01-02T03-04-05-{self.thread}{more}.jsonl"
        path.write_bytes(self.bytes())
        return path


@pytest.mark.requirement("IMP-4")
@pytest.mark.parametrize("copies_meta", [True, False])
def test_a_copied_codex_fork_continues_from_its_origin(
    daemon: Running, client: SyncClient, tmp_path: Path, copies_meta: bool
) -> None:
    origin = Codex()
    origin.turn("a", "b")
    origin.turn("c", "d")
    origin.write(tmp_path / "sessions/2026/01/02")
    fork = Codex(forked_from_id=origin.thread)
    for each in origin.records[0 if copies_meta else 1 : 3]:
        fork.records.append({**each, "timestamp": "2026-02-02T00:00:00.000Z", "ordinal": len(fork.records)})
    fork.turn("x", "y")
    fork.write(tmp_path / "sessions/2026/02/02")
    found = imported(daemon, "codex", tmp_path)
    assert found["copied"] == 2 + copies_meta
    assert views(client, origin.id) == ["mabcd"] and views(client, fork.id) == ["mabmxy"]


@pytest.mark.requirement("IMP-4")
def test_a_referenced_fork_and_a_reverted_file_continue_at_a_byte_of_the_origin(
    daemon: Running, client: SyncClient, tmp_path: Path
) -> None:
    origin = Codex()
    origin.turn("a", "b")
    end = len(origin.bytes())
    origin.turn("c", "d")
    origin.write(tmp_path)
    base = {"thread_id": origin.thread, "end_ordinal_exclusive": 3, "end_byte_offset": end}
    fork = Codex(forked_from_id=origin.thread, history_base=base)
    fork.turn("x", "y")
    fork.write(tmp_path)
    reverted = Codex(history_base=base)
    reverted.thread = origin.thread
    reverted.records[0]["payload"]["id"] = origin.thread
    reverted.turn("v", "w")
    reverted.write(tmp_path, f"_{uuid4()}")
    imported(daemon, "codex", tmp_path)
    assert views(client, fork.id) == ["mabmxy"]
    assert views(client, origin.id) == ["mabcd", "mabmvw"]


@pytest.mark.requirement("IMP-3")
def test_a_thread_that_another_one_spawned_begins_there_and_leaves_out_its_copy(
    daemon: Running, client: SyncClient, tmp_path: Path
) -> None:
    parent = Codex()
    parent.turn("a", "b")
    child = Codex(source={"subagent": {"thread_spawn": {"parent_thread_id": parent.thread}}})
    child.records[0]["payload"]["subagent_history_start_ordinal"] = 3
    for each in parent.records[1:]:
        child.records.append({**each, "ordinal": len(child.records)})
    child.turn("x", "y")
    parent.add("s", type="function_call", name="spawn_agent", arguments="{}", call_id="c1")
    parent.add("o", type="function_call_output", call_id="c1", output=json.dumps({"agent_id": child.thread}))
    parent.turn("c", "d")
    parent.write(tmp_path)
    child.write(tmp_path)
    guardian = Codex(source={"subagent": {"other": "guardian"}})
    guardian.turn("g", "h")
    guardian.write(tmp_path)
    imported(daemon, "codex", tmp_path)
    assert views(client, child.id) == ["mabmxy"] or views(client, child.id) == ["mabsmxy"]
    assert client.session_get(guardian.id).session.labels["hidden"] == "guardian"


@pytest.mark.requirement("IMP-6")
def test_compressed_and_archived_rollouts_are_read(daemon: Running, client: SyncClient, tmp_path: Path) -> None:
    both, packed, broken = Codex(), Codex(), Codex()
    for each in (both, packed, broken):
        each.turn("a", "b")
    plain = both.write(tmp_path / "sessions")
    plain.with_suffix(".jsonl.zst").write_bytes(zstd.compress(both.bytes()))
    for each in (packed, broken):
        path = each.write(tmp_path / "archived_sessions")
        data = zstd.compress(each.bytes())
        path.with_suffix(".jsonl.zst").write_bytes(data if each is packed else data[:-9])
        path.unlink()
    found = imported(daemon, "codex", tmp_path)
    reasons = sorted(each["reason"] for each in found["skipped"])
    assert len(reasons) == 2 and reasons[-1] == "the same rollout is there uncompressed"
    assert views(client, both.id) == views(client, packed.id) == ["mab"]
    assert imported(daemon, "codex", tmp_path)["unchanged"] == 2


@pytest.mark.requirement("IMP-6")
def test_unknown_lines_tokens_and_garbage_of_codex_are_kept(
    daemon: Running, client: SyncClient, tmp_path: Path
) -> None:
    rollout = Codex()
    rollout.turn("a", "b")
    for number, total in enumerate([5, 9, 3, None]):
        info = {"total_token_usage": {"input_tokens": total, "output_tokens": 1}} if total else None
        rollout.add(str(number), "event_msg", type="token_count", info=info)
    rollout.add("u", "news_of_tomorrow")
    path = rollout.write(tmp_path)
    data = path.read_bytes().split(b"\n")
    path.write_bytes(b"\n".join([*data[:3], b"\x00torn", *data[3:]]))
    found = imported(daemon, "codex", tmp_path)
    assert found["events"] == {"system": 1, "prompt": 1, "response": 1, "opaque": 6}
    assert views(client, rollout.id) == ["mab0123u"]


# --- pi ---


@pytest.mark.requirement("IMP-4")
@pytest.mark.parametrize("has_parent", [True, False])
def test_a_pi_fork_continues_from_its_origin(
    daemon: Running, client: SyncClient, tmp_path: Path, has_parent: bool
) -> None:
    origin, fork = str(uuid4()), str(uuid4())

    def entries(labels: str, parent: str | None) -> Iterator[Record]:
        for label in labels:
            role = "user" if label in "acx" else "assistant"
            stamp = f"2026-01-02T03:04:{ord(label) - 90:02}.000Z"
            id = f"{origin[:6]}{label}"
            yield {
                "type": "message", "id": id, "parentId": parent, "timestamp": stamp, "label": label,
                "message": {"role": role, "content": label},
            }  # fmt: skip
            parent = id

    def header(id: str, **more: str) -> Record:
        return {"type": "session", "version": 3, "id": id, "cwd": "/srv", "label": "h", **more}

    (folder := tmp_path / "C#-app").mkdir()  # The mark separates a database from a session in it.
    if has_parent:
        write(folder / "origin.jsonl", [header(origin), *entries("abcd", None)])
        imported(daemon, "pi", tmp_path)
    records = [*entries("ab", None), *entries("xy", f"{origin[:6]}b")]
    write(folder / "z_fork.jsonl", [header(fork, parentSession=str(folder / "origin.jsonl")), *records])
    assert imported(daemon, "pi", tmp_path)["copied"] == (2 if has_parent else 0)
    assert views(client, here("pi", fork)) == (["habhxy"] if has_parent else ["habxy"])


@pytest.mark.requirement("IMP-2")
def test_a_file_that_pi_migrates_is_imported_as_another_version(
    daemon: Running, client: SyncClient, tmp_path: Path
) -> None:
    id = str(uuid4())
    old = [{"type": "message", "label": each, "message": {"role": "user", "content": each}} for each in "ab"]
    path = write(tmp_path / "s.jsonl", [{"type": "session", "id": id, "cwd": "/", "label": "h"}, *old])
    imported(daemon, "pi", path)
    new = [{**each, "id": f"{n:08}", "parentId": f"{n - 1:08}" if n else None} for n, each in enumerate(old)]
    write(path, [{"type": "session", "version": 3, "id": id, "cwd": "/", "label": "H"}, *new])
    assert imported(daemon, "pi", path)["rewritten"] == 1
    assert views(client, here("pi", id)) == ["Hab", "hab"]


# --- places ---


@pytest.mark.requirement("IMP-8")
def test_without_a_path_the_places_of_the_harness_are_read(daemon: Running, claude: Claude, tmp_path: Path) -> None:
    write(tmp_path / "projects/-srv-app" / f"{claude.session}.jsonl", claude.turn("a", "b"))
    done = ctx(daemon, "import", "claude", "--json", CLAUDE_CONFIG_DIR=str(tmp_path))
    assert json.loads(done.stdout)["sessions"] == [claude.id]
    none = ctx(daemon, "import", "claude", CLAUDE_CONFIG_DIR=str(tmp_path / "none"))
    assert none.returncode == 3 and "claude has no sessions in" in none.stderr


@pytest.mark.requirement("IMP-8")
def test_the_places_follow_the_settings_of_each_harness(tmp_path: Path) -> None:
    home = Path("/home/u")
    assert default_places("claude", {}, home) == [home / ".claude/projects", home / ".config/claude/projects"]
    assert default_places("codex", {"CODEX_HOME": "/c"}, home) == [Path("/c/sessions"), Path("/c/archived_sessions")]
    assert default_places("pi", {"PI_CODING_AGENT_DIR": "/p"}, home) == [Path("/p/sessions")]
    assert default_places("pi", {"PI_CODING_AGENT_SESSION_DIR": "/s"}, home) == [Path("/s")]
    assert default_places("opencode", {"XDG_DATA_HOME": "/d", "OPENCODE_DB": "x.db"}, home) == [
        Path("/d/opencode/x.db")
    ]
