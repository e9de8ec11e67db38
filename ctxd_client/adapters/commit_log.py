"""The commits of one session as a log that programs append to and read: the base of both adapters. Without I/O.

An operation is a generator of calls, which ``run`` makes with a client and ``run_async`` with an asynchronous one. The
log is in the daemon; this process has an index of it, which each read updates with one call, and a bounded cache of its
contents. Any number of processes may append to one log.
"""

import hashlib
import secrets
import threading
from base64 import b64encode
from collections import OrderedDict
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from typing import Any, Final, Generic, Protocol, TypeVar

from ctxd_client.client import Client
from ctxd_client.errors import CallFailed, Conflict, Forbidden, InvalidCall, InvalidState, NotFound
from ctxd_client.sync import SyncClient
from ctxd_client.wire import Call
from ctxd_protocol.limits import PAGE_ITEMS_MAX
from ctxd_protocol.methods import artifacts, commits, session_list, sessions
from ctxd_protocol.session_types import SessionSummary

T = TypeVar("T")
K = TypeVar("K")
V = TypeVar("V")

Steps = Generator[Call[Any], Any, T]
"""An operation: it yields calls, receives their results, and returns a ``T``."""

REMOVAL: Final = "removal-v1"
"""Format of a notice that earlier commits are being, or have been, removed, on which programs reread the log."""

LINE_BYTES_MAX: Final = 4 * 1024 * 1024
"""Bytes of the longest delta sent within a call; a longer one is uploaded in pieces first."""

CACHE_BYTES: Final = 64 * 1024 * 1024
"""Bytes of contents that one adapter caches."""

_LOGS_MAX: Final = 1000
"""Maximum number of logs with an index in one adapter."""


def run(client: SyncClient, steps: Steps[T], deciding: threading.Lock) -> T:
    """Make the calls of ``steps`` and return its result. ``deciding`` is held between calls, so that only one thread
    at a time uses the index of a log. Raises: CallFailed, and the exceptions of ``steps``."""
    try:
        with deciding:
            call = next(steps)
        while True:
            try:
                result = client.call(call)
            except CallFailed as failure:
                with deciding:
                    call = steps.throw(failure)
            else:
                with deciding:
                    call = steps.send(result)
    except StopIteration as end:
        return end.value  # type: ignore[no-any-return]


async def run_async(client: Client, steps: Steps[T]) -> T:
    """As ``run``, with an asynchronous client. Cancel: a write may have been applied."""
    try:
        call = next(steps)
        while True:
            try:
                result = await client.call(call)
            except CallFailed as failure:
                call = steps.throw(failure)
            else:
                call = steps.send(result)
    except StopIteration as end:
        return end.value  # type: ignore[no-any-return]


class BoundedCache(OrderedDict[K, V]):
    """LRU cache of values by key, with a total size of at most ``most``; a larger value is kept alone."""

    def __init__(self, most: int, size_of: Callable[[V], int]) -> None:
        super().__init__()
        self._most = most
        self._size_of = size_of
        self._held = 0

    def put(self, key: K, value: V) -> None:
        """Store ``value``, and evict the least recently used ones if the cache is full."""
        self.drop(key)
        self[key] = value
        self._held += self._size_of(value)
        while self._held > self._most and len(self) > 1:
            self.drop(next(iter(self)))

    def find(self, key: K) -> V | None:
        """The value of ``key``, marked as used; None if it is not cached."""
        if key not in self:
            return None
        self.move_to_end(key)
        return self[key]

    def drop(self, key: K) -> None:
        """Remove ``key``, if present."""
        if key in self:
            self._held -= self._size_of(self.pop(key))


class LogIndex(Protocol):
    """Index of a log."""

    def add(self, commit: commits.Commit) -> bool:
        """Add a commit; commits come in order, each once. Returns: False for a notice that earlier commits are being,
        or have been, removed."""


IndexT = TypeVar("IndexT", bound=LogIndex)


