"""What the commands share that work on a projection: their options, the settings, and how they tell of it."""

import sys
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NoReturn, TypeVar

import anyio
import click
import msgspec

from ctxd.commands.terminal import EXIT_CONFIG, EXITS, fail, progress, refuse, show
from ctxd.errors import StateDirError
from ctxd_protocol.status import ProjectionStatus

if TYPE_CHECKING:
    # Loaded by those commands only that compare.
    from ctxd.projection.compare import Comparison

T = TypeVar("T")
_EXIT_INTERRUPTED: Final = 130

url_option = click.option(
    "--store-url", help="Where the XTDB node is: unix:/path or http://host:port; as configured if left out."
)


class Place(msgspec.Struct, frozen=True):
    """Which state, and which node."""

    root: Path
    url: str


def place(state_dir: Path | None, store_url: str | None, config: Path | None) -> Place:
    """Return what the flags and the configuration name, or end the program saying why not."""
    from ctxd.config import ConfigError, load

    try:
        found = load({"state_dir": state_dir, "store.url": store_url}, file=config)
    except ConfigError as error:
        fail(str(error), EXIT_CONFIG)
    return Place(found.state_dir, found.store_url)


def perform(work: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """Return what ``work`` does, or end the program saying why it cannot be done."""
    from ctxd.projection.offline import GivenUp

    try:
        return anyio.run(work)
    except StateDirError as error:
        progress("")
        refuse(error)
    except GivenUp as error:
        progress("")
        fail(str(error), error.exit_code)
    except KeyboardInterrupt:
        progress("")
        fail("interrupted; run it again to go on", _EXIT_INTERRUPTED)


def projected(status: ProjectionStatus) -> None:
    """Show how far a projection is."""
    reason = f", {status.reason}" if status.reason else ""
    total = status.seq + status.lag_rows
    progress(f"{status.state}: row {status.seq:,} of {total:,}, {status.rows_per_s:,.0f} rows/s{reason}")


def counted(report: "Comparison") -> None:
    """Show how far a comparison is."""
    progress(f"comparing {report.phase}: {report.done:,}")


def told(report: "Comparison") -> str:
    """Return a comparison as a person reads it."""
    problems = [f"{problem.severity}: {problem.message}" for problem in report.problems]
    checked = f"row {report.seq:,} of {report.head_seq:,}, {report.entities:,} entities, {report.texts:,} texts"
    verdict = "the journal, the embedded versions and the node agree" if report.equal else "they do not agree"
    return "\n".join([*problems, f"{checked}: {verdict}"])


def document(report: "Comparison") -> dict[str, Any]:
    """Return a comparison as JSON shows it."""
    return {**msgspec.to_builtins(report), "worst": report.worst, "equal": report.equal}


def end(as_json: bool, report: "Comparison", *lines: str, **more: Any) -> NoReturn:  # noqa: ANN401
    """Print a comparison after ``lines``, and end the program with what it found."""
    progress("")
    show(as_json, {**document(report), **more}, "\n".join([*lines, told(report)]))
    sys.exit(EXITS[report.worst])
