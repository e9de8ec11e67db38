"""A context as pieces that are kept from one assembly to the next, and its text, blocks and figures made of them.

``Rendering`` is what is kept of a session: it renders again only what changed. ``Composition`` is one context,
immutable. The promise: whatever was kept, the text is what rendering everything from scratch gives.
"""

import hashlib
from collections.abc import Callable, Iterator, Sequence
from typing import Final

import msgspec

from ctxd.assembly.budget import Candidate, plan
from ctxd.assembly.measure import size_bytes, tokens_of
from ctxd.assembly.pieces import Display, Piece, active_piece, chat_piece, prompt_piece, toolcall_piece, why_active
from ctxd.assembly.pool import Head, PoolText
from ctxd.assembly.render import POOL_HEADER, SEPARATOR
from ctxd.objects.document import Stored
from ctxd.objects.identity import is_file_id
from ctxd.sessions.state import Place, SessionState
from ctxd_protocol.context import Block, BudgetPlan, Section, SectionSize
from ctxd_protocol.ids import chat_id, session_object_id
from ctxd_protocol.sessions import Message

SECTIONS: Final[tuple[Section, ...]] = ("system_prompt", "metadata_pool", "chat", "active_content")


WARM_LINES: Final = 512
"""Lines of the pool that are rendered in a row: some 2 ms."""

WARM_CHARACTERS: Final = 512 * 1024
"""Characters of active objects that are rendered in a row: some 2 ms, each object counting for a thousand more."""

_PIECE_CHARACTERS: Final = 1_000


class View(msgspec.Struct, frozen=True, kw_only=True):
    """What a context is made of: a session's sets and chat, the versions of its objects, and their text.

    ``seq``: journal sequence of the newest segment. ``prompt``: id of the system prompt. ``said`` returns the message
    at a place of the chat and the sequence of its write. ``head``, ``content`` and ``said`` do not wait; an error that
    they raise ends ``compose``, which may then be called again.
    """

    session: str
    seq: int
    state: SessionState
    said: Callable[[Place], tuple[Message, int]]
    prompt: str
    head: Head
    content: Callable[[str], str]
    display: Display
    budget_tokens: int | None = None


class Composition(msgspec.Struct, frozen=True, kw_only=True):
    """One context. ``fragments`` make up the text; ``plan`` says what was left out of it."""

    pieces: tuple[Piece, ...]
    fragments: tuple[str, ...]
    pool_lines: int
    plan: BudgetPlan

    def text(self) -> str:
        """The whole text."""
        return "".join(self.fragments)

    @property
    def size(self) -> int:
        """Bytes of the text."""
        return _joined_size([piece.size for piece in self.pieces])

    @property
    def tokens(self) -> int:
        """Estimated tokens of the text."""
        return tokens_of(self.size)

    def same_text(self, other: "Composition") -> bool:
        """Whether both have the same text. Cost: the number of fragments when little changed."""
        return self.fragments == other.fragments

    def blocks(self) -> tuple[Block, ...]:
        """The pieces with their places in the text."""
        return tuple(self._blocks())

    def _blocks(self) -> Iterator[Block]:
        offset = 0
        for piece in self.pieces:
            yield Block(
                section=piece.section,
                text=piece.text,
                offset=offset,
                tokens=tokens_of(piece.size),
                reason=piece.reason,
                object=piece.object,
                valid_time=piece.valid_time,
                tx=piece.tx,
            )
            offset += piece.size + len(SEPARATOR)

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
    """What is kept of one session between two assemblies. Not for another mount table: make a new one."""

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
            if stored is None or stored.content_ref is None or not self.lacks_content(stored, id):
                continue
            content = view.content(stored.content_ref)
            self._active[id] = active_piece(id, stored, content, why_active(view.state, id))
            characters += _PIECE_CHARACTERS + len(content)
            if characters >= WARM_CHARACTERS:
                characters = 0
                yield

    def lacks_content(self, stored: Stored, id: str | None = None) -> bool:
        """Whether the text of the active object ``id``, null for that of the document, has to be at hand for the next
        ``compose``."""
        kept = self._active.get(id or stored.document.id)
        return stored.content_ref is not None and (kept is None or kept.tx != stored.tx)

    def lacks_prompt(self, stored: Stored) -> bool:
        """Whether the text of the system prompt has to be at hand for the next ``compose``."""
        return stored.content_ref is not None and (self._prompt is None or self._prompt.tx != stored.tx)

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
        message, seq = view.said(place)
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
        if len(self._pool):
            top.append(self._pool_block(view))
        stable = [*top, *self._chat]
        active = list(self._active.values())
        made = plan(
            [] if view.budget_tokens is None else [_candidate(view.state, piece) for piece in active],
            total_bytes=_joined_size([piece.size for piece in (*stable, *active)]),
            budget_tokens=view.budget_tokens,
        )
        gone = {dropped.object for dropped in made.dropped}
        pieces = (*stable, *(piece for piece in active if piece.object not in gone))
        return Composition(
            pieces=pieces,
            fragments=tuple(self._fragments(pieces)),
            pool_lines=len(self._pool),
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

    def _fragments(self, pieces: Sequence[Piece]) -> Iterator[str]:
        for number, piece in enumerate(pieces):
            if number:
                yield SEPARATOR
            if piece.section == "metadata_pool":
                yield POOL_HEADER
                yield from self._pool.chunks
            else:
                yield piece.text


def _candidate(state: SessionState, piece: Piece) -> Candidate:
    id = piece.object
    assert id is not None, "an active block shows an object"
    return Candidate(id=id, size=piece.size, is_toolcall=not is_file_id(id), is_pinned=id in state.pinned)


def _joined_size(sizes: Sequence[int]) -> int:
    return sum(sizes) + max(0, len(sizes) - 1) * len(SEPARATOR)
