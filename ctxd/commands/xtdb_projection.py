"""``ctxd rebuild-xtdb`` and ``requeue``: commands for a projection, and their common output."""

import sys
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

import anyio
import click
import msgspec

from ctxd.click_support import INTERRUPTED, Stop
from ctxd.commands.command_support import (
    EXITS,
    config_option,
    document_of,
    json_option,
    progress,
    show,
    state_dir_option,
)
from ctxd.formatting import count
from ctxd_protocol.status_types import ProjectionStatus

if TYPE_CHECKING:
    # Loaded only by commands that compare.
    from ctxd.projection.comparison import Comparison

T = TypeVar("T")

url_option = click.option(
    "--store-url", help="Address of the XTDB node: unix:/path or http://host:port [default: store.url]."
)


class ProjectionTarget(msgspec.Struct, frozen=True):
    """State directory and address of the node."""

    root: Path
    url: str


def find_target(state_dir: Path | None, store_url: str | None, config: Path | None) -> ProjectionTarget:
    """Return the state directory and the node from flags and configuration; exit if they are invalid."""
    from ctxd.config import load

    found = load({"state_dir": state_dir, "store.url": store_url}, file=config)
    return ProjectionTarget(found.state_dir, found.store_url)


def perform(work: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """Return the result of ``work``; exit if it fails."""
    from ctxd.projection.node_maintenance import GivenUp

    try:
        return anyio.run(work)
    except GivenUp as error:
        raise Stop(error.exit_code, str(error)) from error
    except KeyboardInterrupt:
        raise Stop(INTERRUPTED, "interrupted", hint="run the command again: it continues") from None
    finally:
        progress("")


def projected(status: ProjectionStatus) -> None:
    """Show the progress of a projection."""
    reason = f", {status.reason}" if status.reason else ""
    total = status.seq + status.lag_rows
    progress(f"{status.state}: row {status.seq:,} of {total:,}, {status.rows_per_s:,.0f} rows/s{reason}")


def print_counts(report: "Comparison") -> None:
    """Show the progress of a comparison."""
    progress(f"comparing {report.phase}: {report.done:,}")


def end(as_json: bool, report: "Comparison", *lines: str, **more: Any) -> NoReturn:  # noqa: ANN401
    """Print a comparison after ``lines``, and exit with its worst finding."""
    progress("")
    problems = [f"{problem.severity}: {problem.message}" for problem in report.problems]
    checked = (
        f"row {report.seq:,} of {report.head_seq:,}, {count(report.entities, 'entity')}, {count(report.texts, 'text')}"
    )
    verdict = "the journal, the embedded versions and the node agree" if report.equal else "they do not agree"
    document = {**document_of(report), "equal": report.equal, **more}
    show(as_json, document, "\n".join([*lines, *problems, f"{checked}: {verdict}"]))
    sys.exit(EXITS[report.worst])


@click.command("rebuild-xtdb")
@click.option("--force", is_flag=True, help="Rebuild under a new journal name if the node's rows differ.")
@url_option
@json_option
@state_dir_option
@config_option
def rebuild_xtdb(
    force: bool, store_url: str | None, as_json: bool, state_dir: Path | None, config: Path | None
) -> None:
    """Project the whole journal to an XTDB node, then compare the two. The daemon must be stopped.

    An empty node is filled; an interrupted rebuild continues; a complete node is only compared. A node that has other
    rows under this journal's name is refused. With --force, the journal gets a new name and is projected again in full
    under that name. Nothing is erased, and rows under the old name are no longer read.

    \b
    Examples:
      ctxd rebuild-xtdb
      ctxd rebuild-xtdb --store-url unix:/run/ctxd/xtdb.sock --json
    """
    from ctxd.clock import SystemClock
    from ctxd.projection.node_maintenance import rebuild

    at = find_target(state_dir, store_url, config)
    report = perform(lambda: rebuild(at.root, at.url, SystemClock(), projected, print_counts, force=force))
    end(as_json, report, f"{at.url}:", store_url=at.url)


@click.command()
@click.argument("rows", type=int, nargs=-1)
@url_option
@json_option
@state_dir_option
@config_option
def requeue(
    rows: tuple[int, ...], store_url: str | None, as_json: bool, state_dir: Path | None, config: Path | None
) -> None:
    """Retry the quarantined journal rows ROWS, by default all of them, at the XTDB node. The daemon must be stopped.

    While the daemon runs, `ctx status` lists the quarantined rows with the reasons. Exits with 1 if the node still
    refuses a row.

    \b
    Examples:
      ctxd requeue
      ctxd requeue 4711
    """
    from ctxd.projection.node_maintenance import put_back

    at = find_target(state_dir, store_url, config)
    outcome = perform(lambda: put_back(at.root, at.url, rows))
    lines = [f"row {seq}: {reason or 'accepted by the node'}" for seq, reason in outcome.items()]
    items = [{"seq": seq, "reason": reason} for seq, reason in outcome.items()]
    show(as_json, {"items": items}, "\n".join(lines or ["no row is quarantined"]))
    sys.exit(int(any(outcome.values())))
