"""Scripted daemon: a JSON-RPC peer on a Unix socket, in threads, for client and CLI tests.

It answers each method with the smallest value of the method's result type, unless a script answers it. It keeps
no state: what a real daemon does is tested against a real daemon.
"""

import json
import socket
import threading
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Self

import msgspec
from msgspec import NODEFAULT
from msgspec.structs import fields

from ctxd_protocol.errors import ERRORS
from ctxd_protocol.limits import Limits
from ctxd_protocol.methods import METHODS
from ctxd_protocol.methods.daemon import HelloResult

WAIT_S = 30.0
"""Seconds that a test waits for something to arrive before it fails."""

HOLD = object()
"""What a script returns to leave a request unanswered."""


class Refusal(Exception):
    """Error answer of a script; the members of ``data`` besides the code go in as they are."""

    def __init__(self, code: str, message: str = "refused by the script", **data: Any) -> None:
        super().__init__(message)
        self.code, self.message = code, message
        self.data = {"code": code, "retryable": ERRORS[code].retryable if code in ERRORS else False, **data}


class Seen(NamedTuple):
    """One line that arrived; what a call leaves out of its params stands in them as the default that it has."""

    peer: "Peer"
    id: int | None
    method: str
    params: dict[str, Any]


HELLO = HelloResult(
    server="ctxd", version="0", protocol=1, methods=tuple(sorted(METHODS)), limits=Limits(), incarnation=1, journal="j1"
)

Script = Callable[[Seen], Any]


def _defaults(method: str) -> dict[str, Any]:
    """The params that a call of ``method`` may leave out, in JSON."""
    if method not in METHODS:
        return {}
    defaults = {
        each.encode_name: each.default for each in fields(METHODS[method].params) if each.default is not NODEFAULT
    }
    found: dict[str, Any] = msgspec.to_builtins(defaults)
    return found


def once(first: Script, then: Script) -> Script:
    """A script that does ``first`` the first time and ``then`` ever after."""
    todo = [first]
    return lambda seen: (todo.pop() if todo else then)(seen)


def drop(seen: Seen) -> Any:
    """A script that ends the connection."""
    seen.peer.drop()
    return HOLD


class Peer:
    """One accepted connection."""

    def __init__(self, sock: socket.socket, number: int) -> None:
        self.number = number
        self.ended = threading.Event()
        self._socket = sock

    def answer(self, id: int | None, result: Any) -> None:
        self.send({"jsonrpc": "2.0", "id": id, "result": result})

    def refuse(self, id: int | None, refusal: Refusal) -> None:
        number = ERRORS[refusal.code].number if refusal.code in ERRORS else -32000
        error = {"code": number, "message": refusal.message, "data": refusal.data}
        self.send({"jsonrpc": "2.0", "id": id, "error": error})

    def notice(self, subscription: int, notice: dict[str, Any], **more: Any) -> None:
        params = {"subscription": subscription, "notice": notice, **more}
        self.send({"jsonrpc": "2.0", "method": "events.notice", "params": params})

    def send(self, message: Any) -> None:
        self.raw(msgspec.json.encode(message) + b"\n")

    def raw(self, data: bytes) -> None:
        try:
            self._socket.sendall(data)
        except OSError:
            return  # the client has left

    def drop(self) -> None:
        """End the connection as a killed daemon does."""
        try:
            self._socket.shutdown(socket.SHUT_RDWR)
        except OSError:
            return  # the client was first


