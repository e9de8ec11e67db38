"""Cache of rendered contexts: those of the sessions assembled last, within bounds of number and bytes."""

from collections import OrderedDict
from collections.abc import Sequence
from typing import Any, Final

import msgspec

from ctxd.assembly.append_rendering import KeptWindow
from ctxd.assembly.assembly_archive import Archive
from ctxd.assembly.assembly_record import Assembled, Recorded
from ctxd.assembly.context_sections import Composition, SectionPieces
from ctxd.sessions.session import LiveSession, WriteRequest
from ctxd.store.store import VersionStore
from ctxd.store.write_types import Pending, Write

KEPT_BYTES_MAX: Final = 64 * 1024 * 1024
"""Bytes of the contexts that are kept. A session whose own is larger is rendered whole at each assembly."""


SESSIONS_KEPT_MAX: Final = 32
"""Sessions whose rendering is kept. One of 10,000 objects takes about 8 MiB; one that is not kept is rendered whole."""


class KeptContext(msgspec.Struct, eq=False):
    """Rendered components of one session, its newest record, and the context that this recorded.

    ``key``: the state that the components show, None for one that is out of date. ``context_ids``: all that the session
    has recorded, None before they are read; ``record``, ``composition`` and ``answer`` are None before one is known.
    ``recalled``: the newest record was looked for.
    ``window``: that of the layout ``append``, None before it is read.
    """

    live: LiveSession
    components: Sequence[SectionPieces]
    context_ids: set[str] | None
    recalled: bool = False
    key: tuple[Any, ...] | None = None
    record: Recorded | None = None
    composition: Composition | None = None
    answer: Assembled | None = None
    window: KeptWindow | None = None

    @property
    def size(self) -> int:
        """Bytes that are kept, about."""
        composed = 0 if self.composition is None else self.composition.size
        return composed + (0 if self.window is None else self.window.size)


REPEATS_MAX: Final = 10_000
"""Requests for an unchanged context that are remembered: nothing was written for them. Each takes some 300 bytes."""


class RenderCache:
    """Contexts of sessions between assemblies, least recently used evicted, within bounds of number and bytes.

    A rendering is current until a version of an object in the session's pool changes: by a write of the session itself,
    which the key shows, or by anybody's version of a file, which the store reports once it is durable. Of active files
    the key shows it at once: they were just compared with the disk. Other writes concern no rendering. ``cleared``
    counts how often all was dropped, since writes were lost or a purge was made.
    """

    def __init__(self, store: VersionStore, archive: Archive) -> None:
        self._archive = archive
        self.cleared = 0
        self._kept: OrderedDict[str, KeptContext] = OrderedDict()
        # The newest requests that found their context recorded: digest and number, by principal and operation id.
        self.repeats: OrderedDict[tuple[str, str], tuple[bytes, int]] = OrderedDict()
        # Of all objects in a pool, only files get versions from others than the session.
        store.on_durable(self._invalidate, types=("file",))
        store.on_lost(self._clear)

    def get(self, live: LiveSession) -> KeptContext | None:
        """The kept context of ``live``, None without one."""
        kept = self._kept.get(live.session)
        if kept is None or kept.live is not live:
            return None
        self._kept.move_to_end(live.session)
        return kept

    def of(self, live: LiveSession) -> KeptContext:
        """The context kept of ``live``; a new one, empty, if none is."""
        kept = self.get(live)
        if kept is None:
            kept = KeptContext(
                live, self._archive.layout(), None if live.assembly else set(), recalled=not live.assembly
            )
            self.put(kept)
        return kept

    def put(self, kept: KeptContext) -> None:
        """Keep ``kept``, and evict those used longest ago until all are within the bounds."""
        self._kept[kept.live.session] = kept
        size = sum(each.size for each in self._kept.values())
        while self._kept and (len(self._kept) > SESSIONS_KEPT_MAX or size > KEPT_BYTES_MAX):
            _, gone = self._kept.popitem(last=False)
            size -= gone.size

    def _invalidate(self, landed: Sequence[tuple[Write, Pending]]) -> None:
        """Mark the renderings that show a file with a new version; after a purge drop all, which may show its text."""
        if any(write.purge is not None for write, _ in landed):
            self._clear(frozenset())
            return
        for write, _ in landed:
            files = [document.id for document in write.puts if document.type == "file"]
            for session, kept in self._kept.items():
                if session != write.session and kept.key and not kept.live.state.pool.keys().isdisjoint(files):
                    kept.key = None

    def _clear(self, sessions: frozenset[str]) -> None:
        """Drop all: a lost version of a file may be in the rendering of any session."""
        self.cleared += 1
        self._kept.clear()

    def note_repeat(self, call: WriteRequest, number: int) -> None:
        """Remember that ``call`` found the assembly ``number`` unchanged."""
        if call.op_id is not None:
            self.repeats[call.principal, call.op_id] = (call.request, number)
            if len(self.repeats) > REPEATS_MAX:
                self.repeats.popitem(last=False)
