"""Delivery of captured commits to the daemon: from memory while it replies, through a file while it does not.

The agent never waits: commits above the limit of memory, commits that are not acknowledged for 2 s, and commits left at
the end are written to the file, which the next capture delivers.
"""

import os
from collections import deque
from collections.abc import Iterable
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Final
from uuid import uuid4

import anyio
import msgspec

from ctxd.capture.stream_checkpoints import Checkpoint
from ctxd.cli.common_options import Invocation
from ctxd.cli.spool_maintenance import deliver_waiting
from ctxd.cli.undelivered_commits import (
    NEWEST,
    PREVIOUS,
    QueuedCommit,
    UndeliveredFile,
    folder_of,
    left_over,
    new_path,
)
from ctxd.click_support import Stop
from ctxd.clock import SystemClock
from ctxd.config import ConfigError
from ctxd.formatting import count
from ctxd.remedies import reason_of
from ctxd.worker_threads import in_thread
from ctxd_protocol.ids import captured_session_id
from ctxd_protocol.secret_types import SecretPolicy

if TYPE_CHECKING:
    from ctxd_client import Client

_MEMORY_COMMITS_MAX: Final = 64
_MEMORY_BYTES_MAX: Final = 16 * 1024 * 1024

_SILENT_S: Final = 2.0
"""Seconds without an acknowledgement after which commits are written to the file, where they survive a kill."""


class Chain(msgspec.Struct, frozen=True, kw_only=True):
    """The chain of one capture. ``parent``: of its first commit: an id, ``NEWEST``, or None for a root."""

    parent: str | None
    session: str | None
    template: str
    ticket: str
    thread: str


def queued_commit(found: Checkpoint, chain: Chain, parent: str | None, op_id: str = "") -> QueuedCommit:
    """The commit of ``found`` in ``chain``."""
    return QueuedCommit(
        op_id=op_id,
        parent=parent,
        delta=found.delta,
        commit_type="compaction" if found.is_compaction else "delta",
        checkpoint=found.trigger,
        summary=found.summary,
        messages=found.messages,
        tokens=found.tokens,
        session=chain.session,
        template=chain.template,
        ticket=chain.ticket,
        thread=chain.thread,
    )


