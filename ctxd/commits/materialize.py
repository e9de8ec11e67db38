"""Materialisation: the deltas of a chain as one context, and the cache of results."""

from base64 import b64encode
from collections import OrderedDict
from collections.abc import Sequence
from functools import partial
from typing import Final

import msgspec
from blake3 import blake3

from ctxd.commits.commit import read_fields
from ctxd.commits.commit_operations import Commits, CommitViewer
from ctxd.errors import CtxdError
from ctxd.formats.cbor_array import UnreadableDelta
from ctxd.formats.translation import TRANSLATOR_VERSION, Delta, Materialization, UntranslatableFormat
from ctxd.objects.commit_fields import Fields, commit_id, entity_id
from ctxd.objects.document import Content, Stored, decode_content, encode_content
from ctxd.objects.kinds import is_purged
from ctxd.sessions.secret_capture import off_loop
from ctxd.store import commit_index
from ctxd.store.writes import Landed
from ctxd_protocol.methods import commits as wire

CACHE_BYTES_MAX: Final = 64 * 1024 * 1024
"""Bytes of results that are kept. Least recently used go first; one that is larger than this is not kept."""

CONTEXT_BYTES_MAX: Final = 256 * 1024 * 1024
"""Bytes of the deltas of one context, which are in memory while it is made."""


class Walked(msgspec.Struct, frozen=True):
    """A commit of a chain: its fields, and the hash of its content, None once that was purged."""

    commit: str
    fields: Fields
    content_ref: str | None


def included(chain: Sequence[Walked]) -> list[Walked]:
    """The commits of ``chain``, newest first, whose contents make up the context, oldest first.

    A compaction or a snapshot repeats what is before it, so it counts only as the first one: each delta is there once.
    """
    return [chain[-1], *(each for each in reversed(chain[:-1]) if not each.fields.is_boundary)]


_Key = tuple[frozenset[str] | None, str, str, str | None, int]


class _Made(msgspec.Struct, frozen=True):
    """A result: its content, and its figures."""

    content: Content
    figures: wire.CommitMaterializeResult


