"""Every body comes back from a document as the same bytes, whatever a client put into it."""

import json
import random
from typing import Any

import msgspec
import pytest
from blake3 import blake3
from hypothesis import given, settings
from hypothesis import strategies as st

from ctxd.backends.stored_version import Version
from ctxd.backends.xtdb import documents as xtdb_documents
from ctxd.backends.xtdb import messages, transit
from ctxd.objects.document import SOURCE_TYPES, Document, decode_document, encode_document, file_stub
from ctxd.objects.generated_ids import file_id
from ctxd_protocol.limits import CONTENT_INLINE_BYTES_MAX
from ctxd_protocol.object_types import FilesystemSource
from tests.fakes.memory_source import MemorySource, blob

WRITER = "0123456789abcdef" * 2

text = st.text(max_size=10) | st.sampled_from(("", "~", "^ ", "`a", "~:x", "\0", "\U0001f600", "a" * 64, "A" * 64))
integers = st.integers(-(2**63), 2**64 - 1) | st.sampled_from((2**53, -(2**53), 2**63))
values = st.recursive(
    st.none() | st.booleans() | integers | st.floats() | text,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(text, inner, max_size=5),
    max_leaves=20,
)
hashes = st.binary(min_size=32, max_size=32).map(bytes.hex)
bodies = st.builds(
    lambda **fields: encode_document(Document(**fields)),
    id=st.just("id"),
    type=text,
    source=st.none() | st.builds(FilesystemSource, hashes | text, text),
    identity_hash=hashes | st.just("id"),
    source_hash=st.none() | hashes,
    content_hash=hashes,
    payload=st.dictionaries(text, values, max_size=6),
)


def as_xtdb_keeps_it(value: Any, dice: random.Random) -> Any:
    """``value`` as a node gives it back: keys in any order, and no -0.0."""
    if isinstance(value, dict):
        keys = list(value)
        dice.shuffle(keys)
        return {key: as_xtdb_keeps_it(value[key], dice) for key in keys}
    if isinstance(value, list):
        return [as_xtdb_keeps_it(item, dice) for item in value]
    return 0.0 if isinstance(value, float) and value == 0 else value


def through_xtdb(doc: messages.Doc, dice: random.Random) -> messages.Doc:
    read = messages.to_doc(transit.decode(messages.encode_document(doc)))
    assert read is not None
    return as_xtdb_keeps_it(read, dice)


@given(
    bodies | st.binary(max_size=40), st.none() | st.binary(min_size=32, max_size=32), st.randoms(use_true_random=False)
)
@settings(max_examples=500)
@pytest.mark.requirement("XTB-2")
def test_a_version_round_trips_byte_for_byte(body, content, dice):
    version = Version("toolcall:~x", 5, 7, 9, body, content)
    doc = through_xtdb(xtdb_documents.to_doc(version, WRITER), dice)
    assert xtdb_documents.from_doc(doc, 5) == (version, WRITER)


@given(bodies)
@settings(max_examples=200)
@pytest.mark.requirement("XTB-2")
def test_names_from_clients_never_become_xtdb_keys(body):
    doc = xtdb_documents.to_doc(Version("a", 1, 1, 1, body), WRITER)
    assert set(doc) <= set(messages.KEYS)
    assert set(doc["payload"]) <= {"tx", "tx_time", "valid_time", "content", "fields", "order", "body"}


def body_of(payload: dict[str, Any]) -> bytes:
    return encode_document(
        Document(id="a", type="file", identity_hash="i" * 64, content_hash="c" * 64, payload=payload)
    )


def test_a_source_that_is_not_a_file_round_trips_without_a_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(SOURCE_TYPES, "memory", MemorySource)
    stub = file_stub(file_id(blob("notes")), blob("notes"))
    version = Version(stub.id, 4, 7, 9, encode_document(stub), None)
    doc = through_xtdb(xtdb_documents.to_doc(version, WRITER), random.Random(1))
    assert "path" not in doc
    assert doc["source"] == {"type": "memory", "bucketName": "b1", "key": "notes"}
    assert xtdb_documents.from_doc(doc) == (version, WRITER)


