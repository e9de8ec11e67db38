"""Projection without a daemon: rebuild a node, put back quarantined rows, compare.

The state directory is held meanwhile, so a daemon cannot start. An interrupted command continues at the cursor when it
is run again.
"""

import secrets
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any, Final

import anyio
import msgspec

from ctxd import sqlite_file
from ctxd.artifacts.artifact_store import ArtifactStore
from ctxd.backends.xtdb.messages import Refused, XtdbFailure
from ctxd.clock import Clock
from ctxd.errors import CtxdError, StateDirError
from ctxd.file_writes import sync_folder
from ctxd.projection.comparison import Comparison, compare, journal_cursor
from ctxd.projection.node_connection import Connect, Node, connect
from ctxd.projection.node_transactions import transaction
from ctxd.projection.ownership_checks import FENCES, Fences
from ctxd.projection.progress import Cursor, Halt, fence, move_cursor, requeued
from ctxd.projection.projected_rows import KnownTexts, Rows
from ctxd.projection.projection_loop import Projection, Target
from ctxd.store import journal, state_directory
from ctxd.task_groups import first_of
from ctxd.worker_threads import in_thread
from ctxd_protocol.status_types import ProjectionStatus

EXIT_NO_STATE: Final = 10
EXIT_UNAVAILABLE: Final = 69
EXIT_REFUSED: Final = 73
EXIT_IO: Final = 74

PATIENCE_S: Final = 60.0
"""Seconds without progress after which a command gives up."""

POLL_S: Final = 0.1
COMMIT_S: Final = 60.0

_OCCUPIED: Final = (
    "name an empty node with --store-url, or run ctxd rebuild-xtdb --force, which leaves these documents unread at the "
    "node and projects the journal under a new writer id"
)

Step = Callable[[ProjectionStatus], None]


class GivenUp(Exception):
    """Failure of a command; ``exit_code`` is the program's exit code."""

    def __init__(self, message: str, *, exit_code: int) -> None:
        super().__init__(message)
        self.exit_code = exit_code


def describe_node_failure(url: str, error: XtdbFailure) -> GivenUp:
    """The failure of a command because the node at ``url`` failed with ``error``."""
    if isinstance(error, Refused):
        return GivenUp(f"{url} refused the request: {error}", exit_code=EXIT_UNAVAILABLE)
    remedy = "start it with ctxd xtdb run, or name another with --store-url"
    return GivenUp(f"{url} does not respond: {error}; {remedy}", exit_code=EXIT_UNAVAILABLE)


@asynccontextmanager
async def held(root: Path) -> AsyncIterator[state_directory.StateDir]:
    """The state directory ``root``, locked against daemons, its journal with a writer id.

    Raises: StateDirError if there is no state, or a daemon runs on it.
    """
    if not (root / "state.db").is_file():
        raise StateDirError(f"there is no state in {root}", exit_code=EXIT_NO_STATE)
    state = await in_thread(state_directory.hold, root)
    try:
        await in_thread(partial(_name_writer, state.database, afresh=False))
        yield state
    finally:
        with anyio.CancelScope(shield=True):
            await in_thread(state.close)


def renew_writer_id(state: state_directory.StateDir) -> None:
    """Give the journal another writer id to project under; documents at the node under the former id stay there unread.

    Raises: StateDirError.
    """
    _name_writer(state.database, afresh=True)
    state.projection.unlink(missing_ok=True)
    sync_folder(state.root)


def _name_writer(database: Path, *, afresh: bool) -> None:
    try:
        with sqlite_file.faults():
            connection = sqlite_file.open_writer(database)
            try:
                if afresh or not journal.writer_id(connection):
                    journal.become_writer(connection)
            finally:
                connection.close()
    except (sqlite_file.DiskFull, sqlite_file.DiskFailed, sqlite_file.FileDamaged, sqlite_file.SqlFailed) as error:
        raise StateDirError(f"{database} cannot be written: {error}", exit_code=EXIT_IO) from error


