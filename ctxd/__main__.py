"""The command ``ctxd``: run the daemon, and check, copy and put back its state."""

from typing import Final

import click

from ctxd import __version__
from ctxd.commands.terminal import Program

_COMMANDS: Final = {
    "run": "ctxd.commands.run:run",
    "verify": "ctxd.commands.verify:verify",
    "backup": "ctxd.commands.backup:backup",
    "restore": "ctxd.commands.restore:restore",
    "xtdb": "ctxd.commands.xtdb:xtdb",
    "rebuild-xtdb": "ctxd.commands.rebuild_xtdb:rebuild_xtdb",
    "migrate": "ctxd.commands.migrate:migrate",
    "requeue": "ctxd.commands.requeue:requeue",
    "doctor": "ctxd.commands.xtdb:check_node",
    "completion": "ctxd.commands.completion:completion",
}


@click.group(cls=Program, lazy=_COMMANDS, context_settings={"help_option_names": ["-h", "--help"]})
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
      ctxd xtdb install                  an XTDB node for the store "xtdb"
      ctxd doctor                        what is wrong with that node; `ctx doctor` looks at the daemon
      ctxd migrate --to xtdb             put everything there, and compare

    \b
    Exit codes: 0 ok, 1 failure or warnings, 2 damage, 3 data loss, 10 no state,
    64 usage, or socket path too long, 69 socket in use or node away, 73 socket or directory cannot be made,
    74 disk failed, 75 state directory in use, 78 configuration or state not usable.
    """


if __name__ == "__main__":
    main()
