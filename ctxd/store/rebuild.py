"""Rebuild of the read model: the content of the tables is replaced by a fold of the journal.

It is one transaction, so an interruption leaves the tables unchanged. Stat signatures are dropped: they are a cache.
Blocks; no daemon may be running.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Final

from ctxd import sqlite_file
from ctxd.backends.sqlite import SqliteBackend
from ctxd.errors import StateDirError
from ctxd.store import commit_index, component_text_index, journal, state_directory
from ctxd.store.verify import Report, Step, verified

_EXIT_NO_STATE: Final = 10
_EXIT_DAMAGED: Final = 2
_STEP: Final = 1_000


def checked(root: Path, step: Step) -> tuple[Report, int]:
    """Verify the tables of the state directory ``root`` against its journal, and rebuild them if they differ.

    ``step`` reports progress. Returns: the last verification, and the number of rows folded, 0 if none had to be.
    Raises: StateDirError if there is no state, it is in use, or cannot be folded.
    """
    database = root / "state.db"
    if not database.is_file():
        raise StateDirError(f"there is no state in {root}", exit_code=_EXIT_NO_STATE)
    state = state_directory.hold(root)
    try:
        report, folded = verified(root, step), 0
        if report.worst not in (None, "warning"):
            try:
                folded = rebuild_tables(database, lambda done: step("folding", done))
            except (
                sqlite_file.DiskFull,
                sqlite_file.DiskFailed,
                sqlite_file.FileDamaged,
                sqlite_file.SqlFailed,
                ValueError,
            ) as error:
                raise StateDirError(
                    f"the tables of {database} cannot be rebuilt: {error}", exit_code=_EXIT_DAMAGED
                ) from error
            report = verified(root, step)
        return report, folded
    finally:
        state.close()


def rebuild_tables(database: Path, step: Callable[[int], None]) -> int:
    """Fold the journal in ``database`` into its emptied tables; ``step`` reports the rows done.

    Returns: the number of rows folded. Raises: ``sqlite_file``'s errors, ValueError for an unreadable row; nothing
    changes.
    """
    with sqlite_file.faults():
        connection = sqlite_file.open_writer(database)
        try:
            connection.execute("BEGIN IMMEDIATE")
            connection.execute("DELETE FROM knows").fetchall()
            connection.execute("DELETE FROM signature").fetchall()
            commit_index.clear(connection)
            connection.execute(component_text_index.TABLES).fetchall()
            component_text_index.clear(connection)
            versions = SqliteBackend(connection)
            versions.clear()
            done = 0
            for row in journal.read_rows(connection, after=0):
                _put(connection, versions, row)
                done += 1
                if done % _STEP == 0:
                    step(done)
            connection.execute("COMMIT")
            return done
        finally:
            connection.close()


def _put(connection: sqlite_file.Connection, versions: SqliteBackend, row: journal.Row) -> None:
    body = journal.decode_body(row.body)
    put, places = journal.versions(body.puts, row.vt, row.seq, row.tx_time, len(row.body))
    versions.append(put, places)
    commit_index.fill(connection, versions, put)
    component_text_index.fill(connection, versions, put)
    session = f"session:{row.session}"
    numbers = versions.number([*body.knows, session] if body.knows else ())
    pairs = [(numbers[id], numbers[session]) for id in body.knows]
    sqlite_file.insert_rows(connection, "INSERT OR IGNORE INTO knows(object, session)", "(?,?)", pairs)
