"""The commits of one session as a log that programs add to and read: what both adapters stand on. Without I/O.

An operation is a generator of calls, which ``run`` makes with a client and ``run_async`` with an asynchronous one. The
daemon has the log; here are an index of it, which each reading operation brings up to date with one call, and a
bounded part of its contents. Any number of processes may add to one log.
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
from ctxd_protocol.methods import artifacts, commits, listing, sessions
from ctxd_protocol.session_types import SessionSummary

T = TypeVar("T")
K = TypeVar("K")
V = TypeVar("V")

Steps = Generator[Call[Any], Any, T]
"""An operation: it yields calls, gets their results, and returns a ``T``."""

REMOVAL: Final = "removal-v1"
"""The format of a notice that commits before it are being removed, or were, so that programs read the log anew."""

LINE_BYTES_MAX: Final = 4 * 1024 * 1024
"""Bytes of the longest delta that is sent within a call; a longer one is sent in pieces first."""

CACHE_BYTES: Final = 64 * 1024 * 1024
"""Bytes of contents that one adapter keeps in memory."""

_LOGS_MAX: Final = 1000
"""Logs that one adapter keeps an index of."""


def run(client: SyncClient, steps: Steps[T], deciding: threading.Lock) -> T:
    """Make the calls of ``steps`` and return its result. ``deciding`` is held between calls, so that threads do not
    meet in the index of a log. Raises: CallFailed, and the exceptions of ``steps``."""
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
    """Values by key, up to ``most`` bytes of them, the last used ones; a longer one is kept alone."""

    def __init__(self, most: int, size_of: Callable[[V], int]) -> None:
        super().__init__()
        self._most = most
        self._size_of = size_of
        self._held = 0

    def put(self, key: K, value: V) -> None:
        """Keep ``value``."""
        self.drop(key)
        self[key] = value
        self._held += self._size_of(value)
        while self._held > self._most and len(self) > 1:
            self.drop(next(iter(self)))

    def find(self, key: K) -> V | None:
        """The value of ``key``, which counts as used; None without one."""
        if key not in self:
            return None
        self.move_to_end(key)
        return self[key]

    def drop(self, key: K) -> None:
        """Forget ``key``."""
        if key in self:
            self._held -= self._size_of(self.pop(key))


class LogIndex(Protocol):
    """Index of a log."""

    def add(self, commit: commits.Commit) -> bool:
        """Take a commit; they come in their order, each once. Returns: False for a notice that some of those before it
        are being removed, or were."""


IndexT = TypeVar("IndexT", bound=LogIndex)


class CommitLog(Generic[IndexT]):
    """The commits of ``session``, and the ``index`` of them.

    ``name``: the id of that session, unless ``ctxd gc`` has emptied it: then the log goes on in another one, which has
    the name as the label ``log``. ``agent`` of these sessions; None for a session that others made.
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
        """Take what is new in the log; a session that does not exist is an empty one.

        Returns: False if a notice of a removal was among it, after which the log was read anew. Raises: CallFailed.
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
                continue  # Another task has taken this page meanwhile.
            self._is_there = True
            if self._take(page.commits):
                is_quiet = False
                # A first page shows the removals before it: they were made when it was read.
                if cursor is not None:
                    self.forget()
                    continue
            self._cursor = page.next_cursor or cursor
            if not page.more:
                return is_quiet

    def _moved(self) -> Steps[bool]:
        """Look for the session in which the log goes on. Returns: True if it is another one than before."""
        found: list[SessionSummary] = []
        if self._agent is not None:
            try:
                found = yield from sessions_of(self._agent, f"log={self.name}")
            except InvalidCall as refused:
                if refused.code != "method_not_found":  # A sandbox lists no sessions, and makes none.
                    raise
        before = self.session
        self.session = found[0].session if found else self.name
        return self.session not in (before, self.name)

    def _make(self, create: Callable[[], Steps[None]]) -> Steps[None]:
        """Make the session, or the next one if it was emptied: its id stays taken."""
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

    def _take(self, page: Sequence[commits.Commit]) -> bool:
        """Add commits to the index. Returns: True if there is a new notice among them."""
        notices = {commit.commit for commit in page if not self.index.add(commit)} - self._notices
        self._notices |= notices
        return bool(notices)

    def forget(self) -> None:
        """Read the log from its start the next time."""
        self.index = self._new_index()
        self._cursor = None

    def read(self, wanted: Iterable[str]) -> Steps[dict[str, bytes]]:
        """The contents of commits; without those that were discarded. Raises: CallFailed."""
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
        """Add a commit, durable once it is returned. ``create`` makes the session if it is not there. Raises:
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
            # What was in it was discarded.
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
    """The logs that an adapter uses, the last used ones with their index."""

    def __init__(self, new_index: Callable[[], IndexT], agent: str | None) -> None:
        """``agent`` of the sessions, None if they are made by others."""
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
        params = listing.SessionListParams(agent=agent, label=label, limit=PAGE_ITEMS_MAX, cursor=cursor)
        page = yield Call("session.list", params, listing.SessionListResult)
        found += page.sessions
        if (cursor := page.next_cursor) is None:
            return found


def session_name(prefix: str, *parts: str) -> str:
    """The id of the session for ``parts``, whatever these are."""
    hashed = hashlib.blake2b(digest_size=12)
    for part in parts:
        data = part.encode()
        hashed.update(len(data).to_bytes(8, "big") + data)
    return f"{prefix}-{hashed.hexdigest()}"


def create_session(agent: str, log: CommitLog[Any], workdir: str, labels: Mapping[str, str]) -> Steps[None]:
    """Make the session of a log, set aside so that it is no command's default; one that is there is left as it is.

    Raises: CallFailed; ``InvalidCall`` if its working directory is refused is met by the root instead.
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
    """Move a session to the trash, from which ``CommitLog.append`` brings it back. Raises: CallFailed."""
    params = sessions.SessionWriteParams(session=session, op_id=secrets.token_hex(16))
    try:
        yield Call("session.remove", params, sessions.SessionResult)
    except NotFound:
        return


def note_removal(log: CommitLog[Any], **fields: str) -> Steps[commits.Commit]:
    """Add a notice of a removal. ``fields`` of its commit. Raises: CallFailed."""
    return (yield from log.append(secrets.token_bytes(8), _no_session, format=REMOVAL, **fields))


def _no_session() -> Steps[None]:
    """Nothing: a removal is of a session that is there."""
    yield from ()


def as_label(text: str) -> str:
    """The beginning of ``text``, as a label may have it."""
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
