"""``narrative-v1``: a conversation as text for a model of any harness, its events in order.

Headings are lines that begin with ``#``; such lines within texts are escaped with a backslash.
"""

import re
from typing import Final

from ctxd.formats.losses import Losses, args_text, event_text
from ctxd.formats.provider_errors import provider_error
from ctxd_protocol import event_types as typed

NAME: Final = "narrative-v1"

TITLE: Final = "# Conversation of an earlier session\n"

_RESULT_CHARS_MAX: Final = 4000
"""Characters of a tool's output that are shown: half from its start, half from its end."""

_HEADING: Final = re.compile(r"^(\\*#)", re.M)


def passage(event: typed.Event, losses: Losses) -> str:
    """Return an event as text with a heading; empty if it has no text. Omissions are counted in ``losses``."""
    match event:
        case typed.ToolCallEvent():
            heading, text = f"Tool call: {' '.join(event.tool.split())}", args_text(event.args)
        case typed.ToolResultEvent():
            heading = "Tool failed" if event.is_error else "Tool result"
            text = _clipped(event.text, losses)
        case _ if message := provider_error(event):
            heading, text = "Error", message
        case typed.OpaqueEvent():
            losses.drop(event)
            return ""
        case _:
            heading, text = _heading(event), event_text(event)
            if not text and not getattr(event, "attachments", ()):
                losses.drop(event)
                return ""
    for part in ("attachments", "signature", "encrypted", "call", "at"):
        if getattr(event, part, None):
            losses.add(f"{event.__struct_config__.tag}.{part}")
    side = f" (sub-agent {event.sidechain})" if event.sidechain is not None else ""
    escaped = _HEADING.sub(r"\\\1", text)
    return f"\n## {heading}{side}\n\n{escaped}\n"


def _heading(
    event: typed.PromptEvent | typed.ResponseEvent | typed.ThinkingEvent | typed.SystemEvent | typed.CompactionEvent,
) -> str:
    match event:
        case typed.PromptEvent():
            return "User"
        case typed.ResponseEvent():
            return "Assistant"
        case typed.ThinkingEvent():
            return "Reasoning of the assistant"
        case typed.SystemEvent():
            return "Notice"
        case typed.CompactionEvent():
            return "Summary of everything before"


def _clipped(text: str, losses: Losses) -> str:
    if len(text) <= _RESULT_CHARS_MAX:
        return text
    gone, half = len(text) - _RESULT_CHARS_MAX, _RESULT_CHARS_MAX // 2
    losses.add("characters of tool_result.text", gone)
    return f"{text[:half]}\n[… {gone} characters left out …]\n{text[-half:]}"
