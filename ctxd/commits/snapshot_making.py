"""Snapshots of chains of commits: the choice of new ones, and the joining and reading of their contents."""

from collections.abc import Mapping, Sequence
from functools import partial
from itertools import groupby
from typing import Final

from ctxd.commits.chain_walk import Walked
from ctxd.formats.delta_formats import DELTA_FORMATS
from ctxd.formats.translation import Delta, Materialization
from ctxd.objects.commit_document import entity_id
from ctxd.objects.document import Content, encode_content
from ctxd.store.chain_snapshots import ChainSnapshot, ChainSnapshots, SnapshotPart

SNAPSHOT_COMMITS_MIN: Final = 64
"""Minimum number of consecutive commits without a snapshot for which a new one is made."""

SNAPSHOT_BYTES_MAX: Final = 1024 * 1024
"""Maximum bytes of the deltas of one snapshot, all of which are in memory while it is made."""

_LONG_BYTES: Final = 256 * 1024
"""Deltas of more bytes stay out of snapshots: compared to their content, reading the commit costs little."""


def plan_snapshots(chain: Sequence[Walked | ChainSnapshot]) -> list[list[Walked | ChainSnapshot]]:
    """The parts of ``chain``, which is newest first, that are worth a new snapshot; each part is oldest first. A new
    snapshot absorbs older ones that have no more commits than it, so a chain has few snapshots, and each commit is
    written a logarithmic number of times."""
    found: list[list[Walked | ChainSnapshot]] = []
    run: list[Walked | ChainSnapshot] = []
    size = commits = 0
    for each in chain:
        fits = _is_joinable(each) and size + _size(each) <= SNAPSHOT_BYTES_MAX
        if isinstance(each, ChainSnapshot):
            fits = fits and SNAPSHOT_COMMITS_MIN <= commits >= each.commits
        if not fits:
            found.append(run)
            run, size, commits = [], 0, 0
            if isinstance(each, ChainSnapshot) or not _is_joinable(each):
                continue
        run.append(each)
        size += _size(each)
        commits += each.commits if isinstance(each, ChainSnapshot) else 1
    found.append(run)
    return [whole for run in found if _is_worth(whole := _trimmed(run))]


def _is_joinable(each: Walked | ChainSnapshot) -> bool:
    if isinstance(each, ChainSnapshot) or each.fields.is_boundary:
        return True
    return each.content_ref is not None and each.fields.format in DELTA_FORMATS and each.size <= _LONG_BYTES


def _size(each: Walked | ChainSnapshot) -> int:
    return 0 if isinstance(each, Walked) and each.fields.is_boundary else each.size


def _trimmed(run: Sequence[Walked | ChainSnapshot]) -> list[Walked | ChainSnapshot]:
    """``run``, oldest first, without leading boundaries: a boundary may be the first commit of a context."""
    oldest_first = list(reversed(run))
    while oldest_first and isinstance(first := oldest_first[0], Walked) and first.fields.is_boundary:
        del oldest_first[0]
    return oldest_first


def _is_worth(run: Sequence[Walked | ChainSnapshot]) -> bool:
    return sum(isinstance(each, Walked) for each in run) >= SNAPSHOT_COMMITS_MIN


def keep_snapshot(
    snapshots: ChainSnapshots, part: Sequence[Walked | ChainSnapshot], contents: Mapping[str, Content], drops: int
) -> None:
    """Join ``part``, oldest first, and keep it as one snapshot, which replaces those in ``part``; blocks.

    ``drops``: as ``ChainSnapshots.keep``. Raises: SnapshotGone, UnreadableDelta, OSError.
    """
    deltas, reader = list[Delta](), SnapshotReader(snapshots)
    for each in part:
        if isinstance(each, ChainSnapshot):
            deltas += reader.deltas(each)
        elif not each.fields.is_boundary:
            read = partial(encode_content, contents[each.content_ref or ""])
            deltas.append(Delta(each.fields.format, read, each.fields.message_count, each.fields.token_count))
    joined, pieces = list[SnapshotPart](), list[bytes]()
    for format, run in groupby(deltas, key=lambda delta: delta.format):
        made = Materialization(list(run), format)
        content = b"".join(made.chunks())
        pieces.append(content)
        joined.append(SnapshotPart(format, made.messages, made.tokens, len(content)))
    first, last = part[0], part[-1]
    parent = (
        first.parent if isinstance(first, ChainSnapshot) else first.fields.parent and entity_id(first.fields.parent)
    )
    snapshot = ChainSnapshot(
        newest=last.newest if isinstance(last, ChainSnapshot) else entity_id(last.commit),
        oldest=first.oldest if isinstance(first, ChainSnapshot) else entity_id(first.commit),
        parent=parent,
        commits=sum(each.commits if isinstance(each, ChainSnapshot) else 1 for each in part),
        boundaries=sum(
            each.boundaries if isinstance(each, ChainSnapshot) else each.fields.is_boundary for each in part
        ),
        messages=sum(each.messages if isinstance(each, ChainSnapshot) else each.fields.message_count for each in part),
        parts=tuple(joined),
    )
    snapshots.keep(snapshot, b"".join(pieces), drops)
    for each in part:
        if isinstance(each, ChainSnapshot):
            snapshots.discard(each)


class SnapshotReader:
    """Contents of snapshots, for a thread that reads them in order: keeps the last one in memory."""

    def __init__(self, snapshots: ChainSnapshots) -> None:
        self._snapshots = snapshots
        self._held: tuple[ChainSnapshot, bytes] | None = None

    def deltas(self, snapshot: ChainSnapshot) -> list[Delta]:
        """The parts of ``snapshot`` as deltas. Their reads block, and raise SnapshotGone."""
        deltas, start = [], 0
        for part in snapshot.parts:
            read = partial(self._read, snapshot, start, start + part.size)
            deltas.append(Delta(part.format, read, part.messages, part.tokens))
            start += part.size
        return deltas

    def _read(self, snapshot: ChainSnapshot, start: int, end: int) -> bytes:
        if self._held is None or self._held[0] is not snapshot:
            self._held = None
            self._held = snapshot, self._snapshots.read(snapshot)
        content = self._held[1]
        return content if end - start == len(content) else content[start:end]
