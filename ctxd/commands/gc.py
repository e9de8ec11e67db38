"""``ctxd gc``: empty the trash and retire idle sessions, through the running daemon."""

import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import click

from ctxd.click_support import FAILURE, Stop
from ctxd.commands.command_support import AbsolutePath, config_option, json_option, progress, show
from ctxd.formatting import clause, count, size, span
from ctxd.terminal import cell
from ctxd_protocol.methods.sessions import CollectedSession

_UNIT_MS: Final = {"s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000, "w": 604_800_000}
_LENGTH: Final = re.compile(r"(\d{1,9})([smhdw])", re.ASCII)
_DEADLINE_S: Final = 120.0
_SHOWN_MAX: Final = 20
"""Sessions that are listed for each action."""

_TITLE_CHARS_MAX: Final = 40

_REASONS: Final = {
    "clock": "the journal confirms only {confirmed} of its age; --force trusts the clock",
    "forked": "a fork of it exists",
    "sandbox": "a registered sandbox may use it",
    "in_use": "calls are in progress, or a client follows its notices",
    "elsewhere": "it continues on another host",
}


class _Length(click.ParamType):  # type: ignore[type-arg]  # older releases of click have no parameters
    name = "duration"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:  # noqa: ANN401
        """Return a duration, given as a number with a unit, in milliseconds."""
        found = _LENGTH.fullmatch(str(value))
        if found is None:
            self.fail(
                f"{value!r} is not a duration: write a number and s, m (minutes), h, d or w, such as 90d.", param, ctx
            )
        return int(found[1]) * _UNIT_MS[found[2]]


@click.command()
@click.option(
    "--keep", type=_Length(), metavar="TIME", default="90d", show_default=True,
    help="Age: a number with s, m (minutes), h, d or w, such as 90d.",
)  # fmt: skip
@click.option("--dry-run", is_flag=True, help="Report only; change nothing.")
@click.option("--force", is_flag=True, help="Accept ages by the host's clock that the journal does not confirm.")
@click.option("--socket", type=AbsolutePath(), help="The daemon's socket [default: the configured one].")
@json_option
@config_option
def gc(keep: int, dry_run: bool, force: bool, socket: Path | None, as_json: bool, config: Path | None) -> None:
    """Erase sessions that were moved to the trash over --keep ago, and move sessions idle for that long to the trash.

    Requires a running daemon (--socket). Files, artifacts and commits are kept, and so are tool calls that other
    sessions share. Commits that the daemon made automatically are erased unless a tag, a session or a kept commit
    refers to them. A session is idle from its last write to this state on, an imported one from its import on, whatever
    the times of its events. `ctx session restore` restores a session from the trash until it is erased.

    \b
    Examples:
      ctxd gc --keep 90d --dry-run
      ctxd gc --keep 90d --json
    """
    found = _collect(_socket(socket, config), keep, dry_run=dry_run, force=force)
    emptied = [each for each in found if each.action == "emptied"]
    retired = [each for each in found if each.action == "retired"]
    kept = [each for each in found if each.action == "kept"]
    freed = sum(each.bytes for each in emptied)
    may = "would be " if dry_run else ""
    lines = [
        *_lines(emptied, f"{may}erased", lambda each: size(each.bytes)),
        *_lines(retired, f"{may}moved to the trash", lambda each: f"idle for {span((each.age_ms or 0) / 1000)}"),
        *_lines(kept, "kept", _reason),
        f"{count(len(emptied), 'session')} {may}erased ({size(freed)}), {len(retired):,} {may}moved to the trash, "
        + (f"{len(kept):,} kept" if kept else "the rest are newer"),
    ]
    document = {"dry_run": dry_run, "keep_ms": keep, "bytes": freed, "sessions": found}
    show(as_json, document, "\n".join(lines))


def _lines(found: list[CollectedSession], action: str, why: Callable[[CollectedSession], str]) -> list[str]:
    """The lines of the first sessions with one ``action``, and of how many are left out."""
    shown = [f"{each.session}{_titled(each)}: {action}, {why(each)}" for each in found[:_SHOWN_MAX]]
    left = len(found) - len(shown)
    return [*shown, f"{left:,} more {action}; --json lists them"] if left else shown


def _titled(found: CollectedSession) -> str:
    title = " ".join(found.title.split())
    cut = title if len(title) <= _TITLE_CHARS_MAX else title[: _TITLE_CHARS_MAX - 1].rstrip() + "…"
    return f" ({cell(cut)})" if cut else ""


def _reason(kept: CollectedSession) -> str:
    return _REASONS[kept.reason or ""].format(confirmed=span((kept.confirmed_ms or 0) / 1000))


def _socket(given: Path | None, config: Path | None) -> str | None:
    """The socket given by the flags or a configuration file; None to use the environment or the default places."""
    if given is not None:
        return str(given)
    if os.environ.get("CTXD_SOCKET") and config is None:
        return None
    from ctxd.config import load

    found = load(file=config)
    return str(found.socket) if found.origins["socket"].startswith("file") else None


def _collect(socket: str | None, keep_ms: int, *, dry_run: bool, force: bool) -> list[CollectedSession]:
    from ctxd.remedies import in_commands
    from ctxd_client.errors import CallFailed, ConnectFailed
    from ctxd_client.sync import connect_sync

    found: list[CollectedSession] = []
    try:
        with connect_sync(socket, deadline_s=_DEADLINE_S, client="ctxd gc") as client:
            cursor: str | None = None
            while True:
                page = client.session_gc(keep_ms, dry_run=dry_run, force=force, cursor=cursor)
                found += page.sessions
                progress(f"sessions: {len(found):,}")
                cursor = page.next_cursor
                if cursor is None:
                    return found
    except ConnectFailed as error:
        raise Stop(os.EX_UNAVAILABLE, error.message, hint=clause(error.hint), symbol=error.code) from error
    except CallFailed as error:
        raise Stop(FAILURE, error.message, hint=clause(in_commands(error.hint)), symbol=error.code) from error
    finally:
        progress("")
