"""The tables of the SQLite backend.

``version`` is a rowid table with a narrow index, not WITHOUT ROWID: a document of more than a quarter of a page would
take an overflow page of its own there.
"""

from typing import Final

TABLES: Final = """
CREATE TABLE IF NOT EXISTS entity(n INTEGER PRIMARY KEY, id TEXT NOT NULL UNIQUE);
CREATE TABLE IF NOT EXISTS version(
    entity INTEGER NOT NULL, vt INTEGER NOT NULL, tx INTEGER NOT NULL, tx_time INTEGER NOT NULL, body BLOB, content
    BLOB, crc INTEGER NOT NULL
);
CREATE UNIQUE INDEX IF NOT EXISTS version_at ON version(entity, vt, tx);
CREATE INDEX IF NOT EXISTS version_content ON version(content) WHERE content IS NOT NULL;
"""
"""Entities by number and by id; versions by entity, valid time and tx, and by the hash of their text, so that a purge
finds who else has it. ``body`` is NULL for a deletion. ``crc``: see ``rows``."""
