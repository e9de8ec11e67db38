"""Errors of a model's provider, which harnesses record in different ways. Pure."""

from ctxd.transcripts.opencode import error_text
from ctxd_protocol import event_types as typed


def provider_error(event: typed.Event) -> str:
    """Return the message of the error that codex, opencode or pi recorded as ``event``; empty for another event."""
    match event:
        case typed.OpaqueEvent(kind="error", data={"message": str(message)}):
            return message
        case typed.OpaqueEvent(kind="message", data={"error": error}):
            return error_text(error)
        case typed.ResponseEvent(text="", meta={"errorMessage": str(message)}):
            return message
    return ""
