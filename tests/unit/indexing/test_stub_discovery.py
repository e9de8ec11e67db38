"""Discovery: names to stubs, over fakes."""

import errno

import pytest

from ctxd.indexing.shell.paths import PathCandidate
from ctxd.indexing.stub_discovery import BASES_MAX, PARENTS_MAX, discover, discover_named
from ctxd.objects.version_state import is_unread, state_of
from tests.unit.indexing.memory import MOUNTS, World

pytestmark = pytest.mark.anyio


@pytest.fixture
def world() -> World:
    return World()


@pytest.mark.requirement("IDX-8")
async def test_an_existing_file_becomes_an_unread_stub(world: World) -> None:
    world.files.write("/src/a.TS", b"x")
    (found,) = await discover(world.indexer, MOUNTS, "/w", ["a.TS"])
    assert (found.path, found.outcome) == ("a.TS", "created")
    assert found.document is not None
    assert is_unread(found.document)
    assert found.document.payload == {"file_type": "ts", "char_count": 0}
    assert found.object == found.document.id
    assert world.files.reads == 0


@pytest.mark.requirement("IDX-8")
async def test_a_version_that_was_read_is_never_touched(world: World) -> None:
    world.files.write("/src/a", b"x")
    known = await world.read("/w/a")
    world.files.write("/src/a", b"changed")
    (found,) = await discover(world.indexer, MOUNTS, "/w", ["/w/a"])
    assert (found.outcome, found.object, found.document) == ("unchanged", known.object, None)


async def test_a_stub_is_made_once(world: World) -> None:
    world.files.write("/src/a", b"x")
    (first,) = await discover(world.indexer, MOUNTS, "/w", ["a"])
    assert first.document is not None
    world.versions.put(first.document)
    (second,) = await discover(world.indexer, MOUNTS, "/w", ["a"])
    assert (second.outcome, second.document) == ("unchanged", None)


async def test_several_names_of_one_file_make_one_stub(world: World) -> None:
    world.files.write("/src/a", b"x")
    found = await discover(world.indexer, MOUNTS, "/w", ["a", "./a", "/w/lib/../a"])
    assert [one.outcome for one in found] == ["created", "unchanged", "unchanged"]
    assert len({one.object for one in found}) == 1


async def test_a_deleted_file_that_is_back_becomes_unread(world: World) -> None:
    world.files.write("/src/a", b"x")
    known = await world.read("/w/a")
    world.files.remove("/src/a")
    gone = world.versions.take(await world.indexer.index(MOUNTS, "/w", "a", cause="check"))
    world.files.write("/src/a", b"y")
    (back,) = await discover(world.indexer, MOUNTS, "/w", ["a"])
    assert back.document is not None
    assert (back.outcome, back.object) == ("created", known.object)
    assert back.floor_vt > gone.floor_vt
    world.versions.put(back.document, floor_vt=back.floor_vt)
    assert state_of(world.versions.head(known.object)) == "unread"


@pytest.mark.requirement("DIS-2")
async def test_an_irregular_file_is_ignored_with_its_reason(world: World) -> None:
    world.files.mkdir("/src/dir")
    world.files.special("/src/pipe", "fifo")
    world.files.write("/src/locked", b"x")
    world.files.deny("/src/locked", errno.EACCES)
    paths = ["dir", "pipe", "locked", "none", "no/dir/none", "/tmp/inside", "/../up", "a\0b"]
    found = await discover(world.indexer, MOUNTS, "/w", paths)
    assert [one.path for one in found] == paths
    assert {one.outcome for one in found} == {"ignored"}
    assert all(one.object is None and one.document is None for one in found)
    reasons = [one.reason or "" for one in found]
    assert reasons[:6] == [
        "directory", "fifo", "cannot be looked at", "no such file", "no such file", "not on the host's filesystem",
    ]  # fmt: skip
    assert "climbs above" in reasons[6]
    assert "NUL" in reasons[7]


@pytest.mark.requirement("DIS-2")
async def test_a_known_file_that_is_gone_is_ignored(world: World) -> None:
    world.files.write("/src/a", b"x")
    await world.read("/w/a")
    world.files.remove("/src/a")
    (found,) = await discover(world.indexer, MOUNTS, "/w", ["a"])
    assert (found.outcome, found.object) == ("ignored", None)


async def test_a_file_inside_the_sandbox_counts_if_its_object_exists(world: World) -> None:
    known = await world.read("/tmp/a", b"sent")
    (found,) = await discover(world.indexer, MOUNTS, "/w", ["/tmp/a"])
    assert (found.outcome, found.object) == ("unchanged", known.object)


async def test_a_stub_that_another_session_makes_meanwhile_is_seen(world: World) -> None:
    world.files.write("/src/a", b"x")
    (first,) = await discover(world.indexer, MOUNTS, "/w", ["a"])
    assert first.document is not None
    world.versions.forget()
    heads = world.versions.heads
    stub = first.document

    async def overtaken(ids):  # type: ignore[no-untyped-def]
        found = await heads(ids)
        world.versions.put(stub)
        return found

    world.versions.heads = overtaken  # type: ignore[method-assign]
    (second,) = await discover(world.indexer, MOUNTS, "/w", ["a"])
    assert (second.outcome, second.document) == ("unchanged", None)


