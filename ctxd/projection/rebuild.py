"""A node made to hold what a journal says, and both compared: what ``rebuild-xtdb`` and ``migrate`` do."""

from collections.abc import Callable
from pathlib import Path

from anyio.to_thread import run_sync

from ctxd.backends.xtdb.errors import XtdbFailure
from ctxd.clock import Clock
from ctxd.errors import CtxdError
from ctxd.projection.compare import Comparison
from ctxd.projection.cursor import Halt
from ctxd.projection.node import Connect, connect
from ctxd.projection.offline import (
    EXIT_IO,
    EXIT_REFUSED,
    GivenUp,
    Step,
    become_another_writer,
    compared,
    found,
    held,
    project,
    rows_of,
    unanswered,
)
from ctxd.projection.projection import Target


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

    A node that has a part of it gets the rest. One that holds something else under the journal's name is refused;
    with ``force`` the journal takes another name first, and all of it is projected.

    Raises: StateDirError; GivenUp. Cancel: safe; the next call goes on.
    """
    async with held(root) as state:
        if await _stands_in_the_way(root, url, connect, force=force, compared_step=compared_step):
            await run_sync(become_another_writer, state)
        await project(state, Target(url=url), clock, connect, step)
    return await compared(url, root, connect, compared_step)


async def _stands_in_the_way(
    root: Path, url: str, connect: Connect, *, force: bool, compared_step: Callable[[Comparison], None]
) -> bool:
    """Whether what the node holds under the journal's name has to be left behind. Raises: GivenUp if it may not be."""
    try:
        async with rows_of(root) as rows:
            cursor, head = await found(url, rows, connect), await run_sync(rows.head)
    except XtdbFailure as error:
        raise unanswered(url, error) from error
    except CtxdError as error:
        raise GivenUp(error.message, exit_code=EXIT_IO) from error
    reason = ""
    if isinstance(cursor, Halt):
        reason = cursor.reason
    elif cursor is not None and cursor.seq == head and force:
        report = await compared(url, root, connect, compared_step)
        reason = "" if report.equal and report.worst in (None, "warning") else "what the node has is not the journal's"
    if reason and not force:
        raise GivenUp(f"{reason}. Take an empty node, or --force", exit_code=EXIT_REFUSED)
    return bool(reason)