class ScriptedDaemon:
    """Listens at ``path`` inside ``with``. ``script[method]`` decides what a request gets; ``seen`` holds what came."""

    def __init__(self, path: str | Path, script: dict[str, Script] | None = None) -> None:
        self.path = str(path)
        self.script: dict[str, Script] = {"hello": lambda seen: HELLO, **(script or {})}
        self.seen: list[Seen] = []
        self.peers: list[Peer] = []
        self._arrived = threading.Condition()
        self._threads: list[threading.Thread] = []
        self._sockets: list[socket.socket] = []
        self._listener: socket.socket | None = None

    def __enter__(self) -> Self:
        self.listen()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()
        for thread in self._threads:
            thread.join(WAIT_S)
            assert not thread.is_alive(), "a thread of the scripted daemon hangs"
        for sock in self._sockets:
            sock.close()

    def listen(self) -> None:
        """Start to take connections, first or again."""
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._sockets.append(self._listener)
        self._listener.bind(self.path)
        self._listener.listen(64)
        self._start(self._accept, self._listener)

    def stop(self) -> None:
        """Stop listening and end every connection: what a kill looks like from outside."""
        if self._listener is not None:
            Path(self.path).unlink(missing_ok=True)
            self._listener.shutdown(socket.SHUT_RDWR)
            self._listener = None
        for peer in self.peers:
            peer.drop()

    def wait(self, method: str, count: int = 1) -> list[Seen]:
        """The requests for ``method``, once there are ``count``."""
        with self._arrived:
            assert self._arrived.wait_for(lambda: len(self.of(method)) >= count, WAIT_S), (
                f"{count} x {method} did not come: {[seen.method for seen in self.seen]}"
            )
            return self.of(method)

    def of(self, method: str) -> list[Seen]:
        """The requests for ``method`` so far."""
        return [seen for seen in self.seen if seen.method == method]

    def _start(self, run: Callable[..., None], *args: Any) -> None:
        thread = threading.Thread(target=run, args=args, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _accept(self, listener: socket.socket) -> None:
        while True:
            try:
                sock, _ = listener.accept()
            except OSError:
                return
            self._sockets.append(sock)
            peer = Peer(sock, len(self.peers))
            self.peers.append(peer)
            self._start(self._serve, peer, sock)

    def _serve(self, peer: Peer, sock: socket.socket) -> None:
        with sock.makefile("rb") as lines:
            try:
                for line in lines:
                    self._take(peer, json.loads(line))
            except OSError:
                return
            finally:
                peer.ended.set()

    def _take(self, peer: Peer, message: dict[str, Any]) -> None:
        params = _defaults(message["method"]) | message.get("params", {})
        seen = Seen(peer, message.get("id"), message["method"], params)
        with self._arrived:
            self.seen.append(seen)
            self._arrived.notify_all()
        try:
            script = self.script.get(seen.method)
            if script is not None:
                result = script(seen)
            else:
                result = smallest(METHODS[seen.method].result, **seen.params) if seen.method in METHODS else HOLD
        except Refusal as refusal:
            peer.refuse(seen.id, refusal)
            return
        if result is not HOLD and seen.id is not None:
            peer.answer(seen.id, result)


def smallest(kind: Any, /, **known: Any) -> Any:
    """The smallest value of a type, as JSON has it; members named in ``known`` keep their value if it is text."""
    return _smallest(msgspec.inspect.type_info(kind), {k: v for k, v in known.items() if isinstance(v, str)})


SCALARS = {
    msgspec.inspect.VarTupleType: [],
    msgspec.inspect.ListType: [],
    msgspec.inspect.DictType: {},
    msgspec.inspect.StrType: "x",
    msgspec.inspect.BytesType: "",
    msgspec.inspect.FloatType: 0.5,
    msgspec.inspect.BoolType: False,
}


def _smallest(kind: msgspec.inspect.Type, known: dict[str, str]) -> Any:
    match kind:
        case msgspec.inspect.StructType(fields=fields, tag=tag, tag_field=tag_field):
            value = {tag_field: tag} if tag_field else {}
            for field in fields:
                text = isinstance(field.type, msgspec.inspect.StrType) and field.name in known
                value[field.encode_name] = known[field.name] if text else _smallest(field.type, known)
            return value
        case msgspec.inspect.UnionType(types=types):
            none = any(isinstance(each, msgspec.inspect.NoneType) for each in types)
            return None if none else _smallest(types[0], known)
        case msgspec.inspect.IntType(ge=ge):
            return ge or 1
        case msgspec.inspect.LiteralType(values=values):
            return values[0]
        case _:
            return SCALARS.get(type(kind))
