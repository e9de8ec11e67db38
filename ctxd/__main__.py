"""The command ``ctxd``: run the daemon, and check, copy and put back its state."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, NoReturn

import click
import msgspec

from ctxd import __version__
from ctxd.errors import StateDirError

_EXITS: Final = {None: 0, "warning": 1, "damage": 2, "data_loss": 3}
_EXIT_CONFIG: Final = 78

_state_dir = click.option(
    "--state-dir", type=click.Path(path_type=Path), help="Where the state is kept; as configured if left out."
)
_config = click.option("--config", type=click.Path(path_type=Path), help="The configuration file to read.")
_as_json = click.option("--json", "as_json", is_flag=True, help="One JSON document on standard output.")


@contextmanager
def _usage_apart() -> Iterator[None]:
    """Have usage errors end with a code of their own: click's is 2, which says here that data is damaged."""
    try:
        yield
    except click.UsageError as error:
        error.exit_code = os.EX_USAGE  # type: ignore[misc]  # click asks the instance
        raise


class _Program(click.Group):
    def make_context(self, *args: Any, **kwargs: Any) -> click.Context:  # noqa: ANN401 - click's own
        with _usage_apart():
            return super().make_context(*args, **kwargs)

    def invoke(self, ctx: click.Context) -> Any:  # noqa: ANN401 - click's own
        with _usage_apart():
            return super().invoke(ctx)


@click.group(cls=_Program, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="ctxd")
def main() -> None:
    """Hold every coding agent's context on this host.

    \b
    Examples:
      ctxd run --ephemeral               try it: state in a temporary directory
      ctxd run                           serve on the configured socket
      ctxd verify                        recompute every hash
      ctxd backup /backup/today          while the daemon runs
      ctxd restore /backup/today --state-dir /var/lib/ctxd

    \b
    Exit codes: 0 ok, 1 failure or warnings, 2 damage, 3 data loss, 10 no state,
    64 usage, or socket path too long, 69 socket in use, 73 socket or directory cannot be made,
    74 disk failed, 75 state directory in use, 78 configuration or state not usable.
    """


@main.command()
@click.option("--ephemeral", is_flag=True, help="Keep state in a temporary directory, removed at the end.")
@click.option("--socket", type=click.Path(path_type=Path), help="Where to listen.")
@click.option("--log-level", type=click.Choice(["debug", "info", "warning", "error"]), help="Least level to log.")
@click.option("--log-format", type=click.Choice(["auto", "json", "console"]), help="How a record looks.")
@_state_dir
@_config
def run(
    ephemeral: bool,
    socket: Path | None,
    log_level: str | None,
    log_format: str | None,
    state_dir: Path | None,
    config: Path | None,
) -> None:
    """Serve until SIGTERM.

    \b
    Examples:
      ctxd run --ephemeral --socket /tmp/ctxd-demo/ctxd.sock
      ctxd run --state-dir ~/ctxd-state --log-format json
    """
    from ctxd.config import ConfigError
    from ctxd.config import load as load_config
    from ctxd.daemon import serve

    if ephemeral and state_dir is not None:
        raise click.UsageError("--ephemeral and --state-dir exclude each other: an ephemeral state has no directory.")
    flags = {"socket": socket, "state_dir": state_dir, "log.level": log_level, "log.format": log_format}
    try:
        configured = load_config(flags, file=config)
    except ConfigError as error:
        _fail(str(error), _EXIT_CONFIG)
    try:
        code = serve(configured, ephemeral=ephemeral)
    except StateDirError as error:
        _fail(str(error), error.exit_code)
    sys.exit(code)


@main.command()
@_as_json
@_state_dir
@_config
def verify(as_json: bool, state_dir: Path | None, config: Path | None) -> None:
    """Recompute every hash, the chain, and every table from the journal. A daemon may be running.

    \b
    Examples:
      ctxd verify
      ctxd verify --state-dir /var/lib/ctxd --json
    """
    from ctxd.store.verify import Report
    from ctxd.store.verify import verify as check

    root = _root(state_dir, config)
    report = Report()
    try:
        for report in check(root):
            _progress(f"{report.phase}: {report.done}")
    except StateDirError as error:
        _fail(str(error), error.exit_code)
    _progress("")
    _print(as_json, {**msgspec.to_builtins(report), "worst": report.worst}, _told(report))
    sys.exit(_EXITS[report.worst])


@main.command()
@click.argument("directory", type=click.Path(path_type=Path))
@_as_json
@_state_dir
@_config
def backup(directory: Path, as_json: bool, state_dir: Path | None, config: Path | None) -> None:
    """Copy the state to DIRECTORY, which is made or empty. A daemon may be running.

    \b
    Examples:
      ctxd backup /backup/today
    """
    from ctxd.store.backup import backup as copy

    root = _root(state_dir, config)
    try:
        manifest = copy(root, directory)
    except (StateDirError, OSError) as error:
        _fail(str(error), error.exit_code if isinstance(error, StateDirError) else 1)
    size = sum(file.size for file in manifest.files)
    told = f"{directory}: {len(manifest.files)} files, {size:,} bytes, up to journal row {manifest.head_seq}"
    _print(as_json, msgspec.to_builtins(manifest), told)


@main.command()
@click.argument("directory", type=click.Path(path_type=Path, exists=True))
@_as_json
@_state_dir
@_config
def restore(directory: Path, as_json: bool, state_dir: Path | None, config: Path | None) -> None:
    """Put the backup in DIRECTORY into an empty state directory, and check it there.

    \b
    Examples:
      ctxd restore /backup/today --state-dir /var/lib/ctxd
    """
    from ctxd.store.backup import restore as put_back

    root = _root(state_dir, config)
    try:
        report = put_back(directory, root)
    except (StateDirError, OSError) as error:
        _fail(str(error), error.exit_code if isinstance(error, StateDirError) else 1)
    _print(as_json, {**msgspec.to_builtins(report), "worst": report.worst}, f"{root}: {_told(report)}")
    sys.exit(_EXITS[report.worst])


def _root(state_dir: Path | None, config: Path | None) -> Path:
    from ctxd.config import ConfigError
    from ctxd.config import load as load_config

    try:
        return load_config({"state_dir": state_dir}, file=config).state_dir
    except ConfigError as error:
        _fail(str(error), _EXIT_CONFIG)


def _told(report: Any) -> str:  # noqa: ANN401 - a Report, which is imported only where it is needed
    problems = [f"{problem.severity}: {problem.message}" for problem in report.problems]
    checked = f"{report.rows:,} journal rows, {report.versions:,} versions, {report.contents:,} texts"
    return "\n".join([*problems, f"{checked}: {report.worst or 'every hash and the chain are right'}"])


def _print(as_json: bool, document: object, text: str) -> None:
    click.echo(msgspec.json.encode(document).decode() if as_json else text)


def _progress(text: str) -> None:
    if sys.stderr.isatty():
        click.echo(f"\r\x1b[K{text}", nl=False, err=True)


def _fail(message: str, code: int) -> NoReturn:
    click.echo(f"ctxd: {message}", err=True)
    sys.exit(code)


if __name__ == "__main__":
    main()
