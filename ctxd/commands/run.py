"""``ctxd run``: the daemon in the foreground."""

from pathlib import Path

import click

from ctxd.commands.terminal import EXIT_CONFIG, config_option, fail, refuse, state_dir_option
from ctxd.errors import StateDirError
from ctxd.process import leave, spare_the_collector


@click.command()
@click.option("--ephemeral", is_flag=True, help="Keep state in a temporary directory, removed at the end.")
@click.option("--socket", type=click.Path(path_type=Path), help="Where to listen.")
@click.option("--log-level", type=click.Choice(["debug", "info", "warning", "error"]), help="Least level to log.")
@click.option("--log-format", type=click.Choice(["auto", "json", "console"]), help="How a record looks.")
@click.option("--store", type=click.Choice(["sqlite", "xtdb"]), help="What answers about the past.")
@click.option("--store-url", help="Where the XTDB node is: unix:/path or http://host:port.")
@state_dir_option
@config_option
def run(
    ephemeral: bool,
    socket: Path | None,
    log_level: str | None,
    log_format: str | None,
    store: str | None,
    store_url: str | None,
    state_dir: Path | None,
    config: Path | None,
) -> None:
    """Serve until SIGTERM.

    \b
    Examples:
      ctxd run --ephemeral --socket /tmp/ctxd-demo/ctxd.sock
      ctxd run --state-dir ~/ctxd-state --log-format json
    """
    # What is imported is kept: looking through it for cycles, several times, is a twentieth of a start.
    spare_the_collector()
    from ctxd.config import ConfigError
    from ctxd.config import load as load_config
    from ctxd.daemon import serve

    if ephemeral and state_dir is not None:
        raise click.UsageError("--ephemeral and --state-dir exclude each other: an ephemeral state has no directory.")
    flags = {
        "socket": socket,
        "state_dir": state_dir,
        "log.level": log_level,
        "log.format": log_format,
        "store.backend": store,
        "store.url": store_url,
    }
    try:
        configured = load_config(flags, file=config)
    except ConfigError as error:
        fail(str(error), EXIT_CONFIG)
    try:
        code = serve(configured, ephemeral=ephemeral, reread=lambda: load_config(flags, file=config))
    except StateDirError as error:
        refuse(error)
    leave(code)
