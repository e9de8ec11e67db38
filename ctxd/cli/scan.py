"""``ctx scan``: find secrets in files and in the daemon's store.

A secret itself is never shown: only its rule and its place, and in the daemon's data a tag, which is equal for equal
secrets.
"""

import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, Final

import click
import msgspec

from ctxd.cli.common_options import Invocation, common, require_one_scope, session_option
from ctxd.cli.exit_codes import FAILURE, FOUND, OK
from ctxd.cli.revision_lookup import session_id
from ctxd.click_support import Command, ExclusiveOptions, Stop
from ctxd.formatting import count
from ctxd_protocol.limits import PAGE_ITEMS_MAX

if TYPE_CHECKING:
    from ctxd.secrets.redaction import Guard

_FILE_BYTES_MAX: Final = 64 * 1024 * 1024
_SHORT_BYTES: Final = 1024 * 1024
_IGNORED: Final = frozenset({".git", "node_modules", ".venv", "__pycache__"})
_LEFT_OUT_SHOWN: Final = 3

_PAGE: Final = min(500, PAGE_ITEMS_MAX)


class FoundSecret(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One secret: its place, the line it begins on (0 for arguments, metadata and chats), the rule, and in the daemon's
    data its tag. A tag needs the daemon's key, so files on disk have none."""

    place: str
    line: int
    rule: str
    tag: str = ""


class LeftOut(msgspec.Struct, frozen=True):
    """A place that was not searched, and the reason."""

    place: str
    reason: str


class _Found(msgspec.Struct):
    """Result of a scan. ``left_out``: what should have been searched; ``excluded``: commits that are too large."""

    items: list[FoundSecret] = []
    scanned: int = 0
    left_out: list[LeftOut] = []
    excluded: int = 0


@click.command(
    cls=Command, examples="ctx scan\nctx scan src notes.md\ngit diff | ctx scan -\nctx scan -s s1\nctx scan --all"
)
@click.argument("paths", nargs=-1, type=click.Path(path_type=Path, allow_dash=True))
@session_option
@click.option("--all", "everything", is_flag=True, help="Search the objects of all sessions.")
@click.option("--history", is_flag=True, help="Search earlier versions in the store too.")
@click.option("--rules", type=click.Path(path_type=Path), help="A file of rules [default: as configured].")
@common
def scan(
    run: Invocation, paths: tuple[Path, ...], session: str | None, everything: bool, history: bool, rules: Path | None
) -> int:
    """Look for secrets in PATHS, or in the data of the daemon.

    Directories are searched recursively; '-' reads standard input; the default is the current directory. --session and
    --all search the daemon's data: files, tool calls, system prompts, labels, paths, entries, declared tools, chats
    turn by turn, and captured and imported commits with their summaries, but no artifacts. Equal secrets in this data
    have equal tags.

    Exits with 0 if no secret is found, with 8 if one is, and with 1 if something cannot be read, also a file of more
    than 64 MiB. With --json, "left_out" names it.
    """
    if paths and (session or everything):
        option = "--session" if session else "--all"
        raise ExclusiveOptions("PATHS", option, reason=f"{option} searches the daemon's data")
    in_daemon = everything or bool(session)
    if history and not in_daemon:
        raise click.UsageError("--history requires --session or --all: files on disk have no versions")
    if rules is not None and in_daemon:
        raise click.UsageError("--rules applies only to PATHS: the daemon's data is searched by the daemon's rules")
    require_one_scope(everything, session)
    found = _stored(run, session, history) if in_daemon else _on_disk(paths or (Path(),), rules)
    hits = found.items
    if run.screen.as_json:
        run.screen.document(found)
    else:
        if hits:
            columns = ("PLACE", "LINE", "RULE", "TAG") if in_daemon else ("PLACE", "LINE", "RULE")
            rows = [(hit.place, str(hit.line or "-"), hit.rule, hit.tag)[: len(columns)] for hit in hits]
            run.screen.table(columns, rows, right=(1,))
        if found.scanned or not found.left_out:
            searched = "object" if in_daemon else "file"
            run.screen.note(f"{count(len(hits), 'secret')} in {count(found.scanned, searched)}")
    if found.excluded:
        has = "is left out: its delta has" if found.excluded == 1 else "are left out: their deltas have"
        run.screen.note(f"{count(found.excluded, 'commit')} {has} more than 16 MiB")
    if found.left_out:
        raise _incomplete(found.left_out, in_daemon=in_daemon)
    return FOUND if hits else OK


def _incomplete(left_out: Sequence[LeftOut], *, in_daemon: bool) -> Stop:
    """The error for a scan that had to leave something out."""
    names = ", ".join(
        each.place if in_daemon else f"{each.place} ({each.reason})" for each in left_out[:_LEFT_OUT_SHOWN]
    )
    names += ", …" if len(left_out) > _LEFT_OUT_SHOWN else ""
    if in_daemon:
        hint = "run ctxd verify, and restore a backup"
        return Stop(FAILURE, f"{count(len(left_out), 'commit')} cannot be read: {names}", hint=hint, symbol="corrupt")
    message = f"{count(len(left_out), 'path')} {'was' if len(left_out) == 1 else 'were'} not searched: {names}"
    return Stop(FAILURE, message, hint="make them readable, or name the other paths", symbol="unreadable")


def guard_or_stop(rules: Path | None = None) -> "Guard":
    """Return ``host_guard(rules)``. Raises: Stop for invalid rules; ConfigError."""
    from ctxd.client_secret_scan import host_guard
    from ctxd.secrets.custom_rules import RulesRefused

    try:
        return host_guard(rules)
    except RulesRefused as refused:
        raise Stop(FAILURE, str(refused), symbol="rules") from None


def _on_disk(paths: tuple[Path, ...], rules: Path | None) -> _Found:
    guard = guard_or_stop(rules)
    found = _Found()
    for place, data in _texts(paths, found.left_out):
        found.scanned += 1
        for hit in guard.scanner.hits(data):
            line = data.count(b"\n", 0, hit.start) + 1
            found.items.append(FoundSecret(place=guard.redacted(place), line=line, rule=hit.rule))
    found.left_out = [LeftOut(guard.redacted(each.place), each.reason) for each in found.left_out]
    return found


def _texts(paths: tuple[Path, ...], left_out: list[LeftOut]) -> Iterator[tuple[str, bytes]]:
    """Yield each file with its path. What cannot be read is added to ``left_out``."""

    def leave_out(error: OSError) -> None:
        left_out.append(LeftOut(str(error.filename), str(error.strerror)))

    for path in paths:
        if str(path) == "-":
            yield from _bounded("-", sys.stdin.buffer, left_out)
        elif os.path.isdir(path):
            path.absolute()  # Raises in a deleted directory, which looks empty.
            for folder, folders, names in os.walk(path, onerror=leave_out):
                folders[:] = sorted(set(folders) - _IGNORED)
                for name in sorted(names):
                    yield from _file(Path(folder, name), left_out, is_named=False)
        else:
            yield from _file(path, left_out, is_named=True)


def _file(path: Path, left_out: list[LeftOut], *, is_named: bool) -> Iterator[tuple[str, bytes]]:
    try:
        if not path.is_file() and not is_named:
            return
        with path.open("rb") as file:
            yield from _bounded(str(path), file, left_out)
    except OSError as error:
        left_out.append(LeftOut(str(path), error.strerror or str(error)))


def _bounded(place: str, file: BinaryIO, left_out: list[LeftOut]) -> Iterator[tuple[str, bytes]]:
    """Yield ``place`` with what ``file`` has, unless it is too long: a device, a pipe or a log may have no end."""
    # Room for the longest file costs more than to read a short one.
    data = file.read(_SHORT_BYTES)
    if len(data) == _SHORT_BYTES:
        data += file.read(_FILE_BYTES_MAX + 1 - _SHORT_BYTES)
    if len(data) > _FILE_BYTES_MAX:
        left_out.append(LeftOut(place, f"more than {_FILE_BYTES_MAX >> 20} MiB"))
    else:
        yield place, data


def _stored(run: Invocation, session: str | None, history: bool) -> _Found:
    found = _Found()
    with run.client() as client:
        id = session_id(client, session) if session else None
        cursor: str | None = None
        while True:
            page = client.object_scan(session=id, history=history, limit=_PAGE, cursor=cursor)
            found.scanned += page.scanned
            found.excluded += page.left_out
            found.left_out += [LeftOut(commit, "damaged") for commit in page.unreadable]
            for row in page.objects:
                line = row.lines[0] if row.lines else 0
                place = f"{row.object} {row.label}"
                found.items += [FoundSecret(place=place, line=line, rule=each.rule, tag=each.tag) for each in row.found]
            cursor = page.next_cursor
            if cursor is None:
                return found
