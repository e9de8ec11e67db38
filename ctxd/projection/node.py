"""The node as the projection knows it, and the one place that chooses who speaks to it.

``tests/suites/node.py`` holds every implementation to what is promised here.
"""

from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any, Protocol

from ctxd.backends.xtdb.operations import Doc, Op
from ctxd.backends.xtdb.responses import HistoryRow, NodeStatus


class Node(Protocol):
    """Interface of ``XtdbClient``, as far as the projection uses it: see there."""

    async def status(self) -> NodeStatus:
        """See ``XtdbClient.status``."""
        ...

    async def submit(self, ops: Sequence[Op]) -> int:
        """See ``XtdbClient.submit``."""
        ...

    async def committed(self, tx_id: int, *, timeout_s: float) -> bool:
        """See ``XtdbClient.committed``."""
        ...

    async def entity(self, id: str, *, valid_time: int, tx_id: int | None = None) -> Doc | None:
        """See ``XtdbClient.entity``."""
        ...

    async def entities(self, ids: Iterable[str], *, valid_time: int, tx_id: int | None = None) -> dict[str, Doc]:
        """See ``XtdbClient.entities``."""
        ...

    async def query(
        self, text: str, arguments: Sequence[Any], *, valid_time: int, tx_id: int, timeout_s: float
    ) -> list[list[Any]]:
        """See ``XtdbClient.query``."""
        ...

    async def history(
        self,
        id: str,
        *,
        ascending: bool = True,
        corrections: bool = False,
        docs: bool = True,
        valid_time: int = ...,
        tx_id: int | None = None,
        first: int | None = None,
        last: int | None = None,
    ) -> list[HistoryRow]:
        """See ``XtdbClient.history``."""
        ...

    async def ids(
        self,
        prefix: str,
        *,
        after: str | None = None,
        limit: int | None = None,
        writer: str | None = None,
        valid_time: int,
        tx_id: int | None = None,
    ) -> list[str]:
        """See ``XtdbClient.ids``."""
        ...


Connect = Callable[[str], AbstractAsyncContextManager[Node]]
"""From an address to a node there, connected for the length of a block."""


def connect(url: str) -> AbstractAsyncContextManager[Node]:
    """The node at ``url``: ``unix:/path`` or ``http://host:port``. Raises: ValueError for another kind of address."""
    # What it takes to speak HTTP is loaded only by those who project.
    from ctxd.backends.xtdb.client import XtdbClient

    return XtdbClient(url)
