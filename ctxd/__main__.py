"""The program ``ctxd``: run the daemon, and check, copy and restore its state."""

import os
import sys
from collections.abc import Sequence
from typing import Final

import click

from ctxd import __version__
from ctxd.click_support import SHELLS, Group, Stop, completion_script
from ctxd.click_support import run as run_program

_COMMANDS: Final = {
    "run": "ctxd.commands.run:run",
    "verify": "ctxd.commands.verify:verify",
    "backup": "ctxd.commands.backup:backup",
    "restore": "ctxd.commands.restore:restore",
    "gc": "ctxd.commands.gc:gc",
    "config": "ctxd.commands.config:config",
    "service": "ctxd.commands.service:service",
    "xtdb": "ctxd.commands.xtdb:xtdb",
    "rebuild-xtdb": "ctxd.commands.xtdb_projection:rebuild_xtdb",
    "migrate": "ctxd.commands.migrate:migrate",
    "requeue": "ctxd.commands.xtdb_projection:requeue",
    "doctor": "ctxd.commands.doctor:doctor",
}


@click.group(cls=Group, lazy=_COMMANDS, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="ctxd")
def cli() -> None:
    """Run the daemon that stores the context of coding agents, and maintain its state.

    \b
    Examples:
      ctxd run --ephemeral               try it: state in a temporary directory
      ctxd run                           serve on the configured socket
      ctxd verify                        recompute every hash
      ctxd backup /backup/today          while the daemon runs
      ctxd restore /backup/today --state-dir /var/lib/ctxd
      ctxd gc --keep 90d --dry-run       list sessions to trash and to erase
      ctxd service install               systemd units, completions, man pages
      ctxd config --sample               explain every setting
      ctxd xtdb install                  install an XTDB node for the store "xtdb"
      ctxd doctor                        check that node, not the daemon
      ctxd migrate --to xtdb             copy everything to XTDB and compare

    \b
    Exit codes: 0 ok, 1 failure or warnings, 2 damage, 3 data loss, 10 no state,
    64 wrong usage or socket path too long, 69 socket in use, or daemon or
    node unreachable, 73 socket, directory or node cannot be used,
    74 disk failed, 75 state directory in use, 78 unusable configuration or
    state, 130 interrupted.
    """


@cli.command("completion")
@click.argument("shell", type=click.Choice(SHELLS))
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
def completion(shell: str, as_json: bool) -> None:
    """Print the completion script for SHELL.

    \b
    Examples:
      eval "$(ctxd completion bash)"
      ctxd completion fish > ~/.config/fish/completions/ctxd.fish
    """
    from ctxd.commands.command_support import show

    source = completion_script(shell, "ctxd", cli)
    show(as_json, {"shell": shell, "script": source}, source)


def _stop_for(error: Exception) -> Stop | None:
    from ctxd.commands.command_support import stop_for

    return stop_for(error)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the program and exit; ``arguments`` None means those of the process."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    # 64 instead of click's 2, which is the exit code for damaged data here.
    sys.exit(run_program(cli, words, name="ctxd", usage_code=os.EX_USAGE, stop_for=_stop_for))


if __name__ == "__main__":
    main()
