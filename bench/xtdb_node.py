"""A real XTDB node on RocksDB with synced stores, as it ships, for the length of a bench; and a bare client of it.

Installed once, in ``$CTXD_XTDB_HOME`` or ``.xtdb`` beside the package, where the tests have theirs. Owns no figure.
"""

import contextlib
import json
import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import aiohttp

from ctxd.backends.xtdb import transit
from ctxd.backends.xtdb.messages import Op, encode_transaction
from ctxd.backends.xtdb.node.install import install
from ctxd.backends.xtdb.node.launch import Launch, command, find_config, start
from ctxd.backends.xtdb.node.node_layout import Installation

START_S_MAX = 60.0
TYPE = "application/transit+json"


@contextlib.contextmanager
def node(place: Path, name: str) -> Iterator[tuple[str, int]]:
    """A new node with its data in the folder ``name`` of ``place``: its socket, and its process."""
    home = os.environ.get("CTXD_XTDB_HOME") or Path(__file__).parents[1] / ".xtdb"
    installation = Installation(Path(home).absolute())
    install(installation, lambda line: print(f"  {line}", file=sys.stderr), os.environ)
    launch = Launch(find_config("rocksdb"), place / name, place / f"{name}.x")
    process = start(command(installation, launch, os.environ), {**os.environ}, log=place / f"{name}.log",
                    ready_s=START_S_MAX)  # fmt: skip
    try:
        yield str(launch.socket), process.pid
    finally:
        # A stopped process takes no other signal.
        process.kill()
        process.wait()
        assert process.stdout is not None, "it was read until it was ready"
        process.stdout.close()


class Bare:
    """What a program does that only submits and reads: one connection, nothing checked but the status."""

    def __init__(self, socket: str) -> None:
        self._session = aiohttp.ClientSession(
            "http://node", connector=aiohttp.UnixConnector(socket, limit=1), headers={"Accept": TYPE}
        )

    async def __aenter__(self) -> "Bare":
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._session.close()

    async def submit(self, ops: Sequence[Op]) -> int:
        """Append one transaction. Returns its id."""
        answer = await self._ask("POST", "/_xtdb/submit-tx", {}, encode_transaction(ops))
        fields: list[Any] = json.loads(answer)
        return int(fields[fields.index("~:xtdb.api/tx-id") + 1])

    async def indexed(self, tx_id: int) -> None:
        """Return once the node shows ``tx_id``."""
        while True:
            with contextlib.suppress(RuntimeError):
                await self._ask("GET", "/_xtdb/await-tx", {"tx-id": tx_id, "timeout": 30_000}, None)
                return

    async def bulk(self, ids: Sequence[str], valid_time: str) -> list[Any]:
        """The documents of ``ids``, by one query, decoded from transit and no further."""
        query = {"~:query": "{:find [e (pull e [*])] :in [[e ...]]}", "~:in-args": [list(ids)]}
        answer = await self._ask("POST", "/_xtdb/query", {"valid-time": valid_time}, json.dumps(query).encode())
        found: list[Any] = transit.decode(answer)
        return found

    async def _ask(self, method: str, path: str, params: dict[str, Any], body: bytes | None) -> bytes:
        headers = {"Content-Type": TYPE}
        async with self._session.request(method, path, params=params, data=body, headers=headers) as answer:
            data = await answer.read()
            if answer.status >= 300:
                raise RuntimeError(f"{method} {path}: {answer.status} {data[:300]!r}")
            return data
