"""Cache of the rendered contexts of the sessions assembled last, bounded in number and bytes."""

from collections import OrderedDict
from collections.abc import Sequence
from typing import Any, Final

import msgspec

from ctxd.assembly.append_rendering import KeptWindow
from ctxd.assembly.assembly_record import Assembled, Recorded
from ctxd.assembly.recorded_assemblies import Archive
from ctxd.assembly.spec_layout import Composition, SectionPieces
from ctxd.sessions.live_session import LiveSession, WriteRequest
from ctxd.store.version_store import VersionStore
from ctxd.store.write_types import Pending, Write

KEPT_BYTES_MAX: Final = 48 * 1024 * 1024
"""Maximum bytes of kept contexts. A session whose own context is larger is rendered whole at each assembly. A larger
value lets one sandbox exceed its memory, see the figure ``memory``."""

SESSIONS_KEPT_MAX: Final = 32
"""Maximum sessions whose rendering is kept; the others are rendered whole. One of 10,000 objects takes about 8 MiB."""

_ID_BYTES: Final = 130
"""Approximate memory of a context id in a set."""


class KeptContext(msgspec.Struct, eq=False):
    """Rendered components of one session, its newest record, and the context that it recorded.

    ``key``: the state that the components show, None if they are out of date. ``context_ids``: all that the session has
    recorded, None until they are read; ``record``, ``composition`` and ``answer``: None until known. ``recalled``: the
    newest record was looked up. ``window``: of the layout ``append``, None until it is read. ``rendered``: approximate
    bytes of ``components``, and ``chars`` the characters of their texts.
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
    rendered: int = 0
    chars: int = 0

    @property
    def size(self) -> int:
        """Approximate bytes kept: the components, the text of the answer, which is one of its own, and the window."""
        size = self.rendered + (0 if self.window is None else self.window.size)
        if self.composition is not None:
            size += self.composition.size
        if self.answer is not None and not self.answer.carries_receipt:
            size += self.answer.encoded_bytes
        return size + (0 if self.context_ids is None else _ID_BYTES * len(self.context_ids))


REPEATS_MAX: Final = 10_000
"""Requests that are remembered because they found their context unchanged, so that nothing was written. Each takes
about 300 bytes."""


class RenderCache:
    """Contexts of sessions between assemblies: an LRU cache, bounded in number and bytes.

    A rendering is current until an object in the session's pool gets a new version. Writes of the session itself change
    the key. A file's version by any other writer invalidates the rendering once the store reports it as durable; for
    active files the key changes at once, as they were just compared with the disk. Other writes affect no rendering.
    ``cleared`` counts how often everything was dropped, because writes were lost or content was purged.
    """

    def __init__(self, store: VersionStore, archive: Archive) -> None:
        self._archive = archive
        self.cleared = 0
        self._kept: OrderedDict[str, KeptContext] = OrderedDict()
        # The newest requests whose context was recorded already: digest and number, by principal and operation id.
        self.repeats: OrderedDict[tuple[str, str], tuple[bytes, int]] = OrderedDict()
        # Files are the only objects in a pool that get versions from writers other than the session.
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
        """The kept context of ``live``, or a new, empty one."""
        kept = self.get(live)
        if kept is None:
            kept = KeptContext(
                live, self._archive.layout(), None if live.assembly else set(), recalled=not live.assembly
            )
            self.put(kept)
        return kept

    def put(self, kept: KeptContext) -> None:
        """Keep ``kept``, and evict the least recently used until all are within the bounds. One that alone exceeds
        them is not kept and evicts no other."""
        if kept.size > KEPT_BYTES_MAX:
            self._kept.pop(kept.live.session, None)
            return
        self._kept[kept.live.session] = kept
        size = sum(each.size for each in self._kept.values())
        while self._kept and (len(self._kept) > SESSIONS_KEPT_MAX or size > KEPT_BYTES_MAX):
            _, gone = self._kept.popitem(last=False)
            size -= gone.size

    def _invalidate(self, writes: Sequence[tuple[Write, Pending]]) -> None:
        """Mark renderings that show a file with a new version as out of date. After a purge drop all: any may show the
        purged text."""
        if any(write.purge is not None for write, _ in writes):
            self._clear(frozenset())
            return
        for write, _ in writes:
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