@asynccontextmanager
async def rows_of(root: Path) -> AsyncIterator[Rows]:
    """The journal in ``root``, for reading. Raises: StateDirError if it is missing."""
    database = root / "state.db"
    if not database.is_file():
        raise StateDirError(f"there is no state in {root}", exit_code=EXIT_NO_STATE)
    rows = await in_thread(Rows, database, ArtifactStore(root / "artifacts"))
    try:
        yield rows
    finally:
        with anyio.CancelScope(shield=True):
            await in_thread(rows.close)


async def _look(node: Node, rows: Rows) -> Cursor | Halt | None:
    """The cursor of the journal behind ``rows`` at ``node``; a ``Halt`` if nothing may be written after it."""
    try:
        return await journal_cursor(node, rows)
    except ValueError as error:
        return Halt(f"the cursor at the node cannot be read: {error}", "run ctxd rebuild-xtdb --force")


async def project(
    state: state_directory.StateDir,
    target: Target,
    clock: Clock,
    connect: Connect,
    step: Step,
    *,
    patience_s: float = PATIENCE_S,
) -> None:
    """Project everything in ``state``. ``step`` receives the progress.

    Raises: GivenUp if the node has other rows, or makes no progress for ``patience_s``. Cancel: safe.
    """
    projection = Projection(target, clock, log_event=_silent, connect=connect)
    await in_thread(projection.open, state.database, ArtifactStore(state.artifacts), state.projection)
    faults: list[Exception] = []
    try:
        async with anyio.create_task_group() as group:
            group.start_soon(projection.run, faults.append)
            await _watched(projection, clock, step, faults, patience_s)
            group.cancel_scope.cancel()
    except BaseExceptionGroup as failures:
        given_up = failures.subgroup(GivenUp)
        if given_up is None:
            raise
        raise first_of(given_up) from None
    finally:
        with anyio.CancelScope(shield=True):
            await in_thread(projection.close)


async def _watched(
    projection: Projection, clock: Clock, step: Step, faults: list[Exception], patience_s: float
) -> None:
    """Return once everything is projected. Raises: GivenUp."""
    seq, since = -1, clock.monotonic()
    while True:
        status = projection.status()
        step(status)
        if status.state == "projecting" and status.lag_rows == 0:
            return
        if status.state == "stopped":
            raise GivenUp(status.reason, exit_code=EXIT_REFUSED)
        if faults:
            raise GivenUp(f"the projection failed: {type(faults[0]).__name__}: {faults[0]}", exit_code=1)
        if status.seq != seq:
            seq, since = status.seq, clock.monotonic()
        elif clock.monotonic() - since > patience_s:
            raise GivenUp(status.reason or f"no progress at the node for {patience_s:g} s", exit_code=EXIT_UNAVAILABLE)
        await clock.sleep(POLL_S)


async def compared(url: str, root: Path, connect: Connect, step: Callable[[Comparison], None]) -> Comparison:
    """Compare the state in ``root`` with the node. A daemon may be running.

    Raises: StateDirError; GivenUp if the node does not respond.
    """
    async with rows_of(root) as rows:
        try:
            async with connect(url) as node:
                return await compare(node, rows, step)
        except XtdbFailure as error:
            raise describe_node_failure(url, error) from error
        except CtxdError as error:
            report = Comparison()
            report.note("damage", error.message)
            return report


