"""A session store for the Claude Agent SDK, on the daemon: ``CtxdSessionStore``.

Needs the package ``claude-agent-sdk``. A session of the SDK is a session of the agent ``claude-code``, in the form of
an imported one: each batch of transcript lines is a commit. A batch is durable once ``append`` returns.
"""

import json
import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final, NamedTuple

import anyio
from claude_agent_sdk import (
    SessionKey,
    SessionListSubkeysKey,
    SessionStore,
    SessionStoreEntry,
    SessionStoreListEntry,
    SessionSummaryEntry,
    fold_session_summary,
)

from ctxd_client.adapters.commit_log import (
    BoundedCache,
    CommitLog,
    CommitLogs,
    Steps,
    as_label,
    create_session,
    note_removal,
    remove_session,
    run_async,
    session_name,
    sessions_of,
)
from ctxd_client.client import Client, connect
from ctxd_protocol.methods.commits import Commit

AGENT: Final = "claude-code"
FORMAT: Final = "claude-code-v1"

_SUMMARY_MAX: Final = 60_000
_TITLE_MAX: Final = 200
_LOCKS_MAX: Final = 10_000


class TranscriptIndex:
    """Commits of one session by the subpath of their transcript ("" for the main one), in commit order."""

    def __init__(self) -> None:
        self.commits: dict[str, list[Commit]] = {}

    def add(self, commit: Commit) -> bool:
        """Add a commit. Returns: False for a removal notice."""
        if commit.format == FORMAT and commit.artifact_ref is not None:
            self.commits.setdefault(commit.thread_id, []).append(commit)
        return commit.format == FORMAT


class _Batch(NamedTuple):
    """Lines to append after a commit. If the call fails, the SDK resends them, and the same call is repeated."""

    content: bytes
    parent: str | None
    summary: str
    op_id: str


