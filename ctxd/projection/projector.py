"""What keeps a node level with the journal, for as long as the daemon runs.

Each life begins with a look at the cursor and a fence: what an earlier life, or another daemon, still sends finds
another cursor and does nothing. Then rows stream, until something is uncertain or fails; then the next life begins,
after a while. Only a journal that does not fit what the node holds ends that.
"""

from collections.abc import Callable
from contextlib import AsyncExitStack
from typing import Any, Final

import anyio
from anyio.to_thread import run_sync

from ctxd.backends.xtdb.errors import Refused, Unknown, Unreachable, XtdbFailure
from ctxd.backends.xtdb.form import FIXED_VALID_TIME, NEWEST_VALID_TIME, cursor_id
from ctxd.clock import Clock
from ctxd.errors import CtxdError
from ctxd.projection.cursor import Cursor, Halt, explains, fence, from_doc, judge, moved
from ctxd.projection.node import Connect, Node
from ctxd.projection.ownership_guard import Lost, Ownership
from ctxd.projection.pace import ROWS_MAX, Pace
from ctxd.projection.progress import Progress
from ctxd.projection.rows import Rows
from ctxd.projection.stream import Aborted, Sent, Stopped, Stream, Tide

FENCES_MAX: Final = 10
"""Attempts to move the cursor before a life is given up: each one lost is a late transaction that came through."""

FENCE_S: Final = 30.0
DOUBTS_MAX: Final = 4
"""Times that a row alone is aborted, the cursor being where it was, before it is left out."""

BACKOFF_MIN_S: Final = 0.05
BACKOFF_MAX_S: Final = 5.0
"""Seconds between two lives: twice as many each time that a life did not get to stream."""

RECHECK_S: Final = 10.0
"""Seconds after which a node is looked at again that holds what is not ours, or whose ingester has failed."""

Tell = Callable[[str, dict[str, Any]], None]
"""Takes what happened, by name, and its figures."""


class Failed(Exception):
    """The node says that it does not index any more."""


