"""``ctxd completion``: the shell's own completion of commands and options."""

import click
from click.shell_completion import get_completion_class

from ctxd.commands.terminal import fail, json_option, show


@click.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@json_option
def completion(shell: str, as_json: bool) -> None:
    """Print the script that makes SHELL complete ctxd's commands and options.

    \b
    Examples:
      eval "$(ctxd completion bash)"
      ctxd completion fish > ~/.config/fish/completions/ctxd.fish
    """
    kind = get_completion_class(shell)
    assert kind is not None, "click completes every shell that the argument allows"
    try:
        source = kind(click.get_current_context().find_root().command, {}, "ctxd", "_CTXD_COMPLETE").source()
    except RuntimeError as error:
        fail(f"{error}; use a newer shell", 1)
    show(as_json, {"shell": shell, "script": source}, source)
