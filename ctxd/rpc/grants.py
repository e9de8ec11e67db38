"""Grants: the methods that a connection may call, by its capability and sandbox, and the sessions that it may use.

This limits the rights of a sandbox: a method that is not reachable is not in the connection's method table, and every
method with a session is bound to the caller's sessions there, so no check can be forgotten.
"""

from collections.abc import Iterable
from typing import Any, Final

import msgspec

from ctxd.errors import CtxdError
from ctxd.rpc.caller import Caller
from ctxd_protocol.methods import GRANTS, METHODS
from ctxd_protocol.methods.declaration import Capability
from ctxd_protocol.sandbox_types import Grant

_LEVEL: Final[dict[Capability, int]] = {"observe": 0, "session": 1, "host": 2}


def allowed_methods(capability: Capability) -> frozenset[str]:
    """The names of the methods that a connection of ``capability`` may call."""
    level = _LEVEL[capability]
    return frozenset(name for name, method in METHODS.items() if _LEVEL[method.capability] <= level)


def granted(grants: Iterable[Grant]) -> frozenset[str]:
    """The names of the methods that a sandbox with ``grants`` may call."""
    return allowed_methods("observe").union(*(GRANTS[grant] for grant in grants))


def in_own_session(caller: Caller, params: Any) -> Any:  # noqa: ANN401 - any method's own struct with a session
    """Return ``params`` of a call from a bound ``caller``, with the caller's session where they name none.

    Raises: CtxdError session_not_found for a session that is not the caller's, as if it did not exist.
    """
    if params.session is None:
        return msgspec.structs.replace(params, session=caller.session)
    if not caller.may_name(params.session):
        raise CtxdError("session_not_found", "there is no such session")
    return params