async def put_back(root: Path, url: str, seqs: tuple[int, ...], connect: Connect = connect) -> dict[int, str]:
    """Put the quarantined rows ``seqs`` of the journal in ``root``, or all of them if it is empty, and remove them from
    the cursor's list. No daemon may run on it.

    Returns: for each row, why the node still refuses it; empty if it is at the node. Raises: StateDirError; GivenUp.
    Cancel: safe.
    """
    try:
        async with held(root), rows_of(root) as rows, connect(url) as node:
            cursor = await _fenced(node, rows)
            wanted = seqs or cursor.quarantined
            if strange := set(wanted) - set(cursor.quarantined):
                message = f"row {min(strange)} is not quarantined; run ctxd requeue without ROWS to retry all"
                raise GivenUp(message, exit_code=1)
            fences = Fences(await in_thread(rows.scan, FENCES))
            outcome: dict[int, str] = {}
            for seq in wanted:
                outcome[seq] = await _put_back(node, rows, fences, cursor, seq)
                if not outcome[seq]:
                    cursor = requeued(cursor, seq)
            return outcome
    except XtdbFailure as error:
        raise describe_node_failure(url, error) from error


async def _fenced(node: Node, rows: Rows) -> Cursor:
    before = await _look(node, rows)
    if isinstance(before, Halt):
        raise GivenUp(before.message, exit_code=EXIT_REFUSED)
    if before is None:
        raise GivenUp("the node has nothing of this journal: run ctxd rebuild-xtdb", exit_code=1)
    cursor = fence(before, None, run=secrets.token_hex(8), genesis="")
    if not await node.committed(await node.submit(move_cursor(before, cursor, rows.writer)), timeout_s=COMMIT_S):
        raise GivenUp("the cursor moved: another daemon projects this journal", exit_code=EXIT_REFUSED)
    return cursor


async def _put_back(node: Node, rows: Rows, fences: Fences, cursor: Cursor, seq: int) -> str:
    """Put row ``seq``. Returns: the reason why it was refused; empty if it is at the node."""
    try:
        pieces = [
            msgspec.structs.replace(piece, versions=fences.kept(piece.versions))
            for piece in await in_thread(rows.pieces, seq - 1, 1)
        ]
        ops, _ = await in_thread(
            rows.operations, pieces, KnownTexts(), f"{rows.writer}.{cursor.run}.{cursor.incarnation}"
        )
        tx_id = await node.submit(transaction(cursor, requeued(cursor, seq), ops, rows.writer))
    except (Refused, CtxdError, ValueError) as error:
        return str(error)
    return "" if await node.committed(tx_id, timeout_s=COMMIT_S) else "its transaction was aborted"


def _silent(what: str, fields: dict[str, Any]) -> None:
    """The terminal shows progress instead."""


async def rebuild(
    root: Path,
    url: str,
    clock: Clock,
    step: Step,
    compared_step: Callable[[Comparison], None],
    *,
    force: bool = False,
    connect: Connect = connect,
) -> Comparison:
    """Project the whole journal in ``root`` to the node at ``url``, and compare. No daemon may run on it.

    A node with part of the journal gets the rest. A node with other rows under the journal's name is refused; with
    ``force``, the journal takes a new name first and is projected completely.

    Raises: StateDirError; GivenUp. Cancel: safe; the next call continues.
    """
    async with held(root) as state:
        if await _stands_in_the_way(root, url, connect, force=force, compared_step=compared_step):
            await in_thread(renew_writer_id, state)
        await project(state, Target(url=url), clock, connect, step)
    return await compared(url, root, connect, compared_step)


async def _stands_in_the_way(
    root: Path, url: str, connect: Connect, *, force: bool, compared_step: Callable[[Comparison], None]
) -> bool:
    """True if the documents at the node under the journal's writer id must be abandoned. Raises: GivenUp if not
    allowed."""
    try:
        async with rows_of(root) as rows, connect(url) as node:
            cursor, head = await _look(node, rows), await in_thread(rows.head)
    except XtdbFailure as error:
        raise describe_node_failure(url, error) from error
    except CtxdError as error:
        raise GivenUp(error.message, exit_code=EXIT_IO) from error
    if isinstance(cursor, Halt):
        if not force:
            raise GivenUp(f"{cursor.reason}: {_OCCUPIED}", exit_code=EXIT_REFUSED)
        return True
    if not force or cursor is None or cursor.seq != head:
        return False
    report = await compared(url, root, connect, compared_step)
    return not report.equal or report.worst not in (None, "warning")
