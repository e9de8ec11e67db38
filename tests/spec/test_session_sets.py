"""SES: how objects move between a session's index, pool, active and pinned set."""

import os
import random
import shutil
from pathlib import Path

import pytest

from ctxd_client import CallFailed, SyncClient, SyncSession
from ctxd_protocol.limits import FILE_BYTES_MAX
from ctxd_protocol.session_types import Collapse, Mount
from tests.spec.refusal import refused
from tests.spec.sessions import MOVES, call, sets, walk


@pytest.mark.requirement("SES-2")
@pytest.mark.requirement("SES-3")
@pytest.mark.parametrize("seed", range(3))
def test_random_operations_only_grow_the_index_and_keep_the_sets_nested(start, tree: Path, seed: int) -> None:
    for number in range(12):
        (tree / f"{number}.py").write_text(f"{number}\n")
    s = start(collapse=Collapse(per_turn=2, turns=2))
    before: tuple[str, ...] = ()
    reached = set()
    for index, pool, active, pinned in walk(s, tree, random.Random(seed), 120):
        assert index[: len(before)] == before
        for ids in (index, pool, active, pinned):
            assert len(ids) == len(set(ids))
        assert set(active) <= set(pool) <= set(index)
        assert set(pinned) <= set(pool)
        reached |= {len(pool) < len(index), len(active) < len(pool), bool(pinned), bool(active)}
        before = index
    assert reached == {False, True}
    assert len(before) > 10


@pytest.mark.requirement("SES-2")
def test_deleted_hidden_or_closed_objects_stay_in_the_index(s: SyncSession, client: SyncClient, tree: Path) -> None:
    (tree / "a.py").write_text("x")
    file, toolcall = s.read("a.py").object, call(s)
    (tree / "a.py").unlink()
    client.file_index(s.id, "a.py", cause="check")
    s.pool_remove(file)
    s.pool_remove(toolcall)
    s.close()
    assert s.view().session.session_index == (file, toolcall)


@pytest.mark.requirement("SES-3")
def test_objects_outside_the_index_are_in_no_other_set(start, tree: Path) -> None:
    one, two = start(), start()
    theirs = call(two)
    for move in MOVES:
        with refused("not_in_index"):
            getattr(one, move)(theirs)
    assert sets(one) == ((), (), (), ())
    hidden = call(one)
    one.pool_remove(hidden)
    for move in ("pin", "pool_remove"):
        with refused("not_in_pool"):
            getattr(one, move)(hidden)
    assert sets(one) == ((hidden,), (), (), ())


@pytest.mark.requirement("SES-4")
def test_activating_an_indexed_object_shows_it_in_the_pool_too(s: SyncSession) -> None:
    id = call(s)
    s.pool_remove(id)
    assert sets(s) == ((id,), (), (), ())
    moved = s.activate(id)
    assert (moved.object, moved.level, moved.changed) == (id, "active", True)
    assert sets(s) == ((id,), (id,), (id,), ())


@pytest.mark.requirement("SES-4")
@pytest.mark.parametrize("hidden", [False, True])
def test_activating_an_unread_file_reads_it_first(s: SyncSession, client: SyncClient, tree: Path, hidden: bool) -> None:
    (tree / "a.py").write_text("read at last\n")
    id = s.discover(["a.py"]).objects[0].object
    assert id is not None
    if hidden:
        s.pool_remove(id)
    moved = s.activate(id)
    assert (moved.level, moved.changed) == ("active", True)
    version = client.object_get(id).object
    assert (version.state, version.payload["content"]) == ("present", "read at last\n")
    assert moved.receipt is not None
    assert version.tx == moved.receipt.seq, "the reading and the move are one write"
    assert "read at last" in s.assemble().text
    again = s.activate(id)
    assert (again.level, again.changed, again.receipt) == ("active", False, None)


