"""Attachments in forms that Claude's provider accepts: with any other, it refuses all further requests of the session.
Pure."""

import mimetypes
from typing import Any, Final
from urllib.parse import urlsplit

import msgspec

from ctxd.secrets.policy import IMAGE_MEDIA_TYPES
from ctxd_protocol.event_types import Attachment

_PDF: Final = "application/pdf"
_TEXT: Final = "text/plain"
_SIGNATURES: Final = ((b"\x89PNG", "image/png"), (b"\xff\xd8\xff", "image/jpeg"), (b"GIF8", "image/gif"))


def accepted(found: Attachment) -> Attachment | None:
    """Return an attachment in a form that Claude accepts, None if no form is accepted."""
    if found.media_type == _TEXT:
        return found if (found.data or b"").strip() else None
    if found.data is None:
        media_type = _type_at(found) if found.url is not None else None
    else:
        media_type = _type_of(found.data, found.media_type)
    return None if media_type is None else msgspec.structs.replace(found, media_type=media_type)


def with_sources(record: dict[str, Any]) -> dict[str, Any]:
    """Return a record without members in the sources of its attachments that Claude's provider does not accept."""
    message = record.get("message")
    if isinstance(message, dict) and isinstance(message.get("content"), list):
        return {**record, "message": {**message, "content": [_with_source(each) for each in message["content"]]}}
    return record


def _type_at(found: Attachment) -> str | None:
    """Return the media type of an attachment at an address, by its path if its own type is not an image; None if Claude
    does not accept it."""
    try:
        address = urlsplit(found.url or "")
    except ValueError:
        return None
    if address.scheme not in ("http", "https"):
        return None
    named = mimetypes.guess_type(address.path)[0]
    media_type = found.media_type if found.media_type.startswith("image/") else named or found.media_type
    return media_type if media_type.startswith("image/") or media_type == _PDF else None


def _type_of(data: bytes, media_type: str) -> str | None:
    if not data or media_type in IMAGE_MEDIA_TYPES or media_type == _PDF:
        return media_type if data else None
    if not media_type.startswith("image/"):
        return None
    if data[:4] == b"RIFF" and data[8:12] == b"WEBP":
        return "image/webp"
    return next((kind for start, kind in _SIGNATURES if data.startswith(start)), None)


def _with_source(block: Any) -> Any:  # noqa: ANN401 - any JSON value
    match block:
        case {"type": "tool_result", "content": list(content)}:
            return {**block, "content": [_with_source(each) for each in content]}
        case {"source": {"type": "url", "url": str(address)}}:
            return {**block, "source": {"type": "url", "url": address}}
        case _:
            return block
