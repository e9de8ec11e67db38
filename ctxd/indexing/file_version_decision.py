"""Decision on a source that was read: its state, the outcome compared to the stored version, and the document. Pure.

Implements the compare-and-set: a read is compared with the newest accepted version, and a stale one is detected
(another session's version was accepted during the read), so that it is repeated.
"""

import errno
import os
from collections.abc import Mapping
from typing import Any, Final, Literal, assert_never

import msgspec

from ctxd.objects.document import Document, Stored, file_binary, file_text, file_tombstone, file_too_large
from ctxd.objects.hashing import source_hash
from ctxd.objects.version_state import is_deleted, is_purged
from ctxd.secrets.policy import DEFAULT, captured_under, is_laxer, stricter
from ctxd.secrets.redaction import Capture, Guard
from ctxd.sources.source_interface import (
    LEADS_OUT,
    Missing,
    OverLimit,
    Present,
    Reading,
    Special,
    Stamp,
    Unreadable,
    decoded_text,
)
from ctxd_protocol.limits import FILE_BYTES_MAX
from ctxd_protocol.methods.files import FileKind, FileOutcome
from ctxd_protocol.object_types import Source
from ctxd_protocol.secret_types import SecretPolicy

SANDBOXES: Final = "sandboxes"
"""Author of the secret tags in files that a sandbox may have written."""


class ReadSource(msgspec.Struct, frozen=True, tag=True):
    """The source was read: ``source_hash`` is the hash of its bytes. ``text`` is ``None`` for a binary file, whose
    bytes are ``raw``; a text file has no ``raw``.

    ``keyed_hash`` replaces ``source_hash`` in a redacted or purged version; ``policy`` is the secret policy to capture
    under; ``author`` selects the tags that replace secrets, see ``Guard.by``.
    """

    source_hash: str
    text: str | None
    keyed_hash: str = ""
    policy: SecretPolicy = DEFAULT
    author: str = ""
    raw: bytes = b""

    def after(self, head: Document | None) -> "ReadSource":
        """This state under a policy no laxer than that of ``head``: redacted content stays redacted for all readers."""
        policy = self.policy if head is None else stricter(self.policy, captured_under(head.payload))
        return self if policy == self.policy else msgspec.structs.replace(self, policy=policy)

    def matches(self, head: Document) -> bool:
        """True if ``head`` has these bytes, and is purged or was captured under a policy no laxer."""
        if head.source_hash not in (self.source_hash, self.keyed_hash):
            return False
        return is_purged(head) or not is_laxer(head.payload, self.policy)


class Oversized(msgspec.Struct, frozen=True, tag=True):
    """The source is too large to be read.

    ``modified_us``: when it was last modified, in microseconds since 1970; ``None`` for bytes that a caller sent.
    """

    size_bytes: int
    modified_us: int | None = None

    def may_be(self, payload: Mapping[str, Any]) -> bool:
        """True if this may still be the file of ``payload``: its size, and its time if both have one, are the same."""
        known = payload.get("modified_us")
        same_time = known is None or self.modified_us is None or known == self.modified_us
        return payload.get("size_bytes") == self.size_bytes and same_time


class DeletedSource(msgspec.Struct, frozen=True, tag=True):
    """The source is confirmed deleted."""


class UnavailableSource(msgspec.Struct, frozen=True, tag=True):
    """The source cannot be read now, or its absence cannot be confirmed; ``why`` is for people.

    ``escapes``: its path leads out of the directory that it is confined to.
    """

    kind: Literal["unreadable", "special", "missing"]
    why: str = ""
    escapes: bool = False


SourceState = ReadSource | Oversized | DeletedSource | UnavailableSource


def decide_outcome(head: Document | None, state: SourceState) -> FileOutcome:
    """Decide the outcome of ``state`` for the object whose newest version is ``head`` (``None`` for no version).

    Only ``created``, ``updated`` and ``deleted`` require a version. The absence of a file without an object is
    ``orphaned``, and that of an already deleted one ``unchanged``.
    """
    match state:
        case ReadSource():
            if head is None:
                return "created"
            return "unchanged" if state.matches(head) else "updated"
        case Oversized():
            if head is None:
                return "created"
            return "unchanged" if state.may_be(head.payload) else "updated"
        case DeletedSource():
            if head is None:
                return "orphaned"
            return "unchanged" if is_deleted(head) else "deleted"
        case UnavailableSource():
            return "orphaned"
        case _:
            assert_never(state)


def is_due(outcome: FileOutcome) -> bool:
    """True if ``outcome`` requires a new version."""
    return outcome in ("created", "updated", "deleted")


