"""A user whom the daemon reads for reads no more by it than without it."""

import ctypes
import errno
import os
import sys
import threading
from pathlib import Path

import pytest

from ctxd.clock import SystemClock
from ctxd.sources.host_files import HostFiles, Regular
from ctxd.sources.source_interface import Missing, Present, Unreadable
from ctxd.sources.user_rights import READ, User, allows
from tests.fakes.source import at

ANOTHER = User(65534)
REFUSED = Unreadable(errno.EACCES)
MASKED = [(0x01, 6, -1), (0x02, 6, 7), (0x04, 4, -1), (0x08, 4, 30), (0x10, 2, -1), (0x20, 4, -1)]


def found(mode: int) -> os.stat_result:
    return os.stat_result((0o100000 | mode, 1, 1, 1, 5, 50, 0, 0, 0, 0))


@pytest.mark.requirement("BOX-11")
@pytest.mark.parametrize(
    ("user", "mode", "entries", "may"),
    [
        (User(0), 0o000, [], True),
        (User(5), 0o400, [], True),
        (User(5), 0o044, [], False),
        (User(6, frozenset({50})), 0o040, [], True),
        (User(6, frozenset({50})), 0o604, [], False),
        (User(6), 0o640, [], False),
        (User(6), 0o604, [], True),
        (User(7), 0o660, [(0x02, 4, 7), (0x04, 0, -1), (0x10, 6, -1)], True),
        (User(7), 0o664, [(0x02, 0, 7), (0x04, 6, -1), (0x10, 6, -1)], False),
        (User(7), 0o664, MASKED, False),
        (User(6, frozenset({30})), 0o664, MASKED, False),
        (User(6, frozenset({30})), 0o660, [(0x04, 0, -1), (0x08, 4, 30), (0x10, 4, -1)], True),
        (User(6, frozenset({50})), 0o664, [(0x04, 0, -1), (0x10, 6, -1)], False),
        (User(6), 0o664, MASKED, True),
    ],
)
def test_access_follows_owner_acl_group_and_other_bits(
    user: User, mode: int, entries: list[tuple[int, int, int]], may: bool
) -> None:
    assert allows(user, found(mode), entries, READ) is may


@pytest.fixture
def project(tmp_path: Path) -> Path:
    root = tmp_path.resolve() / "project"
    (root / "closed").mkdir(parents=True)
    for name, mode in (("open", 0o644), ("secret", 0o600), ("closed/open", 0o644)):
        (root / name).write_text(name)
        (root / name).chmod(mode)
    (root / "link").symlink_to("/w/closed/open")
    (root / "closed").chmod(0o700)
    root.chmod(0o755)
    return root


def files_of(root: Path) -> HostFiles:
    files = HostFiles(SystemClock())
    files.confinement.confine(str(root), (("/w", str(root)),))
    return files


@pytest.mark.anyio
@pytest.mark.requirement("BOX-11")
async def test_files_unreadable_to_a_sandboxs_user_are_neither_read_nor_revealed(project: Path) -> None:
    files = files_of(project)
    files.confinement.limit("box", [str(project)], ANOTHER)
    paths = [f"{project}/{name}" for name in ("open", "secret", "closed/open", "closed/none", "link", "none")]
    read, looked = await files.read_many([at(path) for path in paths]), await files.look_many(paths)
    assert isinstance(read[0], Present)
    assert isinstance(looked[0], Regular)
    assert read[1:5] == looked[1:5] == [REFUSED] * 4
    assert isinstance(read[5], Missing)
    files.confinement.lift("box")
    assert all(isinstance(one, Present) for one in await files.read_many([at(paths[1]), at(paths[2]), at(paths[4])]))


