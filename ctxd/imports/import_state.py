"""Record of imported sources, stored in the daemon: one tagged artifact per harness.

If it is lost, no commit is made twice: the daemon recognises commits by their content and parent. With it, a repeated
import opens only sources that changed.
"""

import os
import sys
from collections import defaultdict
from collections.abc import Iterable
from contextlib import suppress
from hashlib import blake2b
from typing import TYPE_CHECKING

import anyio
import msgspec

from ctxd.imports.plan_types import CopyEnd, Start
from ctxd.transcripts.harness_names import HarnessCommand
from ctxd.transcripts.transcript_files import Stat
from ctxd_client.errors import Conflict, NotFound
from ctxd_protocol.limits import PAGE_ITEMS_MAX
from ctxd_protocol.methods.artifacts import PIECE_BYTES_MAX, ArtifactGetResult

if TYPE_CHECKING:
    from ctxd_client import Client
    from ctxd_client.sync import SyncClient


_Ends = defaultdict[str, list[tuple[str, int]]]


class SourceState(msgspec.Struct, array_like=True):
    """State of one source: its file's identity when it was read, and what was imported from it.

    Records are stored as arrays: a new field comes last, with a default that older records have.
    """

    parser: int
    """Version of the plan (``PLAN_VERSION``)."""
    stat: Stat | None
    """Identity of the file when it was read; None if the next import must read it, and for a session with ``stamp``."""
    stamp: str
    """Stamp of a session in a database or a folder, empty for other sources."""
    session: str
    agent: str
    """Sub-agent whose chain it is, empty for a conversation."""
    root: str
    """As ``Transcript.root``."""
    size: int = 0
    """Bytes that were imported."""
    digest: str = ""
    """Hash of these bytes."""
    cuts: list[int] = []
    """Ends of earlier imports, where all deltas end."""
    commits: dict[str, str] = {}
    """Id of each commit made from the source, by key."""
    unrecorded: int = 0
    """Bytes that were imported before the session had events of its own."""
    continued: str = ""
    """Commit of the session that lines after those events continue, empty for none."""
    ends: list[int] = []
    """Line ends at which imports missing from this record ended a delta."""
    number: int = 0
    """Position in the order of first imports, 0 before the first: a later source may be a copy of an earlier one."""
    copy_end: CopyEnd | None = None
    """Where this source leaves its origin, None if it is not a copy."""
    newest: str = ""
    """Last commit of its main chain, that of its origin for a copy without lines of its own."""
    whole: int = 0
    """Bytes that were imported including events that hooks had recorded, because the hooks missed earlier turns."""
    continued_at: int = 0
    """Byte at which the first line that continues the session ends."""
    planned_before: int = 0
    """Bytes that an earlier parser version planned, whose deltas are kept."""
    start: Start | None = None
    """Where the chain of a sub-agent begins, None if that is not known: it stays there though its call may become known
    later. Set, without a commit, for a fork by reference that repeats the lines of its origin."""
    undated: int = 0
    """Newest time, in ms since 1970, of a commit that has it from the file, as its lines have none: later commits are
    not dated before it."""
    format: str = ""
    """Format of a rollout of codex; empty for other sources, and in older records."""
    whole_lines: int = 0
    """Number of lines in ``whole``; 0 in older records."""
    copied_from: str = ""
    """Session that an unnamed fork of opencode continues, empty for none, and in older records."""
    early_splits: int = 0
    """Bytes imported by versions before ``SPLITS_PLAN_VERSION``, in which long lines keep their parts: other parts
    would be stored again."""
    sessions: int = 0
    """Number of sessions in a database, each of which is a source; 0 for other sources, and in older records."""


class _StoredRecord:
    """The parts of a record, as the daemon sends them: ``add`` each one, while ``offset`` is not None."""

    def __init__(self, harness: HarnessCommand) -> None:
        self.address = f"tag:{_tag(harness)}"
        self.offset: int | None = 0
        self._parts: list[bytes] = []

    def add(self, part: ArtifactGetResult) -> None:
        self.address, self.offset = part.artifact, part.next_offset
        self._parts.append(part.data)

    def decoded(self) -> dict[str, SourceState]:
        try:
            return msgspec.json.decode(b"".join(self._parts), type=dict[str, SourceState])
        except (msgspec.DecodeError, RecursionError):
            return {}  # Written by another version of ctxd.


def stored_sources(client: "SyncClient", harness: HarnessCommand) -> dict[str, SourceState]:
    """Return the records of the imported sources of one harness, by path. Raises: CallFailed."""
    stored = _StoredRecord(harness)
    with suppress(NotFound):
        while stored.offset is not None:
            stored.add(client.artifact_get(stored.address, offset=stored.offset, limit=PIECE_BYTES_MAX))
        return stored.decoded()
    return {}


def _tag(harness: HarnessCommand) -> str:
    return f"import/{harness}"


