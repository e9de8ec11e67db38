"""The physical limit that durable writes are held against: a server that does nothing but commit rows in groups.

``python -m bench.bare_commit SOCKET DATABASE TEMPLATE``. ``TEMPLATE`` is a database that a real daemon wrote: the
server makes the same tables and indexes, and its rows are as long as those there. What both commit for one
``toolcall.record`` of a new tool call:

- ``journal``: one row, with the call's own session and operation id, and a body that holds both documents;
- ``content``: the text of the call under a hash of 32 bytes;
- ``entity``: two names, that of the tool call and that of the segment;
- ``version``: two rows, with the places of their documents in the journal row;
- ``knows``: one pair, the tool call and its session;

and the entries of the unique indexes on all of them, under keys that are spread as the daemon's are: hashes over the
whole index, names beside those of their session. The file is opened as the daemon opens it (write-ahead log, full
sync), the log is copied back as often, by the thread that writes, and all that waits goes into one transaction there.
As in the daemon, msgspec decodes a line and its params and encodes the answer, which has the same fields.

What it leaves out is what the daemon adds: it bounds, checks, looks up, decides, hashes and remembers nothing.
"""

import argparse
import asyncio
import random
import time
from pathlib import Path
from typing import Any, NamedTuple, cast

import apsw
import msgspec
import uvloop

from bench.bare_rpc import Reply, Request
from ctxd.limits import CHECKPOINT_BYTES, COMMIT_WRITES_MAX
from ctxd.sqlite_file import checkpoint, insert_rows, open_writer, unpack_body
from ctxd_protocol.methods.sessions import SessionCreateParams
from ctxd_protocol.methods.toolcalls import ToolcallRecordParams, ToolcallRecordResult
from ctxd_protocol.object_types import Receipt

PAGE_BYTES = 4096
CHAIN = "0" * 64

Row = tuple[Any, ...]


class Lengths(NamedTuple):
    """The values of one write that only their length matters of: bodies, and what stands in every row."""

    principal: str
    body: bytes
    toolcall: int | bytes
    segment: int | bytes
    crc: int


class Call(NamedTuple):
    """One line on its way."""

    transport: asyncio.Transport
    id: int
    params: ToolcallRecordParams
    session: int
    segment: str


def found(model: apsw.Connection, query: str, *values: object) -> list[Any]:
    """The rows that ``query`` gives."""
    return model.execute(query, values).fetchall()


def statements(model: apsw.Connection) -> list[str]:
    """The statements that make the daemon's tables and indexes."""
    query = "SELECT sql FROM sqlite_master WHERE sql IS NOT NULL AND name NOT LIKE 'sqlite_%'"
    return [sql for (sql,) in found(model, query)]


def lengths(model: apsw.Connection) -> Lengths:
    """The values of the newest write of a tool call."""
    newest = "SELECT seq, principal, body FROM journal WHERE kind='toolcall.record' ORDER BY seq DESC LIMIT 1"
    ((seq, principal, body),) = found(model, newest)
    versions = "SELECT body, crc FROM version WHERE tx=? ORDER BY content IS NULL"
    (toolcall, crc), (segment, _) = found(model, versions, seq)
    return Lengths(principal, unpack_body(body), toolcall, segment, crc)


