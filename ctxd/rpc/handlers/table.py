"""The whole table of handlers: every family's merged, each method exactly once."""

from collections.abc import Mapping

from ctxd.rpc.dispatch import Handler
from ctxd_protocol.methods import METHODS


def complete(*families: Mapping[str, Handler]) -> dict[str, Handler]:
    """The handlers of all ``families``.

    Raises: AssertionError if a method has none, two, or is not in the protocol: the daemon then does not start.
    """
    merged: dict[str, Handler] = {}
    for family in families:
        assert not (twice := merged.keys() & family.keys()), f"two handlers for {sorted(twice)}"
        merged.update(family)
    assert not (missing := METHODS.keys() - merged.keys()), f"no handler for {sorted(missing)}"
    assert not (unknown := merged.keys() - METHODS.keys()), f"not in the protocol: {sorted(unknown)}"
    return merged
