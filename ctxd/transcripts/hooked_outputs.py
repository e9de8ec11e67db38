"""Outputs of tools, from the forms that harnesses pass to hooks, as the text and the attachments that their transcripts
have. Pure."""

from collections.abc import Iterable, Sequence
from typing import Any, Final, NamedTuple

import msgspec

from ctxd.media_types import UNKNOWN_MEDIA, media_type
from ctxd.transcripts.claude_code import attachments_of
from ctxd.transcripts.record_decoding import Record, as_text, attachment_of, record_of, records_of, resource_of
from ctxd_protocol.event_types import Attachment

_TEXTS: Final = ("text", "input_text", "output_text")
"""Types of the blocks that are text."""

_MEDIA_TYPES: Final = {"image": "image/*", "pdf": "application/pdf", "audio": "audio/*"}
"""Media types of files and blocks that do not name their own, by their type."""


class HookedOutput(NamedTuple):
    """The output of a tool."""

    text: str = ""
    attachments: tuple[Attachment, ...] = ()


def output_of(response: object) -> HookedOutput:
    """Return the output of a tool; a value of an unknown form as JSON."""
    match response:
        case None:
            return HookedOutput()
        case str():
            return HookedOutput(response)
        case {"isImage": True, "stdout": str(out)}:
            return _attached([attachment_of("image/*", out)])
        case {"stdout": str(out)}:
            return HookedOutput("\n".join(part for part in (out, as_text(record_of(response).get("stderr"))) if part))
        case {"file": {"content": str(content)}}:
            return HookedOutput(content)
        case {"file": {"base64": str(data)} as file}:
            named = as_text(file.get("type")) or _media_type(record_of(response))
            return _attached([attachment_of(named, data)])
        case {"type": "notebook", "file": {"cells": [*cells]}}:
            return _of_notebook(records_of(cells))
        case {"output": str(text), "attachments": [*files]}:
            return _attached([_file_of_opencode(each) for each in records_of(files)], [text])
        case {"content": [*blocks]} | [*blocks] if blocks:
            return _of_blocks(blocks) or HookedOutput(_json(response))
        case _:
            return HookedOutput(_json(response))


def _of_notebook(cells: Iterable[Record]) -> HookedOutput:
    """Return the cells of a notebook and their outputs as Claude Code gives them to the model."""
    texts: list[str] = []
    attachments: list[Attachment] = []
    for cell in cells:
        kind, language, id = (as_text(cell.get(name)) for name in ("cellType", "language", "cell_id"))
        stated = f"<cell_type>{kind}</cell_type>" if kind != "code" else ""
        if kind == "code" and language != "python":
            stated = f"<language>{language}</language>"
        texts.append(f'<cell id="{id}">{stated}{as_text(cell.get("source"))}</cell id="{id}">')
        for output in records_of(cell.get("outputs")):
            if text := as_text(output.get("text")):
                texts.append(f"\n{text}")
            if image := record_of(output.get("image")):
                attachments.append(attachment_of(as_text(image.get("media_type")), image.get("image_data")))
    return _attached(attachments, texts)


def _of_blocks(blocks: Sequence[object]) -> HookedOutput | None:
    """Return the output that consists of ``blocks``; None if one is of an unknown form and none is an attachment."""
    texts: list[str] = []
    attachments: list[Attachment] = []
    has_unknown = False
    for block in blocks:
        if (text := _text(block)) is not None:
            texts.append(text)
        elif files := _files(record_of(block)):
            attachments += files
        else:
            texts.append(block if isinstance(block, str) else _json(block))
            has_unknown = True
    return None if has_unknown and not attachments else _attached(attachments, texts)


def _text(block: object) -> str | None:
    match block:
        case {"type": str(kind), "text": str(text)} if kind in _TEXTS:
            return text
        case {"type": "resource", "resource": {"text": str(text)}}:
            return text
        case _:
            return None


def _files(block: Record) -> list[Attachment]:
    """Return the image or the document of a block; none for a block of another form."""
    match block:
        case {"image_url": str(url)}:
            return [attachment_of("image/*", url)]
        case {"type": "image" | "document", "source": dict()}:
            return attachments_of(block)
        case {"type": "image" | "audio", "data": str(data)}:
            return [attachment_of(as_text(block.get("mimeType")) or _media_type(block), data)]
        case _:
            return [found] if (found := resource_of(block)) else []


def _file_of_opencode(file: Record) -> Attachment:
    return attachment_of(as_text(file.get("mime")), file.get("url"), as_text(file.get("filename")) or None)


def _media_type(record: Record) -> str:
    return _MEDIA_TYPES.get(as_text(record.get("type")), UNKNOWN_MEDIA)


def _attached(found: Iterable[Attachment], texts: Iterable[str] = ()) -> HookedOutput:
    """Return an output of ``texts`` and attachments. The text names those whose bytes ``ctx-hook`` has cut."""
    texts, kept = [*texts], []
    for each in map(_with_media_type, found):
        if each.url is not None and ":" not in each.url[:64]:
            texts.append(f"[{each.media_type}, not recorded: the data is incomplete]")
        else:
            kept.append(each)
    return HookedOutput("\n".join(texts), tuple(kept))


def _with_media_type(found: Attachment) -> Attachment:
    """Return an attachment with the media type of its bytes if the hook names none: codex names one only in its
    transcript."""
    if found.data is None or found.media_type not in (*_MEDIA_TYPES.values(), UNKNOWN_MEDIA):
        return found
    seen = media_type(found.data)
    return found if seen == UNKNOWN_MEDIA else msgspec.structs.replace(found, media_type=seen)


def _json(value: Any) -> str:  # noqa: ANN401 - any JSON value
    return msgspec.json.encode(value).decode()