class CtxdSessionStore(SessionStore):  # type: ignore[misc]
    """A store that keeps transcripts in the daemon, for ``ClaudeAgentOptions(session_store=…)``.

    Every method raises ``ctxd_client.CallFailed``, and ValueError for an invalid key; a batch is added once, even if
    the SDK resends it. Any number of processes may add to one session. Cancel: a write may have been applied.
    """

    def __init__(self, client: Client) -> None:
        self._client = client
        self._logs = CommitLogs(TranscriptIndex, AGENT)
        self._unacknowledged: dict[tuple[str, str], _Batch] = {}
        self._locks = BoundedCache[str, anyio.Lock](_LOCKS_MAX, lambda _: 1)

    @classmethod
    @asynccontextmanager
    async def connect(cls, socket: str | Path | None = None) -> AsyncIterator["CtxdSessionStore"]:
        """A store with a connection of its own. Raises: ``ConnectFailed``.

        Example: ``async with CtxdSessionStore.connect() as store: options = ClaudeAgentOptions(session_store=store)``
        """
        async with connect(socket, client="claude-agent-sdk") as client:
            yield cls(client)

    async def append(self, key: SessionKey, entries: list[SessionStoreEntry]) -> None:
        """Append a batch of lines to a transcript."""
        subpath = _subpath(key)
        log = self._log(key)
        lock = self._locks.find(log.session)
        if lock is None:
            lock = anyio.Lock()
            self._locks.put(log.session, lock)
        async with lock:
            if entries:
                await run_async(self._client, self._append(log, key, subpath, entries))

    async def load(self, key: SessionKey) -> list[SessionStoreEntry] | None:
        """All lines of a transcript in order, each uuid once; None if there are none."""
        return await run_async(self._client, self._load(self._log(key), _subpath(key)))

    async def list_sessions(self, project_key: str) -> list[SessionStoreListEntry]:
        """The sessions of a project, each with the time of its last append in ms since 1970."""
        found = await run_async(self._client, self._of_project(project_key))
        return [
            SessionStoreListEntry(session_id=session, mtime=log.index.commits[""][-1].created_at_ms)
            for session, log in found
        ]

    async def list_session_summaries(self, project_key: str) -> list[SessionSummaryEntry]:
        """The SDK's summary of each session of a project."""
        return await run_async(self._client, self._summaries(project_key))

    async def delete(self, key: SessionKey) -> None:
        """Destroy a transcript. With a main one, its sub-agents' are destroyed too, and the session moves to the trash.

        Raises: ``Forbidden`` in a sandbox.
        """
        await run_async(self._client, self._delete(self._log(key), _subpath(key)))

    async def list_subkeys(self, key: SessionListSubkeysKey) -> list[str]:
        """The subpaths of a session that have lines."""
        log = self._log(key)
        await run_async(self._client, log.sync())
        return [subpath for subpath in log.index.commits if subpath]

    # --- steps ---

    def _log(self, key: SessionKey | SessionListSubkeysKey) -> CommitLog[TranscriptIndex]:
        project, session = key["project_key"], key["session_id"]
        for name, text in (("project_key", project), ("session_id", session)):
            if not 0 < len(text) <= 256 or text != text.encode("utf-8", "replace").decode():
                raise ValueError(f"{name} is {ascii(text)[:60]}: it must be Unicode text of 1 to 256 characters")
        return self._logs.of(session_name(AGENT, project, session))

    def _append(
        self, log: CommitLog[TranscriptIndex], key: SessionKey, subpath: str, entries: list[SessionStoreEntry]
    ) -> Steps[None]:
        content = "".join(f"{_line(entry)}\n" for entry in entries).encode()
        place = (log.session, subpath)
        batch = self._unacknowledged.get(place)
        if batch is None or batch.content != content:
            batch = yield from self._batch(log, key, subpath, entries, content)
        self._unacknowledged[place] = batch
        cwd = next((path for entry in entries if isinstance(path := entry.get("cwd"), str)), "/")
        labels = {
            "harness": AGENT,
            "native_session": as_label(key["session_id"]),
            "project_key": as_label(key["project_key"]),
            "store": "claude-agent-sdk",
        }
        made = yield from log.append(
            content, lambda: create_session(AGENT, log, cwd if cwd.startswith("/") else "/", labels),
            op_id=batch.op_id, format=FORMAT, parent=batch.parent, thread_id=subpath, summary=batch.summary,
            checkpoint="compaction" if any(map(_is_compaction, entries)) else "turn_boundary",
        )  # fmt: skip
        del self._unacknowledged[place]
        if made.thread_id != subpath:
            message = "the subpath counts as a secret, which the daemon's policy redacts"
            raise ValueError(f"{message}: it will not be found again")

    def _batch(
        self, log: CommitLog[TranscriptIndex], key: SessionKey, subpath: str, entries: list[SessionStoreEntry],
        content: bytes,
    ) -> Steps["_Batch"]:  # fmt: skip
        yield from log.sync()
        # A sub-agent's chain begins after the newest commit of the main one, as in an import.
        before = log.index.commits.get(subpath) or log.index.commits.get("", [])
        summary = ""
        if not subpath:
            folded = fold_session_summary((yield from self._folded(log, key["session_id"])), key, entries)
            summary = _summary_text(folded["data"])
        return _Batch(content, before[-1].commit if before else None, summary, f"sdk-{secrets.token_hex(16)}")

    def _load(self, log: CommitLog[TranscriptIndex], subpath: str) -> Steps[list[SessionStoreEntry] | None]:
        yield from log.sync()
        commits = [commit.commit for commit in log.index.commits.get(subpath, ())]
        bodies = yield from log.read(commits)
        if not bodies:
            return None
        seen: set[str] = set()
        entries: list[SessionStoreEntry] = []
        for commit in commits:
            for line in bodies.get(commit, b"").decode().split("\n"):
                if not line:
                    continue
                entry = json.loads(line)
                if isinstance(uuid := entry.get("uuid"), str):
                    if uuid in seen:
                        continue
                    seen.add(uuid)
                entries.append(entry)
        return entries

    def _of_project(self, project: str) -> Steps[list[tuple[str, CommitLog[TranscriptIndex]]]]:
        """The sessions of a project that have a main transcript: ids and updated logs."""
        found: list[tuple[str, CommitLog[TranscriptIndex]]] = []
        for row in (yield from sessions_of(AGENT, f"project_key={as_label(project)}")):
            native = row.labels.get("native_session", "")
            if row.labels.get("log") != session_name(AGENT, project, native):
                continue  # It belongs to another program.
            log = self._logs.of(row.labels["log"])
            yield from log.sync()
            if log.index.commits.get(""):
                found.append((native, log))
        return found

    def _summaries(self, project: str) -> Steps[list[SessionSummaryEntry]]:
        found: list[SessionSummaryEntry] = []
        for session, log in (yield from self._of_project(project)):
            folded = yield from self._folded(log, session)
            if folded is not None:
                found.append(folded)
        return found

    def _folded(self, log: CommitLog[TranscriptIndex], session: str) -> Steps[SessionSummaryEntry | None]:
        """The summary of a main transcript: the newest commit's or, if two processes have appended at once, a
        recomputed one."""
        commits = log.index.commits.get("", [])
        if not commits:
            return None
        data = _data_of(commits[-1].summary)
        if data is None or any(later.parent != each.commit for each, later in zip(commits, commits[1:], strict=False)):
            key: SessionKey = {"project_key": "", "session_id": session}
            data = fold_session_summary(None, key, (yield from self._load(log, "")) or [])["data"]
        return SessionSummaryEntry(session_id=session, mtime=commits[-1].created_at_ms, data=data)

    def _delete(self, log: CommitLog[TranscriptIndex], subpath: str) -> Steps[None]:
        yield from log.sync()
        wanted = [each for each in log.index.commits if not subpath or each == subpath]
        commits = [commit.commit for each in wanted for commit in log.index.commits[each]]
        if not commits:
            return
        yield from log.discard(commits)
        yield from note_removal(log)
        if not subpath:
            yield from remove_session(log.session)
        log.forget()


