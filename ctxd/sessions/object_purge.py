"""Purge of an object, and the report on it: files that still exist, outputs and copies that stay, other sessions.

Separate from ``purge_operations``, which erases and proves: this needs the sessions and the files beside the store.
"""

from contextlib import aclosing
from typing import Final

from ctxd.errors import CtxdError
from ctxd.indexing.file_indexer import Indexer
from ctxd.mounts.mapping import MountTable
from ctxd.objects.commit_document import entity_id
from ctxd.objects.generated_ids import COMMIT_PREFIX, INFRASTRUCTURE_PREFIXES, INNER_PREFIXES
from ctxd.sessions.chat import read_pages
from ctxd.sessions.live_session import LiveSession, WriteRequest, find_replay
from ctxd.sessions.purge_operations import Proof, again, kept_outputs, purge, purge_chat, sessions_with_text
from ctxd.sessions.registry import Sessions
from ctxd.sessions.session_settings import ContinuedCommit
from ctxd.sessions.session_state import EventPosition
from ctxd.store.commit_index import fields_of
from ctxd_protocol.limits import PAGE_ITEMS_MAX
from ctxd_protocol.methods import objects as wire
from ctxd_protocol.session_types import PURGED_TEXT

_CHATS: Final = "chat:"


class ObjectPurges:
    """Purges of the objects of one store."""

    def __init__(self, sessions: Sessions, indexer: Indexer) -> None:
        self._sessions = sessions
        self._store = sessions.store
        self._files = indexer.stale_files
        self._anywhere = MountTable.of_host(sessions.host_filesystem_id)

    async def purge(self, params: wire.ObjectPurgeParams, call: WriteRequest) -> wire.ObjectPurgeResult:
        """Purge the object of ``params``, and report what is left of it.

        Raises: CtxdError session_not_found, invalid_params; those of ``purge_operations.purge``, and of the store.
        """
        replay = await find_replay(self._store, call)
        if replay is not None:
            proof = await again(self._store, call, replay)
        else:
            proof = await self._purge(call, params)
        files = [id for id in proof.objects if not id.startswith((*INFRASTRUCTURE_PREFIXES, *INNER_PREFIXES))]
        outputs = await self._kept_outputs(params)
        is_chat = params.object.startswith(_CHATS)
        live = await self._purged_session(params.object)
        return wire.ObjectPurgeResult(
            objects=proof.objects,
            versions=proof.versions,
            texts=proof.texts,
            residue=proof.residue,
            complete=not proof.residue,
            receipt=proof.receipt,
            existing=tuple(await self._files.existing(self._anywhere, files)),
            outputs_left=len(outputs),
            outputs=tuple(outputs[:PAGE_ITEMS_MAX]),
            copies=tuple(await self._copies(params.object.removeprefix(_CHATS)) if is_chat else ())[:PAGE_ITEMS_MAX],
            sessions=tuple(each for each in proof.sessions if live is None or each != live.session)[:PAGE_ITEMS_MAX],
        )

    async def foresee(self, params: wire.ObjectPurgeParams) -> wire.ObjectPurgeResult:
        """Report the other sessions in which a purge would erase texts, without the purge. Raises: as ``purge``."""
        found: tuple[str, ...] = ()
        live = await self._purged_session(params.object)
        if live is not None:
            sessions = self._sessions
            family = [each for each in sessions.family(live.session) if each != live.session]
            others = [(each, sessions.peek(each) or await sessions.as_of(each)) for each in sorted(family)]
            having = await sessions_with_text(self._store, others, live, params.object, params.turns)
            found = tuple(each for each in having if each != live.session)
        return wire.ObjectPurgeResult(
            objects=(), versions=0, texts=0, residue=(), complete=False, receipt=None, sessions=found[:PAGE_ITEMS_MAX]
        )

    async def _purged_session(self, id: str) -> LiveSession | None:
        """The session whose chat, tool call or commit ``id`` is; None for other objects."""
        session = id.removeprefix(_CHATS)
        if not id.startswith(_CHATS):
            return await self._session_of(id)
        return None if self._sessions.catalog.state(session) is None else await self._sessions.live(session)

    async def _kept_outputs(self, params: wire.ObjectPurgeParams) -> list[str]:
        """The tool calls of the purged turns whose outputs stay; none for an object that is no chat."""
        session = params.object.removeprefix(_CHATS)
        if not params.object.startswith(_CHATS) or self._sessions.catalog.state(session) is None:
            return []
        return await kept_outputs(self._store, await self._sessions.live(session), params.turns)

    async def _copies(self, session: str) -> list[str]:
        """The sessions that began with a commit of ``session``, and whose chats still have messages of it."""
        catalog, begun = self._sessions.catalog, dict[str, ContinuedCommit]()
        for each in catalog.states():
            settings = catalog.settings(each)
            # A fork with a base shares the chat, and was purged with it.
            if settings.continues is not None and settings.base is None:
                begun[each] = settings.continues
        heads = await self._store.heads({entity_id(each.commit) for each in begun.values()})
        found: list[str] = []
        for each, continues in begun.items():
            head = heads[entity_id(continues.commit)]
            fields = None if head is None else fields_of(head.document)
            if fields is not None and fields.session == session and await self._has_text(each, continues.position.chat):
                found.append(each)
        return found

    async def _has_text(self, session: str, end: EventPosition) -> bool:
        """True if an event of the chat of ``session`` before ``end`` has a text that is not purged."""
        live = self._sessions.peek(session) or await self._sessions.as_of(session)
        async with aclosing(read_pages(live, end=end)) as pages:
            async for page in pages:
                for place, event in page.placed():
                    text = getattr(event, "text", "") or getattr(event, "summary", "")
                    if place < end and text not in ("", PURGED_TEXT):
                        return True
        return False

    async def _session_of(self, id: str) -> LiveSession | None:
        """The session that recorded the tool call ``id``, or that the commit ``id`` belongs to; None for other objects,
        or if it is unknown here."""
        is_commit = id.startswith(COMMIT_PREFIX)
        head = None if id.startswith(INNER_PREFIXES) and not is_commit else (await self._store.heads((id,)))[id]
        if head is None:
            return None
        if is_commit:
            fields = fields_of(head.document)
            session = "" if fields is None or fields.session is None else fields.session
        elif head.document.type == "toolcall":
            session = str(head.document.payload.get("chat_ref", "")).removeprefix(_CHATS)
        else:
            return None
        if self._sessions.catalog.state(session) is None:
            return None
        if is_commit and self._sessions.catalog.settings(session).recorded is None:
            return None
        return await self._sessions.live(session)

    async def _purge(self, call: WriteRequest, params: wire.ObjectPurgeParams) -> Proof:
        if params.object.startswith(_CHATS):
            return await purge_chat(self._sessions, call, params.object.removeprefix(_CHATS), params.turns)
        if params.turns is not None:
            raise CtxdError("invalid_params", f"{params.object} has no turns: only a chat has", outcome="not_applied")
        live = await self._session_of(params.object)
        return await purge(self._sessions, call, params.object, None if live is None else live.session)
