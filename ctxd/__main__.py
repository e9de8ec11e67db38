"""The command ``ctxd``: run the daemon, and check, copy and put back its state."""

import click

from ctxd import __version__
from ctxd.commands.backup import backup
from ctxd.commands.migrate import migrate
from ctxd.commands.rebuild_xtdb import rebuild_xtdb
from ctxd.commands.requeue import requeue
from ctxd.commands.restore import restore
from ctxd.commands.run import run
from ctxd.commands.terminal import Program
from ctxd.commands.verify import verify
from ctxd.commands.xtdb import check_node, xtdb


@click.group(cls=Program, context_settings={"help_option_names": ["-h", "--help"]})
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


for command in (run, verify, backup, restore, xtdb, rebuild_xtdb, migrate, requeue):
    main.add_command(command)
main.add_command(check_node, "doctor")


if __name__ == "__main__":
    main()
