"""The documents that become versions."""

import base64

import pytest

from ctxd.objects import document as build
from ctxd.objects.document import Document, decode_content
from ctxd.objects.generated_ids import file_id
from ctxd.objects.hashing import content_hash, identity_hash, source_hash
from ctxd.objects.kinds import OBJECT_TYPES, type_of
from ctxd.objects.version_state import state_of
from ctxd_protocol.object_types import FilesystemSource
from ctxd_protocol.secret_types import Secrets

SOURCE = FilesystemSource("fs", "/src/Main.TS")
ID = file_id(SOURCE)
HASH = source_hash(b"hello")

FILES = {
    "unread": build.file_stub(ID, SOURCE),
    "text": build.file_text(ID, SOURCE, "hello", HASH),
    "binary": build.file_binary(ID, SOURCE, HASH, b"\x89PNG\r\n\x1a\n"),
    "too large": build.file_too_large(ID, SOURCE, 5_000_000_000),
    "deleted": build.file_tombstone(ID, SOURCE),
}
TOOLCALL = build.toolcall("call_1", tool="bash", args={"command": "ls"}, content="a", chat_ref="chat:s")
ALL = [*FILES.values(), TOOLCALL, build.system_prompt("s", "Be kind.")]

FIELDS = {
    "file": ({"file_type", "char_count"}, {"kind", "size_bytes", "deleted", "media_type", "encoding"}),
    "toolcall": ({"tool", "args", "status", "chat_ref"}, {"args_display", "file_refs"}),
    "system_prompt": (set(), set()),
}
"""By type: what is always in a payload, and what only when it applies."""


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("/a/main.ts", "ts"), ("/a/UP.TS", "ts"), ("/a/x.tar.gz", "gz"), ("/a/Makefile", "text"),
        ("/a/.hidden", "text"), ("/a.b/c", "text"), ("/a/.hidden.md", "md"), ("/a/dot.", "text"), ("/", "text"),
    ],
)  # fmt: skip
def test_a_files_type_is_its_lower_case_extension(path: str, expected: str) -> None:
    assert build.file_type(path) == expected


def test_characters_are_counted_in_code_points() -> None:
    assert build.file_text(ID, SOURCE, "a\U0001f600b", HASH).payload["char_count"] == 3


@pytest.mark.parametrize("document", ALL, ids=lambda document: document.type)
def test_every_document_has_the_hashes_of_its_content(document: Document) -> None:
    assert document.content_hash == content_hash(document.payload, document.content)
    assert document.identity_hash == identity_hash(document.type, document.source, document.id)


@pytest.mark.parametrize("document", ALL, ids=lambda document: document.type)
def test_every_payload_has_its_types_fields_and_no_others(document: Document) -> None:
    fields, optional = FIELDS[document.type]
    assert fields <= document.payload.keys() <= fields | optional
    assert (document.source is not None) == (document.type == "file")
    assert document.type in OBJECT_TYPES


@pytest.mark.parametrize(
    ("name", "state"),
    [
        ("unread", "unread"),
        ("text", "present"),
        ("binary", "present"),
        ("too large", "present"),
        ("deleted", "deleted"),
    ],
)
def test_a_files_state_shows_in_its_version(name: str, state: str) -> None:
    assert state_of(FILES[name]) == state


def test_no_two_states_of_a_file_have_one_content_hash() -> None:
    empty = build.file_text(ID, SOURCE, "", source_hash(b""))
    hashes = {document.content_hash for document in (*FILES.values(), empty)}
    assert len(hashes) == len(FILES) + 1


def test_only_bytes_that_were_read_are_content_and_have_a_source_hash() -> None:
    assert [name for name, document in FILES.items() if document.content is not None] == ["text", "binary"]
    assert [name for name, document in FILES.items() if document.source_hash is not None] == ["text", "binary"]


@pytest.mark.parametrize(
    ("raw", "media_type"),
    [
        (b"\x89PNG\r\n\x1a\n\0", "image/png"), (b"\xff\xd8\xff\xe0", "image/jpeg"), (b"GIF89a\0", "image/gif"),
        (b"RIFF\0\0\0\0WEBPVP8 ", "image/webp"), (b"RIFF\0\0\0\0AVI ", "application/octet-stream"),
        (b"%PDF-1.7\0", "application/pdf"), (b"\0", "application/octet-stream"),
    ],
)  # fmt: skip
def test_a_media_type_is_known_by_the_first_bytes(raw: bytes, media_type: str) -> None:
    assert build.file_binary(ID, SOURCE, HASH, raw).payload["media_type"] == media_type


def test_bytes_that_cannot_be_searched_are_not_kept_where_secrets_are_redacted() -> None:
    redacted = Secrets(policy="redact", found=())
    image, other = b"\x89PNG\r\n\x1a\n", b"\0\1"
    kept, hashed = (build.file_binary(ID, SOURCE, HASH, raw, redacted) for raw in (image, other))
    assert (kept.content, kept.payload["encoding"]) == (image, "base64")
    assert (hashed.content, hashed.payload["size_bytes"], "encoding" in hashed.payload) == (None, 2, False)


def test_the_hash_of_bytes_is_that_of_their_base64_whether_or_not_they_are_utf8() -> None:
    for raw in (b"\0text", b"\xff\0"):
        document = build.file_binary(ID, SOURCE, HASH, raw)
        spelled = {**document.payload, "content": base64.b64encode(raw).decode()}
        assert document.content_hash == content_hash(spelled, None)
        assert content_hash(document.payload, decode_content(raw)) == document.content_hash


def test_a_deleted_file_keeps_its_source() -> None:
    assert FILES["deleted"].source == SOURCE
    assert FILES["deleted"].identity_hash == FILES["text"].identity_hash


def test_unset_fields_of_a_tool_call_are_omitted() -> None:
    assert set(TOOLCALL.payload) == {"tool", "args", "status", "chat_ref"}
    said = build.toolcall(
        "c", tool="t", args={}, content="", chat_ref="chat:s", status="fail", args_display="x", file_refs=(ID,)
    )
    assert said.payload["args_display"] == "x"
    assert said.payload["file_refs"] == [ID]
    assert said.payload["status"] == "fail"
    assert said.content == ""


def test_a_tool_call_is_never_unread_or_deleted() -> None:
    assert state_of(TOOLCALL) == "present"


def test_an_infrastructure_id_determines_its_type() -> None:
    assert type_of("chat:s") == "chat"
    assert type_of("session:s") == "session"
    assert type_of("system_prompt:s") == "system_prompt"
    assert type_of("call:1") is None
    assert type_of("chat") is None
