"""States of sources as they were read, and the documents made of them.

Hashing and encoding text beyond a bound takes long enough to hold up every other session, so it is done in a thread.
"""

import errno
import os
from typing import Final, TypeVar, assert_never

import msgspec

from ctxd.indexing.decide import Absent, Held, OutOfReach, Oversized, SourceState
from ctxd.objects.document import Document
from ctxd.objects.hashing import source_hash
from ctxd.objects.next_version import file_binary, file_text, file_tombstone, file_too_large
from ctxd.offload import Lane
from ctxd.secrets.guard import Capture, Guard, captured_under
from ctxd.sources.files import LEADS_OUT
from ctxd.sources.port import Missing, OverLimit, Present, Reading, Special, Stamp, Unreadable
from ctxd_protocol.limits import FILE_BYTES_MAX
from ctxd_protocol.methods.files import FileKind
from ctxd_protocol.objects import Source
from ctxd_protocol.secrets import SecretPolicy

INLINE_BYTES_MAX: Final = 256 * 1024
"""Bytes of text that are hashed on the loop: about a millisecond. Moving them to a thread costs a tenth of that."""

SANDBOXES: Final = "sandboxes"
"""Author of the tags in files that a sandbox may have written."""

THREADS: Final = 2
"""Threads that hash at once: more do not make two cores faster."""

T = TypeVar("T")


class Observed(msgspec.Struct, frozen=True):
    """A source as it was read or sent. ``stamp`` is ``None`` for bytes from a caller; ``size`` counts bytes of text."""

    state: SourceState
    stamp: Stamp | None = None
    size: int = 0


def _seen_at(reading: Reading, volume: int | None) -> Observed:
    match reading:
        case Present():
            return Observed(Held(reading.source_hash, reading.text), reading.stamp, len(reading.raw))
        case OverLimit():
            return Observed(Oversized(reading.size_bytes, reading.modified_us), reading.stamp)
        case Special():
            return Observed(OutOfReach("special", f"it is a {reading.kind.replace('_', ' ')}"))
        case Unreadable(errno=errno.EXDEV):
            return Observed(OutOfReach("unreadable", LEADS_OUT, escapes=True))
        case Unreadable():
            return Observed(OutOfReach("unreadable", os.strerror(reading.errno)))
        case Missing():
            same_disk = volume is None or volume == reading.volume
            if reading.confirmed and same_disk:
                return Observed(Absent())
            return Observed(
                OutOfReach("missing", "its directory is not there" if same_disk else "its disk is not mounted")
            )
        case _:
            assert_never(reading)


class DocumentBuilder:
    """Hashes and encodes; what takes long, in threads of its own. Cancel: safe anywhere."""

    def __init__(self, guard: Guard) -> None:
        self._guard = guard
        self._lane = Lane("capture", THREADS, inline=INLINE_BYTES_MAX)

    def seen_at(self, reading: Reading, *, volume: int | None, policy: SecretPolicy, author: str = "") -> Observed:
        """Convert a reading of the daemon, to be captured under ``policy``.

        ``volume``: the one that the source was last read from, ``None`` if not known. ``author``: see ``Held``.
        """
        return self._under(policy, _seen_at(reading, volume), author)

    async def seen_in(self, content: bytes, policy: SecretPolicy, author: str) -> Observed:
        """Convert the bytes that a caller sent. ``author``: see ``Held``."""
        if len(content) > FILE_BYTES_MAX:
            return Observed(Oversized(len(content)))
        return self._under(policy, await self._lane.run(lambda: _held(content), len(content)), author)

    def _under(self, policy: SecretPolicy, seen: Observed, author: str) -> Observed:
        state = seen.state
        if not isinstance(state, Held):
            return seen
        keyed = self._guard.keyed_hash(state.source_hash)
        return Observed(Held(state.source_hash, state.text, keyed, policy, author), seen.stamp, seen.size)

    async def built(self, id: str, source: Source, seen: Observed, head: Document | None) -> Document:
        """Build the document of what was read, after ``head``; not for what is out of reach."""
        return await self._lane.run(lambda: self.build(id, source, seen.state, head), seen.size)

    def build(
        self,
        id: str,
        source: Source,
        state: SourceState,
        head: Document | None,
        early: Document | None = None,
    ) -> Document:
        """As ``built``, at once. ``early`` is returned if it fits ``state`` after ``head`` as well."""
        held = state.after(head) if isinstance(state, Held) else None
        if early is not None and (held is None or captured_under(early.payload) == held.policy):
            return early
        return _build(id, source, state) if held is None else _captured(self._guard, id, source, held)


def _captured(guard: Guard, id: str, source: Source, held: Held) -> Document:
    capture = Capture(guard.by(held.author) if held.author else guard, held.policy)
    if held.text is None:
        return file_binary(id, source, held.source_hash, capture.secrets)
    text = capture.text(held.text)
    return file_text(id, source, text, held.keyed_hash if capture.redacted else held.source_hash, capture.secrets)


def _build(id: str, source: Source, state: SourceState) -> Document:
    match state:
        case Held():
            raise AssertionError("what was read is captured")
        case Oversized():
            return file_too_large(id, source, state.size_bytes, state.modified_us)
        case Absent():
            return file_tombstone(id, source)
        case OutOfReach():
            raise AssertionError("nothing was seen that a version could tell")
        case _:
            assert_never(state)


def kind_of(state: SourceState) -> FileKind:
    """The kind of the source in answers to clients."""
    match state:
        case Held():
            return "binary" if state.text is None else "text"
        case Oversized():
            return "too_large"
        case Absent():
            return "missing"
        case OutOfReach():
            return state.kind
        case _:
            assert_never(state)


def _held(content: bytes) -> Observed:
    text: str | None = None
    if b"\0" not in content:
        try:
            text = content.decode()
        except UnicodeDecodeError:
            text = None
    return Observed(Held(source_hash(content), text), None, len(content))