def is_overtaken(before: Stored | None, newest: Stored | None) -> bool:
    """True if a version was accepted since ``before`` was the newest, so that a read in between may be stale."""
    if before is None or newest is None:
        return before is not newest
    return (before.tx, before.valid_time) != (newest.tx, newest.valid_time)


class Observed(msgspec.Struct, frozen=True):
    """A source that was read or sent. ``stamp`` is ``None`` for bytes from a caller; ``size``: bytes of text."""

    state: SourceState
    stamp: Stamp | None = None
    size: int = 0


def _held(raw: bytes, hash: str, text: str | None, stamp: Stamp | None = None) -> Observed:
    return Observed(ReadSource(hash, text, raw=raw if text is None else b""), stamp, len(raw))


def _seen_at(reading: Reading, volume: int | None) -> Observed:
    match reading:
        case Present():
            return _held(reading.raw, reading.source_hash, reading.text, reading.stamp)
        case OverLimit():
            return Observed(Oversized(reading.size_bytes, reading.modified_us), reading.stamp)
        case Special():
            return Observed(UnavailableSource("special", f"it is a {reading.kind.replace('_', ' ')}"))
        case Unreadable(errno=errno.EXDEV):
            return Observed(UnavailableSource("unreadable", LEADS_OUT, escapes=True))
        case Unreadable():
            return Observed(UnavailableSource("unreadable", os.strerror(reading.errno)))
        case Missing():
            same_disk = volume is None or volume == reading.volume
            if reading.confirmed and same_disk:
                return Observed(DeletedSource())
            return Observed(
                UnavailableSource("missing", "its directory is not there" if same_disk else "its disk is not mounted")
            )
        case _:
            assert_never(reading)


class DocumentBuilder:
    """Converts readings to states, and states to documents. ``guard`` finds secrets, which are treated by policy.

    For content above ``INLINE_BYTES_MAX`` of ``ctxd.indexing.stale_files`` call it in a thread: it hashes and encodes.
    """

    def __init__(self, guard: Guard) -> None:
        self._guard = guard

    def seen_at(self, reading: Reading, *, volume: int | None, policy: SecretPolicy, author: str = "") -> Observed:
        """Convert a reading by the daemon, to be captured under ``policy``.

        ``volume``: the one that the source was last read from, ``None`` if unknown. ``author``: see ``ReadSource``.
        """
        return self._under(policy, _seen_at(reading, volume), author)

    def seen_in(self, content: bytes, policy: SecretPolicy, author: str) -> Observed:
        """Convert bytes that a caller sent. ``author``: see ``ReadSource``."""
        if len(content) > FILE_BYTES_MAX:
            return Observed(Oversized(len(content)))
        return self._under(policy, _held(content, source_hash(content), decoded_text(content)), author)

    def _under(self, policy: SecretPolicy, seen: Observed, author: str) -> Observed:
        state = seen.state
        if not isinstance(state, ReadSource):
            return seen
        keyed = self._guard.keyed_hash(state.source_hash)
        held = msgspec.structs.replace(state, keyed_hash=keyed, policy=policy, author=author)
        return Observed(held, seen.stamp, seen.size)

    def build(
        self,
        id: str,
        source: Source,
        state: SourceState,
        head: Document | None,
        early: Document | None = None,
    ) -> Document:
        """Build the document for ``state``, which is not ``UnavailableSource``, as the successor of ``head``.

        ``early``, built for an earlier version, is returned if it is still right.
        """
        held = state.after(head) if isinstance(state, ReadSource) else None
        if early is not None and (held is None or captured_under(early.payload) == held.policy):
            return early
        return _build(id, source, state) if held is None else _captured(self._guard, id, source, held)


def _captured(guard: Guard, id: str, source: Source, held: ReadSource) -> Document:
    capture = Capture(guard.by(held.author) if held.author else guard, held.policy)
    if held.text is None:
        return file_binary(id, source, held.source_hash, held.raw, capture.secrets)
    text = capture.text(held.text)
    return file_text(id, source, text, held.keyed_hash if capture.redacted else held.source_hash, capture.secrets)


def _build(id: str, source: Source, state: SourceState) -> Document:
    match state:
        case ReadSource():
            raise AssertionError("ReadSource is built by _captured")
        case Oversized():
            return file_too_large(id, source, state.size_bytes, state.modified_us)
        case DeletedSource():
            return file_tombstone(id, source)
        case UnavailableSource():
            raise AssertionError("an unavailable source has no version")
        case _:
            assert_never(state)


def file_kind(state: SourceState) -> FileKind:
    """The kind of the source in replies to clients."""
    match state:
        case ReadSource():
            return "binary" if state.text is None else "text"
        case Oversized():
            return "too_large"
        case DeletedSource():
            return "missing"
        case UnavailableSource():
            return state.kind
        case _:
            assert_never(state)
