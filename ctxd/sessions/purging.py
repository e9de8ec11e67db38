"""Purging an object or what was said in a chat, with proof.

Decides what may be purged and what is searched for afterwards; what it takes in the store is ``ctxd.store.purge``.
"""

import mmap
import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Final

import anyio
import anyio.to_thread
import msgspec

from ctxd.errors import CtxdError
from ctxd.objects.document import Stored
from ctxd.objects.identity import INNER_PREFIXES, session_of
from ctxd.objects.kinds import is_purged
from ctxd.secrets.checks import entropy
from ctxd.secrets.guard import Guard
from ctxd.sessions.purging_chat import Gone, restating, said_in, within, without_bundle
from ctxd.sessions.session import LiveSession, WriteRequest
from ctxd.store.answers import Replay
from ctxd.store.asked import Purge
from ctxd.store.purge import KIND, counted
from ctxd.store.versions import VersionStore
from ctxd.store.writes import Pending, Write
from ctxd_protocol.ids import chat_id
from ctxd_protocol.objects import Receipt
from ctxd_protocol.sessions import Message

NEEDLES_MAX: Final = 64
"""Fragments of what was destroyed that are searched for."""

_NEEDLE_BYTES: Final = (12, 64)
_HISTORY: Final = 500


class Proof(msgspec.Struct, frozen=True):
    """What a purge came to. ``residue``: files of the state directory that still hold one of ``searched`` fragments."""

    objects: tuple[str, ...]
    versions: int
    texts: int
    searched: int
    residue: tuple[str, ...]
    complete: bool
    receipt: Receipt | None


async def purge(store: VersionStore, guard: Guard, call: WriteRequest, id: str) -> Proof:
    """Destroy what ``id`` says, in every version, and look for it in every file of the state directory.

    Nothing left to purge writes nothing. Raises: CtxdError object_not_found, unsupported for what is not one object's
    own (a session; a chat is ``purge_chat``'s), and those of the store. Cancel: the purge goes on, its proof is not
    made.
    """
    if id.startswith(("chat:", "session:", *INNER_PREFIXES)):
        hint = "Purge the chat, the tool calls and the files that the session knows; object.list names them."
        raise CtxdError("unsupported", f"{id} cannot be purged", hint=hint, outcome="not_applied")
    needles = await _needles(store, guard, id)
    if needles is None:
        return await _nothing_left(store, id)
    asked = Purge((id,), guard.keyed_hash, sharing=without_bundle)
    return await _proof(store, asked, store.submit(_write(call, asked)), needles)


async def purge_chat(
    store: VersionStore, guard: Guard, call: WriteRequest, live: LiveSession, turns: Sequence[int] | None
) -> Proof:
    """Destroy what was said in ``turns`` of the chat of ``live``, in all of them with null, and look for it in every
    file of the state directory. The turns stay, with roles and tool calls; what the session says elsewhere in the very
    same words goes as well.

    Nothing left to purge writes nothing. Raises: CtxdError session_owned_elsewhere where the session went on on another
    host, which has its own of all that was said, and those of the store. Cancel: the purge goes on, its proof is not
    made.
    """
    id = str(chat_id(live.session))
    async with live.lock:
        live.require_current()
        live.require_here()
        said = said_in(live.state.turns, turns)
        gone = Gone(said)
        if not gone.messages:
            return await _nothing_left(store, id)
        needles = await anyio.to_thread.run_sync(_said_needles, guard, said)
        restate = restating(gone)
        asked = Purge((), guard.keyed_hash, within=within(live.session), restate=restate, said=gone.messages)
        write = _write(call, asked, live.session)
        pending = live.restate(write, gone.message, gone.delta, gone.preview(live.preview))
    return await _proof(store, asked, pending, needles)


def _write(call: WriteRequest, asked: Purge, session: str | None = None) -> Write:
    return Write(
        kind=KIND, principal=call.principal, session=session, op_id=call.op_id, request=call.request, purge=asked
    )


async def _nothing_left(store: VersionStore, id: str) -> Proof:
    return Proof((id,), 0, 0, 0, (), not await store.purge_is_unfinished(), None)


async def _proof(store: VersionStore, asked: Purge, pending: Pending, needles: tuple[bytes, ...]) -> Proof:
    receipt = await pending.wait()
    done = asked.done
    assert done is not None, "a purge that is durable was done"
    complete = not await store.purge_is_unfinished()
    residue = await anyio.to_thread.run_sync(_holding, store.root, needles)
    return Proof(_told(done.ids), done.versions, done.said, len(needles), residue, complete, receipt)


