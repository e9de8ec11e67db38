"""How every command of ``ctxd`` speaks: its shared options, its exit codes, what it prints and how it fails."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, NoReturn

import click
import msgspec

from ctxd.errors import StateDirError
from ctxd.lazy_group import LazyGroup

EXITS: Final = {None: 0, "warning": 1, "damage": 2, "data_loss": 3}
"""A check's exit code, by the worst it found."""

EXIT_CONFIG: Final = 78

_REMEDIES: Final = {
    10: "name another place",
    69: "stop it first, or name another socket: --socket PATH",
    73: "name another place",
    75: "stop it first, or name another state: --state-dir PATH",
}
"""What helps when a state, a backup or a socket is refused, by exit code; other refusals say it themselves."""

state_dir_option = click.option(
    "--state-dir", type=click.Path(path_type=Path), help="Where the state is kept; as configured if left out."
)
config_option = click.option("--config", type=click.Path(path_type=Path), help="The configuration file to read.")
json_option = click.option("--json", "as_json", is_flag=True, help="One JSON document on standard output.")


@contextmanager
def _usage_apart() -> Iterator[None]:
    """Have usage errors end with a code of their own: click's is 2, which says here that data is damaged."""
    try:
        yield
    except click.UsageError as error:
        error.exit_code = os.EX_USAGE  # type: ignore[misc]  # click asks the instance
        raise


class Program(LazyGroup):
    """A group of commands whose usage errors have an exit code of their own."""

    def make_context(self, *args: Any, **kwargs: Any) -> click.Context:  # noqa: ANN401 - click's own
        with _usage_apart():
            return super().make_context(*args, **kwargs)

    def invoke(self, ctx: click.Context) -> Any:  # noqa: ANN401 - click's own
        with _usage_apart():
            return super().invoke(ctx)


def state_root(state_dir: Path | None, config: Path | None) -> Path:
    """Return the state directory that the flags and the configuration name, or end the program saying why not."""
    from ctxd.config import ConfigError
    from ctxd.config import load as load_config

    try:
        return load_config({"state_dir": state_dir}, file=config).state_dir
    except ConfigError as error:
        fail(str(error), EXIT_CONFIG)


def told(report: Any) -> str:  # noqa: ANN401 - a Report, which is imported only where it is needed
    """Return a check's report as a person reads it."""
    problems = [f"{problem.severity}: {problem.message}" for problem in report.problems]
    checked = f"{report.rows:,} journal rows, {report.versions:,} versions, {report.contents:,} texts"
    return "\n".join([*problems, f"{checked}: {report.worst or 'every hash and the chain are right'}"])


def show(as_json: bool, document: object, text: str) -> None:
    """Print the answer on standard output: the document as JSON, or the text; or end the program saying why not."""
    try:
        click.echo(msgspec.json.encode(document).decode() if as_json else text)
    except BrokenPipeError:
        raise
    except OSError as error:
        fail(f"standard output cannot be written: {error.strerror}; write to where there is room", 1)


def progress(text: str) -> None:
    """Replace the line of progress on a terminal; nothing is told elsewhere."""
    if sys.stderr.isatty():
        click.echo(f"\r\x1b[K{text}", nl=False, err=True)


def stepped(what: str, done: int) -> None:
    """Show what is being done, and how far it has come."""
    progress(f"{what}: {done:,}")


def refuse(error: StateDirError | OSError) -> NoReturn:
    """Say on standard error why a place is refused and what helps, and end the program with its exit code."""
    code = error.exit_code if isinstance(error, StateDirError) else 1
    remedy = _REMEDIES.get(code)
    fail(f"{error}; {remedy}" if remedy else str(error), code)


def fail(message: str, code: int) -> NoReturn:
    """Say why on standard error, and end the program with ``code``."""
    click.echo(f"ctxd: {message}", err=True)
    sys.exit(code)
