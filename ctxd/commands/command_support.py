"""Shared options, exit codes and output of the commands of ``ctxd``."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, NoReturn

import click
import msgspec

from ctxd.click_support import FAILURE, Stop
from ctxd.errors import StateDirError
from ctxd.formatting import count

EXITS: Final = {None: 0, "warning": 1, "damage": 2, "data_loss": 3}
"""Exit code of a check by the severity of its worst finding."""

EXIT_CONFIG: Final = 78

_REMEDIES: Final = {
    10: "name another: --state-dir PATH",
    69: "stop it first, or choose another socket: --socket PATH",
    73: "choose another path",
    75: "stop it first, or choose another directory: --state-dir PATH",
}
"""Remedy for a refused state directory, backup or socket by exit code; the messages of other refusals contain one."""


class AbsolutePath(click.Path):
    """A path on the command line; a relative one is relative to the current directory."""

    def __init__(self) -> None:
        super().__init__(path_type=Path)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:  # noqa: ANN401
        """Return ``value`` as an absolute ``Path``, links unresolved."""
        if not value:
            self.fail("an empty path.", param, ctx)
        return Path(str(super().convert(value, param, ctx))).absolute()


state_dir_option = click.option(
    "--state-dir", type=AbsolutePath(), help="State directory [default: the configured one]."
)
config_option = click.option("--config", type=click.Path(path_type=Path), help="Configuration file.")
json_option = click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")


def state_root(state_dir: Path | None, config: Path | None) -> Path:
    """Return the state directory named by the flags and the configuration. Raises: ConfigError."""
    from ctxd.config import load as load_config

    return load_config({"state_dir": state_dir}, file=config).state_dir


def end_verified(as_json: bool, report: Any, before: str = "", **more: Any) -> NoReturn:  # noqa: ANN401
    """Print a verification report, as text after ``before`` and as JSON with ``more``; exit with its worst finding."""
    problems = [f"{problem.severity}: {problem.message}" for problem in report.problems]
    checked = (
        f"{count(report.rows, 'journal row')}, {count(report.versions, 'version')}, {count(report.contents, 'text')}"
    )
    summary = "\n".join([*problems, f"{checked}: {report.worst or 'every hash and the chain are right'}"])
    show(as_json, {**document_of(report), **more}, before + summary)
    sys.exit(EXITS[report.worst])


def document_of(report: Any) -> dict[str, Any]:  # noqa: ANN401 - a Report or a Comparison
    """Return a report for JSON output: without its progress, with its worst finding."""
    found: dict[str, Any] = {**msgspec.to_builtins(report), "worst": report.worst}
    return {name: value for name, value in found.items() if name not in ("phase", "done")}


def show(as_json: bool, document: object, text: str) -> None:
    """Print the result on standard output: ``document`` as JSON, or ``text``. Raises: OutputFailed."""
    click.echo(msgspec.json.encode(document).decode() if as_json else text)


def progress(text: str) -> None:
    """Replace the progress line on a terminal; print nothing elsewhere."""
    if sys.stderr.isatty():
        click.echo(f"\r\x1b[K{text}", nl=False, err=True)


def stepped(phase: str, done: int) -> None:
    """Show the current phase and the number of items done."""
    progress(f"{phase}: {done:,}")


@contextmanager
def working() -> Iterator[None]:
    """Remove the progress line at the end. An OSError of the body ends the program with one error line."""
    try:
        yield
    except OSError as error:
        place = "" if error.filename is None else f"{error.filename}: "
        raise Stop(FAILURE, f"{place}{error.strerror or error}") from error
    finally:
        progress("")


def stop_for(error: Exception) -> Stop | None:
    """Convert a ConfigError or StateDirError to an exit code and an error line; None for other exceptions."""
    from ctxd.config import ConfigError

    if isinstance(error, ConfigError):
        return Stop(EXIT_CONFIG, str(error))
    if isinstance(error, StateDirError):
        return Stop(error.exit_code, str(error), hint=error.remedy or _REMEDIES.get(error.exit_code, ""))
    return None
