"""Connections to a node.

Separate, so that daemons without a projection load no HTTP client.
"""

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from ctxd.backends.xtdb.client import XtdbClient

Node: TypeAlias = "XtdbClient"
"""A connected node. ``tests/suites/node.py`` tests the client and the fake for what the projection needs."""

Connect: TypeAlias = "Callable[[str], AbstractAsyncContextManager[Node]]"
"""Returns a context manager that connects to the node at an address."""


def connect(url: str) -> AbstractAsyncContextManager[Node]:
    """Connect to the node at ``url``: ``unix:/path`` or ``http://host:port``. Raises: ValueError."""
    from ctxd.backends.xtdb.client import XtdbClient

    return XtdbClient(url)
