"""Documents and writes for tests of the store: their hashes are true, so that verification passes."""

from typing import Any

from ctxd import sqlite_file
from ctxd.objects.document import Document
from ctxd.objects.hashing import content_hash, identity_hash, source_hash
from ctxd.store.write_types import Write
from ctxd_protocol.object_types import FilesystemSource


def document(id: str, content: str | bytes | None = None, type: str = "toolcall", **payload: Any) -> Document:
    return Document(
        id=id,
        type=type,
        identity_hash=identity_hash(type, None, id),
        content_hash=content_hash(payload, content),
        payload=payload,
        content=content,
    )


def sourced(path: str, content: str) -> Document:
    source = FilesystemSource(source_hash(b"a filesystem"), path)
    payload = {"file_type": "py", "char_count": len(content), "kind": "text", "size_bytes": len(content)}
    id = identity_hash("file", source, "")
    return Document(
        id=id,
        type="file",
        source=source,
        identity_hash=id,
        source_hash=source_hash(content.encode()),
        content_hash=content_hash(payload, content),
        payload=payload,
        content=content,
    )


def write(*puts: Document, session: str | None = "s1", **rest: Any) -> Write:
    return Write(**{"kind": "toolcall.record", "principal": "host", "session": session, "puts": puts, **rest})


def damage_index(root, name, old, new):
    """Write ``new`` over ``old`` in the pages of the index ``name`` alone, as a flipped bit would."""
    connection = sqlite_file.open_writer(root / "state.db")
    sqlite_file.checkpoint(connection, truncate=True)
    (page,) = connection.execute("SELECT rootpage FROM sqlite_master WHERE name=?", (name,)).fetchone()
    connection.close()
    with (root / "state.db").open("r+b") as file:
        file.seek((page - 1) * 4096)
        data = file.read(4096)
        assert data.count(old) == 1, "the index fits in one page"
        file.seek((page - 1) * 4096)
        file.write(data.replace(old, new))