@pytest.mark.requirement("SES-5")
@pytest.mark.parametrize(
    ("what", "code"),
    [
        ("gone", "file_not_found"),
        ("directory gone", "source_unreachable"),
        ("binary", "content_unavailable"),
        ("too large", "content_unavailable"),
        ("a pipe", "content_unavailable"),
        ("the sandbox's", "content_unavailable"),
    ],
)
def test_activating_an_object_without_available_content_fails_and_changes_nothing(
    start, client: SyncClient, tree: Path, what: str, code: str
) -> None:
    s, place = start(secrets="redact" if what == "binary" else "flag"), tree / "src"
    place.mkdir()
    (place / "a").write_bytes(b"\x00" if what == "binary" else b"text\n")
    id = s.discover(["src/a"]).objects[0].object
    assert id is not None
    match what:
        case "gone":
            (place / "a").unlink()
        case "directory gone":
            shutil.rmtree(place)
        case "too large":
            with (place / "a").open("wb") as large:
                large.truncate(2**40)
        case "a pipe":
            (place / "a").unlink()
            os.mkfifo(place / "a")
        case "the sandbox's":
            id = _large_in_a_sandbox(s, client)
    before, version = s.view(), client.object_get(id)
    with refused(code):
        s.activate(id)
    assert s.view() == before
    assert client.object_get(id) == version


def _large_in_a_sandbox(s: SyncSession, client: SyncClient) -> str:
    """A file that only a sandbox can read, and that was too large to be kept."""
    s.configure(mounts=[Mount(agent_prefix="/far", canonical_prefix="/x", filesystem_id="box")])
    id = s.read("/far/a", content=b"\x00" * (FILE_BYTES_MAX + 1)).object
    s.deactivate(id)
    return id


@pytest.mark.requirement("SES-5")
def test_activating_a_deleted_file_fails_and_changes_nothing(s: SyncSession, client: SyncClient, tree: Path) -> None:
    (tree / "a.py").write_text("x")
    id = s.read("a.py").object
    s.deactivate(id)
    (tree / "a.py").unlink()
    client.file_index(s.id, "a.py", cause="check")
    before, version = s.view(), client.object_get(id)
    with refused("content_unavailable"):
        s.activate(id)
    assert (s.view(), client.object_get(id)) == (before, version)


@pytest.mark.requirement("SES-6")
def test_deactivating_inactive_and_unpinning_unpinned_objects_are_errors(s: SyncSession) -> None:
    id = call(s)
    s.deactivate(id)
    before = s.view()
    with refused("not_active"):
        s.deactivate(id)
    with refused("not_pinned"):
        s.unpin(id)
    assert s.view() == before
    with pytest.raises(CallFailed, match="is not active"):
        s.deactivate(id)
    with pytest.raises(CallFailed, match="is not pinned"):
        s.unpin(id)


@pytest.mark.requirement("SES-6")
def test_repeated_moves_change_nothing_and_report_it(s: SyncSession, tree: Path) -> None:
    (tree / "a.py").write_text("x")
    id = s.read("a.py").object
    assert s.pin(id).changed
    assert s.activate(id).receipt is not None, "that somebody asked for it is kept"
    before = s.view()
    for move in (s.activate, s.pin, s.pool_add):
        done = move(id)
        assert (done.level, done.pinned, done.changed, done.receipt) == ("active", True, False, None)
    assert s.view() == before


@pytest.mark.requirement("SES-7")
def test_removing_an_object_from_the_pool_takes_it_out_of_active_and_pinned_sets(s: SyncSession) -> None:
    one, two = call(s, "one"), call(s, "two")
    s.pin(one)
    s.pin(two)
    moved = s.pool_remove(one)
    assert (moved.level, moved.pinned, moved.changed) == ("indexed", False, True)
    assert sets(s) == ((one, two), (two,), (two,), (two,))
    assert one not in s.assemble().text
    back = s.pool_add(one)
    assert (back.level, back.pinned) == ("inactive", False)
    assert sets(s) == ((one, two), (two, one), (two,), (two,))
