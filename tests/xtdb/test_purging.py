"""Purged content is gone from a real node: from its responses at any time, and from the documents it is made of."""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from anyio.to_thread import run_sync

from ctxd.backends.xtdb.client import XtdbClient
from ctxd.backends.xtdb.documents import FIXED_VALID_TIME, NEWEST_VALID_TIME, RESERVED
from ctxd_client import connect_sync
from ctxd_client.sync import SyncClient
from ctxd_protocol.session_types import Message
from tests.crash.daemon import daemon_process
from tests.unit.projection.projecting import compared
from tests.xtdb.running import Node, node
from tests.xtdb.test_projection import ctxd, reached, told, xtdb

SAID = "the-secret-that-was-said-9f8e7d6c5b4a"
TOLD = "the-secret-that-a-tool-told-1a2b3c4d5e6f"
READ = "the-secret-that-a-file-held-0f1e2d3c4b5a"
SECRETS = (SAID, TOLD, READ)
TURN = 40

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(240)]


@pytest.fixture
def kept(tmp_path: Path) -> Iterator[Node]:
    """A node that keeps its data, to be killed."""
    with node("rocksdb", tmp_path / "node") as running_node:
        yield running_node


def live(client: SyncClient, tree: Path) -> str:
    """A session of more turns than a run has, with secrets in one of them, in a tool call and in a file.
    Returns: the file's id."""
    s = client.session("s", agent="a", workdir=str(tree))
    for number in range(1, 300):
        said = f'use "{SAID}"' if number == TURN else f"question {number}"
        client.session_append("s", [Message(role="user", content=said)])
    client.toolcall_record("s", "told", "bash", f"{TOLD}\n" * 40_000, args={"key": TOLD})
    client.toolcall_record("s", "harmless", "bash", "what stays\n")
    client.toolcall_record("s", "taken-back", "bash", "said twice\n")
    for content in (f"{READ}\n", f"{READ}\nmore\n"):
        (tree / ".env").write_text(content)
        id = s.read(".env").object
    assert id is not None
    return id


async def shown(at: Node, txs: list[int | None]) -> str:
    """Everything that the node answers as of each of ``txs``, ``None``: now, of each entity that was there at any."""
    async with XtdbClient(at.url) as client:
        ids: set[str] = set()
        for tx in txs:
            for valid_time in (FIXED_VALID_TIME, NEWEST_VALID_TIME):
                ids.update(await client.ids("", valid_time=valid_time, tx_id=tx))
        assert any(id.startswith(f"{RESERVED}content/") for id in ids)
        found: list[Any] = []
        for tx in txs:
            for valid_time in (FIXED_VALID_TIME, NEWEST_VALID_TIME):
                found.append(await client.entities(ids, valid_time=valid_time, tx_id=tx))
            for id in ids:
                rows = await client.history(id, tx_id=tx)
                found.append([row.doc for row in rows])
        return json.dumps(found)


def held(text: str) -> set[str]:
    return {secret for secret in SECRETS if secret in text}


def on_disk(at: Node) -> set[str]:
    """The secrets that stand in a file of the node."""
    data = b"".join(path.read_bytes() for path in at.data.rglob("*") if path.is_file())
    return {secret for secret in SECRETS if secret.encode() in data}


async def newest_tx(at: Node) -> int:
    async with XtdbClient(at.url) as client:
        found = await client.latest_completed()
    assert found is not None
    return found


@pytest.mark.slow
@pytest.mark.requirement("PRJ-10")
async def test_purged_content_is_gone_from_a_running_an_absent_and_a_rebuilt_node(tmp_path: Path, kept: Node) -> None:
    tree = tmp_path / "tree"
    tree.mkdir()
    with daemon_process(tmp_path, env=xtdb(kept)) as daemon:
        await daemon.start()
        with connect_sync(str(daemon.socket)) as client:
            file = await run_sync(live, client, tree)
            await reached(daemon)
            before = await newest_tx(kept)
            assert held(await shown(kept, [None])) == on_disk(kept) == set(SECRETS)

            assert client.object_purge("chat:s", turns=(TURN,)).texts == 1
            assert client.object_purge("taken-back").texts == 1
            await reached(daemon)
            client.toolcall_record("s", "said-again", "bash", "said twice\n")
            await reached(daemon)
            assert held(await shown(kept, [None, before])) == {TOLD, READ}

            # Away, it learns of the others when it is back.
            kept.kill()
            proofs = [client.object_purge(id) for id in ("told", file)]
            assert [(proof.versions, proof.residue) for proof in proofs] == [(1, ()), (2, ())]
            newest = proofs[-1].receipt.seq if proofs[-1].receipt else 0
            await reached(daemon, "unreachable", lag=10**6)
            kept.start()
            status = await reached(daemon)
            assert status.quarantined == () and status.seq == newest
            assert held(await shown(kept, [None, before])) == set()
            # As of then, from the node, for the tables are asked only what it does not answer.
            past = client.object_history(file, corrections=True, tx=newest).versions
            assert [row.state for row in past] == ["purged", "purged"]
            assert len(client.session_chat("s", first_turn=TURN, limit=1).turns) == 1
        assert await daemon.stop() == 0
    verify = ["verify", "--store", "--state-dir", daemon.state_dir, "--store-url", kept.url, "--json"]
    done = await run_sync(lambda: ctxd(*verify))
    report = told(done)
    assert done.returncode == 0 and report["equal"] and report["problems"] == [], done.stderr

    # A node's index is made of its documents: it comes to each eviction again, behind what was put after it.
    kept.kill()
    shutil.rmtree(kept.data / "index")
    kept.start()
    assert held(await shown(kept, [None, before])) == set()
    found = await compared(daemon.state_dir, XtdbClient, kept.url)
    assert found.problems == [] and found.node_digest == report["node_digest"] and found.texts == report["texts"]

    with node("rocksdb", tmp_path / "other") as other:
        rebuild = ["rebuild-xtdb", "--state-dir", daemon.state_dir, "--store-url", other.url, "--json"]
        done = await run_sync(lambda: ctxd(*rebuild))
        assert done.returncode == 0 and told(done)["node_digest"] == report["node_digest"], done.stderr
        assert held(await shown(other, [None])) == on_disk(other) == set()


@pytest.mark.requirement("SES-25")
@pytest.mark.slow
async def test_an_emptied_session_is_gone_from_the_node_except_for_shared_objects(tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    tree.mkdir()
    with node("memory") as at, daemon_process(tmp_path, env=xtdb(at)) as daemon:
        await daemon.start()
        with connect_sync(str(daemon.socket)) as client:
            file = await run_sync(live, client, tree)
            other = client.session("other", agent="a")
            other.record("same", "bash", "what stays\n")
            await reached(daemon)
            before = await newest_tx(at)
            client.session_remove("s")
            (done,) = (each for each in client.session_gc(0).sessions if each.action == "emptied")
            assert done.session == "s" and done.bytes > len(TOLD)
            status = await reached(daemon)
            assert status.quarantined == ()
            assert held(await shown(at, [None, before])) == {READ}, "the file is there for others"
            assert client.object_get("same").object.payload["content"] == "what stays\n"
            assert READ in client.object_get(file).object.payload["content"]
        assert await daemon.stop() == 0
        verify = ["verify", "--store", "--state-dir", daemon.state_dir, "--store-url", at.url, "--json"]
        done_verify = await run_sync(lambda: ctxd(*verify))
        report = told(done_verify)
        assert done_verify.returncode == 0 and report["equal"] and report["problems"] == [], done_verify.stderr
