"""Reads of object versions for a session, or without one, and listings of objects.

Owns what is visible to whom, what an abbreviation means, and where a page ends. Decides no membership and writes
nothing. Promise: every answer is on the disk, or is once the session's ``barrier`` is.
"""

from collections.abc import Iterable, Sequence
from itertools import islice

import msgspec

from ctxd.errors import CtxdError
from ctxd.formatting import moment
from ctxd.objects.document import LATEST, NOW, AsOf, Document, HistoryPage, Page, Stored
from ctxd.objects.generated_ids import INNER_PREFIXES, is_reserved, session_of
from ctxd.objects.hashing import identity_hash
from ctxd.objects.kinds import OBJECT_TYPES, state_of, type_of
from ctxd.sessions import id_resolution, session_objects
from ctxd.sessions.lineage import Lineage
from ctxd.sessions.registry import Sessions
from ctxd.sessions.session import LiveSession
from ctxd.store.write_types import Pending
from ctxd_protocol.ids import PREFIX_CHARS_MIN, chat_id, session_object_id, toolcall_alias
from ctxd_protocol.object_types import VersionRow, source_label
from ctxd_protocol.session_types import ContextLevel


class Viewer(msgspec.Struct, frozen=True):
    """Scope in which ids are resolved: session ``live``, or None for ids as they are.

    ``confined``: beside the index of the session and its own infrastructure, nothing exists.
    """

    live: LiveSession | None
    confined: bool

    def holds(self, id: str) -> bool:
        """True if ``id``, if there is such an object, may be seen."""
        if not self.confined:
            return True
        if self.live is None:
            return False
        if type_of(id) is not None:
            return id.partition(":")[2] == self.live.session
        return id in self.live.state.index


class ListedObject(msgspec.Struct, frozen=True):
    """One object of a list, and where it is in the session that was asked for, if one was."""

    stored: Stored
    level: ContextLevel | None = None
    pinned: bool = False


