"""``ctx current``: print the id of the current context, for hooks and scripts that must not wait."""

import click

from ctxd.cli.common_options import Invocation, common
from ctxd.cli.current_context_lookup import UnknownSession, look
from ctxd.cli.exit_codes import NOT_FOUND
from ctxd.click_support import Command, Stop


@click.command(cls=Command, examples='ctx current\nctx current -s s1\ngit commit -m "in $(ctx current)"')
@click.option("-s", "--session", metavar="SESSION", help="Of this session; else $CTXD_SESSION, else the socket's own.")
@common
def current(run: Invocation, session: str | None) -> None:
    """Print the id of the current context. Without one, exit with 3 and print nothing, or an empty value for --json.

    It is the newest commit of the session; the daemon first commits what is new since the last one. $CTXD_CONTEXT_ID
    wins; then $CTXD_CONTEXT_FILE, then the daemon, then current.json beside the socket. It takes no longer than 200 ms.
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
