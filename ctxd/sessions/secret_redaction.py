"""Secrets in text that clients send, and in stored versions: flagged, redacted, or found again under the current rules.

Files are captured where they are read, see ``ctxd.indexing.file_version_decision``.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, TypeVar

import anyio
import anyio.lowlevel
import msgspec

from ctxd.objects.document import Document, media_type, text_of
from ctxd.secrets.policy import keeps_bytes
from ctxd.secrets.redaction import Capture, Guard
from ctxd.sessions.stored_session import events_size
from ctxd.worker_threads import Lane
from ctxd_protocol.context_types import ToolDeclaration
from ctxd_protocol.event_types import Attachment, Event
from ctxd_protocol.methods.toolcalls import ToolcallRecordParams
from ctxd_protocol.object_types import source_label
from ctxd_protocol.secrets import SecretFound, SecretPolicy, Secrets

INLINE_CHARS_MAX: Final = 64 * 1024
"""Characters that are scanned on the loop: under a millisecond. More go to a thread, so that other sessions go on."""

_THREADS: Final = 2
"""Threads that scan texts of the host, and as many that scan those of sandboxes."""

T = TypeVar("T")


async def captured(
    guard: Guard, policy: SecretPolicy, events: Sequence[Event], *, confined: bool = False
) -> tuple[Event, ...]:
    """``events`` as they are to be kept; ``confined``: see ``off_loop``. Cancel: safe."""

    def work() -> tuple[Event, ...]:
        return tuple([_event(Capture(guard, policy), event) for event in events])

    return await off_loop(events_size(events), work, confined=confined)


def toolcall_captured(capture: Capture, params: ToolcallRecordParams) -> ToolcallRecordParams:
    """``params`` as they are to be kept: the secrets in arguments and output flagged or redacted by ``capture``."""
    display = () if params.args_display is None else (params.args_display,)
    if capture.finds_nothing(params.args, params.content, *display):
        return params
    content, args = capture.text(params.content), capture.value(params.args)
    shown = None if params.args_display is None else capture.text(params.args_display)
    return msgspec.structs.replace(params, content=content, args=args, args_display=shown)


async def declarations_captured(
    guard: Guard, policy: SecretPolicy, tools: tuple[ToolDeclaration, ...], *, confined: bool
) -> tuple[tuple[ToolDeclaration, ...], Secrets | None]:
    """``tools`` as they are to be kept and sent, and the secrets in them; ``confined``: see ``off_loop``.

    Cancel: safe.
    """
    capture = Capture(guard, policy)

    def kept(tool: ToolDeclaration) -> ToolDeclaration:
        schema, description = capture.value(tool.input_schema), capture.text(tool.description)
        return msgspec.structs.replace(tool, input_schema=schema, description=description)

    made = await off_loop(len(msgspec.json.encode(tools)), lambda: tuple(map(kept, tools)), confined=confined)
    return made, capture.secrets


_REFERENCES: Final = frozenset({"id", "parent", "message", "sidechain", "call", "object", "kept_from", "secrets"})
"""Fields of events that name something else: a redacted one would name nothing."""


def _event(capture: Capture, event: Event) -> Event:
    kept: dict[str, Any] = {}
    for name in event.__struct_fields__:
        given = getattr(event, name)
        if name in _REFERENCES:
            continue
        if isinstance(given, str):
            value: Any = capture.text(given)
        elif isinstance(given, dict | list):
            value = capture.value(given)
        elif isinstance(given, tuple):
            value = tuple([_attachment(capture, each) for each in given])
        else:
            continue
        if value is not given and value != given:
            kept[name] = value
    told = capture.secrets
    # An event of which bytes were left out names the policy, though nothing was found.
    secrets = told if told is not None and (told.found or "attachments" in kept) else None
    if not kept and secrets is None and event.secrets is None:
        return event
    return msgspec.structs.replace(event, secrets=secrets, **kept)


def _attachment(capture: Capture, attachment: Attachment) -> Attachment:
    kept: dict[str, Any] = {}
    for name in ("media_type", "name", "url"):
        if (given := getattr(attachment, name)) is not None and (text := capture.text(given)) is not given:
            kept[name] = text
    if attachment.data is not None:
        try:
            given = attachment.data.decode()
        except UnicodeDecodeError:
            # Secrets are found in text: as of a file, bytes that cannot be searched stay only if they are an image.
            if not keeps_bytes(media_type(attachment.data), capture.policy):
                kept["data"] = None
        else:
            if (text := capture.text(given)) is not given:
                kept["data"] = text.encode()
    return msgspec.structs.replace(attachment, **kept) if kept else attachment


_lanes: Final = anyio.lowlevel.RunVar[tuple[Lane, Lane]]("_lanes")


async def off_loop(chars: int, work: Callable[[], T], *, confined: bool = False) -> T:
    """Return the result of ``work``, run on a thread for many characters. Cancel: waits for the thread.

    ``confined``: the text is or may be a sandbox's. It may be made so that its scan takes a thousand times as long, so
    a thread scans it however short it is, and none that the host's texts wait for.
    """
    lanes = _lanes.get(None)
    if lanes is None:
        lanes = Lane("redaction", _THREADS, inline=INLINE_CHARS_MAX), Lane("sandbox-redaction", _THREADS)
        _lanes.set(lanes)
    return await lanes[confined].run(work, size=chars)


_NOT_SAID = frozenset({"secrets", "preview", "first_prompt"})
"""Fields of a payload that describe secrets, or repeat the chat."""


class Found(msgspec.Struct, frozen=True):
    """Secrets by rule and tag, and the lines of the text they begin on, from 1."""

    found: tuple[SecretFound, ...]
    lines: tuple[int, ...]


def scanned(guard: Guard, document: Document) -> Found | None:
    """The secrets in a version that was read with its content, its path and its metadata; None if there are none.
    Content that is no text is not searched."""
    text = "" if document.content is None or isinstance(document.content, bytes) else text_of(document.content)
    capture = Capture(guard, "flag")
    capture.text(text)
    capture.value({name: value for name, value in document.payload.items() if name not in _NOT_SAID})
    if document.source is not None:
        capture.text(source_label(document.source))
    told = capture.secrets
    if told is None:
        return None
    data = text.encode()
    lines, line, at = [], 1, 0
    for hit in guard.scanner.hits(data):
        line, at = line + data.count(b"\n", at, hit.start), hit.start
        lines.append(line)
    return Found(told.found, tuple(dict.fromkeys(lines)))


def scan_events(capture: Capture, events: Iterable[Event]) -> None:
    """Add the secrets in ``events`` to the findings of ``capture``."""
    for event in events:
        _event(capture, event)


def merged(one: Found | None, other: Found | None) -> Found | None:
    """Return the findings of both versions; the lines are those of ``one`` if it has any."""
    if one is None or other is None:
        return one or other
    known = {(found.rule, found.tag) for found in one.found}
    more = tuple(found for found in other.found if (found.rule, found.tag) not in known)
    return Found((*one.found, *more), one.lines or other.lines)
