"""Index of component texts by the files and entries that they were made from, for purges of those.

It is filled in the transaction that writes a text, from its document alone, so a rebuild can fill it again. A purged
text, whose document no longer has its sources, stays in the index until a rebuild.
"""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from typing import Final

from ctxd import sqlite_file
from ctxd.backends.sqlite import SqliteBackend
from ctxd.backends.stored_version import DamagedVersion, Version
from ctxd.objects.document import decode_document
from ctxd.objects.generated_ids import component_texts_prefix

TABLES: Final = """
CREATE TABLE IF NOT EXISTS text_source(
    source INTEGER NOT NULL, text INTEGER NOT NULL, PRIMARY KEY(source, text)
) WITHOUT ROWID;
"""
"""Both are numbers of entities."""

PREFIX: Final = component_texts_prefix()


def create(connection: sqlite_file.Connection, backend: SqliteBackend) -> None:
    """Create the table if it is missing and index all existing texts, in one transaction."""
    if exists(connection):
        return
    connection.execute("BEGIN IMMEDIATE")
    connection.execute(TABLES).fetchall()
    texts = "SELECT id FROM entity WHERE id>=? AND id<? ORDER BY id"
    for (id,) in connection.execute(texts, (PREFIX, f"{PREFIX[:-1]};")).fetchall():
        # The scrub reports damage.
        with suppress(DamagedVersion, ValueError, TypeError):
            fill(connection, backend, backend.as_of((str(id),)))
    connection.execute("COMMIT")


def exists(connection: sqlite_file.Connection) -> bool:
    """True if the state has the index. One last used by an earlier ctxd does not."""
    return connection.execute("SELECT 1 FROM sqlite_master WHERE name='text_source'").fetchone() is not None


def fill(connection: sqlite_file.Connection, backend: SqliteBackend, versions: Sequence[Version]) -> None:
    """Index the component texts among ``versions``. Part of the caller's transaction."""
    pairs = [(source, version.id) for version in versions for source in sources_of(version)]
    numbers = backend.number(dict.fromkeys(id for pair in pairs for id in pair))
    rows = [(numbers[source], numbers[text]) for source, text in pairs]
    sqlite_file.insert_rows(connection, "INSERT OR IGNORE INTO text_source(source, text)", "(?,?)", rows)


def sources_of(version: Version) -> tuple[str, ...]:
    """The ids of the files and entries that ``version`` was made from; empty if it is purged or not a component text.

    Raises: ValueError, TypeError for a damaged document.
    """
    if version.body is None or not version.id.startswith(PREFIX):
        return ()
    return tuple(decode_document(version.id, version.body).payload.get("sources", ()))


def clear(connection: sqlite_file.Connection) -> None:
    """Remove all rows."""
    connection.execute("DELETE FROM text_source").fetchall()


def made_from(connection: sqlite_file.Connection, sources: Iterable[str]) -> list[str]:
    """The ids of the component texts that were made from one of ``sources``, purged ones too, in order."""
    query = """SELECT t.id FROM entity AS s JOIN text_source ON text_source.source=s.n JOIN entity AS t
        ON t.n=text_source.text WHERE s.id=?"""
    return sorted({id for source in sources for (id,) in connection.execute(query, (source,))})


def pairs(connection: sqlite_file.Connection) -> Iterator[tuple[str, str]]:
    """Every pair of a source and a text that was made from it."""
    query = """SELECT s.id, t.id FROM text_source JOIN entity AS s ON s.n=text_source.source JOIN entity AS t
        ON t.n=text_source.text"""
    for source, text in connection.execute(query):
        yield str(source), str(text)
