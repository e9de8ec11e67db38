"""Composition of a context from pieces that are kept between assemblies, and its text, blocks and figures.

``Rendering`` holds a session's pieces and renders only those that changed; ``PoolText`` is its metadata pool, in which
a changed object renders its own line and joins one chunk again. ``Composition`` is one context, immutable. Whatever is
kept, the text equals that of rendering everything from scratch.
"""

import hashlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final

import msgspec

from ctxd.assembly import render
from ctxd.assembly.measure import Droppable, plan, size_bytes, tokens_of
from ctxd.assembly.pieces import (
    Display,
    Piece,
    active_piece,
    chat_piece,
    pool_line,
    prompt_piece,
    toolcall_piece,
    why_active,
)
from ctxd.assembly.render import POOL_HEADER, SEPARATOR
from ctxd.objects.document import Stored
from ctxd.sessions.state import Place, SessionState
from ctxd_protocol.context import Block, BudgetPlan, Section, SectionSize
from ctxd_protocol.ids import chat_id, session_object_id
from ctxd_protocol.sessions import Message

CHUNK_LINES: Final = 128
"""Lines of one chunk: what a change joins again. Fewer make more fragments to compare, more make a change dearer."""

Head = Callable[[str], Stored | None]
"""The newest version of an object."""


class PoolText:
    """The pool's lines in chunks, each line behind a line feed; ``text`` is the block."""

    __slots__ = ("_versions", "chunks", "ids")

    def __init__(self) -> None:
        self.chunks: list[str] = []
        self.ids: list[str] = []
        self._versions: list[int] = []

    def update(self, ids: Iterable[str], head: Head, display: Display, *, heads_moved: bool = True) -> None:
        """Show ``ids`` in order, each at its ``head``. ``heads_moved`` false: no head changed since the last update.

        Raises: what ``head`` and ``pool_line`` raise; then call it again before the text is used.
        """
        wanted = list(ids)
        if wanted[: len(self.ids)] != self.ids:
            self._reorder(wanted, head, display)
        if heads_moved:
            self._refresh(head, display)
        self._append((id, *self._line(id, head, display)) for id in wanted[len(self.ids) :])

    def warm(self, ids: Sequence[str], head: Head, display: Display, *, lines: int) -> bool:
        """Make at most ``lines`` of the lines that ``update`` would add at the end; whether some are left to make.

        Nothing is made of ids that are in another order than they were. Raises: as ``update``.
        """
        have = len(self.ids)
        if have >= len(ids) or ids[have - 1 : have] != self.ids[-1:]:
            return False
        self._append((id, *self._line(id, head, display)) for id in ids[have : have + lines])
        return len(self.ids) < len(ids)

    def _reorder(self, wanted: list[str], head: Head, display: Display) -> None:
        """Replace everything from the chunk of the first id in another place on; old lines are used again."""
        kept = next((n for n, (old, new) in enumerate(zip(self.ids, wanted, strict=False)) if old != new), len(wanted))
        start = kept - kept % CHUNK_LINES
        lines = [line for chunk in self.chunks[start // CHUNK_LINES :] for line in chunk.split("\n")[1:]]
        old = dict(zip(self.ids[start:], zip(self._versions[start:], lines, strict=True), strict=True))
        entries = [(id, *(old.get(id) or self._line(id, head, display))) for id in wanted[start:]]
        del self.chunks[start // CHUNK_LINES :], self.ids[start:], self._versions[start:]
        self._append(entries)

    def _refresh(self, head: Head, display: Display) -> None:
        changed: dict[int, list[tuple[int, int, str]]] = {}
        for place, (id, version) in enumerate(zip(self.ids, self._versions, strict=True)):
            stored = head(id)
            if stored is None or stored.tx != version:
                entry = (place, *self._line(id, head, display))
                changed.setdefault(place // CHUNK_LINES, []).append(entry)
        for chunk, entries in changed.items():
            lines = self.chunks[chunk].split("\n")
            for place, version, line in entries:
                self._versions[place] = version
                lines[place % CHUNK_LINES + 1] = line
            self.chunks[chunk] = "\n".join(lines)

    def _append(self, made: Iterable[tuple[str, int, str]]) -> None:
        # Whole before anything changes: the head of one may have to be loaded first.
        entries = list(made)
        full = len(self.ids) - len(self.ids) % CHUNK_LINES
        fresh = self.chunks.pop().split("\n")[1:] if full < len(self.ids) else []
        for id, version, line in entries:
            self.ids.append(id)
            self._versions.append(version)
            fresh.append(line)
            if len(fresh) == CHUNK_LINES:
                self.chunks.append("\n" + "\n".join(fresh))
                fresh = []
        if fresh:
            self.chunks.append("\n" + "\n".join(fresh))

    @staticmethod
    def _line(id: str, head: Head, display: Display) -> tuple[int, str]:
        stored = head(id)
        line = render.render_pool_line(pool_line(id, stored, display))
        assert stored is not None, "an object without a version has no line"
        return stored.tx, line


SECTIONS: Final[tuple[Section, ...]] = ("system_prompt", "metadata_pool", "chat", "active_content")


WARM_LINES: Final = 512
"""Lines of the pool that are rendered in a row: some 2 ms."""

WARM_CHARACTERS: Final = 512 * 1024
"""Characters of active objects that are rendered in a row: some 2 ms, each object counting for a thousand more."""

_PIECE_CHARACTERS: Final = 1_000


class View(msgspec.Struct, frozen=True, kw_only=True):
    """Inputs of a context: a session's sets and chat, the versions of its objects, and their text.

    ``seq``: journal sequence of the newest segment. ``prompt``: id of the system prompt. ``message_at`` returns the
    message at a place of the chat and the sequence of its write. ``head``, ``content`` and ``message_at`` do not wait;
    an error that they raise ends ``compose``, which may then be called again.
    """

    session: str
    seq: int
    state: SessionState
    message_at: Callable[[Place], tuple[Message, int]]
    prompt: str
    head: Head
    content: Callable[[str], str]
    display: Display
    budget_tokens: int | None = None


class Composition(msgspec.Struct, frozen=True, kw_only=True):
    """One context. ``fragments`` make up the text, of ``size`` bytes; ``plan`` lists what was left out of it."""

    pieces: tuple[Piece, ...]
    size: int
    fragments: tuple[str, ...]
    pool_lines: int
    plan: BudgetPlan

    def text(self) -> str:
        """The whole text."""
        return "".join(self.fragments)

    def blocks(self) -> tuple[Block, ...]:
        """Return the pieces with their places in the text."""
        blocks: list[Block] = []
        offset = 0
        for piece in self.pieces:
            block = Block(
                section=piece.section,
                text=piece.text,
                offset=offset,
                tokens=tokens_of(piece.size),
                reason=piece.reason,
                object=piece.object,
                valid_time=piece.valid_time,
                tx=piece.tx,
            )
            blocks.append(block)
            offset += piece.size + len(SEPARATOR)
        return tuple(blocks)

    def sections(self) -> tuple[SectionSize, ...]:
        """All four sections with their sizes, separators between blocks not counted."""
        sizes: dict[Section, list[int]] = {section: [] for section in SECTIONS}
        for piece in self.pieces:
            sizes[piece.section].append(piece.size)
        return tuple(
            SectionSize(
                section=section,
                bytes=sum(found),
                tokens=tokens_of(sum(found)),
                entries=self.pool_lines if section == "metadata_pool" else len(found),
            )
            for section, found in sizes.items()
        )


def sha256(text: str) -> str:
    """The hash of a text's UTF-8, 64 hex digits."""
    return hashlib.sha256(text.encode()).hexdigest()


class Rendering:
    """Rendering of one session, kept between assemblies. For one mount table: another one needs a new rendering."""

    __slots__ = ("_active", "_chat", "_pool", "_pool_piece", "_prompt", "chat_at")

    def __init__(self) -> None:
        self._prompt: Piece | None = None
        self._pool = PoolText()
        self._pool_piece: tuple[tuple[str, ...], Piece] | None = None
        self._chat: list[Piece] = []
        self.chat_at = (0, 0)
        self._active: dict[str, Piece] = {}

    def compose(self, view: View, *, heads_moved: bool = True) -> Composition:
        """The context of ``view``; ``heads_moved`` false if no version changed since the last one.

        Raises: CtxdError corrupt if an object has no version, and what the view raises. Call it again then.
        """
        prompt = self._compose_prompt(view)
        self._pool.update(view.state.pool, view.head, view.display, heads_moved=heads_moved)
        self._compose_chat(view)
        self._compose_active(view)
        return self._whole(view, prompt)

    def warm(self, view: View) -> Iterator[None]:
        """Render ahead what ``compose`` would have to render of the pool and of active objects, a portion at a time.

        Decides nothing: ``compose`` looks at every version again. Between two portions others may have their turn, as
        long as the session's lock is held. Raises: as ``compose``.
        """
        ids = list(view.state.pool)
        while self._pool.warm(ids, view.head, view.display, lines=WARM_LINES):
            yield
        characters = 0
        for id in list(view.state.active):
            stored = view.head(id)
            if stored is None or stored.content_ref is None or not self.lacks(id, stored):
                continue
            content = view.content(stored.content_ref)
            self._active[id] = active_piece(id, stored, content, why_active(view.state, id))
            characters += _PIECE_CHARACTERS + len(content)
            if characters >= WARM_CHARACTERS:
                characters = 0
                yield

    def lacks(self, id: str, stored: Stored) -> bool:
        """True if the text of ``id``, an active object or the system prompt, is needed for the next ``compose``."""
        kept = self._prompt if stored.document.type == "system_prompt" else self._active.get(id)
        return stored.content_ref is not None and (kept is None or kept.tx != stored.tx)

    def _compose_prompt(self, view: View) -> Piece | None:
        stored = view.head(view.prompt)
        if stored is None or stored.content_ref is None:
            return None
        if self._prompt is None or self._prompt.tx != stored.tx:
            self._prompt = prompt_piece(stored, view.content(stored.content_ref))
        return self._prompt if self._prompt.size else None

    def _compose_chat(self, view: View) -> None:
        turns = view.state.turns
        turn, at = self.chat_at
        for number in range(turn, len(turns)):
            marks = turns[number]
            for place in range(at if number == turn else 0, len(marks)):
                self._chat.append(self._chat_piece(view, (number, place), marks[place]))
                # What follows may have to be loaded first: the next call goes on from here.
                self.chat_at = (number, place + 1)

    def _chat_piece(self, view: View, place: Place, mark: Message) -> Piece:
        if mark.toolcall is not None:
            return toolcall_piece(mark.toolcall, view.head(mark.toolcall))
        message, seq = view.message_at(place)
        return chat_piece(message, chat_id(view.session), seq)

    def _compose_active(self, view: View) -> None:
        active: dict[str, Piece] = {}
        for id in view.state.active:
            stored = view.head(id)
            if stored is None or stored.content_ref is None:
                continue
            reason = why_active(view.state, id)
            piece = self._active.get(id)
            if piece is None or piece.tx != stored.tx:
                piece = active_piece(id, stored, view.content(stored.content_ref), reason)
            elif piece.reason != reason:
                piece = msgspec.structs.replace(piece, reason=reason)
            active[id] = piece
        self._active = active

    def _whole(self, view: View, prompt: Piece | None) -> Composition:
        top = [] if prompt is None else [prompt]
        if len(self._pool.ids):
            top.append(self._pool_block(view))
        stable = [*top, *self._chat]
        active = list(self._active.values())
        made = plan(
            [] if view.budget_tokens is None else [_droppable(view.state, piece) for piece in active],
            total_bytes=_joined_size([piece.size for piece in (*stable, *active)]),
            budget_tokens=view.budget_tokens,
        )
        gone = {dropped.object for dropped in made.dropped}
        pieces = (*stable, *(piece for piece in active if piece.object not in gone))
        fragments: list[str] = []
        for piece in pieces:
            if fragments:
                fragments.append(SEPARATOR)
            if piece.section == "metadata_pool":
                fragments += (POOL_HEADER, *self._pool.chunks)
            else:
                fragments.append(piece.text)
        return Composition(
            pieces=pieces,
            size=_joined_size([piece.size for piece in pieces]),
            fragments=tuple(fragments),
            pool_lines=len(self._pool.ids),
            plan=made,
        )

    def _pool_block(self, view: View) -> Piece:
        """The pool as a block; the version it shows is the session's of its newest segment."""
        chunks = tuple(self._pool.chunks)
        kept = self._pool_piece
        if kept is None or kept[0] != chunks:
            text = "".join((POOL_HEADER, *chunks))
            id = session_object_id(view.session)
            piece = Piece(section="metadata_pool", text=text, size=size_bytes(text), reason="metadata pool", object=id)
            kept = (chunks, piece)
        if kept[1].tx != view.seq:
            kept = (chunks, msgspec.structs.replace(kept[1], tx=view.seq))
        self._pool_piece = kept
        return kept[1]


def _droppable(state: SessionState, piece: Piece) -> Droppable:
    id = piece.object
    assert id is not None, "an active block shows an object"
    return Droppable(id=id, size=piece.size, is_toolcall=not state.is_file(id), is_pinned=id in state.pinned)


def _joined_size(sizes: Sequence[int]) -> int:
    return sum(sizes) + max(0, len(sizes) - 1) * len(SEPARATOR)
