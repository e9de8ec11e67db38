"""Connections to a node.

It stands alone so that daemons without a projection load no HTTP client.
"""

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from ctxd.backends.xtdb.client import XtdbClient

Node: TypeAlias = "XtdbClient"
"""A connected node. ``tests/suites/node.py`` holds the client and the fake to what the projection relies on."""

Connect: TypeAlias = "Callable[[str], AbstractAsyncContextManager[Node]]"
"""Returns a node by its address, connected for the length of a block."""


def connect(url: str) -> AbstractAsyncContextManager[Node]:
    """Connect to the node at ``url``: ``unix:/path`` or ``http://host:port``. Raises: ValueError."""
    from ctxd.backends.xtdb.client import XtdbClient

    return XtdbClient(url)
