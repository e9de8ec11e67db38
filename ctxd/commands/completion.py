"""``ctxd completion``: the shell's own completion of commands and options."""

import click

from ctxd.commands.terminal import fail, json_option, show
from ctxd.completion import SHELLS, script


@click.command()
@click.argument("shell", type=click.Choice(SHELLS))
@json_option
def completion(shell: str, as_json: bool) -> None:
    """Print the script that makes SHELL complete ctxd's commands and options.

    \b
    Examples:
      eval "$(ctxd completion bash)"
      ctxd completion fish > ~/.config/fish/completions/ctxd.fish
    """
    try:
        source = script(shell, "ctxd")
    except RuntimeError as error:
        fail(f"{error}; use a newer shell", 1)
    show(as_json, {"shell": shell, "script": source}, source)
