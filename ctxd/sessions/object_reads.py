"""Reads of object versions, with or without a session, and listings of objects.

Decides visibility and the ends of pages; ``id_resolution`` completes abbreviated ids. It changes no membership and
writes nothing. All returned data is durable, or will be once the session's ``barrier`` is.
"""

from collections.abc import Iterable, Sequence
from itertools import islice

import msgspec

from ctxd.errors import CtxdError
from ctxd.formatting import moment
from ctxd.objects.document import LATEST, NOW, AsOf, Document, HistoryPage, Page, Stored
from ctxd.objects.generated_ids import INNER_PREFIXES, is_reserved, session_of
from ctxd.objects.hashing import identity_hash
from ctxd.objects.kinds import OBJECT_TYPES, type_of
from ctxd.objects.version_state import state_of
from ctxd.sessions import id_resolution, session_objects
from ctxd.sessions.lineage import Lineage
from ctxd.sessions.live_session import LiveSession
from ctxd.sessions.registry import Sessions
from ctxd.store.write_types import Pending
from ctxd_protocol.ids import PREFIX_CHARS_MIN, chat_id, session_object_id
from ctxd_protocol.object_types import VersionRow, source_label
from ctxd_protocol.session_types import ContextLevel


class Viewer(msgspec.Struct, frozen=True):
    """Scope in which ids are resolved: the session ``live``, or None for full ids only.

    ``is_confined``: only the index and the infrastructure of the session are visible.
    """

    live: LiveSession | None
    is_confined: bool

    def holds(self, id: str) -> bool:
        """Return True if the viewer may see ``id``, whether or not it exists."""
        if not self.is_confined:
            return True
        if self.live is None:
            return False
        if type_of(id) is not None:
            return id.partition(":")[2] == self.live.session
        return id in self.live.state.index


class ListedObject(msgspec.Struct, frozen=True):
    """One object of a list, with its level and pin in the session of the request, if any."""

    stored: Stored
    level: ContextLevel | None = None
    pinned: bool = False


