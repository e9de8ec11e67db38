"""``ctx scan``: find secrets in files and in the daemon's store.

A secret itself is never shown: only its rule and its place, and in the daemon's data a tag, which is equal for equal
secrets.
"""

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click
import msgspec

from ctxd.cli.common_options import Invocation, common, session_option
from ctxd.cli.exit_codes import FAILURE, FOUND, OK
from ctxd.cli.revision_lookup import session_id
from ctxd.click_support import Command, Stop
from ctxd.formatting import count
from ctxd_protocol.limits import PAGE_ITEMS_MAX

if TYPE_CHECKING:
    from ctxd.secrets.redaction import Guard

_FILE_BYTES_MAX: Final = 64 * 1024 * 1024
_LEFT_OUT: Final = frozenset({".git", "node_modules", ".venv", "__pycache__"})
_UNREADABLE_SHOWN: Final = 3

_PAGE: Final = min(500, PAGE_ITEMS_MAX)


class FoundSecret(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One secret: its place, the line it begins on (0 for arguments, metadata and chats), the rule, and in the daemon's
    data its tag. A tag needs the daemon's key, so files on disk have none."""

    place: str
    line: int
    rule: str
    tag: str = ""


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

    Exits with 0 if no secret is found, with 8 if one is, and with 1 if something cannot be read.
    """
    if paths and (session or everything):
        raise click.UsageError("PATHS exclude --session and --all, which search the daemon's data")
    in_daemon = everything or bool(session)
    if history and not in_daemon:
        raise click.UsageError("--history requires --session or --all: files on disk have no versions")
    unreadable: list[str] = []
    if in_daemon:
        hits, scanned, unreadable = _stored(run, session, history)
    else:
        hits, scanned = _on_disk(run, paths or (Path(),), rules)
    if run.screen.as_json:
        run.screen.document({"items": hits, "scanned": scanned})
    else:
        if hits:
            columns = ("PLACE", "LINE", "RULE", "TAG") if in_daemon else ("PLACE", "LINE", "RULE")
            rows = [(hit.place, str(hit.line or "-"), hit.rule, hit.tag)[: len(columns)] for hit in hits]
            run.screen.table(columns, rows, right=(1,))
        searched = "object" if in_daemon else "file"
        run.screen.note(f"{count(len(hits), 'secret')} in {count(scanned, searched)}")
    if unreadable:
        names = ", ".join(unreadable[:_UNREADABLE_SHOWN]) + (", …" if len(unreadable) > _UNREADABLE_SHOWN else "")
        hint = "run ctxd verify, and restore a backup"
        raise Stop(FAILURE, f"{count(len(unreadable), 'commit')} cannot be read: {names}", hint=hint, symbol="corrupt")
    return FOUND if hits else OK


def guard_or_stop(rules: Path | None = None) -> "Guard":
    """Return ``host_guard(rules)``. Raises: Stop for invalid rules; ConfigError."""
    from ctxd.client_secret_scan import host_guard
    from ctxd.secrets.custom_rules import RulesRefused

    try:
        return host_guard(rules)
    except RulesRefused as refused:
        raise Stop(FAILURE, str(refused), symbol="rules") from None


def _on_disk(run: Invocation, paths: tuple[Path, ...], rules: Path | None) -> tuple[list[FoundSecret], int]:
    guard = guard_or_stop(rules)
    hits: list[FoundSecret] = []
    scanned = 0
    for place, data in _texts(run, paths):
        scanned += 1
        for hit in guard.scanner.hits(data):
            line = data.count(b"\n", 0, hit.start) + 1
            hits.append(FoundSecret(place=guard.redacted(place), line=line, rule=hit.rule))
    return hits, scanned


def _texts(run: Invocation, paths: tuple[Path, ...]) -> Iterator[tuple[str, bytes]]:
    for path in paths:
        if str(path) == "-":
            yield "-", sys.stdin.buffer.read()
        elif path.is_dir():
            for folder, folders, names in os.walk(path):
                folders[:] = sorted(set(folders) - _LEFT_OUT)
                for name in sorted(names):
                    yield from _file(run, Path(folder, name), named=False)
        else:
            yield from _file(run, path, named=True)


def _file(run: Invocation, path: Path, *, named: bool) -> Iterator[tuple[str, bytes]]:
    try:
        if not path.is_file() and not named:
            return
        if path.stat().st_size > _FILE_BYTES_MAX:
            run.screen.note(f"{path} is left out: it has more than {_FILE_BYTES_MAX >> 20} MiB")
            return
        yield str(path), path.read_bytes()
    except OSError as error:
        if named:
            raise Stop(FAILURE, f"{path} cannot be read: {error.strerror}") from None
        run.screen.note(f"{path} is left out: {error.strerror}")


def _stored(run: Invocation, session: str | None, history: bool) -> tuple[list[FoundSecret], int, list[str]]:
    """Return the secrets in the daemon's data, the number of objects searched, and the commits that cannot be read."""
    hits: list[FoundSecret] = []
    unreadable: list[str] = []
    scanned = left_out = 0
    with run.client() as client:
        id = session_id(client, session) if session else None
        cursor: str | None = None
        while True:
            page = client.object_scan(session=id, history=history, limit=_PAGE, cursor=cursor)
            scanned += page.scanned
            left_out += page.left_out
            unreadable += page.unreadable
            for row in page.objects:
                line = row.lines[0] if row.lines else 0
                place = f"{row.object} {row.label}"
                hits += [FoundSecret(place=place, line=line, rule=found.rule, tag=found.tag) for found in row.found]
            cursor = page.next_cursor
            if cursor is None:
                if left_out:
                    has = "is left out: its delta has" if left_out == 1 else "are left out: their deltas have"
                    run.screen.note(f"{count(left_out, 'commit')} {has} more than 16 MiB")
                return hits, scanned, unreadable
