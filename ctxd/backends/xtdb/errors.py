"""Failures between ctxd and an XTDB node, distinguished by what is certain. Every module of the package raises them.

``Refused`` and ``Unreachable``: the transaction was not applied. ``Unknown``: it may have been, so it must be looked up
and never resent. A read that fails in either way has no result.
"""

from typing import Any


class XtdbFailure(Exception):
    """Failed request to a node. ``kind``: the node's class or key of the error, ``None`` if it sent none; ``status``:
    of HTTP, ``None`` without a response."""

    def __init__(self, message: str, *, kind: str | None = None, status: int | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.kind = kind
        self.status = status


class Refused(XtdbFailure):
    """The node understood the request and refuses it, now and later: nothing was applied.

    ``op``: the operation at fault, as transit spells it, ``None`` if the node named none.
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
    """The node has not reached the named transaction: it is slow, or has lost something."""


class Unreachable(XtdbFailure):
    """The request did not reach the node: nothing was applied. ``retry_in_s``: seconds until a retry makes sense."""

    def __init__(self, message: str, *, retry_in_s: float = 0.0) -> None:
        super().__init__(message)
        self.retry_in_s = retry_in_s


class Unknown(XtdbFailure):
    """The request may have reached the node, and no trustworthy response came back."""
