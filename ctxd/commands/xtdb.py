"""``ctxd xtdb``: install, run and check an XTDB node."""

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import click
import msgspec

from ctxd.backends.xtdb.node.node_layout import Installation, NodeFailure, default_directory
from ctxd.click_support import ExclusiveOptions, Stop
from ctxd.commands.command_support import json_option, show
from ctxd.doctor_findings import lines
from ctxd.formatting import clause
from ctxd.terminal import Screen

if TYPE_CHECKING:
    from ctxd.config import Config

directory_option = click.option(
    "--directory",
    type=click.Path(path_type=Path),
    help="Directory of the installation [default: $CTXD_XTDB_HOME, else the user's data directory].",
)


@click.group()
def xtdb() -> None:
    """Install, run and check the XTDB node that holds versions when the store is "xtdb".

    \b
    Examples:
      ctxd xtdb install
      ctxd xtdb run                      RocksDB, where the daemon looks for it
      ctxd xtdb check
    """


@xtdb.command("install")
@json_option
@directory_option
def install_node(as_json: bool, directory: Path | None) -> None:
    """Download XTDB with Maven, verify every jar, and compile the node. Existing files are reused.

    Requires a JDK (17 or 21) and Maven; takes about a minute.

    \b
    Examples:
      ctxd xtdb install
      ctxd xtdb install --directory /opt/ctxd-xtdb
    """
    from ctxd.backends.xtdb.node.install import install

    installation = _installation(directory)
    try:
        changed = install(installation, lambda line: click.echo(f"ctxd xtdb: {line}", err=True), os.environ)
    except NodeFailure as failure:
        _fail(failure)
    message = f"{installation.directory}: {'installed' if changed else 'was installed already'}"
    show(as_json, {"directory": str(installation.directory), "changed": changed}, message)


@xtdb.command("run")
@click.option("--config", default="rocksdb", show_default=True, help="memory, rocksdb, postgres, or a file of EDN.")
@click.option("--socket", type=click.Path(path_type=Path), help="Socket to listen on [default: store.url].")
@click.option("--tcp", metavar="HOST:PORT", help="Listen on TCP instead. Every client of the port has full access.")
@click.option("--data", type=click.Path(path_type=Path), help="Directory of the node's data.")
@click.option("--heap", default="2g", show_default=True, help="Maximum heap of the JVM.")
@click.option("--java-option", "java_options", multiple=True, help="Option for the JVM; repeatable.")
@directory_option
def run_node(
    config: str,
    socket: Path | None,
    tcp: str | None,
    data: Path | None,
    heap: str,
    java_options: tuple[str, ...],
    directory: Path | None,
) -> None:
    """Run the node in the foreground until SIGTERM.

    "postgres" uses the database in CTXD_XTDB_PG_HOST, _PORT, _DATABASE, _USER and _PASSWORD. In a file of your own,
    #ctxd/data "name" is a directory below --data, and #ctxd/env "NAME" an environment variable.

    \b
    Examples:
      ctxd xtdb run
      ctxd xtdb run --config memory --socket /tmp/xtdb/xtdb.sock
      ctxd xtdb run --config ./node.edn --data /srv/xtdb --heap 4g
    """
    from ctxd.backends.xtdb.node.launch import Launch, command, environment, find_config

    if socket is not None and tcp is not None:
        raise ExclusiveOptions("--socket", "--tcp", reason="a node listens in one place")
    installation = _installation(directory)
    try:
        launch = Launch(
            config=find_config(config),
            data=data or installation.directory / "data",
            socket=socket or _default_socket(),
            tcp=tcp,
            heap=heap,
            java_options=java_options,
        )
        arguments = command(installation, launch, os.environ)
    except NodeFailure as failure:
        _fail(failure)
    os.umask(0o077)
    os.execve(arguments[0], arguments, environment(os.environ))


@xtdb.command("check")
@click.option("--url", help="unix:/path or http://host:port [default: store.url].")
@json_option
@directory_option
def check_node(url: str | None, as_json: bool, directory: Path | None) -> None:
    """Check Java, the installation and the node.

    For a running node, checks version, socket, ingester, flushing and lag. Exits with 0 if all is well, else with 1.

    \b
    Examples:
      ctxd xtdb check
      ctxd xtdb check --url http://127.0.0.1:3000 --json
    """
    from ctxd.backends.xtdb.node.node_checks import look

    findings = look(_installation(directory), url or _config().store_url, os.environ)
    show(as_json, msgspec.to_builtins(findings), "\n".join(lines(findings, Screen())))
    sys.exit(int(any(each.verdict == "fail" for each in findings)))


def _installation(directory: Path | None) -> Installation:
    return Installation((directory or default_directory(os.environ)).absolute())


def _config() -> "Config":
    from ctxd.config import load

    return load()


def _default_socket() -> Path:
    """Socket at which the daemon expects its node; the default one if the daemon is configured for TCP."""
    from ctxd.config import store_url_beside

    config = _config()
    url = config.store_url if config.store_url.startswith("unix:") else store_url_beside(config.socket)
    return Path(url.removeprefix("unix:"))


def _fail(failure: NodeFailure) -> NoReturn:
    raise Stop(failure.exit_code, failure.message, hint=clause(failure.remedy))
