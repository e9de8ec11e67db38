"""``ctx fork`` and ``ctx resume``: a session that goes on from a commit, a moment of a session, or a principal's newest
work."""

from typing import get_args

import click

from ctxd.cli.commit_lookup import start_context
from ctxd.cli.common_options import Invocation, common, listing
from ctxd.cli.id_completion import commits as complete_commits
from ctxd.cli.session import text_or_file
from ctxd.command_line import Command
from ctxd.formatting import count
from ctxd_protocol.methods.commits import StartContext
from ctxd_protocol.session_types import CheckpointPolicy, SessionView

_id_option = click.option("--id", metavar="SESSION", help="The id of the new session; else the daemon chooses one.")
_prompt_option = click.option(
    "--system-prompt", metavar="TEXT", default="", help="Another system prompt; @FILE reads it from a file."
)
_checkpoint_option = click.option(
    "--checkpoint", type=click.Choice(get_args(CheckpointPolicy)), help="What the daemon commits by itself."
)


@click.command(
    cls=Command,
    examples="ctx fork\nctx fork HEAD~2\nctx fork s1@12 --agent reviewer --system-prompt @review.md\n"
    "export CTXD_SESSION=$(ctx fork ctx-1a2b3c4d -q)",
)
@click.argument("start", metavar="[COMMIT|REV]", required=False, shell_complete=complete_commits)
@click.option("--agent", metavar="AGENT", help="Another template.")
@_prompt_option
@_checkpoint_option
@_id_option
@listing
@common
def fork(
    run: Invocation,
    start: str | None,
    agent: str | None,
    system_prompt: str,
    checkpoint: CheckpointPolicy | None,
    id: str | None,
) -> None:
    """Start a session that goes on from a commit, or from a session as it is or was, such as s1@12.

    Without an argument it goes on from the default session as it is. It has the settings of that session but for those
    that are given; neither session sees what the other does from then on. The commit may be of any agent.
    """
    with run.client() as client:
        context = start_context(client, start)
        made = client.session_create(
            agent,
            session=id,
            context=context,
            system_prompt=text_or_file(system_prompt),
            checkpoint=checkpoint or "none",
        ).session
    _print_started(run, made)


@click.command(
    cls=Command,
    examples="ctx resume\nctx resume uid:1000 --agent demo\nexport CTXD_SESSION=$(ctx resume --agent demo -q)",
)
@click.argument("principal", required=False)
@click.option("--agent", metavar="AGENT", help="Only work of this template.")
@_prompt_option
@_checkpoint_option
@_id_option
@listing
@common
def resume(
    run: Invocation,
    principal: str | None,
    agent: str | None,
    system_prompt: str,
    checkpoint: CheckpointPolicy | None,
    id: str | None,
) -> None:
    """Start a session that goes on where the newest work of PRINCIPAL ended, by default of the caller.

    Whatever its newest session has is committed first, so that nothing is lost after a crash of the agent. To take a
    paused session up again as it is, use `ctx session resume`.
    """
    with run.client() as client:
        context = StartContext(principal=principal or "")
        made = client.session_create(
            agent,
            session=id,
            context=context,
            system_prompt=text_or_file(system_prompt),
            checkpoint=checkpoint or "none",
        ).session
    _print_started(run, made)


def _print_started(run: Invocation, made: SessionView) -> None:
    if run.screen.quiet:
        run.screen.line(made.session)
    elif run.screen.as_json:
        run.screen.document(made)
    else:
        run.screen.line(f"{made.session} goes on after {count(made.turn_count, 'turn')}")
