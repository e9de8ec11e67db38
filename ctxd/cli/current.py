"""``ctx current``: the id of the context that is being worked in, for hooks and scripts that must not wait."""

import click

from ctxd.cli.context_id_lookup import look
from ctxd.cli.exit_codes import NOT_FOUND
from ctxd.cli.invocation import Invocation, common
from ctxd.command_line import Command, Stop


@click.command(cls=Command, examples='ctx current\nctx current -s s1\ngit commit -m "in $(ctx current)"')
@click.option("-s", "--session", metavar="SESSION", help="Of this session; else $CTXD_SESSION, else the socket's own.")
@common
def current(run: Invocation, session: str | None) -> None:
    """Print the id of the current context. Exit with 3 and print nothing without one; --json prints an empty value.

    $CTXD_CONTEXT_ID wins; then $CTXD_CONTEXT_FILE, or current.json beside the socket; then the daemon is asked. It
    takes no longer than 200 ms.
    """
    found = look(session, run.socket)
    if run.screen.as_json:
        run.screen.document(found)
    if found is None:
        raise Stop(NOT_FOUND)
    if not run.screen.as_json:
        run.screen.content(found["context_id"] + "\n")
