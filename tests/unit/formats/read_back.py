"""Sessions of each harness, read and written again by its reader and its writer."""

import json
from io import BytesIO

import msgspec

from ctxd.formats.codex_v1 import RolloutWriter
from ctxd.formats.losses import Losses
from ctxd.formats.opencode_export import DocumentWriter
from ctxd.formats.pi_v1 import TreeWriter
from ctxd.transcripts import claude_code, codex, opencode, pi
from ctxd.transcripts.opencode_storage import export_records, numbered
from ctxd.transcripts.record_decoding import lines
from ctxd_protocol import event_types as typed

IMAGE = typed.Attachment(media_type="image/png", data=b"\x89PNG")
Events = list[typed.Event]


def of_codex(content: bytes) -> Events:
    return [entry.event for entry in codex.read_rollout(lines(BytesIO(content)))]


def of_pi(content: bytes) -> Events:
    return [entry.event for entry in pi.read_session(lines(BytesIO(content)))]


def of_claude(content: bytes) -> Events:
    return [entry.event for entry in claude_code.read_session(lines(BytesIO(content)))]


def of_opencode(content: bytes) -> Events:
    return [entry.event for entry in opencode.read_session(numbered(export_records(json.loads(content))))]


READERS = {"claude": of_claude, "codex": of_codex, "pi": of_pi, "opencode": of_opencode}


def codex_again(events: Events) -> tuple[bytes, Losses]:
    losses = Losses()
    writer = RolloutWriter(losses)
    return b"".join(line for event in events for line in writer.add(event)), losses


def pi_again(events: Events) -> tuple[bytes, Losses]:
    losses = Losses()
    writer = TreeWriter(losses)
    return b"".join([*(line for event in events for line in writer.add(event)), *writer.end()]), losses


def opencode_again(events: Events) -> tuple[bytes, Losses]:
    losses = Losses()
    writer = DocumentWriter(losses)
    for event in events:
        writer.add(event)
    return msgspec.json.encode(writer.document()), losses
