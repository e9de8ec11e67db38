"""Parser of a rendered context: the exact inverse of ``render``, which proves that no content forges structure.

Accepts the renderer's own texts and nothing else: what it accepts renders to the same bytes again.
"""

import json
import re
from collections.abc import Iterator
from typing import Any, Final

from ctxd.assembly.spec_rendering import _STRUCTURAL, LINE_ENDS, POOL_HEADER, SEPARATOR, LineState
from tests.unit.assembly.reference import (
    ActiveContent,
    ChatEntry,
    ChatText,
    Context,
    FileLine,
    PoolLine,
    ToolcallLine,
    ToolcallRef,
    ToolMessage,
    render,
)

_FIRST: Final = re.compile(_STRUCTURAL)
_ESCAPED: Final = re.compile(rf"([{LINE_ENDS}])\\(?={_STRUCTURAL})")


def unescape(text: str) -> str:
    """The content of which ``text`` is the ``escape``."""
    content = _ESCAPED.sub(r"\1", text)
    return content[1:] if text.startswith("\\") and _FIRST.match(text) else content


_VALUE: Final = r'("(?:[^"\\\n]|\\.)*"|[^" \n]+)'
_HEADER: Final = re.compile(r"(?:\A|(?<=\n\n))(?:METADATA_POOL\n|CHAT_MESSAGE |toolcall_ref |ACTIVE_CONTENT )")
_FILE: Final = re.compile(
    rf"id={_VALUE} type=file path={_VALUE} file_type={_VALUE} char_count=([0-9]+)"
    r"(?: \[(unread|deleted|purged|too large|binary)\])?"
)
_TOOLCALL: Final = re.compile(rf"id={_VALUE} type=toolcall tool={_VALUE} status={_VALUE}")
_CHAT_TEXT: Final = re.compile(r"CHAT_MESSAGE role=(user|assistant)\n")
_TOOL_MESSAGE: Final = re.compile(rf"CHAT_MESSAGE role=tool tool={_VALUE} status={_VALUE}\n")
_TOOLCALL_REF: Final = re.compile(rf"toolcall_ref id={_VALUE} tool={_VALUE} status={_VALUE}")
_ACTIVE: Final = re.compile(rf"ACTIVE_CONTENT id={_VALUE}\n")


_STATES: Final[dict[str | None, LineState]] = {
    None: "present",
    "unread": "unread",
    "deleted": "deleted",
    "purged": "purged",
    "too large": "too_large",
    "binary": "binary",
}


class NotARendering(ValueError):
    """The text is not what the renderer makes of any context."""


def parse(text: str) -> Context:
    """The context of which ``text`` is the rendering.

    Raises: NotARendering if there is none.
    """
    blocks = list(_blocks(text))
    prompt = unescape(blocks.pop(0)) if blocks and not _HEADER.match(blocks[0]) else ""
    pool = _pool(blocks.pop(0)) if blocks and blocks[0].startswith(POOL_HEADER + "\n") else ()
    chat: list[ChatEntry] = []
    while blocks and not blocks[0].startswith("ACTIVE_CONTENT "):
        chat.append(_chat_entry(blocks.pop(0)))
    context = Context(system_prompt=prompt, pool=pool, chat=tuple(chat), active=tuple(map(_active, blocks)))
    if render(context) != text:
        raise NotARendering("the text differs from the rendering of what it seems to say")
    return context


def _blocks(text: str) -> Iterator[str]:
    starts = [found.start() for found in _HEADER.finditer(text)]
    if not starts or starts[0] > 0:
        starts.insert(0, 0)
    for start, following in zip(starts, [*starts[1:], None], strict=True):
        block = text[start:] if following is None else text[start : following - len(SEPARATOR)]
        if block:
            yield block


def _pool(block: str) -> tuple[PoolLine, ...]:
    return tuple(map(_pool_line, block.split("\n")[1:]))


def _pool_line(line: str) -> PoolLine:
    if found := _FILE.fullmatch(line):
        id, path, file_type, char_count, state = found.groups()
        return FileLine(
            id=_unquote(id),
            path=_unquote(path),
            file_type=_unquote(file_type),
            char_count=int(char_count),
            state=_STATES[state],
        )
    id, tool, status = _matched(_TOOLCALL, line).groups()
    return ToolcallLine(id=_unquote(id), tool=_unquote(tool), status=_unquote(status))


def _chat_entry(block: str) -> ChatEntry:
    if found := _CHAT_TEXT.match(block):
        role: Any = found.group(1)
        return ChatText(role=role, text=unescape(block[found.end() :]))
    if found := _TOOL_MESSAGE.match(block):
        tool, status = found.groups()
        arguments, _, output = unescape(block[found.end() :]).partition("\n")
        return ToolMessage(tool=_unquote(tool), status=_unquote(status), arguments=arguments, output=output)
    id, tool, status = _matched(_TOOLCALL_REF, block).groups()
    return ToolcallRef(id=_unquote(id), tool=_unquote(tool), status=_unquote(status))


def _active(block: str) -> ActiveContent:
    found = _ACTIVE.match(block)
    if found is None:
        raise NotARendering(f"not an active block: {block[:80]!r}")
    return ActiveContent(id=_unquote(found.group(1)), content=unescape(block[found.end() :]))


def _matched(pattern: re.Pattern[str], line: str) -> re.Match[str]:
    found = pattern.fullmatch(line)
    if found is None:
        raise NotARendering(f"not a structural line: {line[:80]!r}")
    return found


def _unquote(value: str) -> str:
    if not value.startswith('"'):
        return value
    try:
        text = json.loads(value)
    except ValueError as error:
        raise NotARendering(f"not a JSON string: {value[:80]!r}") from error
    assert isinstance(text, str), "a JSON text that starts with a quote is a string"
    return text