class Objects:
    """Reads of objects, as one who looks may have them."""

    def __init__(self, sessions: Sessions) -> None:
        self._sessions = sessions
        self._store = sessions.store

    async def viewer(self, session: str | None, *, confined: bool) -> Viewer:
        """The viewer of ``session`` as of the calls before this one; None: without a session.

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
        """The version as of ``at`` of the object that ``text`` means.

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
        """The versions as of ``at`` of those of ``ids`` that are there for ``viewer``, in their order.

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
        """``page``, which has a limit, of the versions of what ``text`` means, and whether there are more.

        Raises: CtxdError object_not_found without any version; ambiguous_id, corrupt, store_failed. Cancel: safe.
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
        """At most as many rows as ``page`` has, of versions that ``viewer`` may see."""
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
        if not viewer.confined or viewer.live is None:
            return stored
        return await self._sessions.visibility.shown(viewer.live, stored)

    async def _visible(self, viewer: Viewer, stored: Stored | None, at: AsOf, *, content: bool) -> Stored | None:
        """``stored``, the newest version as of ``at``, or the newest before it that ``viewer`` may see."""
        if stored is None or not viewer.confined or viewer.live is None:
            return stored
        return await self._sessions.visibility.newest(viewer.live, stored, at, content=content)

    async def of_session(
        self, viewer: Viewer, live: LiveSession, *, type: str | None, level: ContextLevel | None, start: int, limit: int
    ) -> tuple[list[ListedObject], int | None, Pending | None]:
        """At most ``limit`` objects of the index of ``live`` from place ``start`` on, that are of ``type`` and
        ``level``.

        Returns: them, the place where the next page starts, None at the end, and the write that the answer waits for.
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
            # Another session's write, which may yet be lost: what is read by its sequence is on the disk.
            heads = {**await self._store.bulk(wanted, AsOf(tx=newest))}
        visible = {id: await self._visible(viewer, head, NOW, content=False) for id, head in heads.items()}
        return [ListedObject(head, *places[id]) for id, head in visible.items() if head is not None], end, barrier

    async def of_all(self, *, type: str | None, after: str, limit: int) -> tuple[list[ListedObject], bool]:
        """List at most ``limit`` objects of all sessions of ``type``, by id from beyond ``after`` on.

        Returns: them, and whether there are more.

        Raises: CtxdError corrupt, store_failed. Cancel: safe.
        """
        stored, more = ([], False) if type == "chat" else await self._stored(type=type, after=after, limit=limit)
        chats = [] if type not in (None, "chat") else await self._chats(after, limit + 1)
        merged = sorted((*stored, *chats), key=lambda listed: listed.stored.document.id)
        return merged[:limit], more or len(merged) > limit

    async def _infrastructure(self, live: LiveSession, id: str, level: ContextLevel | None) -> list[ListedObject]:
        """The session's own object ``id``: it is in no set, so no level selects it."""
        if level is not None:
            return []
        if id.startswith("chat:"):
            return [await self._chat(live.session)]
        head = (await self._store.heads((id,)))[id]
        return [] if head is None else [ListedObject(head)]

    async def _chats(self, after: str, limit: int) -> list[ListedObject]:
        """At most ``limit`` chats by id, from beyond the id ``after`` on."""
        if after >= "chat;":
            return []
        beyond = after.removeprefix("chat:") if after.startswith("chat:") else ""
        return [await self._chat(session) for session in self._sessions.catalog.names(beyond, limit)]

    async def _chat(self, session: str) -> ListedObject:
        """A row for the chat of ``session``. It is not folded: the payload is empty, and there is no content hash."""
        head_id = session_object_id(session)
        head = (await self._store.heads((head_id,)))[head_id]
        if head is None:
            raise CtxdError("corrupt", f"session {session} has no head", hint="Run `ctxd verify`.")
        id = chat_id(session)
        document = Document(
            id=id, type="chat", identity_hash=identity_hash("chat", None, id), content_hash="", payload={}
        )
        return ListedObject(msgspec.structs.replace(head, document=document, content_ref=None))

    async def _stored(self, *, type: str | None, after: str, limit: int) -> tuple[list[ListedObject], bool]:
        """As ``of_all``, without the chats: they are folded from segments and not stored as objects."""
        found: list[ListedObject] = []
        while True:
            page = await self._store.scan("", page=Page(after=after, limit=limit + 1))
            for stored in page:
                after = stored.document.id
                if after.startswith(INNER_PREFIXES):
                    # Beyond all ids of this kind: a semicolon is the character after the colon.
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
        """The sessions that know object ``id``; none know infrastructure, which is in no index.

        Raises: CtxdError object_not_found, corrupt, store_failed.
        """
        if id.startswith(INNER_PREFIXES) or await self._version(id, NOW, content=False) is None:
            raise not_found(id)
        return await self._sessions.knowing(id)

    async def _resolved(self, viewer: Viewer, text: str) -> str:
        """The id that ``text`` means. Raises: CtxdError object_not_found, ambiguous_id."""
        live = viewer.live
        if live is not None and text in live.state.index:
            return text
        own = type_of(text) is not None and live is not None and text.partition(":")[2] == live.session
        if live is not None and is_reserved(text) and not own:
            # A harness's own id may look reserved: the session's tool call of that name comes first.
            alias = toolcall_alias(live.session, text)
            if alias in live.state.index:
                return alias
        if text.startswith(INNER_PREFIXES):
            raise not_found(text)
        if live is None or type_of(text) is not None:
            if not viewer.holds(text):
                raise not_found(text)
            return text
        try:
            return id_resolution.resolve(live.state, live.session, text)
        except CtxdError as error:
            if error.code == "ambiguous_id":
                raise
            if viewer.confined or (await self._store.heads((text,)))[text] is None:
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
            # Not on the disk yet: by its sequence it is read once it is there, or the one before it if it was lost.
            stored = await self._store.get(id, AsOf(at.valid_time, stored.tx), content=content)
        return stored

    def _lineage(self, id: str) -> Lineage:
        return self._sessions.lineage(session_objects.session_of(id) or "")

    def _is_emptied(self, id: str) -> bool:
        """True if ``id`` is of a session that was removed for good."""
        return (session_of(id) or session_objects.session_of(id)) in self._sessions.emptied

    def _undurable(self, found: Iterable[Stored]) -> int:
        """The newest write among those of ``found`` that may yet be lost; 0 without one."""
        receipt = self._store.head()
        durable = 0 if receipt is None else receipt.seq
        return max((stored.tx for stored in found if stored.tx > durable), default=0)


def not_found(text: str) -> CtxdError:
    """Error for an object that does not exist for the viewer."""
    hint = f"With session given, {PREFIX_CHARS_MIN} or more characters of an id of its index are enough."
    return CtxdError("object_not_found", f"no object id={text}", hint=hint)


def _label(viewer: Viewer, text: str, stored: Stored | None) -> str:
    """The path of a file as ``viewer`` knows it; ``text`` for everything else."""
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
