"""Writes at a past valid time: a version holds from the time that is named, whenever it was written."""

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ctxd.errors import CtxdError
from ctxd.objects.document import AsOf
from ctxd.store import journal
from ctxd.store.backup import backup, restore
from ctxd.store.damage_checks import check
from ctxd.store.purge import KIND
from ctxd.store.rebuild import rebuild_tables
from ctxd.store.verify import verify
from ctxd.store.write_types import PurgeRequest, Write
from tests.fakes.backend import MemoryBackend
from tests.unit.store.documents import document, write
from tests.unit.store.running import SteppingClock, running

pytestmark = [pytest.mark.anyio, pytest.mark.requirement("VER-6")]

NOW = 1_000
IDS = ("a", "b", "segment:s#0000000001")


def at(id: str, valid_time: int, text: str) -> Write:
    return write(document(id, text), valid_times={id: valid_time})


async def text_of(store, id, **basis):
    stored = await store.get(id, AsOf(**basis), content=True)
    return None if stored is None else stored.document.content


async def test_the_newest_version_is_that_with_the_newest_valid_time(tmp_path):
    async with running(tmp_path, SteppingClock(NOW)) as store:
        for valid_time in (500, 900, 700):
            store.submit(at("a", valid_time, str(valid_time)))
            # Read at once: nothing of it is durable yet.
            assert await text_of(store, "a") == ("500" if valid_time == 500 else "900")
        assert [await text_of(store, "a", valid_time=time) for time in (499, 500, 699, 700, 899, 900)] == [
            None,
            "500",
            "500",
            "700",
            "700",
            "900",
        ]
        assert [await text_of(store, "a", valid_time=800, tx=tx) for tx in (1, 2, 3)] == ["500", "500", "700"]
        assert [stored.valid_time for stored in await store.history("a")] == [500, 700, 900]
        assert [tx for change in await store.changes(after=0, limit=9) for _, tx in change.puts] == [500, 900, 700]
    async with running(tmp_path, SteppingClock(NOW)) as store:
        assert (await store.heads(["a"]))["a"].valid_time == 900
        store.submit(write(document("a", "now")))
        store.submit(at("a", 950, "950"))
        assert await text_of(store, "a") == "now"


@pytest.mark.requirement("VER-3")
async def test_a_second_write_at_one_valid_time_corrects_the_first(tmp_path):
    async with running(tmp_path, SteppingClock(NOW)) as store:
        store.submit(at("a", 500, "wrong"))
        store.submit(at("a", 600, "later"))
        await store.submit(at("a", 500, "right")).wait()
        line = [(stored.valid_time, stored.tx) for stored in await store.history("a")]
        assert line == [(500, 3), (600, 2)]
        known = [(stored.valid_time, stored.tx) for stored in await store.history("a", corrections=True)]
        assert known == [(500, 1), (500, 3), (600, 2)]
        assert [await text_of(store, "a", valid_time=500, tx=tx) for tx in (2, 3)] == ["wrong", "right"]


async def test_a_head_that_was_not_cached_is_read_once_the_write_is_durable(tmp_path):
    async with running(tmp_path, SteppingClock(NOW)) as store:
        await store.submit(at("a", 500, "old")).wait()
    async with running(tmp_path, SteppingClock(NOW)) as store:
        store.submit(at("a", 400, "older"))
        assert await text_of(store, "a") == "old"
    async with running(tmp_path, SteppingClock(NOW)) as store:
        pending = store.submit(at("a", 600, "newer"))
        assert await text_of(store, "a") == "newer" and pending.done
        await store.submit(Write(kind="k", principal="p", deletes=("a",))).wait()
        store.submit(at("a", 700, "newest of the past"))
        assert await text_of(store, "a") is None
        assert await text_of(store, "a", valid_time=700) == "newest of the past"


@pytest.mark.parametrize("valid_time", [NOW, NOW + 1, 2**62, -1])
async def test_a_time_that_is_not_past_is_refused_and_nothing_is_written(tmp_path, valid_time):
    async with running(tmp_path, SteppingClock(NOW)) as store:
        with pytest.raises(CtxdError, match="not in the past") as refused:
            store.submit(at("a", valid_time, "x"))
        assert (refused.value.code, refused.value.outcome) == ("invalid_params", "not_applied")
        assert await store.get("a") is None
        assert (await store.submit(write(document("b"))).wait()).seq == 1


async def test_a_purge_a_backup_and_a_rebuild_keep_the_times(tmp_path):
    root = tmp_path / "state"
    async with running(root, SteppingClock(NOW)) as store:
        store.submit(write(document("a", "the secret"), document("b", "kept"), valid_times={"a": 300}))
        store.submit(at("a", 200, "another"))
        purge = PurgeRequest(("a",), lambda hashed: hashed)
        await store.submit(Write(kind=KIND, principal="p", purge=purge)).wait()
        assert [stored.valid_time for stored in await store.history("a")] == [200, 300]
        assert await text_of(store, "a", valid_time=300) is None and await text_of(store, "b") == "kept"
        before = [row for id in "ab" for row in await store.history(id, corrections=True)]
    backup(root, tmp_path / "copy")
    restore(tmp_path / "copy", tmp_path / "other")
    rebuild_tables(tmp_path / "other" / "state.db", lambda _: None)
    for state in (root, tmp_path / "other"):
        *_, report = verify(state)
        assert [problem for problem in report.problems if problem.severity != "warning"] == []
        async with running(state, SteppingClock(NOW)) as store:
            assert [row for id in "ab" for row in await store.history(id, corrections=True)] == before
            assert check(store._reader, 0).damage == ()


steps = st.lists(
    st.tuples(st.sampled_from(IDS), st.none() | st.integers(1, 12), st.booleans()), min_size=1, max_size=12
)


@given(steps=steps)
@settings(
    max_examples=30,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.differing_executors],
)
async def test_every_read_equals_the_plain_algebra_over_the_journal(tmp_path_factory, steps):
    root = tmp_path_factory.mktemp("past")
    clock = SteppingClock(20)
    async with running(root, clock) as store:
        for number, (id, valid_time, wait) in enumerate(steps):
            clock.wall += 1
            times = {} if valid_time is None else {id: valid_time}
            pending = store.submit(write(document(id, f"text {number}"), valid_times=times))
            heads = {id: head for id, head in (await store.heads(IDS)).items() if head is not None}
            if wait:
                await pending.wait()
        await store.wait_for_writes()
        reference = MemoryBackend()
        for row in journal.read_rows(store._reader.connection, after=0):
            reference.append(journal.read_versions(row))
        newest = {version.id: (version.valid_time, version.tx) for version in reference.as_of(IDS)}
        assert {id: (head.valid_time, head.tx) for id, head in heads.items()} == newest
        for id in IDS:
            for corrections in (False, True):
                found = await store.history(id, corrections=corrections)
                expected = reference.history(id, corrections=corrections)
                assert [(row.valid_time, row.tx) for row in found] == [(row.valid_time, row.tx) for row in expected]
        for valid_time in range(0, 14):
            for tx in range(len(steps) + 1):
                found = await store.embedded.as_of(IDS, AsOf(valid_time=valid_time, tx=tx))
                assert found == list(reference.as_of(IDS, AsOf(valid_time=valid_time, tx=tx)))