def test_a_document_is_readable_in_the_node():
    source = FilesystemSource("f" * 64, "/home/x")
    document = Document(
        id="a",
        type="file",
        source=source,
        identity_hash="i" * 64,
        source_hash="5" * 64,
        content_hash="c" * 64,
        payload={"b": 1, "a": {"d": 2, "c": 3}},
    )
    doc = xtdb_documents.to_doc(Version("a", 4, 7, 9, encode_document(document), b"\1" * 32), WRITER)
    assert doc == {
        "xt/id": "a",
        "type": "file",
        "writer": WRITER,
        "path": "/home/x",
        "source": {"filesystem_id": "f" * 64, "path": "/home/x"},
        "identity_hash": "i" * 64,
        "source_hash": "5" * 64,
        "content_hash": "c" * 64,
        "payload": {
            "tx": 7,
            "tx_time": 9,
            "valid_time": 4,
            "content": "01" * 32,
            "fields": {"b": 1, "a": {"d": 2, "c": 3}},
            "order": [[1, 0], [1, 0]],
        },
    }


@pytest.mark.parametrize("payload", [{}, {"a": 1, "b": {"c": [], "d": None}}, {"a": [{"b": 1, "c": {}}]}])
def test_sorted_keys_need_no_order_field(payload):
    assert "order" not in xtdb_documents.to_doc(Version("a", 1, 1, 1, body_of(payload)), WRITER)["payload"]


@pytest.mark.parametrize("payload", [{"a": -0.0}, {"a": [{"b": float("nan")}]}, {"a": float("inf")}, {"a": b"x"}])
def test_documents_that_xtdb_would_alter_are_stored_as_bytes(payload):
    doc = xtdb_documents.to_doc(Version("a", 1, 1, 1, body_of(payload)), WRITER)
    assert "fields" not in doc["payload"]
    assert (doc["type"], doc["content_hash"]) == ("file", "c" * 64), "hidden from no query"
    assert xtdb_documents.from_doc(doc, 1)[0].body == body_of(payload)


@pytest.mark.requirement("XTB-7")
def test_hashes_that_look_like_unsafe_floats_change_nothing():
    hashes = ("1a2354d7d0e832355d4cd42424aa6c903d46990e7369f598adcbfff109f2bf9f", "cb8000000000000000" + "0" * 46)
    for hash in hashes:
        document = Document(id="a", type="toolcall", identity_hash=hash, content_hash=hash, payload={"tool": "ls"})
        doc = xtdb_documents.to_doc(Version("a", 1, 1, 1, encode_document(document)), WRITER)
        assert (doc["type"], doc["content_hash"], doc["payload"]["fields"]) == ("toolcall", hash, {"tool": "ls"})


@pytest.mark.requirement("XTB-8")
def test_lookup_fields_are_at_the_top_level():
    call = Document(
        id="call-1",
        type="toolcall",
        identity_hash="i" * 64,
        content_hash="c" * 64,
        payload={"tool": "bash", "args": {"path": "/x", "turn": 5}, "chat_ref": "chat:s1"},
    )
    doc = xtdb_documents.to_doc(Version("call-1", 1, 1, 1, encode_document(call)), WRITER)
    assert {key: doc[key] for key in ("tool", "session", "writer")} == {
        "tool": "bash",
        "session": "s1",
        "writer": WRITER,
    }
    assert doc.keys() & {"turn", "path"} == set(), "arguments are the tool's own"
    head = Document(id="session:s1", type="session", identity_hash="i" * 64, content_hash="c" * 64, payload={"turn": 3})
    doc = xtdb_documents.to_doc(Version("session:s1", 1, 1, 1, encode_document(head)), WRITER)
    assert (doc["session"], doc["turn"]) == ("s1", 3)


def test_documents_of_earlier_versions_are_read():
    doc = xtdb_documents.to_doc(Version("a", 4, 7, 9, body_of({"b": 1})), WRITER)
    payload = doc["payload"] | {"vt": 4, "writer": WRITER}
    del payload["valid_time"], doc["writer"]
    assert xtdb_documents.from_doc(doc | {"payload": payload}) == (Version("a", 4, 7, 9, body_of({"b": 1})), WRITER)


def test_a_deletion_has_no_document():
    with pytest.raises(ValueError, match="no document"):
        xtdb_documents.to_doc(Version("a", 1, 1, 1, None), WRITER)


