"""Edits of JSON text that leave every other byte unchanged, to preserve the layout of a person's settings file."""

import json
import re
from collections.abc import Iterator
from typing import Any, Final, NamedTuple

_DECODER: Final = json.JSONDecoder()
_SPACE: Final = re.compile(r"[ \t\r\n]*")
_FIRST_INDENT: Final = re.compile(r"\{[ \t]*\r?\n([ \t]+)\"")


class Element(NamedTuple):
    """One member of an object or item of an array: where it begins and ends, where its value begins, and its key."""

    start: int
    value: int
    end: int
    key: str | None


def elements(text: str, at: int) -> list[Element]:
    """The elements of the object or array that begins at ``at`` of ``text``, which is valid JSON."""
    return list(_elements(text, at))


def _elements(text: str, at: int) -> Iterator[Element]:
    is_object = text[at] == "{"
    at = _skip(text, at + 1)
    while text[at] not in "}]":
        start, key, value = at, None, at
        if is_object:
            key, end = _DECODER.raw_decode(text, at)
            value = _skip(text, _skip(text, end) + 1)
        _, end = _DECODER.raw_decode(text, value)
        yield Element(start, value, end, key)
        at = _skip(text, end)
        if text[at] == ",":
            at = _skip(text, at + 1)


def member(text: str, at: int, key: str) -> Element | None:
    """The member ``key`` of the object at ``at``, of equal keys the last one, as in JSON parsers; None without one."""
    found = [each for each in elements(text, at) if each.key == key]
    return found[-1] if found else None


def root(text: str) -> int:
    """The offset at which the value of ``text`` begins."""
    return _skip(text, 0)


def piece(text: str, value: Any, level: int) -> str:  # noqa: ANN401 - any JSON value
    """``value`` as JSON in the layout of ``text``, its lines after the first indented by ``level``."""
    unit, line = _layout(text)
    return json.dumps(value, indent=unit, ensure_ascii=False).replace("\n", line + unit * level)


def appended(text: str, at: int, level: int, value: Any, key: str | None = None) -> str:  # noqa: ANN401 - any JSON value
    """``text`` with ``value`` as the last element of the container at ``at``, indented by ``level``."""
    unit, line = _layout(text)
    added = piece(text, value, level)
    if key is not None:
        added = f"{json.dumps(key, ensure_ascii=False)}: {added}"
    there = elements(text, at)
    if there:
        end = there[-1].end
        return f"{text[:end]},{line}{unit * level}{added}{text[end:]}"
    close = _skip(text, at + 1)
    return f"{text[: at + 1]}{line}{unit * level}{added}{line}{unit * (level - 1)}{text[close:]}"


def remove_element(text: str, at: int, index: int) -> str:
    """``text`` without the element ``index`` of the container at ``at``. The inverse of ``appended``."""
    there = elements(text, at)
    if len(there) == 1:
        return text[: at + 1] + text[_skip(text, there[0].end) :]
    if index:
        return text[: there[index - 1].end] + text[there[index].end :]
    return text[: there[0].start] + text[there[1].start :]


def _layout(text: str) -> tuple[str, str]:
    """The indentation of one level, and the line ending."""
    found = _FIRST_INDENT.match(text, root(text))
    return found[1] if found else "  ", "\r\n" if "\r\n" in text else "\n"


def _skip(text: str, at: int) -> int:
    found = _SPACE.match(text, at)
    assert found is not None, "it matches nothing as well"
    return found.end()
