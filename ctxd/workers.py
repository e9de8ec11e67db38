"""Threads that work for the loop: handing work over, and hearing of its end, take one turn of the loop each.

Owns the way from a thread back to the loop, on which no thread waits. The library's own threads cost four turns and two
limiters a call, several times what looking at a file takes.
"""

import threading
from collections.abc import Callable
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import Any, Final, NamedTuple, TypeVarTuple, Unpack

import anyio
from anyio.lowlevel import current_token

IDLE_S: Final = 10.0
"""Seconds after which a thread without work ends."""

Args = TypeVarTuple("Args")


class Loop:
    """The loop that runs where this is made, for other threads."""

    def __init__(self) -> None:
        running: Any = current_token().native_token
        # Of asyncio's loops and of trio's.
        self._soon = getattr(running, "call_soon_threadsafe", None) or running.run_sync_soon

    def soon(self, function: Callable[[Unpack[Args]], object], *args: *Args) -> None:
        """Have ``function`` called on the loop, in order, without waiting for it; never if the loop has ended."""
        with suppress(RuntimeError):
            self._soon(function, *args)


class _Given(NamedTuple):
    work: Callable[[], object]
    loop: Loop
    ended: anyio.Event


class Workers:
    """As many threads as there is work at once. None of them keeps the process from ending."""

    def __init__(self) -> None:
        # Lists are changed in one step each under the interpreter's lock, so that a thread is either taken or ended.
        self._idle: list[SimpleQueue[_Given]] = []

    def give(self, work: Callable[[], object]) -> anyio.Event:
        """Have ``work``, which does not raise, called by a thread at once. Returns: what is set when it has ended."""
        given = _Given(work, Loop(), anyio.Event())
        try:
            queue = self._idle.pop()
        except IndexError:
            queue = SimpleQueue()
            threading.Thread(target=self._run, args=(queue,), name="ctxd-worker", daemon=True).start()
        queue.put(given)
        return given.ended

    def _run(self, queue: SimpleQueue[_Given]) -> None:
        while True:
            try:
                work, loop, ended = queue.get(timeout=IDLE_S)
            except Empty:
                try:
                    self._idle.remove(queue)
                except ValueError:
                    continue  # It was taken just now: work is on its way.
                return
            work()
            self._idle.append(queue)
            loop.soon(ended.set)
            del work, loop, ended
