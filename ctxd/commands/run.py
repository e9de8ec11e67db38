"""``ctxd run``: the daemon in the foreground."""

import shlex
import sys
from contextlib import ExitStack
from pathlib import Path
from shutil import which
from tempfile import TemporaryDirectory

import click

from ctxd.click_support import ExclusiveOptions
from ctxd.commands.command_support import AbsolutePath, config_option, state_dir_option
from ctxd.process_setup import leave, tune_gc
from ctxd_protocol.default_paths import SOCKET_NAME


@click.command()
@click.option("--ephemeral", is_flag=True, help="Keep state and socket in a temporary directory, removed at the end.")
@click.option("--socket", type=AbsolutePath(), help="Path of the socket to listen on.")
@click.option("--log-level", type=click.Choice(["debug", "info", "warning", "error"]), help="Minimum log level.")
@click.option("--log-format", type=click.Choice(["auto", "json", "console"]), help="Format of log records.")
@click.option("--store", type=click.Choice(["sqlite", "xtdb"]), help="Backend for historical reads.")
@click.option("--store-url", help="Address of the XTDB node: unix:/path or http://host:port.")
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
    """Run the daemon until SIGTERM or SIGINT.

    With --ephemeral, print an `export` line for other shells, and use a temporary socket instead of the service's
    socket.

    The configuration file has more settings, such as metrics.socket, the path of a socket that serves Prometheus
    metrics: `ctxd config --sample` explains them all.

    \b
    Examples:
      ctxd run
      ctxd run --ephemeral
      ctxd run --state-dir ~/ctxd-state --log-format json
    """
    # Freezing imported objects saves several passes of the garbage collector: a twentieth of the start-up time.
    tune_gc()
    from ctxd.config import load as load_config
    from ctxd.daemon import serve

    if ephemeral and state_dir is not None:
        raise ExclusiveOptions("--ephemeral", "--state-dir", reason="an ephemeral state has no directory")
    with ExitStack() as temporary:
        own_directory = ephemeral and socket is None
        if own_directory:
            socket = Path(temporary.enter_context(TemporaryDirectory(prefix="ctxd-")), SOCKET_NAME)
        flags = {
            "socket": socket,
            "state_dir": state_dir,
            "log.level": log_level,
            "log.format": log_format,
            "store.backend": store,
            "store.url": store_url,
        }
        configured = load_config(flags, file=config)
        if own_directory:
            line = f"export CTXD_SOCKET={shlex.quote(str(configured.socket))}"
            click.echo(f"{line}    # paste into other shells; try: {_ctx()} status")
        code = serve(configured, ephemeral=ephemeral, reread=lambda: load_config(flags, file=config))
    leave(code)


def _ctx() -> str:
    """The shell command for ``ctx``: its name if it is on the PATH, else its path beside this Python."""
    beside = Path(sys.executable).with_name("ctx")
    return "ctx" if which("ctx") or not beside.exists() else shlex.quote(str(beside))
