"""Owners of sessions: values in XTDB, and the possible steps from one to the next.

Pure. Each step matches the value before it, so of two hosts that step from the same value, one fails. ``token`` grows
with every change of owner: rows of a session reach XTDB only under the current token.
"""

from typing import Any, Final, Literal

import msgspec

from ctxd.backends.xtdb.documents import FIXED_VALID_TIME
from ctxd.backends.xtdb.messages import Doc, Match, Op, PutDoc

PREFIX: Final = "ctxd/owner/"

Standing = Literal["free", "mine", "resting", "elsewhere"]
"""A session's owner as one writer sees it: none yet; itself; itself, released for any host; another writer."""


class Owner(msgspec.Struct, frozen=True, kw_only=True):
    """The owner of a session: ``writer`` wrote it last. ``released``: any host may claim it.

    ``source``: the writer whose rows are the session until ``writer`` has imported it; then ``None``.
    """

    writer: str
    token: int
    released: bool = False
    source: str | None = None

    @property
    def whole(self) -> str:
        """The writer whose rows are the complete session."""
        return self.source or self.writer


def first(writer: str) -> Owner:
    """Return the owner of a new session."""
    return Owner(writer=writer, token=1)


def standing(owner: Owner | None, writer: str) -> Standing:
    """Return the standing of ``owner`` as seen by ``writer``."""
    if owner is None:
        return "free"
    if owner.writer != writer:
        return "elsewhere"
    return "resting" if owner.released else "mine"


def may_claim(owner: Owner, writer: str, *, expired: bool) -> bool:
    """True if ``writer`` may claim the session; ``expired``: the owner's lease has expired."""
    return owner.released or expired or owner.writer == writer


def claimed(owner: Owner, writer: str) -> Owner:
    """Return ``owner`` after a claim by ``writer``. The session stays where it was until ``adopted``."""
    return Owner(writer=writer, token=owner.token + 1, source=owner.whole)


def adopted(owner: Owner) -> Owner:
    """Return ``owner`` once its writer has imported the session."""
    return msgspec.structs.replace(owner, source=None)


def resumed(owner: Owner) -> Owner:
    """Return ``owner`` after its own writer resumed the session that it had released."""
    return msgspec.structs.replace(owner, token=owner.token + 1, released=False)


def released(owner: Owner) -> Owner:
    """Return ``owner`` after its writer released the session."""
    return msgspec.structs.replace(owner, released=True)


# --- as documents ---


def owner_id(session: str) -> str:
    """Return the entity that holds the owner of ``session``."""
    return PREFIX + session


def to_doc(session: str, owner: Owner) -> Doc:
    """Return the document of ``owner``. Equal owners have equal documents, so that a match finds one."""
    return {"xt/id": owner_id(session), "type": "owner", "payload": msgspec.to_builtins(owner)}


def from_doc(doc: Doc | None) -> Owner | None:
    """Return the owner that ``doc`` holds, ``None`` for ``None``. Raises: ValueError if it holds no owner."""
    if doc is None:
        return None
    payload: Any = doc.get("payload")
    return msgspec.convert(payload, Owner)


def change(session: str, before: Owner | None, after: Owner) -> list[Op]:
    """Return the operations of the step from ``before`` to ``after``; for equal ones, the match alone."""
    match = Match(owner_id(session), None if before is None else to_doc(session, before), FIXED_VALID_TIME)
    return [match] if before == after else [match, PutDoc(to_doc(session, after), FIXED_VALID_TIME)]