class CommitLog(Generic[IndexT]):
    """The commits of ``session``, and their ``index``.

    ``name``: the id of that session, unless ``ctxd gc`` has emptied it: the log then continues in another session, with
    the name as its label ``log``. ``agent``: that of these sessions; None for a session made by others.
    """

    def __init__(
        self, name: str, agent: str | None, new_index: Callable[[], IndexT], bodies: "BoundedCache[str, bytes]"
    ) -> None:
        self.name = name
        self.session = name
        self.index = new_index()
        self._agent = agent
        self._bodies = bodies
        self._new_index = new_index
        self._cursor: str | None = None
        self._is_there = False
        self._notices: set[str] = set()

    def sync(self) -> Steps[bool]:
        """Update the index with new commits of the log; a session that does not exist is an empty log.

        Returns: False if there was a removal notice among them, for which the log was reread. Raises: CallFailed.
        """
        is_quiet = True
        while True:
            cursor = self._cursor
            params = commits.CommitListParams(
                session=self.session, cursor=cursor, limit=PAGE_ITEMS_MAX, oldest_first=True
            )
            try:
                page = yield Call("commit.list", params, commits.CommitListResult)
            except NotFound:
                self._is_there = False
                self.forget()
                if (yield from self._moved()):
                    continue
                return is_quiet
            if cursor != self._cursor:
                continue  # Another task has added this page meanwhile.
            self._is_there = True
            if self._add(page.commits):
                is_quiet = False
                # A read from the start needs no repeat: it reflects the removals already.
                if cursor is not None:
                    self.forget()
                    continue
            self._cursor = page.next_cursor or cursor
            if not page.more:
                return is_quiet

    def _moved(self) -> Steps[bool]:
        """Look for the session in which the log continues. Returns: True if it is a different one."""
        found: list[SessionSummary] = []
        if self._agent is not None:
            try:
                found = yield from sessions_of(self._agent, f"log={self.name}")
            except InvalidCall as refused:
                if refused.code != "method_not_found":  # A sandbox can neither list nor create sessions.
                    raise
        before = self.session
        self.session = found[0].session if found else self.name
        return self.session not in (before, self.name)

    def _make(self, create: Callable[[], Steps[None]]) -> Steps[None]:
        """Create the session, or another one if it was emptied: its id cannot be reused."""
        number = 0
        while not self._is_there:
            yield from create()
            params = commits.CommitListParams(session=self.session, limit=1)
            try:
                yield Call("commit.list", params, commits.CommitListResult)
                self._is_there = True
            except NotFound:
                if self._agent is None:
                    raise
                number += 1
                self.session = f"{self.name}-{number}"

    def _add(self, page: Sequence[commits.Commit]) -> bool:
        """Add commits to the index. Returns: True if there is a new removal notice among them."""
        notices = {commit.commit for commit in page if not self.index.add(commit)} - self._notices
        self._notices |= notices
        return bool(notices)

    def forget(self) -> None:
        """Discard the index, so that the next ``sync`` reads the log from its start."""
        self.index = self._new_index()
        self._cursor = None

    def read(self, wanted: Iterable[str]) -> Steps[dict[str, bytes]]:
        """The contents of commits that were not discarded, by commit id. Raises: CallFailed."""
        found: dict[str, bytes] = {}
        missing: list[str] = []
        for commit in dict.fromkeys(wanted):
            body = self._bodies.find(commit)
            if body is None:
                missing.append(commit)
            else:
                found[commit] = body
        while missing:
            params = commits.CommitDeltasParams(commits=tuple(missing[:PAGE_ITEMS_MAX]))
            page = yield Call("commit.deltas", params, commits.CommitDeltasResult)
            for delta in page.deltas:
                body = delta.data
                if body is None and delta.artifact_ref is not None:
                    body = yield from _download(delta.artifact_ref)
                if body is not None:
                    found[delta.commit] = body
                    self._bodies.put(delta.commit, body)
            missing = missing[len(page.deltas) :]
        return found

    def append(
        self,
        content: bytes,
        create: Callable[[], Steps[None]],
        **fields: Any,  # noqa: ANN401 - as CheckpointParams has them
    ) -> Steps[commits.Commit]:
        """Append a commit, durable once it is returned. ``create`` makes the session if it does not exist. Raises:
        CallFailed."""
        if len(content) > LINE_BYTES_MAX:
            fields["artifact"] = yield from _upload(content)
        else:
            fields["delta_base64"] = b64encode(content).decode()
        yield from self._make(create)
        params = commits.CheckpointParams(session=self.session, **{"op_id": secrets.token_hex(16), **fields})
        call = Call("commit.checkpoint", params, commits.CommitResult)
        try:
            made = yield call
        except InvalidState as refused:
            if refused.code != "session_removed":
                raise
            # Its contents were discarded before it was removed.
            restore = sessions.SessionWriteParams(session=self.session, op_id=secrets.token_hex(16))
            yield Call("session.restore", restore, sessions.SessionResult)
            made = yield call
        commit: commits.Commit = made.commit
        self._bodies.put(commit.commit, content)
        return commit

    def discard(self, wanted: Sequence[str]) -> Steps[None]:
        """Destroy the contents of commits. Raises: CallFailed; ``Forbidden`` in a sandbox."""
        for first in range(0, len(wanted), PAGE_ITEMS_MAX):
            some = tuple(wanted[first : first + PAGE_ITEMS_MAX])
            params = commits.CommitDiscardParams(commits=some)
            try:
                yield Call("commit.discard", params, commits.CommitDiscardResult)
            except InvalidCall as refused:
                if refused.code != "method_not_found":
                    raise
                message, hint = "nothing can be deleted from within a sandbox", "Delete it on the host."
                raise Forbidden(message, code="forbidden", hint=hint, outcome="not_applied") from refused
            for commit in some:
                self._bodies.drop(commit)


