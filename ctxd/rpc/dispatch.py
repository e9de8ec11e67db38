"""Method tables: from a name to its parameter decoder and its handler.

Decides which method a name means on a connection, and whether parameters fit it. Knows no connection and sends nothing.
"""

from collections.abc import Callable, Coroutine, Mapping
from inspect import iscoroutinefunction
from typing import Any, Final, get_type_hints

import msgspec
from msgspec import UNSET, Raw, UnsetType

from ctxd.errors import CtxdError
from ctxd.rpc.caller import Caller
from ctxd.rpc.grants import allowed_methods, in_own_session
from ctxd.rpc.wire_errors import MalformedParams, params_error
from ctxd.sessions.live_session import Accepted, WriteRequest
from ctxd_protocol.methods import METHODS
from ctxd_protocol.methods.declaration import Capability, Method

Answer = msgspec.Struct | Accepted | dict[str, Any] | Raw
Handler = (
    Callable[..., Coroutine[Any, Any, Answer]]
    | Callable[..., Answer]
    | Callable[..., Coroutine[Any, Any, Answer] | Answer]
)
"""A coroutine function of the caller and the method's params, and of the ``WriteRequest`` if the method writes; or a
plain function if a call only looks something up in memory, in microseconds.

Its first step runs inline, in the order in which calls arrive; a handler that does not suspend costs no task. From
there on it runs under the deadline of its call. A write marks its request as submitted when it submits.
"""

Misfit = msgspec.DecodeError | UnicodeDecodeError | TypeError
"""Raised by ``MethodEntry.decode`` for params that are not an object with the method's members."""

_ITEMS: Final = msgspec.json.Decoder(list[Raw])

_MIB: Final = 1024 * 1024

REPLY_BYTES: Final = {
    "artifact.fsck": _MIB,
    "artifact.gc": _MIB,
    "artifact.get": 6 * _MIB,
    "artifact.list": _MIB,
    "artifact.stat": _MIB,
    "commit.deltas": 6 * _MIB,
    "commit.history": 4 * _MIB,
    "commit.list": 4 * _MIB,
    "commit.materialize": 32 * _MIB,
    "commit.show": _MIB,
    "context.assemble": 32 * _MIB,
    "context.list": _MIB,
    "context.plan": _MIB,
    "context.show": 32 * _MIB,
    "epoch.show": 8 * _MIB,
    "mount.detect": _MIB,
    "object.bulk": 16 * _MIB,
    "object.get": 8 * _MIB,
    "object.history": 4 * _MIB,
    "object.list": _MIB,
    "object.query": 4 * _MIB,
    "object.scan": _MIB,
    "object.sessions": _MIB,
    "rpc.discover": _MIB,
    "sandbox.list": _MIB,
    "search.query": _MIB,
    "session.chat": 16 * _MIB,
    "session.events": 16 * _MIB,
    "session.export": 16 * _MIB,
    "session.gc": _MIB,
    "session.get": 4 * _MIB,
    "session.hosts": _MIB,
    "session.list": _MIB,
    "session.notices": _MIB,
    "session.usage_totals": _MIB,
    "tracker.list": _MIB,
}
"""Bytes reserved, before the call starts, for methods whose replies may be large."""


