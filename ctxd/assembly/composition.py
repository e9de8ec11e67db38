"""Composition of a context in the layout ``spec``: a row of pieces, which components render and keep between
assemblies.

A layout is a function that makes the components of one session, in the order of the window. A component brings its
pieces up to date with a ``View``, a session as it is now, and keeps them by key, so that an unchanged object is not
rendered again and a piece may be replaced wherever it stands. ``Composition`` is one context, immutable. Whatever is
kept, the text equals that of a new rendering.
"""

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Protocol

import msgspec

from ctxd.assembly.render import SEPARATOR
from ctxd.assembly.token_budget import Piece, TokenCounter, plan, size_bytes
from ctxd.errors import CtxdError
from ctxd.objects.document import Content, Stored
from ctxd.sessions.session import LiveSession
from ctxd_protocol.context_types import BudgetPlan

Heads = Mapping[str, Stored | None]
"""Versions by id of the object; None, or no entry, for an object without one."""

ReadHeads = Callable[[Iterable[str]], Awaitable[Heads]]
"""Read the versions of objects, in the order of their ids."""


class View(msgspec.Struct, frozen=True, kw_only=True):
    """A session at one moment, and the reads of what it shows.

    ``contents`` returns contents by reference. ``chars_max``: characters that the chat and the content read for one
    context may have; None: any.
    """

    live: LiveSession
    heads: ReadHeads
    contents: Callable[[Iterable[str]], Awaitable[Mapping[str, Content]]]
    count: TokenCounter
    chars_max: int | None = None

    def piece(
        self,
        section: str,
        key: str,
        text: str,
        *,
        reason: str,
        object: str,
        tx: int | None,
        valid_time: int | None = None,
        entries: int = 1,
    ) -> Piece:
        """The piece ``key`` of ``section`` with its measures."""
        return Piece(
            key=key,
            section=section,
            text=text,
            size=size_bytes(text),
            tokens=self.count(text),
            reason=reason,
            object=object,
            valid_time=valid_time,
            tx=tx,
            entries=entries,
        )

    def too_long(self, chars: int) -> CtxdError:
        """The refusal of a context of ``chars`` characters or more."""
        assert self.chars_max is not None, "there is a bound"
        return too_long(self.live.session, chars, self.chars_max)


def too_long(session: str, chars: int, chars_max: int) -> CtxdError:
    """The refusal of a context of ``chars`` characters or more, of ``chars_max`` that are possible."""
    return CtxdError(
        "too_large",
        f"the context of session {session} has at least {chars:,} characters, {chars_max:,} are assembled here at most",
        hint="Deactivate objects, collapse tool calls, or continue in a new session.",
        outcome="not_applied",
    )


class SectionPieces(Protocol):
    """Pieces of one section, by key and in order."""

    section: str
    pieces: dict[str, Piece]

    async def update(self, view: View) -> None:
        """Render what changed, in portions, others having their turn in between. Versions may change meanwhile: the
        pieces are of one moment if nothing was written during the call.

        Raises: CtxdError corrupt if an object has no version, too_large, store_failed. Cancel: safe; what is rendered
        is kept.
        """


Layout = Callable[[], Sequence[SectionPieces]]
"""The components of one session, in the order of the window."""


class Composition(msgspec.Struct, frozen=True, kw_only=True):
    """One context: ``texts`` are those of ``pieces``, of ``size`` bytes with the separators; ``plan`` lists what was
    left out. ``sections`` are all of the layout, also those without a piece."""

    sections: tuple[str, ...]
    pieces: tuple[Piece, ...]
    texts: tuple[str, ...]
    size: int
    plan: BudgetPlan

    def text(self) -> str:
        """The whole text."""
        return SEPARATOR.join(self.texts)


def compose(components: Sequence[SectionPieces], budget_tokens: int | None, count: TokenCounter) -> Composition:
    """The context of the pieces of ``components`` as they are, without those that the budget leaves out."""
    pieces = [piece for component in components for piece in component.pieces.values()]
    made = plan(pieces, budget_tokens, count)
    if made.dropped:
        gone = {dropped.object for dropped in made.dropped}
        pieces = [piece for piece in pieces if piece.drop is None or piece.object not in gone]
    return Composition(
        sections=tuple(component.section for component in components),
        pieces=tuple(pieces),
        texts=tuple(piece.text for piece in pieces),
        size=sum(piece.size for piece in pieces) + max(0, len(pieces) - 1) * len(SEPARATOR),
        plan=made,
    )
