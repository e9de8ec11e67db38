"""What every command has: examples first in its help, the common options, and the way to the daemon and the session.

Owns the defaults that save typing: which socket, which session, which object an abbreviation or a path means.
"""

import functools
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Concatenate, Final, ParamSpec, TypeVar

import click

from ctxd.cli.screen import Screen
from ctxd.lazy_group import LazyGroup

if TYPE_CHECKING:  # `ctx --version` and `ctx --help` must not wait for the client to load
    from ctxd_client.sync import SyncClient

P = ParamSpec("P")
R = TypeVar("R")

DEADLINE_S: Final = 30.0
"""Seconds that a command waits for each answer, unless ``--timeout`` says otherwise."""


class Command(click.Command):
    """A command whose help starts with examples."""

    def __init__(self, *args: Any, examples: str = "", **kwargs: Any) -> None:  # noqa: ANN401 - click's own
        super().__init__(*args, **kwargs)
        self.examples = examples

    def format_help(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Examples, then what click writes."""
        write_examples(self.examples, formatter)
        super().format_help(ctx, formatter)


class Group(LazyGroup):
    """A group whose help starts with examples, and which knows the command that was meant."""

    def __init__(self, *args: Any, examples: str = "", **kwargs: Any) -> None:  # noqa: ANN401 - click's own
        super().__init__(*args, **kwargs)
        self.examples = examples

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """As click does; an unknown name is answered with the nearest one."""
        try:
            return super().resolve_command(ctx, args)
        except click.UsageError as error:
            import difflib

            near = difflib.get_close_matches(args[0], self.list_commands(ctx), n=1)
            if not near:
                raise
            raise click.UsageError(f"there is no command {args[0]!r}; did you mean {near[0]!r}?", ctx) from error

    def format_help(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Examples, then what click writes."""
        write_examples(self.examples, formatter)
        super().format_help(ctx, formatter)


def write_examples(examples: str, formatter: click.HelpFormatter) -> None:
    """The examples of a command, one a line, at the top of its help."""
    if examples:
        formatter.write("Examples:\n")
        formatter.write("".join(f"  {line.strip()}\n" for line in examples.strip().splitlines()))
        formatter.write("\n")


class Invocation:
    """One run of the program: where it writes, and how it reaches the daemon."""

    def __init__(self) -> None:
        self.screen = Screen()
        self.socket: str | None = None
        self.deadline_s = DEADLINE_S

    @contextmanager
    def client(self) -> Iterator["SyncClient"]:
        """The daemon. Raises: ``ConnectFailed``."""
        from ctxd import __version__
        from ctxd_client.sync import connect_sync

        with connect_sync(self.socket_path(), deadline_s=self.deadline_s, client="ctx", version=__version__) as client:
            yield client

    def socket_path(self) -> str | None:
        """What ``--socket``, ``$CTXD_SOCKET`` or a file of settings says; null to look at the usual places."""
        if self.socket or os.environ.get("CTXD_SOCKET"):
            return self.socket
        from ctxd.config import load

        config = load()
        return str(config.socket) if config.origins["socket"].startswith("file") else None


def common(run: Callable[Concatenate[Invocation, P], R]) -> Callable[P, R]:
    """Give a command the options that all have, and hand it the ``Invocation``."""

    @click.option("--json", "as_json", is_flag=True, help="One JSON document instead of text.")
    @click.option("--socket", metavar="PATH", help="The daemon's socket.")
    @click.option("--timeout", "deadline_s", type=click.FloatRange(min=0.001), metavar="SECONDS", help="Per call.")
    @click.pass_context
    @functools.wraps(run)
    def wrapper(ctx: click.Context, /, *args: Any, **options: Any) -> R:  # noqa: ANN401 - click's own
        invocation = ctx.ensure_object(Invocation)
        adopt(invocation, options)
        return run(invocation, *args, **options)

    return wrapper


def listing(run: Callable[P, R]) -> Callable[P, R]:
    """Give a command ``-q``; stands above ``common``'s options in the help."""
    return click.option("-q", "--quiet", is_flag=True, help="Ids only, one a line.")(run)


def paged(run: Callable[P, R]) -> Callable[P, R]:
    """Give a command ``limit`` and ``cursor``; ``tell_more`` says what to do with the next one."""
    from ctxd_protocol.limits import PAGE_ITEMS_MAX

    most = click.IntRange(1, PAGE_ITEMS_MAX)
    limit = click.option("--limit", type=most, default=100, show_default=True, help="At most so many.")
    return limit(click.option("--cursor", metavar="CURSOR", help="Go on where the last listing ended.")(run))


def tell_more(run: Invocation, next_cursor: str | None) -> None:
    """Tell a person how to go on behind a page, unless it was the last."""
    if next_cursor is not None:
        run.screen.note(f"there are more: --cursor {next_cursor}")


def adopt(invocation: Invocation, options: dict[str, Any]) -> None:
    """Move the common options out of ``options`` into the invocation; what stood before the command's name stays."""
    screen = invocation.screen
    screen.as_json = options.pop("as_json", False) or screen.as_json
    screen.quiet = options.pop("quiet", False) or screen.quiet
    invocation.socket = options.pop("socket", None) or invocation.socket
    invocation.deadline_s = options.pop("deadline_s", None) or invocation.deadline_s


session_argument = click.argument("session", required=False)
"""A session by id or unique prefix; without it ``$CTXD_SESSION``, then the only session there is."""

session_option = click.option(
    "-s", "--session", metavar="SESSION", help="Session; else $CTXD_SESSION, else the only one."
)