@pytest.mark.parametrize("count", [0, 3000])
async def test_many_paths_cost_one_lookup_and_one_stat_each(world: World, count: int) -> None:
    for number in range(count):
        world.files.write(f"/src/{number}", b"x")
    found = await discover(world.indexer, MOUNTS, "/w", [str(number) for number in range(count)])
    assert len(found) == count
    assert {one.outcome for one in found} <= {"created"}
    assert (world.versions.lookups, world.files.stats) == (1, count)


def doubtful(path: str) -> PathCandidate:
    return PathCandidate(path, "ls", certain=False)


def anchored(path: str, base: str) -> PathCandidate:
    return PathCandidate(path, "git", anchor="repository", base=base)


@pytest.mark.requirement("DIS-2")
async def test_a_doubtful_name_counts_only_if_it_is_a_regular_file(world: World) -> None:
    world.files.write("/src/gradlew", b"x")
    world.files.mkdir("/src/lib")
    given = [doubtful(path) for path in ("/w/lib", "/w/gradlew", "/w/word", "/tmp/inside")]
    (found,) = await discover_named(world.indexer, MOUNTS, given)
    assert (found.path, found.outcome) == ("/w/gradlew", "created")


async def test_a_doubtful_name_in_the_sandbox_counts_if_its_object_exists(world: World) -> None:
    known = await world.read("/tmp/run", b"sent")
    (found,) = await discover_named(world.indexer, MOUNTS, [doubtful("/tmp/run"), doubtful("/tmp/bin")])
    assert (found.outcome, found.object) == ("unchanged", known.object)


@pytest.mark.requirement("DIS-2")
async def test_a_certain_name_is_reported_for_every_kind_of_file(world: World) -> None:
    world.files.mkdir("/src/chart.js")
    found = await discover_named(
        world.indexer, MOUNTS, [PathCandidate("/w/chart.js", "ls"), PathCandidate("/w/none.py", "ls")]
    )
    assert [(one.path, one.reason) for one in found] == [("/w/chart.js", "directory"), ("/w/none.py", "no such file")]


@pytest.mark.parametrize("git", ["directory", "file"])
async def test_a_missing_name_of_git_is_found_from_the_top_of_its_work_tree(world: World, git: str) -> None:
    if git == "directory":
        world.files.mkdir("/src/top/.git")
    else:
        world.files.write("/src/top/.git", b"gitdir: elsewhere")
    world.files.write("/src/top/sub/a.py", b"x")
    world.files.write("/src/top/b.py", b"x")
    world.files.write("/src/c.py", b"x")
    named = ("sub/a.py", "b.py", "c.py", "none.py")
    given = [anchored(f"/w/top/sub/deep/{name}", "/w/top/sub/deep") for name in named]
    found = await discover_named(world.indexer, MOUNTS, given)
    assert [(one.path, one.outcome) for one in found] == [
        ("/w/top/sub/a.py", "created"),
        ("/w/top/b.py", "created"),
        ("/w/top/sub/deep/c.py", "ignored"),
        ("/w/top/sub/deep/none.py", "ignored"),
    ]


async def test_a_name_that_exists_where_the_command_ran_is_that_file(world: World) -> None:
    world.files.mkdir("/src/.git")
    world.files.write("/src/a.py", b"x")
    world.files.write("/src/sub/a.py", b"x")
    (found,) = await discover_named(world.indexer, MOUNTS, [anchored("/w/sub/a.py", "/w/sub")])
    assert found.path == "/w/sub/a.py"


async def test_a_file_reached_by_two_names_is_reported_once(world: World) -> None:
    world.files.mkdir("/src/.git")
    world.files.write("/src/a.py", b"x")
    given = [PathCandidate("/w/a.py", "cat"), anchored("/w/sub/a.py", "/w/sub")]
    (found,) = await discover_named(world.indexer, MOUNTS, given)
    assert (found.path, found.outcome) == ("/w/a.py", "created")


async def test_names_are_not_searched_for_outside_the_sessions_view(world: World) -> None:
    world.files.mkdir("/.git")
    world.files.write("/a.py", b"x")
    world.files.mkdir("/src/sub")
    (found,) = await discover_named(world.indexer, MOUNTS, [anchored("/w/sub/a.py", "/w/sub")])
    assert (found.path, found.outcome) == ("/w/sub/a.py", "ignored")


async def test_finding_work_trees_is_bounded(world: World) -> None:
    deep = "/w" + "/d" * 1500
    given = [anchored(f"{deep}/{number}/a.py", f"{deep}/{number}") for number in range(1000)]
    found = await discover_named(world.indexer, MOUNTS, given)
    assert len(found) == 1000
    assert world.files.stats <= 1000 + BASES_MAX * PARENTS_MAX
    assert world.versions.lookups == 1
