"""Records as Claude Code writes them, and what became of them."""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from uuid import uuid4

from ctxd_client.sync import SyncClient
from ctxd_protocol.methods.commits import Commit
from tests.spec.test_import import Claude, Record
from tests.spec.test_import_again import lines

USAGE = {
    "input_tokens": 4, "cache_read_input_tokens": 18_000, "cache_creation_input_tokens": 900, "output_tokens": 210,
}  # fmt: skip


def newest(client: SyncClient, session: str) -> Commit:
    """The newest commit of a session."""
    commit = client.commit_resolve(session=session).commit
    assert commit is not None
    return commit


def once(client: SyncClient, *sessions: str) -> str:
    """The labels of the lines in all commits of sessions, of which none is there twice."""
    counted: Counter[str] = sum((lines(client, session) for session in sessions), Counter())
    assert set(counted.values()) == {1}, counted
    return "".join(sorted(counted))


def answers(claude: Claude, label: str, message: str, block: Record, after: str | None = None, **usage: int) -> Record:
    """One line of an answer: one block of the provider's message, with the usage of the whole message."""
    record = claude(label, "assistant", after=after, requestId=f"req-{message}")
    record["message"] |= {
        "id": message, "model": "claude-x", "content": [block], "usage": {**USAGE, **usage}, "stop_reason": None,
    }  # fmt: skip
    return record


def calls(claude: Claude, label: str, call: str, tool: str = "Read", *, after: str | None = None) -> Record:
    block = {"type": "tool_use", "id": call, "name": tool, "input": {"file_path": f"/srv/app/{call}.py"}}
    return answers(claude, label, f"msg-{label}", block, after)


def append_bytes(path: Path, data: bytes) -> None:
    with path.open("ab") as file:
        file.write(data)


def returns(claude: Claude, label: str, call: str, content: object, *, after: str | None = None, **more: Any) -> Record:
    record = claude(label, after=after, toolUseResult={"stdout": "out", "interrupted": False}, **more)
    record["message"] = {
        "role": "user", "content": [{"type": "tool_result", "tool_use_id": call, "content": content}],
    }  # fmt: skip
    return record


def compaction(
    claude: Claude, boundary: str, summary: str, *, logical: str | None = None, **metadata: object
) -> list[Record]:
    """A boundary, which is a new root, and the summary behind it. ``logical``: the label of its logical parent."""
    claude.last = None
    first = claude(
        boundary, "system", subtype="compact_boundary", content="Conversation compacted",
        compactMetadata={"trigger": "auto", "preTokens": 167_240, **metadata},
    )  # fmt: skip
    del first["message"]
    if logical is not None:
        first["logicalParentUuid"] = claude.ids[logical]
    return [first, claude(summary, isCompactSummary=True, isVisibleInTranscriptOnly=True)]


def snapshot(label: str) -> Record:
    """A line without an id, as Claude Code writes one for each prompt."""
    kept = {"messageId": str(uuid4()), "trackedFileBackups": {}, "timestamp": "2026-01-02T03:04:00.000Z"}
    return {"type": "file-history-snapshot", "messageId": kept["messageId"], "snapshot": kept, "label": label}


def forked(records: Sequence[Record], session: str) -> list[Record]:
    """Copies of records in a fork: one chain, whatever tree they were in, each with its origin."""
    made: list[Record] = []
    parent: str | None = None
    for record in records:
        origin = {"sessionId": record["sessionId"], "messageUuid": record["uuid"]}
        made.append({**record, "sessionId": session, "parentUuid": parent, "forkedFrom": origin})
        made[-1].pop("logicalParentUuid", None)
        parent = record["uuid"]
    return made


def fork_of(claude: Claude, last: str) -> Claude:
    fork = Claude()
    fork.ids, fork.last = {**claude.ids}, claude.ids[last]
    return fork
