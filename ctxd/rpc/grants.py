"""Methods that a connection may call: by its capability, and by the grants of its sandbox.

On its own because it decides what a sandbox can do. A method that is not reachable is not in the connection's method
table, so there is no check to forget.
"""

from collections.abc import Iterable
from typing import Final

from ctxd_protocol.methods import GRANTS, METHODS
from ctxd_protocol.methods.row import Capability
from ctxd_protocol.sandboxes import Grant

_LEVEL: Final[dict[Capability, int]] = {"observe": 0, "session": 1, "host": 2}


def reachable(capability: Capability) -> frozenset[str]:
    """The names of the methods that a connection of ``capability`` may call."""
    level = _LEVEL[capability]
    return frozenset(name for name, method in METHODS.items() if _LEVEL[method.capability] <= level)


def granted(grants: Iterable[Grant]) -> frozenset[str]:
    """The names of the methods that a sandbox with ``grants`` may call."""
    return reachable("observe").union(*(GRANTS[grant] for grant in grants))
