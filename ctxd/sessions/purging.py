"""Purging an object with proof, and looking for secrets in what is stored.

Decides what may be purged and what is searched for afterwards; what it takes in the store is ``ctxd.store.purge``.
"""

import mmap
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

import anyio
import anyio.to_thread
import msgspec

from ctxd.errors import CtxdError
from ctxd.objects.document import Stored
from ctxd.objects.identity import INNER_PREFIXES
from ctxd.objects.kinds import is_purged
from ctxd.secrets.checks import entropy
from ctxd.secrets.guard import Guard
from ctxd.sessions.calls import Call
from ctxd.store.answers import Replay
from ctxd.store.asked import Purge
from ctxd.store.purge import KIND, counted
from ctxd.store.versions import VersionStore
from ctxd.store.writes import Write
from ctxd_protocol.objects import Receipt
from ctxd_protocol.secrets import SecretFound

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


class Found(msgspec.Struct, frozen=True):
    """The secrets of one version: by rule and tag, and the lines they begin on, from 1."""

    found: tuple[SecretFound, ...]
    lines: tuple[int, ...]


async def purge(store: VersionStore, guard: Guard, call: Call, id: str) -> Proof:
    """Destroy what ``id`` says, in every version, and look for it in every file of the state directory.

    Nothing left to purge writes nothing. Raises: CtxdError object_not_found, unsupported for what is not one object's
    own (a chat, a session), and those of the store. Cancel: the purge goes on, its proof is not made.
    """
    if id.startswith(("chat:", "session:", *INNER_PREFIXES)):
        hint = "Purge the tool calls and files that the session knows; object.list names them."
        raise CtxdError("unsupported", f"{id} cannot be purged", hint=hint, outcome="not_applied")
    needles = await _needles(store, guard, id)
    if needles is None:
        return Proof((id,), 0, 0, 0, (), not await store.purge_is_unfinished(), None)
    asked = Purge((id,), guard.keyed_hash)
    write = Write(kind=KIND, principal=call.principal, op_id=call.op_id, request=call.request, purge=asked)
    receipt = await store.submit(write).wait()
    done = asked.done
    assert done is not None, "a purge that is durable was done"
    complete = not await store.purge_is_unfinished()
    residue = await anyio.to_thread.run_sync(_holding, store.root, needles)
    return Proof(done.ids, done.versions, len(done.texts), len(needles), residue, complete, receipt)


async def again(store: VersionStore, call: Call, replay: Replay) -> Proof:
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
    return Proof(counts.ids, counts.versions, counts.texts, 0, (), complete, found.receipt)


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
    return tuple(sorted(fragments, key=entropy, reverse=True)[:NEEDLES_MAX]) if left else None


async def _said(store: VersionStore, stored: Stored) -> list[bytes]:
    said = [value.encode() for value in _texts(stored.document.payload.get("args"))]
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
    """The files below ``root`` that hold one of ``needles``."""
    found = []
    for folder, _, names in os.walk(root):
        for name in names:
            path = Path(folder, name)
            try:
                with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
                    if any(data.find(needle) >= 0 for needle in needles):
                        found.append(str(path.relative_to(root)))
            except (OSError, ValueError):
                # It went away, or is empty.
                continue
    return tuple(sorted(found))


def scanned(guard: Guard, stored: Stored) -> Found | None:
    """The secrets in a version that was read with its content; null if there are none."""
    text = stored.document.content or ""
    capture = guard.capture("flag")
    capture.text(text)
    capture.value(stored.document.payload.get("args"))
    told = capture.secrets
    if told is None:
        return None
    data = text.encode()
    lines = tuple(dict.fromkeys(data.count(b"\n", 0, hit.start) + 1 for hit in guard.scanner.hits(data)))
    return Found(told.found, lines)
