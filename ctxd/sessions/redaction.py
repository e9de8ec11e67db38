"""Secrets in text that clients send, and in stored versions: flagged, redacted, or found again under the current rules.

Files are captured where they are read, see ``ctxd.indexing.decide``.
"""

from collections.abc import Callable, Sequence
from typing import Final, TypeVar

import anyio
import anyio.lowlevel
import msgspec

from ctxd.objects.document import Document
from ctxd.offload import Lane
from ctxd.secrets.guard import Capture, Guard
from ctxd.sessions.segments import text_size
from ctxd_protocol.methods.files import ToolcallRecordParams
from ctxd_protocol.objects import source_label
from ctxd_protocol.secrets import SecretFound, SecretPolicy
from ctxd_protocol.sessions import Message

INLINE_CHARS_MAX: Final = 64 * 1024
"""Characters that are scanned on the loop: under a millisecond. More go to a thread, so that other sessions go on."""

_THREADS: Final = 2

T = TypeVar("T")


async def captured(guard: Guard, policy: SecretPolicy, messages: Sequence[Message]) -> tuple[Message, ...]:
    """``messages`` as they are to be kept. Cancel: safe."""
    return await off_loop(text_size(messages), lambda: messages_captured(guard, policy, messages))


def messages_captured(guard: Guard, policy: SecretPolicy, messages: Sequence[Message]) -> tuple[Message, ...]:
    """``messages`` as they are to be kept, without a wait: for at most ``INLINE_CHARS_MAX`` on the loop."""
    return tuple(_message(Capture(guard, policy), message) for message in messages)


def toolcall_captured(capture: Capture, params: ToolcallRecordParams) -> ToolcallRecordParams:
    """``params`` as they are to be kept: the secrets in arguments and output flagged or redacted by ``capture``."""
    display = () if params.args_display is None else (params.args_display,)
    if capture.finds_nothing(params.args, params.content, *display):
        return params
    content, args = capture.text(params.content), capture.value(params.args)
    shown = None if params.args_display is None else capture.text(params.args_display)
    return msgspec.structs.replace(params, content=content, args=args, args_display=shown)


def _message(capture: Capture, message: Message) -> Message:
    content = capture.text(message.content)
    meta = None if message.meta is None else capture.value(message.meta)
    told = capture.secrets
    secrets = told if told is not None and told.found else None
    if content is message.content and meta is message.meta and secrets is None and message.secrets is None:
        return message
    return msgspec.structs.replace(message, content=content, meta=meta, secrets=secrets)


_lane: Final = anyio.lowlevel.RunVar[Lane]("_lane")


async def off_loop(chars: int, work: Callable[[], T]) -> T:
    """Return the result of ``work``, run on a thread for many characters. Cancel: waits for the thread."""
    lane = _lane.get(None)
    if lane is None:
        lane = Lane("redaction", _THREADS, inline=INLINE_CHARS_MAX)
        _lane.set(lane)
    return await lane.run(work, size=chars)


_NOT_SAID = frozenset({"secrets", "preview"})
"""Fields of a payload that describe secrets, or repeat the chat."""


class Found(msgspec.Struct, frozen=True):
    """Secrets by rule and tag, and the lines of the text they begin on, from 1."""

    found: tuple[SecretFound, ...]
    lines: tuple[int, ...]


def scanned(guard: Guard, document: Document) -> Found | None:
    """The secrets in a version that was read with its content, its path and its metadata; None if there are none."""
    text = document.content or ""
    capture = Capture(guard, "flag")
    capture.text(text)
    capture.value({name: value for name, value in document.payload.items() if name not in _NOT_SAID})
    if document.source is not None:
        capture.text(source_label(document.source))
    told = capture.secrets
    if told is None:
        return None
    data = text.encode()
    lines = tuple(dict.fromkeys(data.count(b"\n", 0, hit.start) + 1 for hit in guard.scanner.hits(data)))
    return Found(told.found, lines)


def scanned_turn(guard: Guard, messages: Sequence[Message]) -> Found | None:
    """Return the secrets in the texts and metadata of a turn; None without any."""
    capture = Capture(guard, "flag")
    for message in messages:
        capture.text(message.content)
        if message.meta is not None:
            capture.value(message.meta)
    told = capture.secrets
    return None if told is None else Found(told.found, ())


def merged(one: Found | None, other: Found | None) -> Found | None:
    """Return the findings of both versions; the lines are those of ``one`` if it has any."""
    if one is None or other is None:
        return one or other
    known = {(found.rule, found.tag) for found in one.found}
    more = tuple(found for found in other.found if (found.rule, found.tag) not in known)
    return Found((*one.found, *more), one.lines or other.lines)
