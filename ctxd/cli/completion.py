"""``ctx completion``: the shell's own completion of commands and options."""

import click

from ctxd.cli.command import Command, Invocation, common
from ctxd.cli.exits import FAILURE, Stop
from ctxd.completion import SHELLS, script


@click.command(
    cls=Command,
    examples='eval "$(ctx completion bash)"\nctx completion fish > ~/.config/fish/completions/ctx.fish',
)
@click.argument("shell", type=click.Choice(SHELLS))
@common
def completion(run: Invocation, shell: str) -> None:
    """Print the script that makes SHELL complete ctx's commands and options."""
    try:
        source = script(shell, "ctx")
    except RuntimeError as error:
        raise Stop(FAILURE, str(error), hint="use a newer shell") from error
    if run.screen.as_json:
        run.screen.document({"shell": shell, "script": source})
    else:
        run.screen.content(source)
