"""Commands that are imported when they are used: what a command takes to load is not paid for by the others."""

from importlib import import_module
from typing import Any

import click


class LazyGroup(click.Group):
    """A group of commands. ``lazy`` maps a command's name to ``module:attribute``, in the order of the help."""

    def __init__(
        self,
        *args: Any,  # noqa: ANN401 - click's own
        lazy: dict[str, str] | None = None,
        **kwargs: Any,  # noqa: ANN401 - click's own
    ) -> None:
        super().__init__(*args, **kwargs)
        self.lazy = lazy or {}

    def list_commands(self, ctx: click.Context) -> list[str]:
        """The names, in the order they were written down."""
        return [*self.lazy, *self.commands]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The command, imported now if it was not."""
        if cmd_name not in self.lazy:
            return super().get_command(ctx, cmd_name)
        module, _, attribute = self.lazy[cmd_name].partition(":")
        found = getattr(import_module(module), attribute)
        assert isinstance(found, click.Command), f"{self.lazy[cmd_name]} is a command"
        return found
