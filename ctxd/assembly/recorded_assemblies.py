"""Recorded assemblies: listed, found by number or turn, and rendered again from the store as of their write.

Reads only. Guarantee: a text that is returned has the recorded hash; otherwise an error is raised.
"""

from collections import OrderedDict
from collections.abc import AsyncGenerator, Iterable
from contextlib import aclosing
from typing import Final

import msgspec

from ctxd.assembly.append_rendering import KeptWindow, context_of_window, recall
from ctxd.assembly.assembly_record import Assembled, Recorded, context_of, read_record, target_of
from ctxd.assembly.pricing import cost_of
from ctxd.assembly.request_bodies import WINDOW_RENDERERS, spec_request
from ctxd.assembly.spec_layout import Composition, Heads, Layout, View, compose
from ctxd.assembly.spec_rendering import RENDERERS
from ctxd.assembly.token_budget import TokenCounter, sha256
from ctxd.assembly.window_lanes import WindowLanes
from ctxd.assembly.window_loading import ReadBound, WindowReader
from ctxd.assembly.window_references import versions_of
from ctxd.errors import PURGED_HINT, CtxdError
from ctxd.formatting import moment
from ctxd.models import Models
from ctxd.objects.document import AsOf, Page, Stored, require_text
from ctxd.objects.generated_ids import assemblies_prefix, number_of, session_of
from ctxd.objects.version_state import is_purged, is_reclaimed
from ctxd.sessions.chat import read_pages
from ctxd.sessions.event_erasure import PURGED_ATTACHMENT
from ctxd.sessions.live_session import LiveSession
from ctxd.sessions.registry import Sessions
from ctxd.store.version_store import VersionStore
from ctxd_protocol.event_types import Event, PromptEvent, ToolCallEvent
from ctxd_protocol.ids import chat_id, system_prompt_id
from ctxd_protocol.session_types import PURGED_TEXT

_PAGE_BYTES: Final = 64 * 1024
"""Bytes of records read at once: they are decoded on the event loop, and a record lists everything that was active."""


_OTHER_VERSION: Final = "Read it with the version of ctxd that recorded it."

_SESSIONS_KEPT: Final = 64
_IDS_KEPT_MAX: Final = 50_000
"""Sessions whose context ids are kept in memory, and ids of them all, about 150 bytes for each; those of one session
are kept in any case."""


class Recordings(msgspec.Struct):
    """Index of a session's records: their numbers by context id, up to number ``last``, and the newest number of each
    layout, 0 for none."""

    numbers: dict[str, int] = {}
    last: int = 0
    spec: int = 0
    append: int = 0


