"""Explanation of how a window shows an object: since which assembly, and by which rule.

It is derived from the records of the session's assemblies in the layout of the newest one, and from the session's sets.
If there are requests, only they count: text and blocks were not sent to the model.
"""

from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing
from typing import Final

import msgspec

from ctxd.assembly.append_window import Level
from ctxd.assembly.assembly_record import Recorded, read_record
from ctxd.assembly.recorded_assemblies import Archive
from ctxd.assembly.window_references import STUB, WHOLE, ObjectRef
from ctxd.objects.document import Stored
from ctxd.objects.version_state import is_purged, unkept_text
from ctxd.sessions.live_session import LiveSession
from ctxd_protocol.context_types import RepackReason, ShownAs, WhyRule
from ctxd_protocol.methods.context import WhyResult, WhySince

_REPACKED: Final[dict[RepackReason, WhyRule]] = {
    "cache_expired": "repacked_cache_expired",
    "budget": "repacked_budget",
    "cost": "repacked_cost",
}


class _Look(msgspec.Struct, frozen=True):
    """The state of an object in consecutive assemblies, the first of which is ``since``."""

    shown: ShownAs
    rule: WhyRule
    since: Recorded | None = None
    detail: str | None = None


async def explain(live: LiveSession, id: str, archive: Archive) -> WhyResult:
    """Explain how the newest request of ``live`` shows the object ``id`` of its index; without a request, its newest
    assembly.

    Cost: linear in the references of its records. Raises: CtxdError corrupt, store_failed. Cancel: safe.
    """
    newest = await archive.newest_request(live.session)
    if newest is None:
        step = _Look("none", "not_assembled")
    else:
        async with aclosing(archive.pages(live.session)) as pages:
            step = await (_in_spec if newest.window is None else _in_windows)(live, id, pages, newest)
    head = await archive.head(id)
    if newest is not None and head is not None and is_purged(head.document):
        step = _after_purge(step, is_older=head.valid_time <= newest.assembled_at)
    since = step.since
    # A window that shows an earlier version keeps it.
    unkept = "" if head is None else unkept_text(head.document)
    return WhyResult(
        session=live.session,
        object=id,
        shown=step.shown,
        rule=step.rule,
        detail=f"its newest version is {unkept}" if unkept else step.detail,
        since=None
        if since is None
        else WhySince(
            number=since.number, context_id=since.context_id, turn=since.turn, assembled_at=since.assembled_at
        ),
        layout="spec" if newest is None or newest.window is None else "append",
        level=live.state.level(id),
        pinned=id in live.state.pinned,
    )


def _after_purge(step: _Look, *, is_older: bool) -> _Look:
    """The state ``step`` of an object whose content was purged. It has no assembly, as the content is gone from earlier
    ones too. ``is_older``: the object is older than the newest assembly, which lists it even without content."""
    if step.shown == "line" or (step.rule == "not_assembled" and is_older):
        return _Look("line", "purged")
    return step if step.shown == "none" else _Look("stub", "purged")


def _entered(live: LiveSession, id: str) -> WhyRule:
    """The rule that put the whole content of ``id`` into a window."""
    state = live.state
    if id in state.pinned:
        return "pinned"
    if id in state.chosen:
        return "activated"
    return "read" if state.is_file(id) else "recorded"


def _absent(live: LiveSession, id: str) -> _Look:
    """The state of an object whose content is in no assembly."""
    state = live.state
    if id not in state.pool:
        return _Look("none", "not_in_pool")
    if id in state.active:
        return _Look("none", "not_assembled")
    if id not in state.read:
        return _Look("line", "known_by_name")
    return _Look("line", "not_active")


async def _records(pages: AsyncIterator[list[Stored]]) -> AsyncIterator[Recorded]:
    async for page in pages:
        for stored in page:
            yield read_record(stored)


# --- the layout spec ---


async def _in_spec(live: LiveSession, id: str, pages: AsyncIterator[list[Stored]], newest: Recorded) -> _Look:
    step = _Look("none", "not_assembled")
    async for record in _records(pages):
        if record.window is not None or record.is_request != newest.is_request:
            continue
        found = next((reason for object, reason in record.dropped if object == id), None)
        if found is not None:
            now = _Look("line", "dropped_budget", record, found)
        elif any(object == id for object, *_ in record.active):
            now = _Look("whole", _entered(live, id), record)
        elif step.since is not None:
            now = _Look("line" if id in live.state.pool else "none", "not_active", record)
        else:
            continue
        step = step if (step.shown, step.rule) == (now.shown, now.rule) else now
    return _absent(live, id) if step.since is None else step


# --- the layout append ---


async def _in_windows(live: LiveSession, id: str, pages: AsyncIterator[list[Stored]], newest: Recorded) -> _Look:
    """The state of ``id`` in ``newest``. Assemblies as text extend the window too, so their records are read as
    well."""
    step = _Look("none", "not_assembled")
    mine: list[ObjectRef] = []
    level: Level | None = None
    base = 0
    async for record in _records(pages):
        part = record.window
        if part is None:
            continue
        if part.base == record.number:
            mine, level = [], None
        mine += (ref for ref in part.refs if isinstance(ref, ObjectRef) and ref.object == id)
        for noted in part.noted:
            if noted.object == id:
                # A kept object that the budget cut is active, but is not shown whole.
                level = "pool" if noted.cut_budget else noted.level
        if record.is_request != newest.is_request:
            continue
        begins, base = part.base != base, part.base
        now = _look(live, id, mine, level, record)
        if now.shown == "none" and step.since is not None:
            gone: WhyRule = "compacted" if begins else "left_pool"
            now = _Look("none", "removed_budget" if part.repacked is not None else gone, record)
        if now.shown == "none" and step.since is None:
            continue
        step = step if step.shown == now.shown else now
    if step.since is None:
        return _absent(live, id)
    return step


def _look(live: LiveSession, id: str, refs: Sequence[ObjectRef], level: Level | None, record: Recorded) -> _Look:
    """The state of ``id`` at ``record``. ``refs``: the references to it in that window; ``level``: the level noted for
    it."""
    part = record.window
    assert part is not None, "it is in the layout append"
    contents = [ref for ref in refs if ref.role in ("output", "late", "active", "changed", "call")]
    # Content that was loaded again comes after the content that it replaces.
    best = next((ref for ref in reversed(contents) if ref.shown != STUB), contents[-1] if contents else None)
    if best is None:
        rule: WhyRule = "read_by_call" if level in ("active", "bare") else "listed"
        # A tool call has no line here: the reply shows it.
        is_listed = level in ("active", "bare", "pool") and live.state.is_file(id)
        return _Look("line", rule, record) if is_listed else _Look("none", "not_assembled")
    # An output's reference has its limit even if nothing was cut; only one that is shown whole is noted as active.
    is_whole = best.shown == WHOLE or (best.role in ("output", "late") and best.shown != STUB and level == "active")
    if is_whole:
        rule = _entered(live, id)
        return _Look("whole", "changed" if rule == "read" and best.role == "changed" else rule, record)
    if best.shown == STUB:
        return _Look("stub", _REPACKED[part.repacked or "budget"], record)
    return _Look("cut", "cut_on_entry" if part.repacked is None else "cut_for_budget", record)