class MethodEntry:
    """One method in the table of one kind of connection. ``decode`` turns params bytes into the method's struct, or
    raises a ``Misfit``.

    ``reply_bytes`` are reserved before the call starts; 0 for a method with short replies. ``is_metered``: a call may
    have to wait for others, because it writes or its reply is large. ``looks_up``: the handler is a plain function.
    """

    __slots__ = ("reply_bytes", "call", "decode", "default", "is_metered", "looks_up", "method", "writes")

    def __init__(self, method: Method, handler: Handler, *, looks_up: bool = False) -> None:
        self.method = method
        self.writes = method.writes
        self.reply_bytes = REPLY_BYTES.get(method.name, 0)
        self.is_metered = method.writes or self.reply_bytes > 0
        self.looks_up = looks_up
        self.call = handler
        self.decode: Callable[[Any], Any] = msgspec.json.Decoder(method.params).decode
        self.default = _default(method)

    def other_params(self, raw: Raw | UnsetType, misfit: Misfit) -> Any:  # noqa: ANN401 - the method's own struct
        """The method's struct for the params ``raw``, which ``decode`` refused with ``misfit``: they may be given by
        position, or not at all.

        Raises: CtxdError ``invalid_params`` if they do not fit, MalformedParams if they are neither array nor object.
        """
        if raw is UNSET:
            if self.default is None:
                raise CtxdError("invalid_params", f"{self.method.name} needs params", hint=_HINT) from None
            return self.default
        first = bytes(raw)[:1]
        if first == b"[":
            return self._by_position(raw)
        if first != b"{":
            raise MalformedParams from misfit
        raise params_error(misfit, self.method.params) from misfit

    def _by_position(self, raw: Raw) -> Any:  # noqa: ANN401 - the method's own struct
        names = self.method.params.__struct_encode_fields__
        items = _ITEMS.decode(raw)
        if len(items) > len(names):
            raise CtxdError("invalid_params", f"{self.method.name} takes at most {len(names)} params", hint=_HINT)
        try:
            return self.decode(msgspec.json.encode(dict(zip(names, items, strict=False))))
        except (msgspec.DecodeError, UnicodeDecodeError) as exc:
            raise params_error(exc, self.method.params) from exc


_HINT: Final = "rpc.discover describes every method's parameters."

Table = Mapping[str, MethodEntry]
"""The methods that one kind of connection may call, by name."""


def build_table(
    handlers: Mapping[str, Handler], capability: Capability, methods: frozenset[str] | None = None
) -> dict[str, MethodEntry]:
    """The table for connections of ``capability``, from ``handlers`` by method name. Methods beyond the capability are
    left out, and with ``methods``, all others too.

    A connection that is bound to sessions reaches only those: others seem not to exist.
    """
    names = allowed_methods(capability) & handlers.keys()
    if methods is not None:
        names &= methods
    bound = capability != "host"
    return {
        name: MethodEntry(
            METHODS[name],
            _scoped(METHODS[name], handlers[name], bound),
            looks_up=not METHODS[name].writes and not iscoroutinefunction(handlers[name]),
        )
        for name in names
    }


def _default(method: Method) -> Any | None:  # noqa: ANN401 - the method's own struct
    try:
        return method.params()
    except TypeError:
        return None


def _scoped(method: Method, handler: Handler, bound: bool) -> Handler:
    if not bound or "session" not in get_type_hints(method.params):
        return handler

    def within(caller: Caller, params: Any, *request: WriteRequest) -> Coroutine[Any, Any, Answer] | Answer:  # noqa: ANN401
        return handler(caller, in_own_session(caller, params), *request)

    return within


def bound(family: object) -> dict[str, Any]:
    """The handlers that are methods of ``family``, bound by name: ``object_get`` handles ``object.get``."""
    names = {method.replace(".", "_"): method for method in METHODS}
    return {names[name]: getattr(family, name) for name in dir(family) if name in names}


def complete(*families: object) -> dict[str, Handler]:
    """The handlers of all ``families``: objects whose methods are bound by name, or mappings.

    Raises: AssertionError if a method has no handler or two, or is not in the protocol: the daemon does not start.
    """
    merged: dict[str, Handler] = {}
    for each in families:
        family = each if isinstance(each, Mapping) else bound(each)
        assert not (twice := merged.keys() & family.keys()), f"two handlers for {sorted(twice)}"
        merged.update(family)
    assert not (missing := METHODS.keys() - merged.keys()), f"no handler for {sorted(missing)}"
    assert not (unknown := merged.keys() - METHODS.keys()), f"not in the protocol: {sorted(unknown)}"
    return merged