@pytest.mark.anyio
@pytest.mark.requirement("BOX-11")
async def test_names_are_listed_and_found_missing_only_where_a_sandboxs_user_could(project: Path) -> None:
    files = files_of(project)
    files.confinement.limit("box", [str(project)], ANOTHER)
    (project / "closed").chmod(0o711)
    assert await files.list_many([f"{project}/closed"], 10) == [REFUSED]
    assert isinstance((await files.read_many([at(f"{project}/closed/none")]))[0], Missing)
    (project / "closed").chmod(0o744)
    assert await files.list_many([f"{project}/closed"], 10) == [REFUSED], "to open it, the user must enter it too"
    (project / "closed").chmod(0o755)
    assert await files.list_many([f"{project}/closed"], 10) == [("open",)]
    # The mount itself is not below a confined directory.
    project.chmod(0o711)
    assert await files.list_many([str(project)], 10) == [REFUSED]
    project.chmod(0o744)
    for name in ("open", "none", "closed/none"):
        assert await files.read_many([at(f"{project}/{name}")]) == [REFUSED], name
    files.confinement.lift("box")
    assert len((await files.list_many([str(project)], 10))[0]) > 2  # type: ignore[arg-type]


@pytest.mark.anyio
@pytest.mark.requirement("BOX-11")
async def test_a_limit_holds_where_another_one_was_and_until_the_last_is_lifted(project: Path) -> None:
    files = files_of(project)
    secret, closed = f"{project}/secret", f"{project}/closed/open"
    files.confinement.limit("one", [str(project)], ANOTHER)
    files.confinement.limit("two", [str(project), f"{project}/closed"], ANOTHER)
    files.confinement.limit("one", [f"{project}/closed"], ANOTHER)
    assert await files.look_many([secret, closed]) == [REFUSED, REFUSED]
    files.confinement.lift("two")
    files.confinement.lift("unheard of")
    secret_seen, closed_seen = await files.look_many([secret, closed])
    assert isinstance(secret_seen, Regular)
    assert closed_seen == REFUSED
    files.confinement.lift("one")
    assert all(isinstance(look, Regular) for look in await files.look_many([secret, closed]))


@pytest.mark.anyio
@pytest.mark.requirement("BOX-11")
async def test_no_limit_is_lost_while_those_of_other_sandboxes_come_and_go(project: Path) -> None:
    files, ended = files_of(project), threading.Event()
    for number in range(2000):
        files.confinement.limit(f"old{number}", [f"{project}/none{number}"], ANOTHER)

    def others() -> None:
        while not ended.is_set():
            files.confinement.limit("other", [f"{project}/none"], ANOTHER)
            files.confinement.lift("other")

    other = threading.Thread(target=others)
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    other.start()
    try:
        for _ in range(300):
            files.confinement.limit("box", [str(project)], ANOTHER)
            assert await files.look_many([f"{project}/secret"]) == [REFUSED]
            files.confinement.lift("box")
    finally:
        sys.setswitchinterval(interval)
        ended.set()
        other.join()


@pytest.mark.anyio
@pytest.mark.requirement("BOX-11")
@pytest.mark.parametrize("swapped", [("open", "secret"), ("closed", "mine")], ids=["files", "directories"])
async def test_swapping_names_concurrently_grants_no_access(project: Path, swapped: tuple[str, str]) -> None:
    (project / "mine").mkdir(mode=0o755)
    (project / "mine" / "open").write_text("mine")
    (project / "mine").chmod(0o755)
    files, libc = files_of(project), ctypes.CDLL(None)
    files.confinement.limit("box", [str(project)], ANOTHER)
    one, other = (os.fsencode(project / name) for name in swapped)
    ended = threading.Event()

    def attack() -> None:
        while not ended.is_set():
            assert libc.renameat2(-100, one, -100, other, 2) == 0

    attacker = threading.Thread(target=attack)
    attacker.start()
    path = str(project / ("open" if swapped[0] == "open" else "mine/open"))
    try:
        told = [reading.text for reading in await files.read_many([at(path)] * 3000) if isinstance(reading, Present)]
    finally:
        ended.set()
        attacker.join()
    assert set(told) == {"open" if swapped[0] == "open" else "mine"}
