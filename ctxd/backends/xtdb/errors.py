"""What can go wrong between ctxd and an XTDB node, told apart by what is certain.

Of a transaction the one question is whether it was applied: ``Refused`` and ``Unreachable`` say no, ``Unknown`` says
that nobody can tell, and that it must be looked up, never sent again. Of a read all three mean that there is no answer.
"""

from typing import Any


class XtdbFailure(Exception):
    """A node did not do what it was asked. ``kind`` names the node's own class or key of the error, where it said one;
    ``status`` is that of HTTP, null without an answer."""

    def __init__(self, message: str, *, kind: str | None = None, status: int | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.kind = kind
        self.status = status


class Refused(XtdbFailure):
    """The node understood and said no, and will say so again: nothing was applied.

    ``op`` is the operation it minds, as transit spells it, null if it named none.
    """

    def __init__(
        self,
        message: str,
        *,
        kind: str | None = None,
        status: int | None = None,
        op: Any | None = None,  # noqa: ANN401 - whatever was sent
    ) -> None:
        super().__init__(message, kind=kind, status=status)
        self.op = op


class Behind(Refused):
    """The node has not got to the transaction that was named: it is slow, or it has lost something."""


class Unreachable(XtdbFailure):
    """The request never got to the node: nothing was applied. ``retry_in_s`` is when it makes sense to try again."""

    def __init__(self, message: str, *, retry_in_s: float = 0.0) -> None:
        super().__init__(message)
        self.retry_in_s = retry_in_s


class Unknown(XtdbFailure):
    """The request may have got to the node, and no answer that can be trusted came back."""
