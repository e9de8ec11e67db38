"""Schema of the database of a state directory: its version, and the tables beside those of versions and indexes."""

from typing import Final

SCHEMA_VERSION: Final = 8
"""``PRAGMA user_version`` of the file. ``ctxd.store.migrations`` migrates a lower one and refuses a higher one."""

TABLES: Final = """
CREATE TABLE IF NOT EXISTS journal(
    seq INTEGER PRIMARY KEY, incarnation INTEGER NOT NULL, principal TEXT NOT NULL, session TEXT, kind TEXT NOT NULL,
    op_id TEXT, vt INTEGER NOT NULL, tx_time INTEGER NOT NULL, body BLOB NOT NULL, b3 BLOB NOT NULL, chain BLOB NOT NULL
);
CREATE UNIQUE INDEX IF NOT EXISTS journal_op ON journal(op_id, principal) WHERE op_id IS NOT NULL;
CREATE TABLE IF NOT EXISTS content(hash BLOB NOT NULL, size INTEGER NOT NULL, bytes BLOB);
CREATE UNIQUE INDEX IF NOT EXISTS content_hash ON content(hash);
CREATE TABLE IF NOT EXISTS knows(
    object INTEGER NOT NULL, session INTEGER NOT NULL, PRIMARY KEY(object, session)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS signature(entity INTEGER PRIMARY KEY, sig BLOB NOT NULL);
CREATE TABLE IF NOT EXISTS meta(name TEXT PRIMARY KEY, value BLOB NOT NULL) WITHOUT ROWID;
"""
"""``journal.body`` and ``content.bytes`` may be compressed, see ``sqlite_file.pack_body`` and
``sqlite_file.pack_content``; ``bytes`` is NULL if the text is in the artifact store. Operation ids are looked up by
index, not copied."""