class CommitDelivery:
    """Commits of one chain, each the child of the previous one. Each is sent until the daemon acknowledges it.

    ``holds_input``: reading may pause while commits wait, since the input is a file.
    """

    def __init__(self, run: Invocation, chain: Chain, *, holds_input: bool) -> None:
        self._run = run
        self._chain = chain
        self._holds_input = holds_input
        self._id = uuid4().hex
        self._clock = SystemClock()
        self._began = self._clock.wall_ms()
        self.native = ""
        """The harness's id of its session, once it is known."""
        self._made = self._unsent = self._queued = self._left = self._messages = 0
        self._newest: str | None = None
        self._failure = ""
        self._notes: list[str] = []
        # The strictest policy until the daemon has returned the session's.
        self._policy: SecretPolicy = "redact"
        self._held: list[Checkpoint] = []
        """Checkpoints without messages before the first commit: without any message there is nothing to commit."""
        # The oldest commit is sent. It stays where it is until it is acknowledged, or moves to the file as all others.
        self._memory: deque[QueuedCommit] = deque()
        self._memory_bytes = 0
        self._file: UndeliveredFile | None = None
        self._storing = anyio.Lock()
        self._changed = anyio.Event()
        self._is_complete = False
        self.ended = anyio.Event()

    # --- from the agent ---

    async def put(self, checkpoints: Iterable[Checkpoint]) -> None:
        """Queue checkpoints in memory, or in the file if memory is full. Those before the first message wait for it, or
        for an explicit one."""
        for each in checkpoints:
            self._held.append(each)
            if self._queued or each.messages or each.trigger == "explicit" or len(self._held) > _MEMORY_COMMITS_MAX:
                due, self._held = self._held, []
                await self._put(due)

    async def _put(self, checkpoints: Iterable[Checkpoint]) -> None:
        for checkpoint in checkpoints:
            while self._holds_input and self._is_full and self._file is None and not self._failure:
                await self._changed.wait()
            queued = self._next_queued(checkpoint)
            self._unsent += 1
            self._messages += checkpoint.messages
            async with self._storing:
                if self._file is None and not self._is_full:
                    self._memory.append(queued)
                    self._memory_bytes += len(queued.delta)
                else:
                    await self._store(queued)
            self._note_change()

    def note(self, text: str) -> None:
        """Report ``text`` with the outcome."""
        self._notes.append(text)

    def end(self) -> None:
        """Declare that no more checkpoints follow."""
        self._is_complete = True
        self._note_change()

    async def store_when_silent(self) -> None:
        """Write all waiting commits to the file whenever the daemon has acknowledged none for ``_SILENT_S``."""
        while True:
            before = self._made
            await self._clock.sleep(_SILENT_S)
            if self._unsent and self._made == before:
                async with self._storing:
                    await self._store()
                self._note_change()

    def has_work(self) -> bool:
        """True if there are commits to deliver, of this capture or of earlier ones."""
        if self._unsent:
            return True
        try:
            return bool(left_over(self._folder()))
        except (OSError, ConfigError):
            return False

    async def store_rest(self) -> None:
        """Write all undelivered commits to the file, durably. Call it once sending has ended."""
        if self._memory:
            async with self._storing:
                await self._store()
        if self._file is not None:
            try:
                await in_thread(self._file.sync)
            except OSError as error:
                self._failure = self._failure or str(error)

    @property
    def _is_full(self) -> bool:
        return len(self._memory) >= _MEMORY_COMMITS_MAX or self._memory_bytes >= _MEMORY_BYTES_MAX

    def _note_change(self) -> None:
        self._changed.set()
        self._changed = anyio.Event()

    def _next_queued(self, found: Checkpoint) -> QueuedCommit:
        self._queued += 1
        parent, op_id = self._chain.parent if self._queued == 1 else PREVIOUS, f"capture-{self._id}-{self._queued}"
        queued = queued_commit(found, self._chain, parent, op_id)
        return msgspec.structs.replace(queued, hooked=self._hooked(), since=self._began)

    def _hooked(self) -> str:
        """Return the session in which hooks would record the same events; empty if the caller named another place."""
        hooked = captured_session_id("claude-code", self.native) if self.native else ""
        chain = self._chain
        return hooked if chain.parent in (None, NEWEST) and chain.session in (None, hooked) else ""

    async def _store(self, *more: QueuedCommit) -> None:
        """Move the commits in memory to the file, and add ``more``. If they cannot be written, those in memory stay
        there; those of ``more`` are lost, and counted."""
        # A cancellation in between would leave a commit in both places.
        with anyio.CancelScope(shield=True):
            try:
                file = await in_thread(self._opened)
            except (OSError, ValueError, ConfigError) as error:
                self._failure = str(error)
                return
            while self._memory:
                if not await self._appended(file, self._memory[0]):
                    return
                self._memory_bytes -= len(self._memory.popleft().delta)
            for queued in more:
                await self._appended(file, queued)

    async def _appended(self, file: UndeliveredFile, queued: QueuedCommit) -> bool:
        try:
            await in_thread(lambda: file.append(self._kept(queued)))
        except OSError as error:
            self._failure = f"{file.path}: {error.strerror or error}"
            return False
        except (ConfigError, Stop) as error:
            self._failure = str(error)  # Without the rules, the file might get secrets.
            return False
        return True

    def _opened(self) -> UndeliveredFile:
        if self._file is None:
            path = new_path(self._folder(), self._clock.wall_ms(), self._id)
            self._file = UndeliveredFile(path)
            if self._made:
                self._file.note_parent(self._newest)
        return self._file

    def _folder(self) -> Path:
        from ctxd_client.socket_lookup import find_socket

        path, origin = find_socket(self._run.socket_path())
        # Without a named socket, do not depend on which default place has one: that changes with the daemon.
        return folder_of(path if origin in ("argument", "CTXD_SOCKET") else "", os.environ)

    def _kept(self, queued: QueuedCommit) -> QueuedCommit:
        """The commit as the daemon would store it: under ``redact`` no secret reaches the file."""
        if self._policy != "redact":
            return queued
        from ctxd.cli.scan import guard_or_stop
        from ctxd.formats.cbor_array_secrets import captured_array
        from ctxd.secrets.redaction import Capture

        capture = Capture(guard_or_stop(), "redact")
        return msgspec.structs.replace(
            queued, delta=captured_array(capture, queued.delta), summary=capture.text(queued.summary)
        )

    # --- to the daemon ---

    async def send_all(self) -> None:
        """Deliver the commits left by earlier captures, then each queued commit in turn until the end or a refusal."""
        from ctxd_client import CallFailed, connect

        try:
            async with connect(self._run.socket_path(), deadline_s=None, wait_s=inf, client="ctx capture") as client:
                await self._deliver_left_over(client)
                self._policy = await self._policy_of(client)
                while (queued := await self._oldest()) is not None:
                    await self._send(client, queued)
        except CallFailed as error:
            self._failure = reason_of(error)
        except (OSError, ValueError, ConfigError) as error:
            self._failure = str(error)
        self._note_change()
        self.ended.set()

    async def _policy_of(self, client: "Client") -> SecretPolicy:
        if self._chain.session is not None:
            return (await client.session_get(self._chain.session)).session.secrets
        from ctxd.config import load

        try:
            return load().secrets_policy
        except ConfigError:
            return self._policy

    async def _oldest(self) -> QueuedCommit | None:
        """Wait for the oldest commit that is not acknowledged, and return it; None at the end."""
        while True:
            async with self._storing:
                if self._file is not None and (stored := await in_thread(self._file.oldest)) is not None:
                    return stored
                if self._file is not None:
                    await in_thread(self._file.remove)
                    self._file = None
                if self._memory:
                    return self._memory[0]
                changed = self._changed
            if self._is_complete:
                return None
            await changed.wait()

    async def _send(self, client: "Client", queued: QueuedCommit) -> None:
        if self._newest is None and await _is_hooked(client, queued):
            await self._acknowledged(None)
            return
        parent = self._newest if queued.parent == PREVIOUS else queued.parent
        if parent == NEWEST:
            parent = await _newest_of(client, queued.session)
        await self._acknowledged(await _committed(client, queued, parent))

    async def _acknowledged(self, commit: str | None) -> None:
        """Remove the oldest commit, which was delivered as ``commit``, or left to hooks if it is None."""
        # A cancellation in between would deliver it once more.
        with anyio.CancelScope(shield=True):
            async with self._storing:
                self._unsent -= 1
                if commit is None:
                    self._left += 1
                else:
                    self._newest = commit
                    self._made += 1
                if self._file is not None and self._file.waiting:
                    self._file.note_delivered(commit)
                else:
                    self._memory_bytes -= len(self._memory.popleft().delta)
        self._note_change()

    async def _deliver_left_over(self, client: "Client") -> None:
        try:
            paths = left_over(self._folder())
        except OSError as error:
            self._notes.append(f"commits of earlier captures cannot be read: {error}")
            return
        if paths:
            await in_thread(deliver_waiting, self._run.socket_path())
        for path in paths:
            try:
                file = await in_thread(UndeliveredFile, path)
            except (BlockingIOError, FileNotFoundError):
                continue  # Another capture is using the file, or has delivered it.
            except (OSError, ValueError) as error:
                self._notes.append(f"commits of an earlier capture cannot be read: {error}")
                continue
            with file:
                await self._deliver_file(client, file)

    async def _deliver_file(self, client: "Client", file: UndeliveredFile) -> None:
        from ctxd_client import CallFailed

        waiting = file.waiting
        try:
            while (queued := await in_thread(file.oldest)) is not None:
                if file.parent is None and await _is_hooked(client, queued):
                    file.note_delivered(None)
                    continue
                parent = file.parent if queued.parent == PREVIOUS else queued.parent
                if parent == NEWEST:
                    # If it is sent again, it must have the same parent.
                    parent = file.parent or await _newest_of(client, queued.session)
                    file.note_parent(parent)
                file.note_delivered(await _committed(client, queued, parent))
        except CallFailed as error:
            stay = "stays" if file.waiting == 1 else "stay"
            left = f"{count(file.waiting, 'commit')} of an earlier capture {stay} in {file.path}"
            self._notes.append(f"{left}: {reason_of(error)}; delete the file to give them up")
        except (OSError, ValueError) as error:
            self._notes.append(f"commits of an earlier capture cannot be read: {error}")
        else:
            file.remove()
            if waiting:
                self._notes.append(f"{count(waiting, 'commit')} of an earlier capture delivered, up to {file.parent}")

    # --- the outcome ---

    def report(self) -> None:
        """Write the outcome to standard error: standard output is the agent's."""
        note = self._run.screen.note
        stored = 0 if self._file is None else min(self._file.waiting, self._unsent)
        lost = self._unsent - stored
        if (self._made or self._held) and not self._messages:
            more = "" if self._made else ", and nothing was committed"
            self._notes.append(
                f"the output had no message{more}: the agent has to print stream-json (claude -p --output-format "
                "stream-json --verbose …)"
            )
        if self._run.screen.as_json:
            outcome = {
                "commits": self._made,
                "left_to_hooks": self._left,
                "newest": self._newest,
                "stored": stored,
                "file": str(self._file.path) if self._file is not None and stored else None,
                "lost": lost,
                "reason": self._why() if self._unsent else None,
                "notes": self._notes,
            }
            note(msgspec.json.encode(outcome).decode())
            return
        for each in self._notes:
            note(f"ctx capture: {each}")
        if self._left:
            note(f"ctx capture: {count(self._left, 'commit')} left to the hooks of the session {self._hooked()}")
        if self._made:
            where = "" if self._chain.session else ", in no session (--session names one)"
            note(f"ctx capture: {count(self._made, 'commit')}, the newest is {self._newest}{where}")
        if self._file is not None and stored:
            where = f"{count(stored, 'commit')} not delivered, stored in {self._file.path}"
            note(f"ctx capture: {where}: {self._why()}; resolve this, and the next ctx capture delivers them")
        if lost:
            note(f"ctx capture: {count(lost, 'commit')} lost: {self._why()}")

    def _why(self) -> str:
        return self._failure or "the daemon did not respond in time; run ctx doctor"


async def _is_hooked(client: "Client", queued: QueuedCommit) -> bool:
    """True if hooks have recorded to the session of a commit since its capture began."""
    from ctxd_client.errors import NotFound

    if not queued.hooked:
        return False
    try:
        found = (await client.session_get(queued.hooked)).session
    except NotFound:
        return False
    return found.updated_at >= queued.since and bool((await client.session_events(queued.hooked, limit=1)).events)


async def _newest_of(client: "Client", session: str | None) -> str | None:
    found = (await client.commit_resolve(session=session)).commit
    return None if found is None else found.commit


async def _committed(client: "Client", queued: QueuedCommit, parent: str | None) -> str:
    result = await client.commit_checkpoint("events-v1", **queued.arguments(parent), op_id=queued.op_id)
    return result.commit.commit
