"""``ctx fork`` and ``ctx resume``: start a session that continues a commit, a moment of a session, or a principal's
newest work."""

import os
from collections.abc import Callable
from contextlib import suppress
from typing import ParamSpec, TypeVar, get_args

import click

from ctxd.cli.commit_lookup import start_context
from ctxd.cli.common_options import Invocation, common, listing
from ctxd.cli.exit_codes import NOT_FOUND, USAGE
from ctxd.cli.id_completion import commits as complete_commits
from ctxd.cli.session import note_default, text_or_file
from ctxd.click_support import Command, ExclusiveOptions, Stop
from ctxd.formatting import count
from ctxd.terminal import cell
from ctxd.transcripts.harness_names import HARNESS_OF, HarnessCommand
from ctxd_client.errors import InvalidCall, NotFound
from ctxd_client.sync import SyncClient
from ctxd_protocol.ids import is_context_id
from ctxd_protocol.methods.commits import StartContext
from ctxd_protocol.session_types import CheckpointPolicy, SessionOrigin, SessionView

_id_option = click.option("--id", metavar="SESSION", help="Id of the new session [default: chosen by the daemon].")
_prompt_option = click.option(
    "--system-prompt", metavar="TEXT", default="", help="System prompt of the new session; @FILE reads it from a file."
)
_checkpoint_option = click.option(
    "--checkpoint",
    type=click.Choice(get_args(CheckpointPolicy)),
    help="Events after which the daemon commits the session.",
)

P = ParamSpec("P")
R = TypeVar("R")


def _into_harness(run: Callable[P, R]) -> Callable[P, R]:
    """Add ``--in`` and the options that depend on it."""
    for option in (
        click.option("--exec", "execute", is_flag=True, help="With --in: run the command instead of printing it."),
        click.option(
            "--cwd", metavar="DIR", help="With --in: the session's directory [default: the current directory]."
        ),
        click.option(
            "--in",
            "harness",
            type=click.Choice(tuple(HARNESS_OF)),
            help="Write a session of this harness that continues from there, and print the command that resumes it.",
        ),
    ):
        run = option(run)
    return run


@click.command(
    cls=Command,
    examples="ctx fork\nctx fork HEAD~2\nctx fork s1@12 --agent reviewer --system-prompt @review.md\n"
    "export CTXD_SESSION=$(ctx fork ctx-1a2b3c4d -q)\nctx fork s1@12 --in claude --exec",
)
@click.argument("start", metavar="[COMMIT|REV]", required=False, shell_complete=complete_commits)
@click.option("--agent", metavar="AGENT", help="Template of the new session [default: that of the source].")
@_prompt_option
@_checkpoint_option
@_id_option
@_into_harness
@listing
@common
def fork(
    run: Invocation,
    start: str | None,
    agent: str | None,
    system_prompt: str,
    checkpoint: CheckpointPolicy | None,
    id: str | None,
    harness: HarnessCommand | None,
    cwd: str | None,
    execute: bool,
) -> None:
    """Start a session from any commit or REV, also in another harness.

    It continues from a commit, or from a current or past state of a session, such as s1@12. The default is the current
    state of the default session. The new session has the settings of the source except for the options given here, and
    from then on the two sessions are independent. COMMIT may be a commit of any agent. `ctx session fork` keeps all
    settings.

    With --in, a harness continues the session: Claude Code, codex, pi or opencode, whichever harness wrote the source.
    """
    if harness is not None:
        _hand_over(run, harness, cwd, execute, lambda client: start_context(client, start), agent, id, system_prompt)
        return
    _require_harness(cwd, execute)
    with run.client() as client:
        made = _created(client, start_context(client, start), agent, id, system_prompt, checkpoint)
    _print_started(run, made)


