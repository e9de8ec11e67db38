"""What a shell reads to complete the commands and options of a program made of click's commands."""

from typing import Final

import click
from click.shell_completion import get_completion_class

SHELLS: Final = ("bash", "zsh", "fish")
"""The shells that there is a script for."""


def script(shell: str, program: str) -> str:
    """The script that makes ``shell``, one of ``SHELLS``, complete ``program``, whose command runs now.

    Raises: RuntimeError if the shell that is installed is too old for it.
    """
    kind = get_completion_class(shell)
    assert kind is not None, "click completes every shell that is named here"
    command = click.get_current_context().find_root().command
    return kind(command, {}, program, f"_{program.upper()}_COMPLETE").source()
