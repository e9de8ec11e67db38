"""Whose a session is: values that lie in XTDB, and the only steps from one to the next.

Pure. Each step is made by matching the value before it, so of two hosts that take one from the same value, one fails.
``token`` grows with every change of hands: rows of a session reach XTDB under the token of the moment or not at all.
"""

from typing import Any, Final, Literal

import msgspec

from ctxd.backends.xtdb.documents import FIXED_VALID_TIME
from ctxd.backends.xtdb.operations import Doc, Match, Op, Put

PREFIX: Final = "ctxd/owner/"

Standing = Literal["free", "mine", "resting", "elsewhere"]
"""Nobody's yet; this writer's to go on with; this writer's, but given up for anybody to take; another writer's."""


class Owner(msgspec.Struct, frozen=True, kw_only=True):
    """``writer`` wrote the session last. ``released``: whoever matches this may claim it.

    ``source``: the writer whose rows still are the session, because ``writer`` has not taken all of it in yet; null
    once it has.
    """

    writer: str
    token: int
    released: bool = False
    source: str | None = None

    @property
    def whole(self) -> str:
        """The writer whose rows are the session."""
        return self.source or self.writer


def first(writer: str) -> Owner:
    """The owner of a session that nobody had."""
    return Owner(writer=writer, token=1)


def standing(owner: Owner | None, writer: str) -> Standing:
    """What ``owner`` is to ``writer``."""
    if owner is None:
        return "free"
    if owner.writer != writer:
        return "elsewhere"
    return "resting" if owner.released else "mine"


def may_claim(owner: Owner, writer: str, *, expired: bool) -> bool:
    """Whether ``writer`` may take the session; ``expired``: the owner's lease ran out."""
    return owner.released or expired or owner.writer == writer


def claimed(owner: Owner, writer: str) -> Owner:
    """``owner`` after ``writer`` took the session. What it is stays where it was until ``adopted``."""
    return Owner(writer=writer, token=owner.token + 1, source=owner.whole)


def adopted(owner: Owner) -> Owner:
    """``owner`` once its writer has the whole session."""
    return msgspec.structs.replace(owner, source=None)


def resumed(owner: Owner) -> Owner:
    """``owner`` after its own writer took up again what it had released."""
    return msgspec.structs.replace(owner, token=owner.token + 1, released=False)


def released(owner: Owner) -> Owner:
    """``owner`` after its writer has nothing more to write."""
    return msgspec.structs.replace(owner, released=True)


# --- as documents ---


def owner_id(session: str) -> str:
    """The entity that says whose ``session`` is."""
    return PREFIX + session


def to_doc(session: str, owner: Owner) -> Doc:
    """The document of ``owner``: equal owners have equal documents, so that a match finds one."""
    return {"xt/id": owner_id(session), "type": "owner", "payload": msgspec.to_builtins(owner)}


def from_doc(doc: Doc | None) -> Owner | None:
    """The owner that ``to_doc`` was given, null for no document. Raises: ValueError if it makes no such document."""
    if doc is None:
        return None
    payload: Any = doc.get("payload")
    return msgspec.convert(payload, Owner)


def change(session: str, before: Owner | None, after: Owner) -> list[Op]:
    """The operations of the step from ``before`` to ``after``; of none, those that hold to ``before``."""
    match = Match(owner_id(session), None if before is None else to_doc(session, before), FIXED_VALID_TIME)
    return [match] if before == after else [match, Put(to_doc(session, after), FIXED_VALID_TIME)]
