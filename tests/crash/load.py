"""Clients that write down what they see: a workload whose every call ends up in a history.

Owns the workload and the record; starts and kills nothing. A client that loses its connection waits until the daemon is
back and sends its call again under the same ``op_id``; now and then it gives up, and the call stays unknown.
"""

import random
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import anyio

from tests.crash.history_check import Event, Key, Outcome, Receipt
from tests.crash.wire import Gone, Refused, Wire

GIVE_UP = 0.1
"""Share of lost calls that are not sent again."""

PAGE = 1000
"""Turns of one page of a chat."""


class Recorder:
    """The history so far, and the gate that is open while the daemon runs."""

    def __init__(self, socket: Path, seed: int) -> None:
        self.socket = socket
        self.seed = seed
        self.events: list[Event] = []
        self.counts: Counter[str] = Counter()
        self.sessions: list[str] = []
        self.stopping = False
        self._up = anyio.Event()

    def daemon_is_up(self) -> None:
        """Let the clients connect."""
        self._up.set()

    def daemon_is_down(self) -> None:
        """Have clients that lose their connection wait."""
        if self._up.is_set():
            self._up = anyio.Event()

    async def connect(self) -> Wire:
        """A connection, once there is a daemon to connect to."""
        while True:
            await self._up.wait()
            try:
                return await Wire.open(self.socket)
            except Gone:
                await anyio.sleep(0.002)

    async def create_sessions(self, *names: str) -> None:
        """Create sessions and have the clients work in these from now on."""
        async with await self.connect() as wire:
            for name in names:
                await wire.call("session.create", agent="load", session=name, op_id=f"create-{name}")
        self.sessions = list(names)


class LoadClient:
    """One client: a connection, calls one after the other, every one of them recorded."""

    def __init__(self, recorder: Recorder, name: str, *, large: float = 0.0) -> None:
        self._recorder = recorder
        self._name = name
        self._rng = random.Random(f"{recorder.seed}-{name}")
        self._large = large
        self._wire: Wire | None = None
        self._made = 0
        self._last: dict[Key, Receipt] = {}
        self._receipt: dict[str, Any] | None = None
        self._journal = ""

    async def run(self) -> None:
        """Work until the recorder says stop; the call in flight is brought to its end."""
        try:
            while not self._recorder.stopping:
                await self._one_call()
        finally:
            if self._wire is not None:
                await self._wire.close()

    async def _one_call(self) -> None:
        session = self._rng.choice(self._recorder.sessions)
        kind = self._rng.choices(("chat", "index", "read", "as_of"), (5, 5, 1, 1))[0]
        if kind in ("chat", "index"):
            await self._append(session, kind)
        elif kind == "read":
            await self._read(session, self._rng.choice(("chat", "index")))
        elif self._last:
            await self._read_as_of(*self._rng.choice(sorted(self._last)))

    async def _append(self, session: str, name: str) -> None:
        self._made += 1
        element = f"{self._name}-{self._made}"
        params: dict[str, Any] = {"session": session, "op_id": f"op-{element}"}
        if name == "chat":
            method, params["messages"] = "session.append", [{"role": "user", "content": element}]
        else:
            size = 1_200_000 if self._rng.random() < self._large else self._rng.randrange(2000)
            # Equal text would be kept once, and the second time nothing would be written.
            content = element + "x" * size
            method, params["id"], params["tool"], params["content"] = "toolcall.record", element, "load", content
        t0 = time.monotonic()
        outcome, result = await self._until_answered(method, params)
        receipt = None
        if outcome == "ok":
            receipt = Receipt(result["receipt"]["seq"], result["receipt"]["chain"], result["receipt"]["vt"])
            self._receipt = result["receipt"]
            self._last[session, name] = receipt
        self._note(Event(t0, time.monotonic(), self._name, session, "append", element, outcome, receipt, list=name))

    async def _read(self, session: str, name: str) -> None:
        t0 = time.monotonic()
        value = await self._shown(lambda wire: read_list(wire, session, name))
        if value is not None:
            self._note(Event(t0, time.monotonic(), self._name, session, "read", value=value, list=name))

    async def _read_as_of(self, session: str, name: str) -> None:
        vt = self._last[session, name].vt
        t0 = time.monotonic()
        value = await self._shown(lambda wire: read_object(wire, session, name, vt))
        if value is not None:
            self._note(Event(t0, time.monotonic(), self._name, session, "read_as_of", vt, value=value, list=name))

    async def _shown(self, read: Callable[[Wire], Awaitable[tuple[str, ...]]]) -> tuple[str, ...] | None:
        """What a read shows; null if the daemon ends before it can say."""
        try:
            return await read(await self._connection())
        except Gone:
            await self._disconnected()
        except Refused as refusal:
            self._recorder.counts[refusal.code] += 1
            if not refusal.retryable:
                raise
        return None

    async def _until_answered(self, method: str, params: dict[str, Any]) -> tuple[Outcome, Any]:
        """Send the call until somebody answers, or give up on it. Refused after a lost answer is still unknown."""
        outcome: Outcome = "fail"
        while True:
            try:
                return "ok", await (await self._connection()).call(method, **params)
            except Gone:
                await self._disconnected()
                if self._recorder.stopping or self._rng.random() < GIVE_UP:
                    return "info", None
                self._recorder.counts["resent"] += 1
                outcome = "info"
            except Refused as refusal:
                self._recorder.counts[refusal.code] += 1
                if not refusal.retryable:
                    raise
                if refusal.outcome == "unknown":
                    outcome = "info"
                if self._recorder.stopping or self._rng.random() < GIVE_UP:
                    return outcome, None
                await anyio.sleep(0.01)

    async def _connection(self) -> Wire:
        if self._wire is None:
            self._wire = await self._recorder.connect()
            hello = {"last_receipt": self._receipt, "journal": self._journal} if self._receipt is not None else {}
            self._journal = (await self._wire.call("hello", client="load", **hello))["journal"]
        return self._wire

    async def _disconnected(self) -> None:
        if self._wire is not None:
            await self._wire.close()
            self._wire = None

    def _note(self, event: Event) -> None:
        self._recorder.events.append(event)
        self._recorder.counts[f"{event.op} {event.type}"] += 1


async def read_list(wire: Wire, session: str, name: str) -> tuple[str, ...]:
    """A list as the session's own calls show it now."""
    if name == "index":
        return tuple((await wire.call("session.get", session=session))["session"]["session_index"])
    value: list[str] = []
    first: int | None = 0
    while first is not None:
        page = await wire.call("session.chat", session=session, first_turn=first, limit=PAGE)
        value += (message["content"] for turn in page["turns"] for message in turn["messages"])
        first = page["next_turn"]
    return tuple(value)


async def read_object(wire: Wire, session: str, name: str, valid_time: int | None = None) -> tuple[str, ...]:
    """A list as the object that holds it showed it at ``valid_time``; now, if that is null."""
    prefix = "chat" if name == "chat" else "session"
    times = {} if valid_time is None else {"valid_time": valid_time}
    found = await wire.call("object.get", object=f"{prefix}:{session}", **times)
    payload = found["object"]["payload"]
    if name == "index":
        return tuple(payload["session_index"])
    return tuple(message["content"] for turn in payload["turns"] for message in turn["messages"])