class Archive:
    """The recorded assemblies of all sessions. Everything read is durable. ``layout``: makes the sections of a context
    in the layout ``spec``. ``models``: the models that requests may be made for."""

    def __init__(
        self, store: VersionStore, sessions: Sessions, layout: Layout, count: TokenCounter, models: Models
    ) -> None:
        self._store = store
        self.models = models
        self._sessions = sessions
        self.layout = layout
        self.count = count
        self.windows = WindowReader(store, count, WindowLanes(sessions.visibility))
        self._recordings: OrderedDict[tuple[str, int, int], Recordings] = OrderedDict()

    async def pages(
        self, session: str, *, after: int = 0, limit: int | None = None
    ) -> AsyncGenerator[list[Stored], None]:
        """Read the records of ``session`` with a number above ``after``, in order, at most ``limit``, a few at a time.

        Raises: CtxdError session_not_found, corrupt, store_failed. Cancel: safe.
        """
        lineage = self._sessions.lineage(session)
        is_empty = True
        while page := await lineage.assemblies_after(self._store, after, limit=limit, size=_PAGE_BYTES):
            if is_reclaimed(page[0].document):
                break
            is_empty = False
            yield page
            after = number_of(page[-1].document.id)
            limit = None if limit is None else limit - len(page)
            if limit == 0:
                return
        if is_empty:
            await self._sessions.live(session)

    async def records(self, session: str, *, after: int = 0, limit: int | None = None) -> list[Recorded]:
        """The records that ``pages`` reads, in one list. Raises and cancel: as ``pages``."""
        found: list[Recorded] = []
        async with aclosing(self.pages(session, after=after, limit=limit)) as pages:
            async for page in pages:
                found += map(read_record, page)
        return found

    async def recordings(self, live: LiveSession) -> Recordings:
        """The index of the records of ``live``. Cost: linear in the records added since the last call.

        Raises: CtxdError store_failed. Cancel: safe.
        """
        # The id of a removed session may be used again.
        key = (live.session, live.settings.created_at, live.settings.ordinal)
        known = self._recordings.get(key)
        if known is None or known.last > live.assembly:
            known = self._recordings[key] = Recordings()
        self._recordings.move_to_end(key)
        while len(self._recordings) > 1 and (
            len(self._recordings) > _SESSIONS_KEPT
            or sum(len(each.numbers) for each in self._recordings.values()) > _IDS_KEPT_MAX
        ):
            self._recordings.popitem(last=False)
        if known.last < live.assembly:
            async with aclosing(self.pages(live.session, after=known.last)) as pages:
                async for page in pages:
                    for payload in (stored.document.payload for stored in page):
                        number = known.last = payload["number"]
                        known.numbers[payload["context_id"]] = number
                        is_append = payload.get("window") is not None
                        known.spec, known.append = (known.spec, number) if is_append else (number, known.append)
        return known

    async def newest_requests(self, session: str, most: int) -> list[Recorded]:
        """The newest requests of ``session`` in the layout ``append``, at most ``most``, oldest first. Raises:
        CtxdError corrupt, store_failed. Cancel: safe."""
        found: list[Recorded] = []
        newest, lineage = await self.newest(session), self._sessions.lineage(session)
        before = 1 if newest is None else number_of(newest.document.id) + 1
        while len(found) < most and (stored := await lineage.assemblies_before(self._store, before, size=_PAGE_BYTES)):
            records = map(read_record, stored)
            found += [each for each in records if each.window is not None and each.window.format is not None]
            before = number_of(stored[-1].document.id)
        return found[:most][::-1]

    async def show(
        self,
        session: str,
        *,
        number: int | None = None,
        turn: int | None = None,
        at: int | None = None,
        bytes_max: int | None = None,
        confined: bool = False,
    ) -> Assembled:
        """Return an assembly, byte for byte as it was recorded: ``number``; or the newest request of ``turn``, else its
        newest assembly; or the same of the newest turn assembled up to the time ``at``, in ms since 1970; or the newest
        of all. ``confined``: for a sandbox, from which one with a file version that it may not see is hidden.

        Raises: CtxdError session_not_found, assembly_not_found, too_large (more than ``bytes_max``), unsupported
        (recorded in a format that this version does not render), purged (it showed content that was purged), corrupt
        (the store's content does not render to the recorded hash), store_failed. Cancel: safe.
        """
        stored = await self._find(session, number, turn, at)
        recorded = read_record(stored)
        if bytes_max is not None and recorded.bytes > bytes_max:
            message = f"assembly {recorded.number} has {recorded.bytes:,} bytes; the limit is {bytes_max:,}"
            raise CtxdError("too_large", message, hint="Read it on the host's socket.")
        if recorded.window is not None and recorded.renderer in WINDOW_RENDERERS:
            return await self._show_window(session, recorded, ReadBound(session, bytes_max), confined=confined)
        if confined:
            await self._require_visible(await self._sessions.live(session), recorded, recorded.active)
        composition, text = await self.render_again(session, stored, recorded)
        context = context_of(session, recorded, composition, text)
        if recorded.form is None:
            return Assembled(context)
        target = target_of(self._sessions.lineage(session).root, recorded.form, await self._tools(stored))
        assert target is not None, "a form has a format"
        return Assembled(context).with_request(spec_request(context.blocks, target).body)

    async def recall(
        self, live: LiveSession, last: Recorded, bound: ReadBound, *, has_blocks: bool = False
    ) -> KeptWindow:
        """The window of ``last``, an assembly in the layout ``append``, as it was then. ``has_blocks``: see ``render``.

        Raises: CtxdError too_large, unsupported, corrupt, store_failed. Cancel: safe.
        """
        if last.window is None or last.renderer not in WINDOW_RENDERERS:
            id = live.lineage.assembly_id(last.number)
            known = " or ".join(map(str, WINDOW_RENDERERS))
            message = f"{id} has window format {last.renderer}, not {known}"
            raise CtxdError("unsupported", message, hint=_OTHER_VERSION)
        first = last.window.base
        found = await self.records(live.session, after=first - 1, limit=last.number - first + 1)
        chain = [record for record in found if record.window is not None and record.window.base == first]
        stored = await self.at(live.session, last.number)
        tools = None if stored is None else await self._tools(stored)
        return await recall(self.windows, live, chain, tools, bound, has_blocks=has_blocks)

    async def _tools(self, stored: Stored) -> str | None:
        """The tools that the request of the record ``stored`` declares, as JSON; None if there are none."""
        if (ref := stored.content_ref) is None:
            return None
        return require_text((await self._store.contents((ref,)))[ref])

    async def _require_visible(
        self, live: LiveSession, recorded: Recorded, versions: Iterable[tuple[str, int, int]]
    ) -> None:
        """Raises: CtxdError assembly_not_found if the sandbox of ``live`` may not see all ``versions``."""
        if not await self._sessions.visibility.shows(live, versions):
            message = f"assembly {recorded.number} has a version of a file that is hidden from this sandbox"
            raise CtxdError("assembly_not_found", message, hint="Show a later one, or call context.assemble.")

    async def _show_window(self, session: str, last: Recorded, bound: ReadBound, *, confined: bool) -> Assembled:
        live = await self._sessions.live(session)
        kept = await self.recall(live, last, bound, has_blocks=True)
        if confined:
            await self._require_visible(live, last, versions_of(kept.window.refs))
        if kept.rendering is None:
            material = await self.windows.material(live, kept.window.refs, {}, {}, {}, ReadBound(session, None))
            has_gaps = not all(material.components.values())
            id = live.lineage.assembly_id(last.number)
            raise await _mismatch(live, id, material.versions.values(), has_gaps=has_gaps)
        budget, cost = live.settings.budget_tokens, cost_of(last, self.models)
        return Assembled(context_of_window(session, last, kept.rendering, budget, cost))

    async def render_again(self, session: str, stored: Stored, recorded: Recorded) -> tuple[Composition, str]:
        """Return the context and text of ``recorded``, the record in version ``stored``. Raises: as ``show``."""
        if recorded.renderer not in RENDERERS:
            known = " or ".join(map(str, RENDERERS))
            message = f"{stored.document.id} has text format {recorded.renderer}, not {known}"
            raise CtxdError("unsupported", message, hint=_OTHER_VERSION)
        # An ancestor's assembly is rendered in the ancestor's session.
        recorder = session_of(stored.document.id) or session
        live = await self._sessions.as_of(recorder, AsOf(tx=stored.tx))
        state, prompt = live.state, system_prompt_id(live.session)
        called = (mark.toolcall for marks in state.turns for mark in marks if mark and mark.toolcall)
        # In one go: the versions may be read over a network.
        found = await self._store.bulk(list(dict.fromkeys((*state.pool, *called, prompt))), AsOf(tx=stored.tx))

        async def heads(ids: Iterable[str]) -> Heads:
            return {id: found.get(id) for id in ids}

        view = View(live=live, heads=heads, contents=self._store.contents, count=self.count, renderer=recorded.renderer)
        components = self.layout()
        for component in components:
            await component.update(view)
        composition = compose(components, live.settings.budget_tokens, self.count)
        text = composition.text()
        if sha256(text) != recorded.sha256:
            raise await _mismatch(live, stored.document.id, found.values())
        return composition, text

    async def head(self, id: str) -> Stored | None:
        """The newest version of the object ``id``. Raises: CtxdError store_failed. Cancel: safe."""
        return (await self._store.heads((id,)))[id]

    async def newest(self, session: str) -> Stored | None:
        """The newest record of ``session`` in any layout, None if it has none."""
        found = await self._sessions.lineage(session).newest_assembly(self._store)
        return None if found is None or is_reclaimed(found.document) else found

    async def _find(self, session: str, number: int | None, turn: int | None, at: int | None) -> Stored:
        if number is not None and (found := await self.at(session, number)) is not None:
            return found
        newest = await self.newest(session)
        if newest is None:
            await self._sessions.live(session)
            hint = "Call context.assemble, or commit.materialize for a conversation that hooks or an import recorded."
            raise CtxdError("assembly_not_found", f"session {session} has no assembly", hint=hint)
        if number is not None:
            hint = f"Valid numbers are 1 to {read_record(newest).number}."
            raise CtxdError("assembly_not_found", f"session {session} has no assembly {number}", hint=hint)
        return newest if turn is None and at is None else await self._newest_of(session, turn, at, newest)

    async def newest_up_to(self, session: str, last: int, *, turn: int | None = None, at: int | None = None) -> int:
        """The number of the newest assembly up to number ``last`` and up to ``turn``, or the time ``at`` in ms since
        1970; 0 without one. A binary search: turns and valid times never fall as numbers rise, even if the host's
        clock was set back.

        Raises: CtxdError corrupt, store_failed. Cancel: safe.
        """
        low, high = 1, last
        while low <= high:
            middle = (low + high) // 2
            stored = await self.at(session, middle)
            if stored is None:
                id = self._sessions.lineage(session).assembly_id(middle)
                raise CtxdError("corrupt", f"{id} is missing")
            is_after = read_record(stored).turn > turn if turn is not None else stored.valid_time > (at or 0)
            low, high = (low, middle - 1) if is_after else (middle + 1, high)
        while at is not None and (stored := await self.at(session, high + 1)) is not None:
            # A version's valid time is slightly later than ``assembled_at`` of its record.
            if read_record(stored).assembled_at > at:
                break
            high += 1
        return high

    async def _newest_of(self, session: str, turn: int | None, at: int | None, newest: Stored) -> Stored:
        """The newest request of ``turn``, or of the newest turn up to the time ``at``; the turn's newest record if it
        has no request."""
        number = await self.newest_up_to(session, read_record(newest).number, turn=turn, at=at)
        found = await self.at(session, number) if number else None
        if found is None and turn is None:
            first = await self.at(session, 1)
            assert first is not None and at is not None, "there is a newest one"
            message = f"session {session} has no assembly before {moment(at)}"
            hint = f"Choose a later time: the first one was made at {moment(read_record(first).assembled_at)}."
            raise CtxdError("assembly_not_found", message, hint=hint)
        if found is None or turn is not None and read_record(found).turn != turn:
            raise CtxdError(
                "assembly_not_found",
                f"session {session} has no assembly in turn {turn}",
                hint=f"The newest assembly is of turn {read_record(newest).turn}; "
                f'context.list with {{"session": "{session}"}} lists all.',
            )
        return await self._request_up_to(session, found, read_record(found).turn)

    async def with_id(self, session: str | None, context_id: str) -> Stored | None:
        """The record of the assembly ``context_id``, None if it is not one of ``session``, or for None of any
        session. Raises and cancel: as ``recordings``; also CtxdError session_not_found, corrupt."""
        if session is None:
            return await self._of_any(context_id)
        known = await self.recordings(await self._sessions.live(session))
        number = known.numbers.get(context_id)
        return None if number is None else await self.at(session, number)

    async def _of_any(self, context_id: str) -> Stored | None:
        """As ``with_id`` of any session. Cost: linear in the records of all sessions."""
        last: str | None = None
        while page := await self._store.scan(assemblies_prefix(), page=Page(after=last), size=_PAGE_BYTES):
            for stored in page:
                last = stored.document.id
                # An erased session may have left records to its forks.
                if (
                    stored.document.payload.get("context_id") == context_id
                    and session_of(last) in self._sessions.catalog
                ):
                    return stored
        return None

    async def newest_request(self, session: str) -> Recorded | None:
        """The newest request of ``session``; its newest record if it has no request, None if it has no record."""
        newest = await self.newest(session)
        return None if newest is None else read_record(await self._request_up_to(session, newest))

    async def _request_up_to(self, session: str, last: Stored, turn: int | None = None) -> Stored:
        """The newest request up to record ``last``, within ``turn`` unless that is None; ``last`` without one."""
        found, lineage = [last], self._sessions.lineage(session)
        while found:
            for stored in found:
                record = read_record(stored)
                if turn is not None and record.turn != turn:
                    return last
                if record.is_request:
                    return stored
            before = number_of(found[-1].document.id)
            found = await lineage.assemblies_before(self._store, before, size=_PAGE_BYTES)
        return last

    async def at(self, session: str, number: int) -> Stored | None:
        """Record ``number`` of ``session``, None without one. Raises: CtxdError store_failed. Cancel: safe."""
        id = self._sessions.lineage(session).assembly_id(number)
        found = await self._store.scan(id, page=Page(limit=1))
        is_there = bool(found) and len(found[0].document.id) == len(id) and not is_reclaimed(found[0].document)
        return found[0] if is_there else None


