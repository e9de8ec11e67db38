"""FS: images and other files that are no text are kept, versioned, and returned as they were."""

import base64
from pathlib import Path

import pytest

from ctxd_client import SyncClient, SyncSession
from ctxd_protocol.object_types import ObjectVersion

PNG = b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR" + bytes(range(256))
STUB = "[image/png, 272 bytes: object.get returns them in base64]"


def raw(version: ObjectVersion) -> bytes:
    """The bytes of a version's content."""
    assert version.payload["encoding"] == "base64"
    return base64.b64decode(version.payload["content"], validate=True)


@pytest.mark.requirement("FS-10")
@pytest.mark.parametrize("sent", [True, False], ids=["sent", "read"])
def test_an_image_is_kept_in_every_version_and_returned_as_it_was(
    s: SyncSession, client: SyncClient, tree: Path, sent: bool
) -> None:
    versions = [PNG, PNG + b"\0", b"\0nothing that is known"]
    for content in versions:
        (tree / "a.png").write_bytes(content)
        found = s.read("a.png", content=content) if sent else s.read("a.png")
        assert (found.kind, found.char_count) == ("binary", 0)
    rows = client.object_history(found.object, order="asc").versions
    shown = [client.object_get(found.object, tx=row.tx).object for row in rows]
    assert [raw(version) for version in shown] == versions
    assert [version.payload["media_type"] for version in shown] == [*["image/png"] * 2, "application/octet-stream"]
    assert [version.payload["size_bytes"] for version in shown] == list(map(len, versions))
    (again,) = client.object_bulk([found.object], content=True).objects
    assert raw(again) == versions[-1]


@pytest.mark.requirement("FS-10")
def test_context_shows_a_stub_for_an_image(s: SyncSession, client: SyncClient, tree: Path) -> None:
    (tree / "a.png").write_bytes(PNG)
    id = s.read("a.png").object
    first = s.assemble()
    assert f"ACTIVE_CONTENT id={id}\n{STUB}" in first.text
    s.deactivate(id)
    assert STUB not in s.assemble().text
    assert s.activate(id).level == "active"
    assert STUB in s.assemble().text
    (tree / "a.png").write_bytes(PNG[:-1])
    assert "[image/png, 271 bytes" in s.assemble().text
    assert client.context_show(s.id, number=1).text == first.text


@pytest.mark.requirement("FS-10")
@pytest.mark.requirement("SEC-8")
def test_a_purge_destroys_an_image_under_every_name(s: SyncSession, client: SyncClient, tree: Path) -> None:
    ids = []
    for name in ("a.png", "b.png"):
        (tree / name).write_bytes(PNG + str(tree).encode())
        ids.append(s.read(name).object)
    purged = client.object_purge(ids[0])
    assert set(purged.objects) == set(ids) and purged.residue == ()
    for id in ids:
        version = client.object_get(id).object
        assert (version.state, version.payload["content"]) == ("purged", None)


@pytest.mark.requirement("FS-11")
def test_bytes_that_cannot_be_searched_are_kept_as_a_hash_where_secrets_are_redacted(
    start, client: SyncClient, tree: Path
) -> None:
    s = start(secrets="redact")
    (tree / "store.db").write_bytes(b"\0password=hunter2")
    (tree / "a.png").write_bytes(PNG)
    other, image = (client.object_get(s.read(name).object).object for name in ("store.db", "a.png"))
    assert (other.payload["content"], other.payload["kind"], "encoding" in other.payload) == (None, "binary", False)
    assert raw(image) == PNG
