"""``ctx mcp``: an MCP server for a harness. Separate from the server, which can only be imported with an extra."""

from typing import Final

import click

from ctxd.cli.common_options import Invocation, common, session_option
from ctxd.cli.exit_codes import FAILURE
from ctxd.click_support import Command, Stop

_DEADLINE_S: Final = 10.0
"""Maximum seconds for each call of the daemon: a model waits for the result."""


@click.command(
    cls=Command,
    examples="claude mcp add ctxd -- ctx mcp\nclaude mcp add ctxd -- ctx mcp -s s1\ncodex mcp add ctxd -- ctx mcp",
)
@session_option
@common
def mcp(run: Invocation, session: str | None) -> None:
    """Serve the Model Context Protocol to a harness.

    It uses standard input and output. Its tools let a model list, activate, deactivate and pin the objects of its
    context, commit it, and search earlier text; its resources are ctx://object/ID and ctx://commit/ID. It uses the
    ctxd session that captures the harness's session, else the default session; if several sessions are open, name one
    with -s. A search covers all sessions. It needs the extra "mcp".
    """
    try:
        from ctxd.cli.mcp_server import serve
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] not in ("mcp", "mcp_types"):
            raise
        hint = (
            'install it beside ctx: pip install "mcp>=2.3,<3", or with the project: pip install ".[mcp]" in its folder'
        )
        raise Stop(FAILURE, "ctx mcp needs the package mcp", hint=hint, symbol="mcp_missing") from None
    run.deadline_s = min(run.deadline_s, _DEADLINE_S)
    serve(run, session)
