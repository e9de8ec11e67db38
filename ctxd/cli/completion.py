"""``ctx completion``: the shell's own completion of commands and options."""

import click
from click.shell_completion import get_completion_class

from ctxd.cli.command import Command, Invocation, common
from ctxd.cli.exits import FAILURE, Stop


@click.command(
    cls=Command,
    examples='eval "$(ctx completion bash)"\nctx completion fish > ~/.config/fish/completions/ctx.fish',
)
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@common
def completion(run: Invocation, shell: str) -> None:
    """Print the script that makes SHELL complete ctx's commands and options."""
    kind = get_completion_class(shell)
    assert kind is not None, "click completes every shell that the argument allows"
    try:
        source = kind(click.get_current_context().find_root().command, {}, "ctx", "_CTX_COMPLETE").source()
    except RuntimeError as error:
        raise Stop(FAILURE, str(error), hint="use a newer shell") from error
    if run.screen.as_json:
        run.screen.document({"shell": shell, "script": source})
    else:
        run.screen.content(source)
