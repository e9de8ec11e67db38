"""The three hashes: what they depend on and, above all, what they don't."""

import json
from pathlib import Path
from typing import Any

import pytest

from ctxd.objects.hashing import content_hash, identity_hash, source_hash
from ctxd_protocol.object_types import FilesystemSource

VECTORS: dict[str, Any] = json.loads((Path(__file__).parents[3] / "protocol/vectors/hashes.json").read_text("utf-8"))


@pytest.mark.parametrize("row", VECTORS["identity"], ids=lambda row: row["type"])
def test_identity_hashes_are_frozen(row: dict[str, Any]) -> None:
    bound = row["source"]
    source = FilesystemSource(bound["filesystemId"], bound["path"]) if bound else None
    assert identity_hash(row["type"], source, row["id"] or "") == row["sha256"]


@pytest.mark.parametrize("row", VECTORS["source"], ids=lambda row: repr(row["text"]))
def test_source_hashes_are_frozen(row: dict[str, Any]) -> None:
    assert source_hash(row["text"].encode()) == row["sha256"]


@pytest.mark.parametrize("row", VECTORS["content"], ids=lambda row: repr(row["content"]))
def test_content_hashes_are_frozen(row: dict[str, Any]) -> None:
    assert content_hash(row["payload"], row["content"]) == row["sha256"]


def test_two_chats_have_two_identities() -> None:
    assert identity_hash("chat", None, "chat:a") != identity_hash("chat", None, "chat:b")


def test_the_id_of_a_sourced_object_does_not_enter_its_identity() -> None:
    source = FilesystemSource("fs", "/a")
    assert identity_hash("file", source, "x") == identity_hash("file", source, "y")


def test_no_content_and_empty_content_differ() -> None:
    assert content_hash({"char_count": 0}, None) != content_hash({"char_count": 0}, "")


def test_hashing_leaves_the_payload_as_it_was() -> None:
    payload = {"char_count": 2}
    content_hash(payload, "hi")
    assert payload == {"char_count": 2}