class Materializer:
    """Materialisation of the commits of one store."""

    def __init__(self, commits: Commits) -> None:
        self._commits = commits
        self._store = commits.store
        self._cache: OrderedDict[_Key, _Made] = OrderedDict()
        self._cached_bytes = 0
        self._purges = 0
        # Without a type: only writes that purge.
        self._store.on_durable(self._note_purge, types=())

    def _note_purge(self, landed: Landed) -> None:
        if any(write.purge is not None for write, _ in landed):
            self._purges += 1
            self._cache.clear()
            self._cached_bytes = 0

    async def materialize(
        self, viewer: CommitViewer, params: wire.CommitMaterializeParams, *, chars_max: int | None = None
    ) -> wire.CommitMaterializeResult:
        """The context of a commit; without one the empty context.

        Raises: CtxdError ``commit_not_found``, also for an ancestor; ``invalid_params`` for a stop that is no ancestor;
        ``unsupported`` for a format that cannot be written; ``too_large`` for content of more than ``chars_max``;
        ``purged``, ``corrupt``, ``store_failed``. Cancel: safe.
        """
        if params.commit is None:
            return _EMPTY
        await self._commits.find(viewer, params.commit)
        # Callers that see the same commits share results: those of others may have ancestors that they do not see.
        key = (viewer.sessions, params.commit, params.stop, params.format, TRANSLATOR_VERSION)
        made = self._cache.get(key)
        if made is None:
            purges = self._purges
            made = await self._made(viewer, params)
            if purges == self._purges:
                self._keep(key, made)
        else:
            self._cache.move_to_end(key)
            made = _Made(made.content, msgspec.structs.replace(made.figures, cached=True))
        if not params.content:
            return made.figures
        if chars_max is not None and made.figures.size > chars_max:
            message = f"the context has {made.figures.size:,} bytes, {chars_max:,} are returned at most"
            raise CtxdError("too_large", message, hint="Stop at a later commit, or call with content false.")
        if isinstance(made.content, bytes):
            return msgspec.structs.replace(made.figures, content_base64=b64encode(made.content).decode())
        return msgspec.structs.replace(made.figures, content=made.content)

    async def _made(self, viewer: CommitViewer, params: wire.CommitMaterializeParams) -> _Made:
        assert params.commit is not None, "the empty context is not made"
        chain = await self._chain(viewer, params.commit, params.stop)
        parts = included(chain)
        for each in parts:
            if each.content_ref is None:
                raise CtxdError("purged", f"the content of commit {each.commit} was purged")
        refs = [each.content_ref or "" for each in parts]
        size = await self._store.commits(lambda connection: commit_index.content_bytes(connection, refs))
        if size > CONTEXT_BYTES_MAX:
            message = f"the deltas of the context have {size:,} bytes, {CONTEXT_BYTES_MAX:,} are joined at most"
            raise CtxdError("too_large", message, hint="Stop at a later commit, or commit a compaction.")
        texts = await self._store.contents(refs)
        contents = [encode_content(texts[ref]) for ref in refs]
        made = _joined(parts, contents, params.format or parts[0].fields.format)
        joined = await off_loop(size, lambda: _content_of(made), confined=viewer.is_confined)
        figures = wire.CommitMaterializeResult(
            commit=params.commit,
            stop=chain[-1].commit,
            format=made.format,
            tier=made.tier,
            lost=tuple(wire.LostPart(*each) for each in made.lost),
            artifact_ref=blake3(joined).hexdigest(),
            size=len(joined),
            commit_count=len(chain),
            message_count=made.messages,
            token_count=made.tokens,
            chain_message_count=sum(each.fields.message_count for each in chain),
            cached=False,
        )
        return _Made(decode_content(joined), figures)

    async def _chain(self, viewer: CommitViewer, tip: str, stop: str) -> list[Walked]:
        """The commits from ``tip`` back to ``stop``, newest first. Raises: CtxdError."""
        last = "" if stop in ("compaction", "root") else entity_id(stop)
        ids = await self._store.commits(
            lambda connection: commit_index.chain(
                connection, entity_id(tip), to_boundary=stop == "compaction", last=last
            )
        )
        if last and (not ids or ids[-1] != last):
            message = f"commit {stop} is no ancestor of {tip}: {len(ids)} commits were followed"
            raise CtxdError("invalid_params", message, hint="commit.history has the ancestors.")
        return [_walked(stored) for stored in await self._commits.find_all(viewer, ids)]

    def _keep(self, key: _Key, made: _Made) -> None:
        if made.figures.size > CACHE_BYTES_MAX:
            return
        replaced = self._cache.pop(key, None)
        self._cached_bytes += made.figures.size - (0 if replaced is None else replaced.figures.size)
        self._cache[key] = made
        while self._cached_bytes > CACHE_BYTES_MAX:
            _, oldest = self._cache.popitem(last=False)
            self._cached_bytes -= oldest.figures.size


def _joined(parts: Sequence[Walked], contents: Sequence[bytes], wanted: str) -> Materialization:
    """The context of ``parts`` in the format ``wanted``. Raises: CtxdError ``unsupported``."""
    deltas = [
        Delta(each.fields.format, partial(bytes, content), each.fields.message_count, each.fields.token_count)
        for each, content in zip(parts, contents, strict=True)
    ]
    try:
        return Materialization(deltas, wanted)
    except UntranslatableFormat as error:
        raise CtxdError("unsupported", str(error), hint="Leave format out for that of the chain.") from error


def _content_of(made: Materialization) -> bytes:
    """The whole content. Raises: CtxdError ``corrupt`` for a delta that is not what its format names."""
    try:
        return b"".join(made.chunks())
    except UnreadableDelta as error:
        raise CtxdError("corrupt", f"a delta cannot be read: {error}") from error


def _walked(stored: Stored) -> Walked:
    ref = None if is_purged(stored.document) else stored.content_ref
    return Walked(commit_id(stored.document.id), read_fields(stored), ref)


_EMPTY: Final = wire.CommitMaterializeResult(
    commit=None,
    stop=None,
    format=None,
    tier="native",
    lost=(),
    artifact_ref=None,
    size=0,
    commit_count=0,
    message_count=0,
    token_count=0,
    chain_message_count=0,
    cached=False,
    content="",
)