class Objects:
    """Reads of objects, restricted to those that the viewer may see."""

    def __init__(self, sessions: Sessions) -> None:
        self._sessions = sessions
        self._store = sessions.store

    async def viewer(self, session: str | None, *, confined: bool) -> Viewer:
        """Return the viewer for ``session`` (None: without a session), once the session's earlier calls are done.

        Raises: CtxdError session_not_found, corrupt, store_failed. Cancel: safe.
        """
        if session is None:
            return Viewer(None, confined)
        live = await self._sessions.live(session)
        async with live.lock:
            live.require_current()
        return Viewer(live, confined)

    async def version(
        self, viewer: Viewer, text: str, at: AsOf, *, content: bool, size_max: int | None = None
    ) -> Stored:
        """Return the version as of ``at`` of the object that ``text`` means.

        Raises: CtxdError object_not_found, ambiguous_id, too_large if it is a chat of more than ``size_max``
        characters, corrupt, store_failed. Cancel: safe.
        """
        id = await self._resolved(viewer, text)
        found = await self._version(id, at, content=content, size_max=size_max)
        stored = await self._visible(viewer, found, at, content=content)
        if stored is not None:
            return stored
        if at.is_past:
            (first, *_), _ = await self.history(viewer, text, NOW, HistoryPage(limit=1), corrections=False)
            newest = await self._version(id, NOW, content=False)
            raise _no_version_yet(_label(viewer, text, newest), first, at)
        raise not_found(text)

    async def versions(
        self, viewer: Viewer, ids: Iterable[str], at: AsOf, *, content: bool, size_max: int | None = None
    ) -> dict[str, Stored]:
        """Return the versions as of ``at`` of the ``ids`` that exist and are visible to ``viewer``, in their order.

        Raises: CtxdError too_large if one is a chat of more than ``size_max`` characters, corrupt, store_failed.
        Cancel: safe.
        """
        seen = [id for id in dict.fromkeys(ids) if viewer.holds(id) and not self._is_emptied(id)]
        plain = [id for id in seen if session_objects.session_of(id) is None and not id.startswith(INNER_PREFIXES)]
        found = await self._store.bulk(plain, at, content=content)
        if newest := self._undurable(found.values()):
            tx = newest if at.tx == LATEST else at.tx
            found = await self._store.bulk(plain, AsOf(at.valid_time, tx), content=content)
        for id in seen:
            if session_objects.session_of(id) is not None:
                stored = await self._version(id, at, content=content, size_max=size_max)
                if stored is not None:
                    found[id] = stored
        visible = {id: await self._visible(viewer, found[id], at, content=content) for id in seen if id in found}
        return {id: stored for id, stored in visible.items() if stored is not None}

    async def history(
        self, viewer: Viewer, text: str, at: AsOf, page: HistoryPage, *, corrections: bool
    ) -> tuple[list[VersionRow], bool]:
        """Return a ``page`` of the versions of the object that ``text`` means, and whether there are more.

        ``page`` must have a limit. Raises: CtxdError object_not_found if there is no version; ambiguous_id, corrupt,
        store_failed. Cancel: safe.
        """
        assert page.limit is not None, "a page for a client is bounded"
        id = await self._resolved(viewer, text)
        more = msgspec.structs.replace(page, limit=page.limit + 1)
        if self._is_emptied(id):
            raise not_found(text)
        if session_objects.session_of(id) is not None:
            rows = await session_objects.history(self._store, id, at, more, lineage=self._lineage(id))
        else:
            rows = await self._rows(viewer, id, at, more, corrections=corrections)
        if not rows and page.after is None:
            raise not_found(text)
        return rows[: page.limit], len(rows) > page.limit

    async def _rows(
        self, viewer: Viewer, id: str, at: AsOf, page: HistoryPage, *, corrections: bool
    ) -> list[VersionRow]:
        """Return at most as many rows as the limit of ``page``, of versions that ``viewer`` may see."""
        rows: list[VersionRow] = []
        limit = page.limit or 0
        while len(rows) < limit:
            found = await self._store.history(id, at, page, corrections=corrections)
            for stored in found:
                shown = await self._shown(viewer, stored)
                if shown is not None and at.includes(shown) and len(rows) < limit:
                    rows.append(_row(shown))
            if len(found) < limit:
                break
            page = msgspec.structs.replace(page, after=(found[-1].valid_time, found[-1].tx))
        return rows

    async def _shown(self, viewer: Viewer, stored: Stored) -> Stored | None:
        if not viewer.is_confined or viewer.live is None:
            return stored
        return await self._sessions.visibility.shown(viewer.live, stored)

    async def _visible(self, viewer: Viewer, stored: Stored | None, at: AsOf, *, content: bool) -> Stored | None:
        """Return the newest version that ``viewer`` may see, at or before ``stored``, the newest as of ``at``."""
        if stored is None or not viewer.is_confined or viewer.live is None:
            return stored
        return await self._sessions.visibility.newest(viewer.live, stored, at, content=content)

    async def of_session(
        self, viewer: Viewer, live: LiveSession, *, type: str | None, level: ContextLevel | None, start: int, limit: int
    ) -> tuple[list[ListedObject], int | None, Pending | None]:
        """List at most ``limit`` objects of ``type`` and ``level`` in the index of ``live``, from place ``start`` on.

        Returns: the objects; the place where the next page starts, None at the end; and the write that must be durable
        before the reply is sent.
        Raises: CtxdError corrupt, store_failed. Cancel: safe.
        """
        state = live.state
        if type in ("chat", "session", "system_prompt"):
            return await self._infrastructure(live, f"{type}:{live.session}", level), None, live.barrier
        wanted: list[str] = []
        end: int | None = None
        for place, (id, kind) in enumerate(islice(state.index.items(), start, None), start):
            if level is not None and state.level(id) != level:
                continue
            if type is not None and type != kind:
                continue
            if len(wanted) == limit:
                end = place
                break
            wanted.append(id)
        places = {id: (state.level(id), id in state.pinned) for id in wanted}
        barrier = live.barrier
        heads = await self._store.heads(wanted)
        if newest := self._undurable(head for head in heads.values() if head is not None):
            # Another session's write, which may still be lost: a read by its sequence waits until it is durable.
            heads = {**await self._store.bulk(wanted, AsOf(tx=newest))}
        visible = {id: await self._visible(viewer, head, NOW, content=False) for id, head in heads.items()}
        return [ListedObject(head, *places[id]) for id, head in visible.items() if head is not None], end, barrier

    async def of_all(self, *, type: str | None, after: str, limit: int) -> tuple[list[ListedObject], bool]:
        """List at most ``limit`` objects of ``type`` of all sessions, sorted by id, after the id ``after``.

        Returns: the objects, and whether there are more.

        Raises: CtxdError corrupt, store_failed. Cancel: safe.
        """
        stored, more = ([], False) if type == "chat" else await self._stored(type=type, after=after, limit=limit)
        chats = [] if type not in (None, "chat") else await self._chats(after, limit + 1)
        merged = sorted((*stored, *chats), key=lambda listed: listed.stored.document.id)
        return merged[:limit], more or len(merged) > limit

    async def _infrastructure(self, live: LiveSession, id: str, level: ContextLevel | None) -> list[ListedObject]:
        """Return the session's infrastructure object ``id``; none if ``level`` is given, as it is in no set."""
        if level is not None:
            return []
        if id.startswith("chat:"):
            return [await self._chat(live.session)]
        head = (await self._store.heads((id,)))[id]
        return [] if head is None else [ListedObject(head)]

    async def _chats(self, after: str, limit: int) -> list[ListedObject]:
        """Return at most ``limit`` chats, sorted by id, after the id ``after``."""
        if after >= "chat;":
            return []
        beyond = after.removeprefix("chat:") if after.startswith("chat:") else ""
        return [await self._chat(session) for session in self._sessions.catalog.names(beyond, limit)]

    async def _chat(self, session: str) -> ListedObject:
        """Return a row for the chat of ``session``, which is not folded: without payload and content hash."""
        head_id = session_object_id(session)
        head = (await self._store.heads((head_id,)))[head_id]
        if head is None:
            raise CtxdError("corrupt", f"session {session} has no head")
        id = chat_id(session)
        document = Document(
            id=id, type="chat", identity_hash=identity_hash("chat", None, id), content_hash="", payload={}
        )
        return ListedObject(msgspec.structs.replace(head, document=document, content_ref=None))

    async def _stored(self, *, type: str | None, after: str, limit: int) -> tuple[list[ListedObject], bool]:
        """As ``of_all``, without chats, which are folded from segments and not stored as objects."""
        found: list[ListedObject] = []
        while True:
            page = await self._store.scan("", page=Page(after=after, limit=limit + 1))
            for stored in page:
                after = stored.document.id
                if after.startswith(INNER_PREFIXES):
                    # Skip all ids of this kind: the semicolon is the character after the colon.
                    after = after.partition(":")[0] + ";"
                    break
                if stored.document.type not in OBJECT_TYPES or type not in (None, stored.document.type):
                    continue
                if self._is_emptied(after):
                    continue
                if len(found) == limit:
                    return found, True
                found.append(ListedObject(stored))
            else:
                if len(page) <= limit:
                    return found, False

    async def sessions_of(self, id: str) -> Sequence[str]:
        """Return the sessions whose index has object ``id``; none for infrastructure, which is in no index.

        Raises: CtxdError object_not_found, corrupt, store_failed.
        """
        if id.startswith(INNER_PREFIXES) or await self._version(id, NOW, content=False) is None:
            raise not_found(id)
        return await self._sessions.knowing(id)

    async def _resolved(self, viewer: Viewer, text: str) -> str:
        """Return the id that ``text`` means. Raises: CtxdError object_not_found, ambiguous_id."""
        live = viewer.live
        if live is not None and text in live.state.index:
            return text
        own = type_of(text) is not None and live is not None and text.partition(":")[2] == live.session
        if live is not None and is_reserved(text) and not own:
            # A harness's own id may look reserved: the session's tool call of that name takes precedence.
            ids = id_resolution.ids_of_call(text, live.session, live.lineage.ancestors)
            if (id := next(filter(live.state.index.__contains__, ids), None)) is not None:
                return id
        if text.startswith(INNER_PREFIXES):
            raise not_found(text)
        if live is None or type_of(text) is not None:
            if not viewer.holds(text):
                raise not_found(text)
            return text
        try:
            return id_resolution.resolve(live.state, live.session, text, ancestors=live.lineage.ancestors)
        except CtxdError as error:
            if error.code == "ambiguous_id":
                raise
            if viewer.is_confined or (await self._store.heads((text,)))[text] is None:
                raise not_found(text) from error
            return text

    async def _version(self, id: str, at: AsOf, *, content: bool, size_max: int | None = None) -> Stored | None:
        if self._is_emptied(id):
            return None
        if session_objects.session_of(id) is not None:
            return await session_objects.version(
                self._store, id, at, lineage=self._lineage(id), lane=self._sessions.folding, size_max=size_max
            )
        stored = await self._store.get(id, at, content=content)
        if stored is not None and self._undurable((stored,)):
            # Not durable yet: a read by its sequence waits for it, and returns the version before it if it was lost.
            stored = await self._store.get(id, AsOf(at.valid_time, stored.tx), content=content)
        return stored

    def _lineage(self, id: str) -> Lineage:
        return self._sessions.lineage(session_objects.session_of(id) or "")

    def _is_emptied(self, id: str) -> bool:
        """Return True if ``id`` belongs to a session that was removed for good."""
        return (session_of(id) or session_objects.session_of(id)) in self._sessions.emptied

    def _undurable(self, found: Iterable[Stored]) -> int:
        """Return the sequence of the newest version in ``found`` that is not durable yet; 0 if all are."""
        receipt = self._store.head()
        durable = 0 if receipt is None else receipt.seq
        return max((stored.tx for stored in found if stored.tx > durable), default=0)