class Committer:
    """Takes calls, commits their rows in groups, answers."""

    def __init__(self, database: Path, model: Path) -> None:
        with apsw.Connection(str(model), flags=apsw.SQLITE_OPEN_READWRITE) as connection:
            made, self._like = statements(connection), lengths(connection)
        self._connection = open_writer(database)
        for statement in made:
            self._connection.execute(statement)
        self._connection.set_wal_hook(self._note_log)
        self._log_pages = self._copied = 0
        self._seq = self._entity = 0
        self._waiting: list[Call] = []
        self._arrived = asyncio.Event()
        self._encode = msgspec.json.Encoder().encode

    def name(self, text: str) -> int:
        """Give an entity its number."""
        self._entity += 1
        self._connection.execute("INSERT INTO entity VALUES (?,?)", (self._entity, text))
        return self._entity

    def take(self, call: Call) -> None:
        self._waiting.append(call)
        self._arrived.set()

    async def run(self) -> None:
        while True:
            await self._arrived.wait()
            batch, self._waiting = self._waiting[:COMMIT_WRITES_MAX], self._waiting[COMMIT_WRITES_MAX:]
            if not self._waiting:
                self._arrived.clear()
            now = int(time.time() * 1000)
            first = self._seq + 1
            await asyncio.to_thread(self._commit, batch, now)
            for seq, call in enumerate(batch, first):
                object = call.params.id
                result = ToolcallRecordResult(
                    object=object, outcome="created", collapsed=(object,), receipt=Receipt(seq, CHAIN, now)
                )
                if not call.transport.is_closing():
                    call.transport.write(self._encode(Reply("2.0", call.id, result)) + b"\n")

    def _commit(self, batch: list[Call], now: int) -> None:
        like, number = self._like, self._entity
        journal: list[Row] = []
        content: list[Row] = []
        entity: list[Row] = []
        version: list[Row] = []
        knows: list[Row] = []
        for seq, (_, _, params, session, segment) in enumerate(batch, self._seq + 1):
            text, random_bytes = params.content.encode(), random.randbytes(96)
            ref, b3, chain = random_bytes[:32], random_bytes[32:64], random_bytes[64:]
            call = (1, like.principal, params.session, "toolcall.record", params.op_id, now, now)
            journal.append((seq, *call, like.body, b3, chain))
            content.append((ref, len(text), text))
            entity += ((number + 1, params.id), (number + 2, segment))
            version.append((number + 1, now, seq, now, like.toolcall, ref, like.crc))
            version.append((number + 2, now, seq, now, like.segment, None, like.crc))
            knows.append((number + 1, session))
            number += 2
        connection = self._connection
        connection.execute("BEGIN IMMEDIATE")
        insert_rows(connection, "INSERT INTO journal", "(?,?,?,?,?,?,?,?,?,?,?)", journal)
        insert_rows(connection, "INSERT INTO content", "(?,?,?)", content)
        insert_rows(connection, "INSERT INTO entity", "(?,?)", entity)
        insert_rows(connection, "INSERT INTO version", "(?,?,?,?,?,?,?)", version)
        insert_rows(connection, "INSERT INTO knows", "(?,?)", knows)
        connection.execute("COMMIT")
        self._seq, self._entity = self._seq + len(batch), number
        if (self._log_pages - self._copied) * PAGE_BYTES >= CHECKPOINT_BYTES:
            checkpoint(connection, truncate=False)
            self._copied = self._log_pages

    def _note_log(self, connection: apsw.Connection, name: str, pages: int) -> int:
        if pages < self._copied:
            self._copied = 0
        self._log_pages = pages
        return 0


class Connection(asyncio.Protocol):
    """One connection, which makes one session and records its tool calls."""

    def __init__(self, committer: Committer) -> None:
        self._committer = committer
        self._rest = b""
        self._session = self._segments = 0
        self._decode = msgspec.json.Decoder(Request).decode
        self._params = msgspec.json.Decoder(ToolcallRecordParams).decode

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            request = self._decode(line)
            if request.method == "session.create":
                self._create(request)
                continue
            params = self._params(request.params)
            segment = f"segment:{params.session}#{self._segments:010d}"
            self._segments += 1
            self._committer.take(Call(self._transport, request.id, params, self._session, segment))

    def _create(self, request: Request) -> None:
        session = msgspec.json.decode(request.params, type=SessionCreateParams).session
        self._session = self._committer.name(f"session:{session}")
        self._transport.write(msgspec.json.encode(Reply("2.0", request.id, {})) + b"\n")


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