async def _mismatch(live: LiveSession, id: str, shown: Iterable[Stored], *, has_gaps: bool = False) -> CtxdError:
    """The error for the assembly ``id``, which renders to other bytes than were recorded. ``shown``: versions that it
    showed; ``has_gaps``: a component text that it showed was purged."""
    gone = next((each.document for each in shown if is_purged(each.document)), None)
    if gone is not None:
        name = gone.id if gone.source is None else live.mounts.display(gone.source)
        return _showed(id, f"{name}, which was purged")
    if has_gaps:
        return _showed(id, "a text of the system context that was purged")
    if await _says_purged(live):
        return _showed(id, f"content of {chat_id(live.session)} that was purged")
    message = f"{id} no longer renders to the recorded text"
    return CtxdError("corrupt", message)


def _showed(id: str, gone: str) -> CtxdError:
    """The error for the assembly ``id``, which showed ``gone``."""
    message = f"assembly {number_of(id)} showed {gone}"
    return CtxdError("purged", message, hint=PURGED_HINT, outcome="not_applied")


async def _says_purged(live: LiveSession) -> bool:
    """True if an event of the chat was purged."""
    async with aclosing(read_pages(live)) as pages:
        async for page in pages:
            if any(map(_is_purged, page.events)):
                return True
    return False


def _is_purged(event: Event) -> bool:
    """True if content of the event was purged: a text, the arguments of a call, or an attachment."""
    match event:
        case ToolCallEvent():
            return event.args is None
        case PromptEvent() if not event.text and not event.attachments:
            # Purged by an earlier version of ctxd, which left no mark.
            return True
    if PURGED_ATTACHMENT in getattr(event, "attachments", ()):
        return True
    return PURGED_TEXT in (getattr(event, "text", None), getattr(event, "summary", None))
