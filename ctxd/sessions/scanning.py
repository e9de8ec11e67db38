"""Looking for secrets in what is stored, by the rules of now: in text, in arguments, in names and in what is said."""

from collections.abc import Sequence

import msgspec

from ctxd.objects.document import Document
from ctxd.secrets.guard import Guard
from ctxd_protocol.secrets import SecretFound
from ctxd_protocol.sessions import Message

_NOT_SAID = frozenset({"secrets", "preview"})
"""Fields of a payload that tell of secrets, or say what the chat says."""


class Found(msgspec.Struct, frozen=True):
    """Secrets by rule and tag, and the lines of the text they begin on, from 1."""

    found: tuple[SecretFound, ...]
    lines: tuple[int, ...]


def scanned(guard: Guard, document: Document) -> Found | None:
    """The secrets in a version that was read with its content, its path and its metadata; null if there are none."""
    text = document.content or ""
    capture = guard.capture("flag")
    capture.text(text)
    capture.value({name: value for name, value in document.payload.items() if name not in _NOT_SAID})
    if document.source is not None:
        capture.text(document.source.path)
    told = capture.secrets
    if told is None:
        return None
    data = text.encode()
    lines = tuple(dict.fromkeys(data.count(b"\n", 0, hit.start) + 1 for hit in guard.scanner.hits(data)))
    return Found(told.found, lines)


def scanned_turn(guard: Guard, messages: Sequence[Message]) -> Found | None:
    """The secrets in what was said in a turn, and in what a harness attached to it; null if there are none."""
    capture = guard.capture("flag")
    for message in messages:
        capture.text(message.content)
        if message.meta is not None:
            capture.value(message.meta)
    told = capture.secrets
    return None if told is None else Found(told.found, ())


def merged(one: Found | None, other: Found | None) -> Found | None:
    """What is in either of two versions; the lines are those of ``one`` if it has any."""
    if one is None or other is None:
        return one or other
    known = {(found.rule, found.tag) for found in one.found}
    more = tuple(found for found in other.found if (found.rule, found.tag) not in known)
    return Found((*one.found, *more), one.lines or other.lines)
