"""Events that the session of an imported source already has, usually from its hooks, else from a hand-over."""

from collections.abc import Sequence
from functools import cache, partial
from itertools import islice
from typing import TYPE_CHECKING, Final

import anyio.lowlevel
import msgspec

from ctxd.clock import Clock
from ctxd.imports.existing_events import ExistingEvents
from ctxd.imports.import_state import SourceState
from ctxd.imports.whole_import_check import WholeImportCheck
from ctxd.transcripts.discovery import Transcript, can_continue, lines_of
from ctxd.transcripts.opencode_storage import STATE
from ctxd.transcripts.transcript_files import SourceSkipped
from ctxd_protocol.event_types import Event
from ctxd_protocol.limits import PAGE_ITEMS_MAX

if TYPE_CHECKING:
    from ctxd.secrets.redaction import Guard
    from ctxd_client import Client

_BYTES_AT_ONCE: Final = 256 * 1024
"""Bytes read between two checkpoints for other tasks."""

_CHECKS_MAX: Final = 16
"""Checks that are kept, so that a growing source is not read from its start again."""

_UNCOMMITTED: Final = "ctx-uncommitted"
"""Stands in a dry run for the commit that an import would make of the session's events."""


async def read_existing_events(
    client: "Client",
    clock: Clock,
    source: Transcript,
    state: SourceState,
    events: Sequence[Event],
    written: int,
    checks: dict[str, WholeImportCheck],
    *,
    dry_run: bool,
) -> ExistingEvents:
    """Return the ``events`` of a source's session, which its import leaves out unless it imports the source whole.

    ``written``: the bytes of the source that a hand-over wrote before them. ``checks``: those of the sources that were
    read last, by path; updated, as is ``state.continued``. Unless ``dry_run``, the events are committed first. Raises:
    CallFailed; as ``lines_of``. Cancel: safe."""
    # Imported lines continue this commit, or form a separate chain.
    own = state.continued if state.continued_at else ""
    if not own and not dry_run:
        own = (await client.context_current(session=source.session)).context_id or ""
    newest = (await client.commit_resolve(session=source.session)).commit
    has_commits = newest is not None and newest.session == source.session
    if dry_run:
        has_commits = has_commits or bool(events)
        found = "" if newest is None else newest.commit
        own = own or found or (_UNCOMMITTED if events else "")
    state.continued = own
    before = clock.wall_ms() if newest is None else newest.created_at_ms
    whole = _end_of_line(source, state.whole_lines) if source.stored is not None and state.whole_lines else state.whole
    make = partial(
        ExistingEvents, events, state.unrecorded, before, own or None, has_commits=has_commits,
        redact=redact_as_stored, written=0 if whole else written, whole=whole,
        continued_at=state.continued_at, is_claude=source.format in ("claude-code", "claude-stream-json"),
    )  # fmt: skip
    existing = make()
    if not (source.agent or source.is_spawned):
        # Once an import has left out recorded events, later imports of the source do so too.
        is_first = state.size == state.unrecorded and not state.whole and not written
        check = await _checked(source, make(), checks.pop(source.path, None), is_first=is_first, imported=state.size)
        existing.is_continuation_newest = not check.is_passed
        if check.is_needed and check.existing.has_met_all:
            existing.complete(check.size)
        else:
            checks[source.path] = check
            while len(checks) > _CHECKS_MAX:
                checks.pop(next(iter(checks)))
    return existing


@cache
def _guard() -> "Guard":
    # Loaded only if a session has redacted text: loading takes as long as importing a small file.
    from ctxd.client_secret_scan import host_guard
    from ctxd.config import ConfigError
    from ctxd.secrets.custom_rules import RulesRefused

    try:
        return host_guard()
    except (RulesRefused, ConfigError) as error:
        raise SourceSkipped(f"the rules for secrets: {error}") from None


def redact_as_stored(text: str) -> str:
    """Return ``text`` as the daemon stores it under ``redact``, except for the tags.

    Raises: SourceSkipped for invalid rules; other sources are still imported.
    """
    return _guard().redacted(text)


async def _checked(
    source: Transcript,
    existing: ExistingEvents,
    earlier: WholeImportCheck | None,
    *,
    is_first: bool,
    imported: int,
) -> WholeImportCheck:
    """Return the check of a source, all of whose lines are read. ``earlier``: has read the first of them, and is
    continued if the source has only grown since. Raises: as ``lines_of``. Cancel: safe."""
    found = WholeImportCheck(source, existing, is_first=is_first, imported=imported)
    if earlier is not None and can_continue(source, earlier.size, earlier.tail):
        found = earlier
        found.continue_with(existing, imported)
        found.is_first = found.is_first and is_first
    unseen = 0
    for line in lines_of(source, found.size):
        unseen += len(line.source)
        if unseen > _BYTES_AT_ONCE:
            unseen = 0
            await anyio.lowlevel.checkpoint()
        found.add(line)
    return found


def _end_of_line(source: Transcript, number: int) -> int:
    """Return the byte at which line ``number`` ends, from 1, or the last message if there are fewer: messages of a
    database may have changed in place since. Raises: as ``lines_of``."""
    lines = islice(lines_of(source), number)
    return max((line.end for line in lines if STATE not in (line.record or ())), default=0)


async def read_session_events(client: "Client", session: str) -> list[Event]:
    """Return all events in the chat of a session. Raises: CallFailed. Cancel: safe."""
    events: list[Event] = []
    cursor: str | None = None
    while True:
        page = await client.session_events(session, limit=PAGE_ITEMS_MAX, cursor=cursor)
        events += (msgspec.convert(logged.event, Event) for logged in page.events)
        if (cursor := page.next_cursor) is None:
            return events