class ImportState:
    """Records of the imported sources of one harness, by path; ``changed``: the paths of unsaved records."""

    def __init__(self, client: "Client", harness: HarnessCommand, *, saved_every_s: float) -> None:
        self.sources: dict[str, SourceState] = {}
        self.changed: set[str] = set()
        self.merged: set[str] = set()
        """Paths of sources of which another import has made commits, as found by ``save``."""
        self._client = client
        self._harness = harness
        self._saved_every_s = saved_every_s
        self._kept: str | None = None
        self.has_new = False
        """True if sources were imported for the first time since the last save."""
        self._is_loaded = False
        self._newest = 0
        # Paths by session and agent, computed once per import.
        self._paths: dict[tuple[str, str], list[str]] | None = None
        self._renamed: dict[str, str] = {}
        self._ends: dict[tuple[str, bool], tuple[_Ends, int]] = {}
        self._saving = anyio.Lock()
        self._saved_at = anyio.current_time()

    async def load(self) -> dict[str, SourceState]:
        """Return the sources of earlier imports; only the first call reads them. Raises: CallFailed. Call it at the
        start of each import."""
        if not self._is_loaded:
            self.sources |= await self._stored()
            self._is_loaded = True
            self._newest = max((record.number for record in self.sources.values()), default=0)
        self._paths = None
        self._ends = {}
        return self.sources

    def in_order(self, paths: Iterable[str]) -> list[str]:
        """``paths`` in the order of their first import, followed by those that were not imported yet."""
        return sorted(paths, key=lambda path: self.sources[path].number or sys.maxsize)

    def note(self, path: str) -> None:
        """Mark the source at ``path`` as imported."""
        if not self.sources[path].number:
            self._newest += 1
            self.sources[path].number = self._newest
            self.has_new = True
        self.changed.add(path)

    async def save(self, *, when_due: bool) -> None:
        """Save the record, merged with the additions of concurrent imports.

        ``when_due``: skip this within ``saved_every_s`` of the last save. Raises: CallFailed. Cancel: safe.
        """
        if when_due and anyio.current_time() < self._saved_at + self._saved_every_s:
            return
        async with self._saving:
            while self.changed:
                self._saved_at = anyio.current_time()
                # A record that changes during the upload stays marked.
                changed, had_new = self.changed, self.has_new
                self.changed, self.has_new = set(), False
                is_saved = False
                try:
                    is_saved = await self._is_saved()
                finally:
                    if not is_saved:
                        self.changed |= changed
                        self.has_new |= had_new

    async def _is_saved(self) -> bool:
        """Save the record as it is now. Returns: False if another import had saved it; its additions are merged then.

        Raises: CallFailed."""
        address = await self._put(msgspec.json.encode(self.sources))
        try:
            await self._client.artifact_tag(_tag(self._harness), artifact=address, expected=self._kept or "")
        except Conflict:
            for path, theirs in (await self._stored()).items():
                mine_of = self.sources.setdefault(path, theirs)
                mine_of.cuts = sorted({*mine_of.cuts, *theirs.cuts})
                mine_of.ends = sorted({*mine_of.ends, *theirs.ends})
                if theirs.commits.keys() - mine_of.commits.keys():
                    self.merged.add(path)
                mine_of.commits |= theirs.commits
            return False
        self._kept = address
        return True

    def adopt(self, path: str, session: str, agent: str) -> SourceState | None:
        """Take over the record of a source with the same ``session`` and ``agent`` whose file is gone because it was
        moved, renamed or compressed. Returns: None if there is no such source."""
        if self._paths is None:
            self._paths = {}
            for old, record in self.sources.items():
                self._paths.setdefault((record.session, record.agent), []).append(old)
        for old in self._paths.get((session, agent), ()):
            if old in self.sources and self.sources[old].size and not _exists(old):
                found = self.sources[path] = self.sources.pop(old)
                self.changed.add(path)
                self._renamed[old] = path
                return found
        return None

    def follow_renames(self) -> None:
        """Update the ends of copies to the new paths of adopted sources. Cost: one pass over all sources."""
        for path, record in self.sources.items() if self._renamed else ():
            end = record.copy_end
            if end is not None and end.path in self._renamed:
                record.copy_end = end._replace(path=self._renamed[end.path])
                self.changed.add(path)
        self._renamed.clear()

    async def session_ends(self, session: str, *, newest_only: bool) -> tuple[_Ends, int]:
        """Return the commits with which imports of a session ended, by thread, each with its journal sequence; and the
        sequence of the session's newest commit. ``newest_only``: read only the newest page of commits.

        Read once per import, for all sources of the session. Raises: CallFailed. Cancel: safe.
        """
        if (known := self._ends.get((session, newest_only))) is not None:
            return known
        ends: _Ends = defaultdict(list)
        newest = 0
        cursor: str | None = None
        with suppress(NotFound):
            while True:
                page = await self._client.commit_list(session=session, limit=PAGE_ITEMS_MAX, cursor=cursor)
                for each in page.commits:
                    newest = max(newest, each.tx)
                    if each.checkpoint == "session_end" and each.artifact_ref:
                        ends[each.thread_id].append((each.commit, each.tx))
                # Commits that another import makes from a growing file are among the newest.
                if (cursor := page.next_cursor) is None or newest_only:
                    break
        self._ends[session, newest_only] = ends, newest
        return ends, newest

    async def _stored(self) -> dict[str, SourceState]:
        stored = _StoredRecord(self._harness)
        while stored.offset is not None:
            try:
                stored.add(await self._client.artifact_get(stored.address, offset=stored.offset, limit=PIECE_BYTES_MAX))
            except NotFound:
                self._kept = None
                return {}
        self._kept = stored.address
        return stored.decoded()

    async def _put(self, data: bytes) -> str:
        if len(data) <= PIECE_BYTES_MAX:
            return (await self._client.artifact_put(data=data, policy="ephemeral")).artifact
        upload = f"import-{blake2b(data, digest_size=16).hexdigest()}"
        offset = (await self._client.artifact_upload(upload)).offset
        while offset < len(data):
            piece = data[offset : offset + PIECE_BYTES_MAX]
            offset = (await self._client.artifact_upload(upload, offset=offset, data=piece)).offset
        return (await self._client.artifact_put(upload=upload, policy="ephemeral")).artifact


def _exists(path: str) -> bool:
    return os.path.lexists(path.partition("#")[0]) or os.path.lexists(path)
