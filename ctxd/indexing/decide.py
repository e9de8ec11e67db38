"""Outcome of indexing a file, from the stored version and the state of the source. Pure.

The compare-and-set is here: an observation is judged against the newest accepted version, and one whose time has passed
(another session's version came in while the source was being read) is found out, so that it is made again.
"""

from collections.abc import Mapping
from typing import Any, Literal, assert_never

import msgspec

from ctxd.objects.document import Document, Stored
from ctxd.objects.kinds import is_deleted, is_purged
from ctxd.secrets.guard import DEFAULT, captured_under, stricter
from ctxd_protocol.methods.files import FileOutcome
from ctxd_protocol.secrets import SecretPolicy


class Held(msgspec.Struct, frozen=True, tag=True):
    """The source was read: ``source_hash`` is of its bytes. ``text`` is ``None`` for a binary file.

    ``keyed_hash`` stands for ``source_hash`` in a version that was redacted or purged; ``policy`` is what it is to be
    captured under; ``author`` is whose tags replace secrets, see ``Guard.by``.
    """

    source_hash: str
    text: str | None
    keyed_hash: str = ""
    policy: SecretPolicy = DEFAULT
    author: str = ""

    def after(self, head: Document | None) -> "Held":
        """This, captured under no laxer policy than ``head`` was: what was redacted once stays so for all readers."""
        policy = self.policy if head is None else stricter(self.policy, captured_under(head.payload))
        return self if policy == self.policy else msgspec.structs.replace(self, policy=policy)

    def matches(self, head: Document) -> bool:
        """True if ``head`` is of these bytes, and was captured under no laxer policy or purged."""
        if head.source_hash not in (self.source_hash, self.keyed_hash):
            return False
        return is_purged(head) or stricter(captured_under(head.payload), self.policy) == captured_under(head.payload)


class Oversized(msgspec.Struct, frozen=True, tag=True):
    """The source is beyond the bound up to which it is read.

    ``modified_us``: when it was last modified, in microseconds since 1970; ``None`` for bytes that a caller sent.
    """

    size_bytes: int
    modified_us: int | None = None

    def may_be(self, payload: Mapping[str, Any]) -> bool:
        """True if this may still be the file of ``payload``: nothing that both know differs."""
        known = payload.get("modified_us")
        same_time = known is None or self.modified_us is None or known == self.modified_us
        return payload.get("size_bytes") == self.size_bytes and same_time


class Absent(msgspec.Struct, frozen=True, tag=True):
    """The source is confirmed deleted."""


class OutOfReach(msgspec.Struct, frozen=True, tag=True):
    """The source cannot be read now, or its absence not be confirmed; ``why`` is for a person.

    ``escapes``: its path leads out of the directory that it is confined to.
    """

    kind: Literal["unreadable", "special", "missing"]
    why: str = ""
    escapes: bool = False


SourceState = Held | Oversized | Absent | OutOfReach


def decide(head: Document | None, state: SourceState) -> FileOutcome:
    """Decide the outcome of ``state`` for the object whose newest version is ``head`` (``None`` for no version).

    A version is due for ``created``, ``updated`` and ``deleted`` only. An object that is not there cannot be deleted:
    that is ``orphaned``; one that is deleted already stays ``unchanged``.
    """
    match state:
        case Held():
            if head is None:
                return "created"
            return "unchanged" if state.matches(head) else "updated"
        case Oversized():
            if head is None:
                return "created"
            return "unchanged" if state.may_be(head.payload) else "updated"
        case Absent():
            if head is None:
                return "orphaned"
            return "unchanged" if is_deleted(head) else "deleted"
        case OutOfReach():
            return "orphaned"
        case _:
            assert_never(state)


def is_due(outcome: FileOutcome) -> bool:
    """True if a version is to be written for ``outcome``."""
    return outcome in ("created", "updated", "deleted")


def is_overtaken(before: Stored | None, newest: Stored | None) -> bool:
    """True if a version came in since ``before`` was the newest, so that what was read in between may be older."""
    if before is None or newest is None:
        return before is not newest
    return (before.tx, before.valid_time) != (newest.tx, newest.valid_time)