class CommitLogs(Generic[IndexT]):
    """The logs that an adapter uses; the indexes of the last used ones are kept."""

    def __init__(self, new_index: Callable[[], IndexT], agent: str | None) -> None:
        """``agent``: that of the sessions; None if they are made by others."""
        self._agent = agent
        self._new_index = new_index
        self._logs = BoundedCache[str, CommitLog[IndexT]](_LOGS_MAX, lambda _: 1)
        self._bodies = BoundedCache[str, bytes](CACHE_BYTES, len)

    def of(self, name: str) -> CommitLog[IndexT]:
        """The log with this name."""
        log = self._logs.find(name)
        if log is None:
            log = CommitLog(name, self._agent, self._new_index, self._bodies)
            self._logs.put(name, log)
        return log


def sessions_of(agent: str, label: str | None = None) -> Steps[list[SessionSummary]]:
    """The sessions of ``agent`` that are not in the trash, newest first. ``label``: ``name=value``. Raises:
    CallFailed."""
    found: list[SessionSummary] = []
    cursor: str | None = None
    while True:
        params = session_list.SessionListParams(agent=agent, label=label, limit=PAGE_ITEMS_MAX, cursor=cursor)
        page = yield Call("session.list", params, session_list.SessionListResult)
        found += page.sessions
        if (cursor := page.next_cursor) is None:
            return found


def session_name(prefix: str, *parts: str) -> str:
    """A valid session id derived from ``parts``, which may be any text."""
    hashed = hashlib.blake2b(digest_size=12)
    for part in parts:
        data = part.encode()
        hashed.update(len(data).to_bytes(8, "big") + data)
    return f"{prefix}-{hashed.hexdigest()}"


def create_session(agent: str, log: CommitLog[Any], workdir: str, labels: Mapping[str, str]) -> Steps[None]:
    """Create the session of a log, unless it exists. It is paused, so that no command uses it by default.

    If the daemon refuses the working directory, ``/`` takes its place. Raises: CallFailed.
    """

    def made(place: str) -> Call[sessions.SessionResult]:
        params = sessions.SessionCreateParams(
            agent=agent,
            session=log.session,
            workdir=place,
            labels={**labels, "log": log.name},
            state="paused",
            op_id=secrets.token_hex(16),
        )
        return Call("session.create", params, sessions.SessionResult)

    try:
        try:
            yield made(workdir)
        except InvalidCall as refused:
            if workdir == "/" or refused.code == "method_not_found":
                raise
            yield made("/")
    except Conflict:
        return
    except InvalidCall as refused:
        if refused.code != "method_not_found":
            raise
        message, hint = "a sandbox makes no sessions", "Use a socket of the host, or name a session of the sandbox."
        raise Forbidden(message, code="forbidden", hint=hint, outcome="not_applied") from refused


def remove_session(session: str) -> Steps[None]:
    """Move a session to the trash, from which ``CommitLog.append`` restores it. Raises: CallFailed."""
    params = sessions.SessionWriteParams(session=session, op_id=secrets.token_hex(16))
    try:
        yield Call("session.remove", params, sessions.SessionResult)
    except NotFound:
        return


def note_removal(log: CommitLog[Any], **fields: str) -> Steps[commits.Commit]:
    """Append a removal notice. ``fields``: those of its commit. Raises: CallFailed."""
    return (yield from log.append(secrets.token_bytes(8), _no_session, format=REMOVAL, **fields))


def _no_session() -> Steps[None]:
    """Make no session: a removal concerns an existing one."""
    yield from ()


def as_label(text: str) -> str:
    """``text``, cut to the maximum length of a label."""
    return text[:256]


def _download(address: str) -> Steps[bytes]:
    parts: list[bytes] = []
    offset: int | None = 0
    while offset is not None:
        params = artifacts.ArtifactGetParams(artifact=address, offset=offset, limit=artifacts.PIECE_BYTES_MAX)
        piece = yield Call("artifact.get", params, artifacts.ArtifactGetResult)
        parts.append(piece.data)
        offset = piece.next_offset
    return b"".join(parts)


def _upload(content: bytes) -> Steps[str]:
    name = f"delta-{secrets.token_hex(16)}"
    for offset in range(0, len(content), artifacts.PIECE_BYTES_MAX):
        piece = artifacts.ArtifactUploadParams(
            upload=name, offset=offset, data=content[offset : offset + artifacts.PIECE_BYTES_MAX]
        )
        yield Call("artifact.upload", piece, artifacts.ArtifactUploadResult)
    put = artifacts.ArtifactPutParams(upload=name, policy="ephemeral", op_id=secrets.token_hex(16))
    result = yield Call("artifact.put", put, artifacts.ArtifactPutResult)
    return str(result.artifact)
