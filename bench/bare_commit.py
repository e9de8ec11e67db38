"""The physical limit that durable writes are held against: a server that does nothing but commit rows in groups.

``python -m bench.bare_commit SOCKET DATABASE TEMPLATE``. ``TEMPLATE`` is a database that a real daemon wrote. The
server makes the same tables, and commits for every line it reads the rows that one write of the daemon came to: same
tables, same number, same bytes, other keys. It opens the file as the daemon does (write-ahead log, full sync,
checkpoints on the writing connection) and commits all that waits in one transaction in a thread. It decides nothing,
hashes nothing and parses nothing.
"""

import argparse
import asyncio
from dataclasses import dataclass
from pathlib import Path

import apsw
import uvloop

from ctxd.dbfile import checkpoint, insert_rows, open_writer
from ctxd.limits import CHECKPOINT_BYTES, COMMIT_WRITES_MAX

ANSWER = (
    b'{"jsonrpc":"2.0","id":1,"result":{"receipt":{"seq":1,"chain":"' + b"0" * 64 + b'","vt":1,"durable":"disk"}}}\n'
)


@dataclass(frozen=True)
class Rows:
    """What one write adds to one table: the statement, its rows, and which of a row's values are keys."""

    head: str
    values: str
    rows: tuple[tuple[object, ...], ...]
    keys: tuple[int, ...]


def tables(connection: apsw.Connection) -> dict[str, str]:
    """Every table of the database that is not SQLite's own, with its statement."""
    found = connection.execute("SELECT name, sql FROM sqlite_master WHERE type='table' AND name NOT LIKE 'sqlite_%'")
    return dict(found.fetchall())


def template(path: Path) -> tuple[list[str], list[Rows]]:
    """The statements that make the daemon's tables and indexes, and the rows of one write, from its newest rows.

    The number of rows by write is what the tables grew by over the number of tool calls in them.
    """
    with apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READWRITE) as connection:
        made = connection.execute("SELECT sql FROM sqlite_master WHERE sql IS NOT NULL AND name NOT LIKE 'sqlite_%'")
        statements = [sql for (sql,) in made.fetchall()]
        writes = connection.execute("SELECT count(*) FROM journal").fetchone()[0]
        rows = []
        for name in tables(connection):
            count = round(connection.execute(f'SELECT count(*) FROM "{name}"').fetchone()[0] / writes)
            if count:
                rows.append(_rows(connection, name, count))
    return statements, rows


def _rows(connection: apsw.Connection, name: str, count: int) -> Rows:
    info = connection.execute(f'PRAGMA table_info("{name}")').fetchall()
    unique = {column[0] for column in info if column[5]}
    for index in connection.execute(f'PRAGMA index_list("{name}")').fetchall():
        if index[2]:
            unique |= {column[1] for column in connection.execute(f'PRAGMA index_info("{index[1]}")').fetchall()}
    order = ", ".join(f'"{column[1]}" DESC' for column in info if column[5]) or "rowid DESC"
    newest = connection.execute(f'SELECT * FROM "{name}" ORDER BY {order} LIMIT {count}').fetchall()
    values = f"({','.join('?' * len(info))})"
    return Rows(f'INSERT INTO "{name}"', values, tuple(newest), tuple(unique))


def other_key(value: object, number: int) -> object:
    """A key like ``value``, of the same type and length, that no other number gives."""
    if isinstance(value, int):
        return number
    if isinstance(value, str):
        return f"{value[:-12]}{number:012d}"
    if isinstance(value, bytes):
        return number.to_bytes(8, "big") + value[8:]
    return value


class Committer:
    """Takes lines, commits their rows in groups, answers."""

    def __init__(self, database: Path, model: Path) -> None:
        statements, self._tables = template(model)
        self._connection = open_writer(database)
        for statement in statements:
            self._connection.execute(statement)
        self._log = Path(f"{database}-wal")
        self._number = 0
        self._waiting: list[asyncio.Transport] = []
        self._arrived = asyncio.Event()

    def take(self, transport: asyncio.Transport) -> None:
        self._waiting.append(transport)
        self._arrived.set()

    async def run(self) -> None:
        while True:
            await self._arrived.wait()
            batch, self._waiting = self._waiting[:COMMIT_WRITES_MAX], self._waiting[COMMIT_WRITES_MAX:]
            if not self._waiting:
                self._arrived.clear()
            await asyncio.to_thread(self._commit, len(batch))
            for transport in batch:
                transport.write(ANSWER)

    def _commit(self, writes: int) -> None:
        self._connection.execute("BEGIN IMMEDIATE")
        for table in self._tables:
            made = []
            number = self._number * len(table.rows)
            for _ in range(writes):
                for row in table.rows:
                    number += 1
                    fresh = list(row)
                    for at in table.keys:
                        fresh[at] = other_key(fresh[at], number)
                    made.append(fresh)
            insert_rows(self._connection, table.head, table.values, made)
        self._connection.execute("COMMIT")
        self._number += writes
        if self._log.stat().st_size > CHECKPOINT_BYTES:
            checkpoint(self._connection, truncate=False)


class Connection(asyncio.Protocol):
    """Counts line ends."""

    def __init__(self, committer: Committer) -> None:
        self._committer = committer

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        for _ in range(data.count(b"\n")):
            self._committer.take(self._transport)


async def serve(socket: str, database: Path, model: Path) -> None:
    committer = Committer(database, model)
    server = await asyncio.get_running_loop().create_unix_server(lambda: Connection(committer), socket, backlog=1024)
    async with server:
        await committer.run()


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.bare_commit")
    parser.add_argument("socket")
    parser.add_argument("database", type=Path)
    parser.add_argument("template", type=Path)
    given = parser.parse_args()
    uvloop.run(serve(given.socket, given.database, given.template))


if __name__ == "__main__":
    main()
