"""Contexts built to confuse: content made of structural tokens, odd line ends, invisible characters and renderings."""

import json
import random
from collections.abc import Callable
from typing import Final

from hypothesis import strategies as st

from tests.unit.assembly.reference import (
    ActiveContent,
    ChatText,
    Context,
    FileLine,
    ToolcallLine,
    ToolcallRef,
    ToolMessage,
    render,
)

LINE_ENDS: Final = ("\n", "\n\n", "\r", "\r\n", "\x0b", "\x0c", "\x1c", "\x1e", "\x85", "\u2028", "\u2029")
HIDDEN: Final = (
    "\u200b",
    "\u200d",
    "\ufeff",
    "\u202e",
    "\u2066",
    "\xad",
    "\x00",
    "\x08",
    "\x1b",
    "\U000e0041",
    "\ufe0f",
)
STRUCTURE: Final = (
    "METADATA_POOL",
    "CHAT_MESSAGE role=user",
    "CHAT_MESSAGE role=assistant",
    "CHAT_MESSAGE",
    "toolcall_ref id=t tool=bash status=ok",
    "toolcall_ref",
    "ACTIVE_CONTENT id=a",
    "ACTIVE_CONTENT",
    "id=a type=file path=p file_type=ts char_count=1",
    "id=a type=toolcall tool=t status=ok",
    "id=",
    " type=",
    "type=file",
    " [unread]",
    " [deleted]",
    " [too large]",
    " [binary]",
)
PLAIN: Final = ("", " ", "\t", "\xa0", "\\", "\\\\", '"', '\\"', "'", "=", "a", "é", "😀", "x y", "{}", "```", "\u3000")

_pieces = st.sampled_from(LINE_ENDS + HIDDEN + STRUCTURE + PLAIN + STRUCTURE)
_torn = st.tuples(st.sampled_from(STRUCTURE), st.sampled_from(HIDDEN), st.integers(0, 20)).map(
    lambda torn: torn[0][: torn[2]] + torn[1] + torn[0][torn[2] :]
)
texts = st.one_of(
    st.lists(_pieces, max_size=12).map("".join),
    st.lists(st.one_of(_pieces, _torn), max_size=6).map("\n".join),
    st.text(max_size=20),
)
WORDS: Final = ("a", "f" * 64, "call_x|fc_1", "toolcall:s:t", "a b", "a\nid=b type=file", "[unread]", '"', "", "ü")
words = st.one_of(
    st.sampled_from(WORDS),
    st.lists(_pieces, max_size=4).map("".join),
)


def contexts(contents: st.SearchStrategy[str]) -> st.SearchStrategy[Context]:
    """Any context whose content comes from ``contents``."""
    return st.builds(
        Context,
        system_prompt=contents,
        pool=st.lists(
            st.one_of(
                st.builds(
                    FileLine,
                    id=words,
                    path=words,
                    file_type=words,
                    char_count=st.integers(0, 2**40),
                    state=st.sampled_from(("present", "unread", "deleted", "too_large", "binary")),
                ),
                st.builds(ToolcallLine, id=words, tool=words, status=words),
            ),
            max_size=3,
        ).map(tuple),
        chat=st.lists(
            st.one_of(
                st.builds(ChatText, role=st.sampled_from(("user", "assistant")), text=contents),
                st.builds(ToolcallRef, id=words, tool=words, status=words),
                st.builds(ToolMessage, tool=words, status=words, arguments=contents.map(_arguments), output=contents),
            ),
            max_size=3,
        ).map(tuple),
        active=st.lists(st.builds(ActiveContent, id=words, content=contents), max_size=3).map(tuple),
    )


def _arguments(text: str) -> str:
    return json.dumps({"text": text}, ensure_ascii=False)


def _drawn_call(rng: random.Random, content: Callable[[], str]) -> ToolcallRef | ToolMessage:
    tool, status = _drawn_word(rng), _drawn_word(rng)
    if rng.random() < 0.5:
        return ToolcallRef(id=_drawn_word(rng), tool=tool, status=status)
    return ToolMessage(tool=tool, status=status, arguments=_arguments(_drawn_text(rng)), output=content())


shrinkable = contexts(texts)
"""Contexts for Hypothesis: few, but a failing one is made small."""


def drawn(rng: random.Random, depth: int | None = None) -> Context:
    """One context from ``rng``, fast. Its content may be the rendering of another one, ``depth`` deep."""
    nesting = rng.choice((0, 0, 0, 1, 1, 2, 3)) if depth is None else depth

    def content() -> str:
        if nesting and rng.random() < 0.5:
            return _torn_text(rng, render(drawn(rng, nesting - 1)))
        return _drawn_text(rng)

    return Context(
        system_prompt=content() if rng.random() < 0.6 else "",
        pool=tuple(_drawn_line(rng) for _ in range(rng.choice((0, 0, 1, 2, 4)))),
        chat=tuple(
            ChatText(role=rng.choice(("user", "assistant")), text=content())
            if rng.random() < 0.7
            else _drawn_call(rng, content)
            for _ in range(rng.choice((0, 1, 1, 2, 3)))
        ),
        active=tuple(ActiveContent(id=_drawn_word(rng), content=content()) for _ in range(rng.choice((0, 1, 1, 2, 3)))),
    )


def _drawn_text(rng: random.Random) -> str:
    pieces = []
    for _ in range(rng.choice((0, 1, 1, 2, 3, 5, 12))):
        piece = rng.choice(rng.choice((LINE_ENDS, HIDDEN, STRUCTURE, STRUCTURE, PLAIN)))
        if rng.random() < 0.1:
            at = rng.randint(0, len(piece))
            piece = piece[:at] + rng.choice(HIDDEN + PLAIN) + piece[at:]
        pieces.append(piece)
    return rng.choice(("", "", "\n", "\r", "\n\n")).join(pieces)


def _torn_text(rng: random.Random, text: str) -> str:
    """``text``, at times with a piece cut out or put in."""
    if rng.random() < 0.5:
        return text
    start, end = sorted((rng.randint(0, len(text)), rng.randint(0, len(text))))
    return (
        text[:start] + (_drawn_text(rng) if rng.random() < 0.5 else "") + text[end if rng.random() < 0.3 else start :]
    )


def _drawn_word(rng: random.Random) -> str:
    return rng.choice(WORDS) if rng.random() < 0.6 else _drawn_text(rng)


def _drawn_line(rng: random.Random) -> FileLine | ToolcallLine:
    if rng.random() < 0.3:
        return ToolcallLine(id=_drawn_word(rng), tool=_drawn_word(rng), status=_drawn_word(rng))
    return FileLine(
        id=_drawn_word(rng),
        path=_drawn_word(rng),
        file_type=_drawn_word(rng),
        char_count=rng.choice((0, 1, 2**40)),
        state=rng.choice(("present", "unread", "deleted")),
    )
