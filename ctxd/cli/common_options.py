"""One run of ``ctx``: the common options, the output, and the connection to the daemon."""

import functools
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Concatenate, Final, ParamSpec, TypeVar

import click

from ctxd.cli.daemon_socket import named_socket
from ctxd.cli.id_completion import objects as complete_objects
from ctxd.cli.id_completion import sessions as complete_sessions
from ctxd.click_support import ExclusiveOptions
from ctxd.terminal import Screen

if TYPE_CHECKING:  # `ctx --version` and `ctx --help` must not wait for the client to load
    from ctxd_client.errors import CallFailed
    from ctxd_client.sync import SyncClient

P = ParamSpec("P")
R = TypeVar("R")


class Seconds(click.FloatRange):
    """A finite number of seconds on the command line."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:  # noqa: ANN401
        """Return ``value`` as a number in the range."""
        seconds = super().convert(value, param, ctx)
        if not math.isfinite(seconds):
            self.fail(f"{value!r} is not a finite number.", param, ctx)
        if seconds > _SECONDS_MAX:
            self.fail(f"{value!r} is more than {_SECONDS_MAX:,.0f}.", param, ctx)
        return seconds


class WholeNumber(click.IntRange):
    """A whole number on the command line, from ``least`` on."""

    def __init__(self, least: int) -> None:
        super().__init__(min=least)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:  # noqa: ANN401
        """Return ``value`` as a number in the range that the protocol can transfer."""
        from ctxd_protocol.limits import SAFE_INTEGER_MAX

        number = super().convert(value, param, ctx)
        if number > SAFE_INTEGER_MAX:
            self.fail(f"{value} is more than {SAFE_INTEGER_MAX:,}.", param, ctx)
        return number


DEADLINE_S: Final = 30.0
"""Default of ``--timeout``: seconds to wait for each reply."""


_SECONDS_MAX: Final = 1e9
"""Longest time that the client library accepts."""

_QUIET_S: Final = 1.0
"""Seconds for which a call is repeated without a note."""


class Invocation:
    """One run of the program: its output, and its connection to the daemon."""

    def __init__(self) -> None:
        self.screen = Screen()
        self.socket: str | None = None
        self.deadline_s = DEADLINE_S
        self._is_retry_noted = False

    @contextmanager
    def client(self) -> Iterator["SyncClient"]:
        """Connect to the daemon. Raises: ``ConnectFailed``."""
        from ctxd import __version__
        from ctxd_client.sync import connect_sync

        with connect_sync(
            self.socket_path(),
            deadline_s=self.deadline_s,
            client="ctx",
            version=__version__,
            on_retry=self.note_retry,
        ) as client:
            yield client

    def note_retry(self, failure: "CallFailed", elapsed_s: float) -> None:
        """Print once why a call takes long: its ``failure``, after which it is repeated."""
        if elapsed_s >= _QUIET_S and not self._is_retry_noted:
            self._is_retry_noted = True
            self.screen.note(f"{failure.message}; retrying for up to {self.deadline_s:g} s")

    def socket_path(self) -> str | None:
        """The socket named by ``--socket``, ``$CTXD_SOCKET`` or a configuration file; None for the default places."""
        return named_socket(self.socket)


def common_options(run: Callable[P, R], *, json: str = "One JSON document instead of text.") -> Callable[P, R]:
    """Add the options that may stand before or after a command's name. ``json``: the help of ``--json``."""
    for option in (
        click.option(
            "--timeout",
            "deadline_s",
            type=Seconds(min=0.001),
            metavar="SECONDS",
            help=f"Seconds per call [default: {DEADLINE_S:.0f}].",
        ),
        click.option(
            "--socket", metavar="PATH", help="The daemon's socket [default: $CTXD_SOCKET, then the usual places]."
        ),
        click.option("--json", "as_json", is_flag=True, help=json),
    ):
        run = option(run)
    return run


def common(run: Callable[Concatenate[Invocation, P], R]) -> Callable[P, R]:
    """Add the options that every command has, and pass the ``Invocation`` as the first argument."""
    return common_options(_with_invocation(run))


def streaming(run: Callable[Concatenate[Invocation, P], R]) -> Callable[P, R]:
    """As ``common``, for a command that prints many documents."""
    return common_options(_with_invocation(run), json="JSON lines instead of text.")


def _with_invocation(run: Callable[Concatenate[Invocation, P], R]) -> Callable[P, R]:
    @click.pass_context
    @functools.wraps(run)
    def wrapper(ctx: click.Context, /, *args: Any, **options: Any) -> R:  # noqa: ANN401 - click's own
        invocation = ctx.ensure_object(Invocation)
        adopt(invocation, options)
        return run(invocation, *args, **options)

    return wrapper


def quiet(help: str) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Add ``-q`` with its ``help``; apply above ``common``, so that the help lists it first."""
    return click.option("-q", "--quiet", is_flag=True, help=help)


def listing(run: Callable[P, R]) -> Callable[P, R]:
    """Add ``-q`` for ids; apply above ``common``."""
    return quiet("Ids only, one per line.")(run)


def require_one_scope(everything: bool, session: str | None) -> None:
    """Check that not both --all and --session are given. Raises: ``ExclusiveOptions``."""
    if everything and session is not None:
        raise ExclusiveOptions("--all", "--session")


def paged(run: Callable[P, R]) -> Callable[P, R]:
    """Add ``--limit`` and ``--cursor``."""
    from ctxd_protocol.limits import PAGE_ITEMS_MAX

    most = click.IntRange(1, PAGE_ITEMS_MAX)
    limit = click.option("--limit", type=most, default=100, show_default=True, help="Maximum number of results.")
    return limit(click.option("--cursor", metavar="CURSOR", help="Continue where the previous page ended.")(run))


def note_next_page(run: Invocation, next_cursor: str | None) -> None:
    """Print on standard error how to get the next page, unless this was the last one."""
    if next_cursor is not None:
        run.screen.note(f"more results: --cursor {next_cursor}")


def adopt(invocation: Invocation, options: dict[str, Any]) -> None:
    """Move the common options out of ``options`` into ``invocation``; options given before the command's name stay."""
    screen = invocation.screen
    screen.as_json = options.pop("as_json", False) or screen.as_json
    screen.quiet = options.pop("quiet", False) or screen.quiet
    invocation.socket = options.pop("socket", None) or invocation.socket
    invocation.deadline_s = options.pop("deadline_s", None) or invocation.deadline_s


session_argument = click.argument("session", required=False, shell_complete=complete_sessions)
"""A session by id or unique prefix; see ``session_lookup.named_session`` for the default."""

sessions_argument = click.argument(
    "sessions", metavar="SESSION...", nargs=-1, required=True, shell_complete=complete_sessions
)
"""Sessions by id or unique prefix, one or more."""

revision_argument = click.argument("revision", metavar="[REV]", required=False, shell_complete=complete_sessions)
"""A session, or a moment of it; see ``ctxd.cli.revisions``."""

session_option = click.option(
    "-s",
    "--session",
    metavar="SESSION",
    shell_complete=complete_sessions,
    help="Session [default: $CTXD_SESSION, the only open one, or the one at the current directory].",
)

harness_option = click.option(
    "--harness",
    metavar="HARNESS",
    callback=lambda _context, _option, given: "claude-code" if given == "claude" else given,
    help="Only sessions of this harness: claude, codex, pi, opencode, …",
)
"""A harness, by its name in ``ctx import`` and ``ctx install``, or by the name of its agent."""

object_argument = click.argument("object", shell_complete=complete_objects)
"""An object by id, unique prefix or path; see ``object_lookup.object_id``."""
