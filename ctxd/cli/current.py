"""``ctx current``: print the id of the current context, for hooks and scripts that must not wait."""

import click

from ctxd.cli.common_options import Invocation, common
from ctxd.cli.current_context_lookup import UnknownSession, look
from ctxd.cli.exit_codes import NOT_FOUND
from ctxd.click_support import Command, Stop


@click.command(cls=Command, examples='ctx current\nctx current -s s1\ngit commit -m "in $(ctx current)"')
@click.option("-s", "--session", metavar="SESSION", help="Session [default: $CTXD_SESSION, else that of the socket].")
@common
def current(run: Invocation, session: str | None) -> None:
    """Print the id of the current context. Without a context, print nothing (JSON null with --json) and exit with 3.

    The current context is the newest commit of the session; the daemon first commits new events. Precedence:
    $CTXD_CONTEXT_ID, $CTXD_CONTEXT_FILE, the daemon, current.json beside the socket. Takes at most 200 ms.
    """
    try:
        found = look(session, run.socket)
    except UnknownSession as unknown:
        raise Stop(NOT_FOUND, str(unknown), hint=unknown.hint, symbol="session_not_found") from None
    if run.screen.as_json:
        run.screen.document(found)
    if found is None:
        raise Stop(NOT_FOUND)
    if not run.screen.as_json:
        run.screen.content(found["context_id"] + "\n")