def not_found(text: str) -> CtxdError:
    """Error for an object that does not exist for the viewer."""
    hint = (
        f"object.list lists the objects of a session. Name the session to shorten an id to {PREFIX_CHARS_MIN} or more "
        "characters."
    )
    return CtxdError("object_not_found", f"no object {text}", hint=hint)


def _label(viewer: Viewer, text: str, stored: Stored | None) -> str:
    """Return the path of a file as ``viewer`` knows it; ``text`` for other objects."""
    source = None if stored is None else stored.document.source
    if source is None:
        return text
    if viewer.live is None:
        return source_label(source)
    return viewer.live.mounts.display(source) or text


def _no_version_yet(label: str, first: VersionRow, at: AsOf) -> CtxdError:
    """Error for an object whose ``first`` version is later than ``at``."""
    times = [moment(at.valid_time)] if at.valid_time != LATEST else []
    times += [f"sequence {at.tx}"] if at.tx != LATEST else []
    message = f"{label} had no version at {' and '.join(times)}"
    hint = f"Its first one is of {moment(first.valid_time)}, sequence {first.tx}; object.history lists all."
    return CtxdError("object_not_found", message, hint=hint)


def _row(stored: Stored) -> VersionRow:
    document = stored.document
    return VersionRow(
        valid_time=stored.valid_time,
        tx=stored.tx,
        tx_time=stored.tx_time,
        content_hash=document.content_hash,
        source_hash=document.source_hash,
        state=state_of(document),
        char_count=document.payload.get("char_count"),
    )
