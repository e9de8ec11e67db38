"""Secrets in text from clients and in stored versions: flagged, redacted, or found again under the current rules.

Secrets in files are captured when the file is read, see ``ctxd.indexing.file_version_decision``.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, TypeVar

import anyio
import anyio.lowlevel
import msgspec

from ctxd.media_types import media_type
from ctxd.objects.document import Document, require_text
from ctxd.secrets.policy import keeps_bytes
from ctxd.secrets.redaction import Capture, Guard
from ctxd.sessions.stored_session import events_size
from ctxd.worker_threads import Lane, SharedLane
from ctxd_protocol.context_types import ToolDeclaration
from ctxd_protocol.event_types import Attachment, Event
from ctxd_protocol.methods.toolcalls import ToolcallRecordParams
from ctxd_protocol.object_types import source_label
from ctxd_protocol.secret_types import SecretFound, SecretPolicy, Secrets

INLINE_CHARS_MAX: Final = 64 * 1024
"""Text up to this many characters is scanned on the loop, in under a millisecond; longer text on a thread, so that the
loop is not blocked."""

_THREADS: Final = 2
"""Threads that scan texts of the host; sandboxes have as many again."""

T = TypeVar("T")


async def events_captured(
    guard: Guard, policy: SecretPolicy, events: Sequence[Event], *, sandbox: str | None = None
) -> tuple[Event, ...]:
    """Return ``events`` with secrets flagged or redacted; ``sandbox``: see ``off_loop``. Cancel: safe."""

    def work() -> tuple[Event, ...]:
        return tuple([_event(Capture(guard, policy), event) for event in events])

    return await off_loop(events_size(events), work, sandbox=sandbox)


def toolcall_captured(capture: Capture, params: ToolcallRecordParams) -> ToolcallRecordParams:
    """Return ``params`` with the secrets in arguments and output flagged or redacted by ``capture``."""
    display = () if params.args_display is None else (params.args_display,)
    if capture.finds_nothing(params.args, params.content, *display):
        return params
    content, args = capture.text(params.content), capture.value(params.args)
    shown = None if params.args_display is None else capture.text(params.args_display)
    return msgspec.structs.replace(params, content=content, args=args, args_display=shown)


async def declarations_captured(
    guard: Guard, policy: SecretPolicy, tools: tuple[ToolDeclaration, ...], *, sandbox: str | None
) -> tuple[tuple[ToolDeclaration, ...], Secrets | None]:
    """Return ``tools`` with secrets flagged or redacted, and the secrets; ``sandbox``: see ``off_loop``.

    Cancel: safe.
    """
    capture = Capture(guard, policy)

    def kept(tool: ToolDeclaration) -> ToolDeclaration:
        schema, description = capture.value(tool.input_schema), capture.text(tool.description)
        return msgspec.structs.replace(tool, input_schema=schema, description=description)

    made = await off_loop(len(msgspec.json.encode(tools)), lambda: tuple(map(kept, tools)), sandbox=sandbox)
    return made, capture.secrets


_REFERENCES: Final = frozenset({"id", "parent", "message", "sidechain", "call", "object", "kept_from", "secrets"})
"""Fields of events that refer to other items: a redacted reference would be broken."""


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
    found = capture.secrets
    # An event whose attachment lost its bytes has the policy, even if no secret was found.
    secrets = found if found is not None and (found.found or "attachments" in kept) else None
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
            # Only text is searched for secrets: other bytes are kept only if the policy keeps them, as for files.
            if not keeps_bytes(media_type(attachment.data), capture.policy):
                kept["data"] = None
        else:
            if (text := capture.text(given)) is not given:
                kept["data"] = text.encode()
    return msgspec.structs.replace(attachment, **kept) if kept else attachment


_lanes: Final = anyio.lowlevel.RunVar[tuple[Lane, SharedLane]]("_lanes")


async def off_loop(chars: int, work: Callable[[], T], *, sandbox: str | None = None) -> T:
    """Return the result of ``work``, run on a thread for many characters. Cancel: waits for the thread.

    ``sandbox``: the principal or session of the sandbox that the text is or may be from. It may be crafted so that its
    scan takes a thousand times as long, so it is always scanned on a thread, never on one that scans texts of the host,
    and after the earlier texts of the same sandbox.
    """
    lanes = _lanes.get(None)
    if lanes is None:
        lanes = Lane("redaction", _THREADS, inline=INLINE_CHARS_MAX), SharedLane("sandbox-redaction", _THREADS)
        _lanes.set(lanes)
    if sandbox is None:
        return await lanes[0].run(work, size=chars)
    return await lanes[1].run_for(sandbox, work)


_NOT_SAID = frozenset({"secrets", "preview", "first_prompt"})
"""Fields of a payload that are not scanned: they describe secrets, or repeat the chat."""


class Found(msgspec.Struct, frozen=True):
    """Secrets by rule and tag, and the lines of the text on which they begin, from 1."""

    found: tuple[SecretFound, ...]
    lines: tuple[int, ...]


def scanned(guard: Guard, document: Document) -> Found | None:
    """Return the secrets in the content, path and metadata of a version; None if there are none.

    Binary content is not searched."""
    text = "" if document.content is None or isinstance(document.content, bytes) else require_text(document.content)
    capture = Capture(guard, "flag")
    capture.text(text)
    capture.value({name: value for name, value in document.payload.items() if name not in _NOT_SAID})
    if document.source is not None:
        capture.text(source_label(document.source))
    found = capture.secrets
    if found is None:
        return None
    data = text.encode()
    lines, line, at = [], 1, 0
    for hit in guard.scanner.hits(data):
        line, at = line + data.count(b"\n", at, hit.start), hit.start
        lines.append(line)
    return Found(found.found, tuple(dict.fromkeys(lines)))


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
