"""A second reader of the journal, written from its description: it shares no code with the daemon.

The daemon that wrote the file must not run.
"""

import sqlite3
import zlib
from pathlib import Path

import msgspec
from blake3 import blake3

COLUMNS = "seq, incarnation, principal, session, kind, op_id, vt, tx_time, body, chain"


def chains(state_dir: Path) -> dict[int, str]:
    """The chain hash of every row by its sequence, computed again from the rows' bytes.

    Raises: AssertionError if a row is missing or does not fit the one before it.
    """
    path = state_dir / "state.db"
    with sqlite3.connect(f"file:{path}?mode=ro", uri=True) as connection:
        (chain,) = connection.execute("SELECT value FROM meta WHERE name='genesis'").fetchone()
        found: dict[int, str] = {}
        for seq, *head, body, written in connection.execute(f"SELECT {COLUMNS} FROM journal ORDER BY seq"):
            if body[:1] == b"\0":
                body = zlib.decompressobj(-15).decompress(body[5:])
            b3 = blake3(msgspec.msgpack.encode(head) + body).digest()
            chain = blake3(chain + seq.to_bytes(8, "big") + b3).digest()
            assert seq == len(found) + 1, f"row {len(found) + 1} is missing"
            assert chain == written, f"row {seq} breaks the chain"
            found[seq] = chain.hex()
    connection.close()
    return found