def _subpath(key: SessionKey) -> str:
    """The subpath of ``key``, "" for the main transcript. Raises: ValueError."""
    if "subpath" not in key:
        return ""
    subpath: str = key["subpath"]
    if not 0 < len(subpath) <= 256 or subpath != subpath.encode("utf-8", "replace").decode():
        raise ValueError(f"subpath is {ascii(subpath)[:60]}: it must be Unicode text of 1 to 256 characters")
    return subpath


def _line(entry: SessionStoreEntry) -> str:
    """``entry`` as a line. Raises: ValueError, TypeError for values that JSON cannot represent."""
    line = json.dumps(entry, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    if line.isascii() or line == line.encode("utf-8", "replace").decode():
        return line
    return json.dumps(entry, separators=(",", ":"))


def _is_compaction(entry: SessionStoreEntry) -> bool:
    return bool(entry.get("type") == "system" and entry.get("subtype") == "compact_boundary")


def _summary_text(data: dict[str, Any]) -> str:
    """A readable title and, on the second line, the SDK's summary as JSON, unless that is too long."""
    names = ("custom_title", "ai_title", "last_prompt", "summary_hint", "first_prompt", "command_fallback")
    title = next((data[name] for name in names if data.get(name)), "")
    title = " ".join(str(title).split())[:_TITLE_MAX].encode("utf-8", "replace").decode()
    text = json.dumps(data, separators=(",", ":"))
    return f"{title}\n{text}" if len(text) <= _SUMMARY_MAX else title


def _data_of(summary: str) -> dict[str, Any] | None:
    """The SDK's summary from a commit's ``summary``; None without one."""
    try:
        data = json.loads(summary.partition("\n")[2])
    except (ValueError, RecursionError):
        return None
    return data if isinstance(data, dict) else None