@click.command(
    cls=Command,
    examples="ctx resume\nctx resume uid:1000 --agent demo\nexport CTXD_SESSION=$(ctx resume --agent demo -q)\n"
    "ctx resume ctx-1a2b3c4d --in codex",
)
@click.argument("principal", metavar="[PRINCIPAL|COMMIT]", required=False)
@click.option("--agent", metavar="AGENT", help="Only work of this template.")
@_prompt_option
@_checkpoint_option
@_id_option
@_into_harness
@listing
@common
def resume(
    run: Invocation,
    principal: str | None,
    agent: str | None,
    system_prompt: str,
    checkpoint: CheckpointPolicy | None,
    id: str | None,
    harness: HarnessCommand | None,
    cwd: str | None,
    execute: bool,
) -> None:
    """Start a new session that continues your newest work.

    Without an argument, continue your newest work in this project; with PRINCIPAL, the newest work of that principal in
    any project. The project is that of the current directory; in a repository with several packages, only the package
    that contains the directory counts. The command prints the session that it continues. New content of that session is
    committed first, so that a crash of the agent loses nothing. `ctx session resume` instead reactivates a paused
    session.

    With --in, a harness continues the session, and the argument may also be a commit or a moment of a session. For a
    commit of a sub-agent, the harness gets the conversation of its caller, then that of the sub-agent.
    """
    if harness is not None:
        named = principal

        def context_of(client: SyncClient) -> StartContext:
            if named is None:
                return _here(cwd)
            with suppress(InvalidCall):
                if client.commit_resolve(principal=named).commit is not None:
                    return StartContext(principal=named)
            return start_context(client, named)

        _hand_over(run, harness, cwd, execute, context_of, agent, id, system_prompt)
        return
    _require_harness(cwd, execute)
    if principal is not None and is_context_id(principal):
        message = f"{principal} is a commit; without --in, ctx resume continues from the newest work of a principal"
        raise Stop(USAGE, message, hint=f"ctx fork {principal} starts a session from it")
    with run.client() as client:
        context = _here(None) if principal is None else StartContext(principal=principal)
        try:
            made = _created(client, context, agent, id, system_prompt, checkpoint)
        except NotFound as error:
            if error.code != "commit_not_found" or principal is None:
                raise
            raise _not_a_principal(client, principal, error) from None
        origin = None if run.screen.quiet or run.screen.as_json else _origin(client, made)
    _print_started(run, made, origin)


def _created(
    client: SyncClient,
    context: StartContext,
    agent: str | None,
    id: str | None,
    system_prompt: str,
    checkpoint: CheckpointPolicy | None,
) -> SessionView:
    """Start a session with the options of the command. Raises: CallFailed, Stop for a file that cannot be read."""
    return client.session_create(
        agent,
        session=id,
        context=context,
        system_prompt=text_or_file(system_prompt, "--system-prompt"),
        checkpoint=checkpoint or "none",
    ).session


def _not_a_principal(client: SyncClient, name: str, error: NotFound) -> Exception:
    """Return the error for a name without commits, with the command to use if it is a session or a moment of one."""
    if _is_session(client, name):
        named, more = "a session", f", ctx session resume {name} reactivates it"
    elif _is_session(client, name.rpartition("@")[0]):
        named, more = "a moment of a session", ""
    else:
        return error
    message = f"{name} is {named}, and ctx resume continues from the newest work of a principal"
    return Stop(NOT_FOUND, message, hint=f"ctx fork {name} starts a session from it{more}", symbol=error.code)


def _is_session(client: SyncClient, name: str) -> bool:
    try:
        client.session_get(name)
    except (NotFound, InvalidCall):
        return False
    return True


def _here(directory: str | None) -> StartContext:
    """The newest work of the caller in the project at ``directory``, by default the current one."""
    return StartContext(principal="", project=os.path.abspath(directory or "."))


def _origin(client: SyncClient, made: SessionView) -> str | None:
    """The session that ``made`` continues, with its title; without a session the commit, if any."""
    origin = made.origin or SessionOrigin()
    session = origin.session
    if session is None and origin.commit is not None:
        session = client.commit_history(origin.commit, depth=1).commits[0].session
    if session is None:
        return origin.commit
    try:
        title = client.session_get(session).session.title
    except NotFound:
        title = ""
    return f"{session} ({title})" if title else session


def _require_harness(cwd: str | None, execute: bool) -> None:
    if cwd is not None or execute:
        raise Stop(USAGE, "--cwd and --exec apply only to a harness", hint="name one: --in claude")


def _hand_over(
    run: Invocation,
    harness: HarnessCommand,
    cwd: str | None,
    execute: bool,
    start: Callable[[SyncClient], StartContext],
    agent: str | None,
    id: str | None,
    system_prompt: str,
) -> None:
    from ctxd.cli.hand_over import hand_over

    for option, is_given in (("--id", id is not None), ("--system-prompt", bool(system_prompt))):
        if is_given:
            raise ExclusiveOptions("--in", option, reason="the harness has its own")
    hand_over(run, harness, cwd, execute, start, agent)


def _print_started(run: Invocation, made: SessionView, origin: str | None = None) -> None:
    if run.screen.quiet:
        run.screen.line(made.session)
    elif run.screen.as_json:
        run.screen.document(made)
    else:
        after = f"after {count(made.turn_count, 'turn')}"
        run.screen.line(f"{made.session} continues {f'from {cell(origin)}, ' if origin else ''}{after}")
        note_default(run, made.session)