class Projector:
    """Projects ``rows`` to the node at ``url``; ``progress`` shows how far. ``run`` once."""

    def __init__(
        self,
        url: str,
        rows: Rows,
        tide: Tide,
        clock: Clock,
        progress: Progress,
        *,
        run: str,
        connect: Connect,
        tell: Tell,
        ownership: Ownership | None = None,
    ) -> None:
        """``run`` is a name that no other run of any daemon has. ``ownership``: null without other hosts."""
        self._url = url
        self._rows = rows
        self._tide = tide
        self._clock = clock
        self._progress = progress
        self._run = run
        self._connect = connect
        self._tell = tell
        self._ownership = ownership
        self._pace = Pace()
        self._rows_max = ROWS_MAX
        self._doubted = 0
        self._doubts = 0
        self._backoff_s = BACKOFF_MIN_S
        self._lives = anyio.CapacityLimiter(1)

    async def run(self) -> None:
        """Project until cancelled. Cancel: safe, at any moment."""
        while True:
            wait_s = await self._outlive()
            self._progress.node = None
            await self._clock.sleep(wait_s)

    async def _outlive(self) -> float:
        """One life. Returns: after how many seconds the next one may begin."""
        try:
            await self._live()
        except Stopped as stop:
            self._become("stopped", stop.reason)
            if stop.final:
                await anyio.sleep_forever()
            return RECHECK_S
        except Failed:
            self._become("failed", "the node's ingester has failed: restart the node")
            return min(RECHECK_S, self._longer())
        except Lost as lost:
            assert self._ownership is not None, "only what has owners is lost"
            self._become("projecting", str(lost))
            await self._ownership.settle(lost)
            return 0.0
        except Aborted as aborted:
            # Another life finds out why; see _suspect.
            self._rows_max = await self._suspect(aborted)
            return BACKOFF_MIN_S
        except Unreachable as error:
            self._become("unreachable", str(error))
        except (Unknown, Refused) as error:
            self._become("connecting", str(error))
        return self._longer()

    def _longer(self) -> float:
        now, self._backoff_s = self._backoff_s, min(BACKOFF_MAX_S, 2 * self._backoff_s)
        return now

    def _become(self, state: Any, reason: str) -> None:  # noqa: ANN401 - a State
        if (self._progress.state, self._progress.reason) != (state, reason):
            self._tell(f"projection.{state}", {"reason": reason, "seq": self._progress.seq})
        self._progress.state, self._progress.reason = state, reason

    async def _live(self) -> None:
        async with AsyncExitStack() as stack:
            node = await stack.enter_async_context(self._connect(self._url))
            if (await node.status()).ingester_failed:
                raise Failed
            start, tx_id = await self._fence(node)
            self._progress.begin(node, start, tx_id)
            self._backoff_s = BACKOFF_MIN_S
            self._become("projecting", "")
            if self._ownership is not None:
                self._ownership.begin(self._rows.writer)
            stream = Stream(
                node,
                self._rows,
                self._tide,
                self._clock,
                start,
                self._confirm,
                pace=self._pace,
                rows_max=max(1, self._rows_max),
                condemned=start.seq + 1 if self._rows_max == 0 else 0,
                ownership=self._ownership,
            )
            self._rows_max = ROWS_MAX
            try:
                await stream.run()
            finally:
                self._pace = stream.pace
                self._progress.node = None

    async def _fence(self, node: Node) -> tuple[Cursor, int]:
        """Take over: move the cursor to an incarnation of our own. Returns: that cursor, and the transaction."""
        writer = self._rows.writer
        for _ in range(FENCES_MAX):
            found = await self._look(node)
            genesis = await self._chain(0) or ""
            mine = fence(found, self._progress.cursor, run=self._run, genesis=genesis)
            tx_id = await node.submit(moved(found, mine, writer))
            if await node.committed(tx_id, timeout_s=FENCE_S):
                return mine, tx_id
        raise Unknown("the cursor moves each time that it is to be taken over")

    async def _look(self, node: Node) -> Cursor | None:
        """The node's cursor, once it is known that the journal goes on from there. Raises: Stopped."""
        try:
            found = from_doc(await node.entity(cursor_id(self._rows.writer), valid_time=NEWEST_VALID_TIME))
        except ValueError as error:
            raise Stopped(f"the cursor at the node is none that this version writes: {error}") from error
        known = self._progress.cursor
        chain = None if found is None else await self._chain(found.seq)
        verdict = judge(found, known, run=self._run, chain=chain, head_seq=self._tide.head)
        if isinstance(verdict, Halt):
            raise Stopped(verdict.reason, final=verdict.final)
        if verdict.lost:
            self._tell("projection.lost", {"rows": verdict.lost, "from": 0 if found is None else found.seq})
        return found

    async def _chain(self, seq: int) -> str | None:
        try:
            return await run_sync(self._rows.chain, seq, limiter=self._lives)
        except CtxdError as error:
            raise Stopped(f"the journal cannot be read: {error.message}") from error

    async def _suspect(self, aborted: Aborted) -> int:
        """How many rows the next life may send at once after a batch was ``aborted``: as many as ever if the cursor
        says why, half as many if it does not, and none of one that was sent alone in vain."""
        try:
            async with self._connect(self._url) as node:
                found = from_doc(await node.entity(cursor_id(self._rows.writer), valid_time=NEWEST_VALID_TIME))
                others = await node.entities(aborted.matched, valid_time=FIXED_VALID_TIME) if aborted.matched else {}
        except (XtdbFailure, ValueError):
            return ROWS_MAX
        else_owned = any(others.get(id) != doc for id, doc in aborted.matched.items())
        if else_owned or explains(found, aborted.expected) == "moved":
            return ROWS_MAX
        return aborted.rows // 2 if aborted.rows > 1 else self._doubt(aborted.expected.seq + 1)

    def _doubt(self, seq: int) -> int:
        """How many rows the next life may send at once after the row ``seq`` was aborted alone."""
        # A connection that repeats, holds back or makes up answers looks like this too, but not again and again.
        self._doubts = self._doubts + 1 if seq == self._doubted else 1
        self._doubted = seq
        return 0 if self._doubts >= DOUBTS_MAX else 1

    def _confirm(self, sent: Sent) -> None:
        self._progress.confirm(sent, self._clock.monotonic())
        if sent.left_out:
            self._tell("projection.quarantined", {"seq": sent.after.seq, "reason": sent.left_out})
