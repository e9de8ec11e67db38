"""Delivery of the commits of one imported source: many per call, while the next ones are planned.

Only one call is in flight at a time, since the commits of the next call continue its commits.
"""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

import anyio
import msgspec
from anyio.abc import TaskGroup
from blake3 import blake3

from ctxd.imports.plan_types import PlannedDelta
from ctxd.zstandard import zstd
from ctxd_client.errors import CallFailed
from ctxd_protocol.methods.commits import ImportedDelta

if TYPE_CHECKING:
    from ctxd_client import Client

BATCH_BYTES: Final = 512 * 1024
"""Bytes of queued deltas at which a call is due: a call takes 1.5 ms of processor time beside that for its bytes."""

_BATCH_DELTAS: Final = 200
_KEY_BYTES: Final = 8
_ZSTD_LEVEL: Final = 1
"""Level at which content is compressed for a call: it takes less time than the base64 and the JSON that it saves."""


class Parent(NamedTuple):
    """The parent of a delta: a commit of the same source by ``number``, from 1, else any commit by its id. Without
    either, the delta is a root. ``key``: equal for equal parents."""

    number: int = 0
    commit: str | None = None
    key: str = ""


class _QueuedDelta(NamedTuple):
    number: int
    parent: Parent
    delta: ImportedDelta
    lines: bytes


class CommitBatches:
    """The commits of one source. ``known``: ids of the commits of earlier imports, by key; new commits are added."""

    def __init__(self, client: "Client", session: str, format: str, known: dict[str, str], *, dry_run: bool) -> None:
        self.ids: list[str] = []
        """The id of each commit, in the order of their numbers; empty until the commit exists."""
        self._keys: list[str] = []
        self._made = 0
        self._counted = set[str]()
        self._client = client
        self._session = session
        self._format = format
        self._known = known
        self._dry_run = dry_run
        self._waiting: list[_QueuedDelta] = []
        self._size = 0
        self._under_way: anyio.Event | None = None
        self._failure: CallFailed | None = None

    def key_of(self, number: int) -> str:
        """The key of commit ``number``."""
        return self._keys[number - 1]

    def add(self, planned: PlannedDelta, parent: Parent, lines: bytes, *, is_wanted: bool = True) -> bool:
        """Register the next delta, whose content is ``lines``. Returns: True if it must be committed: it is wanted and
        new."""
        key = self._key(planned, parent, lines)
        self._keys.append(key)
        self.ids.append(self._known.get(key, f"ctx-{key}" if self._dry_run else ""))
        is_due = is_wanted and key not in self._known
        if self._dry_run and is_due and key not in self._counted:
            self._counted.add(key)
            self._made += 1
        return is_due

    def has(self, planned: PlannedDelta, parent: Parent, lines: bytes) -> bool:
        """Return True if an earlier import has made the commit that ``add`` would register."""
        return self._key(planned, parent, lines) in self._known

    def _key(self, planned: PlannedDelta, parent: Parent, lines: bytes) -> str:
        of = (self._session, parent.key, self._format, planned.agent, str(planned.is_compaction))
        return blake3("\0".join(of).encode()).update(lines).hexdigest(length=_KEY_BYTES)

    def take_made(self) -> int:
        """Return the number of commits made since this was last called; in a dry run, of commits that would be made."""
        made, self._made = self._made, 0
        return made

    def put(self, delta: ImportedDelta, parent: Parent, lines: bytes) -> None:
        """Queue the delta that was added last."""
        self._waiting.append(_QueuedDelta(len(self.ids), parent, delta, lines))
        self._size += len(lines)

    @property
    def is_full(self) -> bool:
        """True if a call is due."""
        return self._size >= BATCH_BYTES or len(self._waiting) >= _BATCH_DELTAS

    async def send(self, tasks: TaskGroup) -> None:
        """Start the next call after the one in flight has ended. Raises: CallFailed if that one failed."""
        await self._ended()
        if self._waiting:
            self._under_way = anyio.Event()
            waiting, self._waiting, self._size = self._waiting, [], 0
            tasks.start_soon(self._call, waiting, self._under_way)

    async def finish(self, tasks: TaskGroup) -> None:
        """Send the rest, and return once everything is durable. Raises: CallFailed."""
        await self.send(tasks)
        await self._ended()

    async def _ended(self) -> None:
        if self._under_way is not None:
            await self._under_way.wait()
            self._under_way = None
        if self._failure is not None:
            raise self._failure

    async def _call(self, waiting: Sequence[_QueuedDelta], ended: anyio.Event) -> None:
        try:
            places = {one.number: place for place, one in enumerate(waiting)}
            deltas = [self._placed(one, places) for one in waiting]
            content = zstd.compress(b"".join([one.lines for one in waiting]), _ZSTD_LEVEL)
            made = await self._client.commit_import(
                self._session, f"{self._format}-v1", content, deltas, compression="zstd"
            )
            self._made += made.made
            for one, commit in zip(waiting, made.commits, strict=True):
                self.ids[one.number - 1] = commit
                self._known[self._keys[one.number - 1]] = commit
        except CallFailed as error:
            self._failure = error
        finally:
            ended.set()

    def _placed(self, one: _QueuedDelta, places: Mapping[int, int]) -> ImportedDelta:
        number = one.parent.number
        if number in places:
            return msgspec.structs.replace(one.delta, after=places[number])
        return msgspec.structs.replace(one.delta, parent=self.ids[number - 1] or None if number else one.parent.commit)