@pytest.mark.parametrize(
    "damage",
    [
        {"payload": None},
        {"payload": {"valid_time": 1, "tx": "1", "tx_time": 1, "fields": {}}},
        {"payload": {"valid_time": 1, "tx": 1, "tx_time": 1}},
        {"payload": {"valid_time": 1, "tx": 1, "tx_time": 1, "body": "*"}},
        {"payload": {"valid_time": 1, "tx": 1, "tx_time": 1, "content": "zz", "fields": {}}},
        {"payload": {"valid_time": 1, "tx": 1, "tx_time": 1, "fields": {"a": 1}, "order": [[3]]}},
        {"source": {"path": "/"}},
        {"identity_hash": 5},
    ],
)
def test_a_document_of_another_program_is_an_error(damage):
    doc = xtdb_documents.to_doc(Version("a", 1, 1, 1, body_of({"a": 1})), WRITER) | damage
    with pytest.raises(ValueError, match=r"document|number|base64|hex|argument|padding|alphabet"):
        xtdb_documents.from_doc(doc, 1)


@pytest.mark.parametrize("order", [{}, {"order": []}])
def test_an_endlessly_nested_document_is_an_error(order):
    fields: dict[str, Any] = {}
    for _ in range(50_000):
        fields = {"a": fields}
    doc = xtdb_documents.to_doc(Version("a", 1, 1, 1, body_of({"a": 1})), WRITER)
    doc["payload"] |= {"fields": fields, **order}
    with pytest.raises(ValueError, match="not one of ctxd's"):
        xtdb_documents.from_doc(doc, 1)


def joined(docs: list[messages.Doc], ref: bytes) -> bytes:
    by_id = {doc["xt/id"]: doc for doc in docs}
    parts = xtdb_documents.parts_of(by_id[xtdb_documents.content_id(ref)])
    return xtdb_documents.content_of(by_id[id] for id in parts or [xtdb_documents.content_id(ref)])


@pytest.mark.parametrize("size", [0, 1, CONTENT_INLINE_BYTES_MAX, CONTENT_INLINE_BYTES_MAX + 1, 3_000_000])
@pytest.mark.parametrize("character", ["x", "\u20ac", "\U0001f600"])
def test_text_round_trips_in_parts_named_by_their_hash(size, character):
    kinds = len(character.encode())
    whole = character * (size // kinds) + "y" * (size % kinds)
    ref = blake3(whole.encode()).digest()
    docs = xtdb_documents.content_docs(ref, whole)
    assert joined(docs, ref) == whole.encode()
    assert docs[-1]["xt/id"] == xtdb_documents.content_id(ref)
    for doc in docs[:-1]:
        part = xtdb_documents.content_of([doc])
        assert len(part) <= CONTENT_INLINE_BYTES_MAX
        assert doc["xt/id"] == xtdb_documents.content_id(blake3(part).digest())
    assert all(doc["xt/id"].startswith(xtdb_documents.RESERVED) for doc in docs)


@pytest.mark.parametrize("size", [1, xtdb_documents.WHOLE_BYTES_MAX, xtdb_documents.WHOLE_BYTES_MAX + 1, 3_000_000])
def test_binary_content_round_trips_through_base64(size):
    whole = b"\xff" * size
    ref = blake3(whole).digest()
    docs = json.loads(json.dumps(xtdb_documents.content_docs(ref, whole)))
    assert joined(docs, ref) == whole
    assert len(docs) == 1 or size > xtdb_documents.WHOLE_BYTES_MAX
    assert all(len(doc["payload"].get("base64", "")) <= CONTENT_INLINE_BYTES_MAX for doc in docs)


def test_an_encoding_in_order_is_that_of_sorted_keys():
    payload = {"b": {"\U0001f600": 1, "\uffee": 2, "": 3}, "a": [{"d": 1, "c": 2}]}
    ordered = {"a": [{"c": 2, "d": 1}], "b": {"": 3, "\uffee": 2, "\U0001f600": 1}}
    document = decode_document("a", body_of(payload))
    assert encode_document(document, ordered=True) == body_of(ordered)
    assert list(msgspec.msgpack.decode(body_of(ordered))[-1]) == ["a", "b"]