def _told(ids: Sequence[str]) -> tuple[str, ...]:
    """The objects that ``ids`` are or are a part of."""
    # Of a session's head and segments a purge takes away what was said in its chat, nothing else.
    parts = ("session:", "segment:")
    if whole := tuple(id for id in ids if not id.startswith(parts)):
        # A segment among others lost a copy of what it still says, see ``without_bundle``.
        return whole
    return tuple(dict.fromkeys(str(chat_id(session_of(id) or "")) if id.startswith(parts) else id for id in ids))


async def again(store: VersionStore, call: WriteRequest, replay: Replay) -> Proof:
    """The proof of a purge that comes again: what it destroyed is as it was told, and nothing is left to search for.

    Raises: CtxdError of the store if that purge failed. Cancel: safe.
    """
    found: Replay | None = replay
    if replay.pending is not None:
        await replay.pending.wait()
        # Only its row says what it destroyed.
        found = await store.replay(call.principal, call.op_id or "", call.request)
    assert found is not None and found.receipt is not None, "a purge that is durable is in the journal"
    counts = counted(found.result)
    complete = not await store.purge_is_unfinished()
    return Proof(_told(counts.ids), counts.versions, counts.texts, 0, (), complete, found.receipt)


async def _needles(store: VersionStore, guard: Guard, id: str) -> tuple[bytes, ...] | None:
    """What is to be gone: the secrets in every version of ``id``, or where no rule knows one, its own lines.
    Null if every version is purged.

    Raises: CtxdError object_not_found.
    """
    fragments: dict[bytes, None] = {}
    after: tuple[int, int] | None = None
    seen = left = 0
    while True:
        page = await store.history(id, corrections=True, after=after, limit=_HISTORY)
        seen += len(page)
        for stored in page:
            if is_purged(stored.document):
                continue
            left += 1
            for data in await _said(store, stored):
                fragments |= dict.fromkeys(_fragments(guard, data))
        if len(page) < _HISTORY:
            break
        after = (page[-1].valid_time, page[-1].tx)
    if not seen:
        raise CtxdError("object_not_found", f"no object id={id}", outcome="not_applied")
    return _most_telling(fragments) if left else None


def _most_telling(fragments: Iterable[bytes]) -> tuple[bytes, ...]:
    return tuple(sorted(fragments, key=entropy, reverse=True)[:NEEDLES_MAX])


def _said_needles(guard: Guard, messages: Iterable[Message]) -> tuple[bytes, ...]:
    """What is to be gone of ``messages``, also as a bundle or an argument would spell it."""
    fragments: dict[bytes, None] = {}
    for message in messages:
        for said in (message.content, *_texts(message.meta)):
            for fragment in _fragments(guard, said.encode()):
                fragments |= dict.fromkeys((fragment, _escaped(fragment)))
    return _most_telling(fragments)


def _escaped(fragment: bytes) -> bytes:
    return msgspec.json.encode(fragment.decode(errors="ignore"))[1:-1]


async def _said(store: VersionStore, stored: Stored) -> list[bytes]:
    payload = stored.document.payload
    said = [value.encode() for name in ("args", "args_display") for value in _texts(payload.get(name))]
    if stored.content_ref is not None:
        said.append((await store.contents((stored.content_ref,)))[stored.content_ref].encode())
    return said


def _texts(value: object) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for item in value.values():
            yield from _texts(item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _texts(item)


def _fragments(guard: Guard, data: bytes) -> list[bytes]:
    least, most = _NEEDLE_BYTES
    secrets = [data[hit.start : hit.end] for hit in guard.scanner.hits(data)]
    # A key of many lines is stored with its line feeds as they are, but may be quoted: each line is looked for.
    parts = [part for secret in secrets for part in secret.splitlines()] or data.splitlines()
    return [part[:most] for part in (part.strip() for part in parts) if len(part) >= least]


def _holding(root: Path, needles: Sequence[bytes]) -> tuple[str, ...]:
    """The files below ``root`` that hold one of ``needles``, or half of one: a page may end within it."""
    sought = [part for needle in needles for part in _parts(needle)]
    found = []
    for folder, _, names in os.walk(root):
        for name in names:
            path = Path(folder, name)
            try:
                with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
                    if any(data.find(part) >= 0 for part in sought):
                        found.append(str(path.relative_to(root)))
            except (OSError, ValueError):
                # It went away, or is empty.
                continue
    return tuple(sorted(found))


def _parts(needle: bytes) -> tuple[bytes, ...]:
    least, half = _NEEDLE_BYTES[0], len(needle) // 2
    return (needle,) if half < least else (needle[:half], needle[half:])
