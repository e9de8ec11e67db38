"""Notices, read and followed: their recipients, and that none is lost or repeated."""

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import anyio
import anyio.to_thread
import pytest

from ctxd_client import Client, connect, connect_sync
from ctxd_client.sync import SyncClient, SyncSession
from ctxd_protocol.session_types import Mount, Notice
from tests.client.running import Running
from tests.crash.wire import Wire

Start = Callable[..., SyncSession]
WAIT_S_MAX = 30.0


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


def change(s: SyncSession, file: Path, text: str) -> None:
    """Let session ``s`` edit ``file``, which it works on too."""
    file.write_text(text)
    s.edited(str(file))


@pytest.mark.requirement("NOT-1")
def test_readers_of_a_file_are_notified_of_foreign_changes_under_their_own_path(
    client: SyncClient, start: Start, tree: Path
) -> None:
    file = tree / "a.py"
    file.write_text("1\n")
    reader = start(mounts=[Mount(agent_prefix="/w", canonical_prefix=str(tree))], workdir="/w")
    writer = start()
    id = reader.read("a.py").object
    change(writer, file, "2\n")
    (notice,) = reader.notices().notices
    version = client.object_get(id).object
    assert notice == Notice(
        seq=version.tx,
        session=reader.id,
        object=id,
        path="/w/a.py",
        change="updated",
        by_session=writer.id,
        content_hash=version.content_hash,
        valid_time=version.valid_time,
    )
    file.unlink()
    client.file_index(writer.id, str(file), cause="check")
    _, deleted = reader.notices().notices
    assert (deleted.object, deleted.change, deleted.content_hash, deleted.by_session) == (
        id,
        "deleted",
        None,
        writer.id,
    )


@pytest.mark.requirement("NOT-1")
def test_a_change_found_by_another_sessions_assembly_is_notified(start: Start, tree: Path) -> None:
    file = tree / "a.py"
    file.write_text("1\n")
    reader, looker = start(), start()
    id = reader.read("a.py").object
    looker.read("a.py")
    file.write_text("2, by nobody we know\n")
    looker.assemble()
    (notice,) = reader.notices().notices
    assert (notice.object, notice.by_session) == (id, looker.id)


@pytest.mark.requirement("NOT-2")
def test_a_session_gets_no_notice_of_its_own_changes_or_of_unread_files(start: Start, tree: Path) -> None:
    for name in ("own", "seen", "read late", "shared"):
        (tree / name).write_text("1\n")
    s, other = start(), start()
    s.read("own")
    s.discover(["seen"])
    shared = s.read("shared").object
    change(s, tree / "own", "2\n")
    change(s, tree / "shared", "2, by itself\n")
    change(other, tree / "seen", "2\n")
    change(other, tree / "read late", "2\n")
    s.read("read late")
    assert s.notices().notices == ()
    assert other.notices().notices == ()
    change(other, tree / "shared", "3\n")
    assert [notice.object for notice in s.notices().notices] == [shared], "the ear is open"


def changes(s: SyncSession, other: SyncSession, tree: Path, count: int) -> None:
    """``count`` changes by ``other`` of two files that ``s`` read, its own changes in between."""
    for number in range(count):
        change(other, tree / f"f{number % 2}", f"by another {number}\n")
        if number % 3 == 0:
            change(s, tree / f"f{number % 2}", f"by itself {number}\n")


def two_readers(client: SyncClient, tree: Path) -> tuple[SyncSession, SyncSession]:
    for name in ("f0", "f1"):
        (tree / name).write_text("0\n")
    s, other = (client.session(id, agent="a", workdir=str(tree)) for id in ("s", "other"))
    for name in ("f0", "f1"):
        s.read(name)
        other.read(name)
    return s, other


@pytest.mark.requirement("NOT-3")
def test_notices_are_paged_from_any_sequence_even_after_a_kill(tmp_path: Path, tree: Path) -> None:
    with Running(tmp_path, keep_state=True) as daemon, connect_sync(daemon.socket) as client:
        s, other = two_readers(client, tree)
        changes(s, other, tree, 9)
        whole = s.notices().notices
        assert [notice.by_session for notice in whole] == ["other"] * 9
        assert [notice.seq for notice in whole] == sorted({notice.seq for notice in whole})
        for _ in range(2):
            for after in range(client.daemon_status().store.head_seq + 1):
                expected = tuple(notice for notice in whole if notice.seq > after)
                assert s.notices(after=after).notices == expected
            for limit in (1, 2, 4):
                assert tuple(paged(s, limit)) == whole
            daemon.kill()
            daemon.start()


def paged(s: SyncSession, limit: int) -> Iterator[Notice]:
    after = 0
    while page := s.notices(after=after, limit=limit):
        yield from page.notices
        if len(page.notices) < limit:
            return
        after = page.next_after


