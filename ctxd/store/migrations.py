"""Schema versions of a state directory's database, and the steps from each to the next.

A migration copies the database first, to ``state.db.before-N`` beside it. Each step is one transaction that also sets
the version, so an interrupted migration resumes at its unfinished step. A purge erases the copy.
"""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Final, NamedTuple

from ctxd import sqlite_file
from ctxd.backends.sqlite import SqliteBackend
from ctxd.errors import StateDirError
from ctxd.file_writes import sync_folder
from ctxd.store.schema import SCHEMA_VERSION

_EXIT_NEWER: Final = 78
_PAGES_STEP: Final = 4_096
COPIES: Final = "state.db.before-*"
"""Glob of the copies made by migrations, relative to the state directory."""


class Migration(NamedTuple):
    """The step from schema ``version`` to the next one."""

    version: int
    what: str
    run: Callable[[sqlite_file.Connection], None]


MIGRATIONS: Final = (
    Migration(1, "index versions by the hash of their text", lambda connection: SqliteBackend(connection).create()),
    Migration(2, "index versions that hold from a past time", lambda connection: SqliteBackend(connection).create()),
    # Stored data needs no change. The new number keeps out programs that cannot read new segments.
    Migration(3, "write segments as tagged operations from now on", lambda connection: None),
    # The next start moves existing content. The new number keeps out programs that cannot read packs.
    Migration(4, "keep large content in packs from now on", lambda connection: None),
    # Stored data needs no change. The new number keeps out programs that expect each document beside its version.
    Migration(5, "keep documents in the journal alone from now on", lambda connection: None),
    # The daemon compresses stored data when idle. The new number keeps out programs that cannot read it.
    Migration(6, "compress journal rows and long texts from now on", lambda connection: None),
    # Stored data needs no change. The new number keeps out programs that cannot read Zstandard.
    Migration(7, "compress texts above 8 KiB with Zstandard from now on", lambda connection: None),
)


def migrations_of(database: Path) -> tuple[Migration, ...]:
    """Return the steps that ``database`` needs: none if it is current or does not exist.

    Raises: StateDirError with exit code 78 if a newer program wrote it; ``sqlite_file.FileDamaged`` if it is not a
    database.
    """
    version = sqlite_file.user_version(database)
    if not version:
        return ()
    if version > SCHEMA_VERSION:
        raise StateDirError(
            f"{database} was written by a newer ctxd: its schema is {version}, not {SCHEMA_VERSION}",
            exit_code=_EXIT_NEWER,
        )
    return tuple(step for step in MIGRATIONS if step.version >= version)


def migrate(database: Path) -> Path | None:
    """Migrate ``database`` to the current schema; no daemon may be running. Blocks; resumes if it was interrupted.

    Returns: the path of the copy made before; None if it is current. Raises: as ``migrations_of``; ``sqlite_file``'s
    errors.
    """
    steps = migrations_of(database)
    if not steps:
        return None
    with sqlite_file.faults():
        copy = _copied(database)
        connection = sqlite_file.open_writer(database)
        try:
            for step in steps:
                connection.execute("BEGIN IMMEDIATE")
                step.run(connection)
                connection.execute(f"PRAGMA user_version={step.version + 1}")
                connection.execute("COMMIT")
            # Truncate the log, so that the header of the file has the new version.
            sqlite_file.checkpoint(connection, truncate=True)
        finally:
            connection.close()
    return copy


def _copied(database: Path) -> Path:
    """Copy ``database``, unless an interrupted migration has done so. Returns: the path of the copy."""
    copy = database.with_name(f"{database.name}.before-{SCHEMA_VERSION}")
    if copy.exists():
        return copy
    partial = copy.with_name(f"{copy.name}.partial")
    partial.unlink(missing_ok=True)
    os.close(os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
    source, target = sqlite_file.open_reader(database), sqlite_file.open_copy(partial)
    try:
        sqlite_file.copy(source, target, pages=_PAGES_STEP, step=lambda: None)
    except BaseException:
        # On a full disk it would take the room that the daemon needs.
        partial.unlink()
        raise
    finally:
        target.close()
        source.close()
    partial.rename(copy)
    sync_folder(copy.parent)
    return copy