class Follower:
    """Follows a session on a thread, as a harness without a loop does."""

    def __init__(self) -> None:
        self.seen: list[Notice] = []
        self.complete = threading.Event()

    def follow(self, socket: str, session: str, until: str) -> None:
        with connect_sync(socket) as client:
            for notice in client.follow(session, after=0):
                self.seen.append(notice)
                if notice.path is not None and notice.path.endswith(until):
                    break
        self.complete.set()


@contextmanager
def following(socket: str, session: str, until: str) -> Iterator[Follower]:
    follower = Follower()
    thread = threading.Thread(target=follower.follow, args=(socket, session, until), daemon=True)
    thread.start()
    yield follower
    thread.join(WAIT_S_MAX)
    assert follower.complete.is_set(), f"still waiting after {len(follower.seen)} notices"


@pytest.mark.requirement("NOT-3")
def test_a_subscription_of_a_blocking_client_loses_and_repeats_nothing_over_kills(tmp_path: Path, tree: Path) -> None:
    with Running(tmp_path, keep_state=True) as daemon, connect_sync(daemon.socket) as client:
        s, other = two_readers(client, tree)
        (tree / "last").write_text("0\n")
        s.read("last")
        with following(daemon.socket, "s", "last") as follower:
            for _ in range(3):
                changes(s, other, tree, 6)
                daemon.kill()
                daemon.start()
            changes(s, other, tree, 6)
            change(other, tree / "last", "the end\n")
        assert tuple(follower.seen) == s.notices().notices
        assert len(follower.seen) == 4 * 6 + 1


@pytest.mark.anyio
@pytest.mark.requirement("NOT-3")
async def test_a_subscription_loses_and_repeats_nothing_across_changes_and_kills(tmp_path: Path, tree: Path) -> None:
    """Changes do not wait for the follower, and the daemon dies in the middle of them."""
    seen: list[Notice] = []
    with Running(tmp_path, keep_state=True) as daemon:
        async with connect(daemon.socket, deadline_s=60) as client:
            s = await client.session("s", agent="a", workdir=str(tree))
            (tree / "f").write_text("0\n")
            await s.read("f")
            async with client.follow("s") as notices, anyio.create_task_group() as group:
                group.start_soon(change_often, client, tree, 40)
                for number in (1, 2):
                    while len(seen) < 10 * number:
                        with anyio.fail_after(WAIT_S_MAX):
                            seen.append(await anext(notices))
                    await anyio.to_thread.run_sync(daemon.kill)
                    await anyio.to_thread.run_sync(daemon.start)
                while len(seen) < 40:
                    with anyio.fail_after(WAIT_S_MAX):
                        seen.append(await anext(notices))
            assert tuple(seen) == (await s.notices()).notices


async def change_often(client: Client, tree: Path, count: int) -> None:
    other = await client.session("other", agent="a", workdir=str(tree))
    for number in range(1, count + 1):
        await other.edited("f", content=f"{number}\n")


@pytest.mark.anyio
@pytest.mark.requirement("NOT-3")
async def test_a_subscription_from_a_sequence_gets_later_notices_and_then_live_ones(
    daemon: Running, start: Start, tree: Path
) -> None:
    """As a program without a client library asks for it."""
    (tree / "f0").write_text("0\n")
    (tree / "f1").write_text("0\n")
    s, other = start(), start()
    for each in (s, other):
        each.read("f0")
        each.read("f1")
    changes(s, other, tree, 6)
    behind = s.notices().notices
    for after in (0, behind[0].seq, behind[3].seq - 1, behind[-1].seq):
        async with await Wire.open(Path(daemon.socket)) as wire:
            subscribed = await wire.call("events.subscribe", session=s.id, after=after)
            assert subscribed["after"] == after
            live = other.edited("f0", content=f"after {after}\n").receipt
            assert live is not None
            expected = [notice.seq for notice in s.notices(after=after).notices]
            assert expected[-1] == live.seq
            events = [json.loads(await wire.line()) for _ in expected]
            assert [event["params"]["notice"]["seq"] for event in events] == expected
            await wire.call("events.unsubscribe", subscription=subscribed["subscription"])


@pytest.mark.requirement("NOT-4")
def test_all_sessions_that_know_an_object_are_listed(client: SyncClient, start: Start, tree: Path) -> None:
    (tree / "a.py").write_text("1\n")
    (tree / "b.py").write_text("1\n")
    reads, sees, hides, neither = (start() for _ in range(4))
    id = reads.read("a.py").object
    sees.discover(["a.py"])
    hides.read("a.py")
    hides.pool_remove(id)
    neither.read("b.py")
    assert sorted(client.object_sessions(id).sessions) == sorted([reads.id, sees.id, hides.id])
    call = reads.record(f"{reads.id}-c", "bash", "out\n").object
    assert client.object_sessions(call).sessions == (reads.id,)
    hides.close()
    assert hides.id in client.object_sessions(id).sessions, "the index never shrinks"
