"""Who may use a sandbox's files when the daemon is not root: looked at by processes of other users."""

import os
import stat
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from ctxd.sandboxes.sandbox_directories import Directories, grant
from ctxd_protocol.context_types import CurrentContext

INSIDE, STRANGER = 12345, 12346

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root can look as another user")


@pytest.fixture
def file() -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o711)
        made = Path(folder, "current.json")
        made.touch(mode=0o600)
        yield made


def reads(file: Path, uid: int) -> bool:
    command = ["cat", str(file)]
    return subprocess.run(command, user=uid, group=uid, extra_groups=[], capture_output=True).returncode == 0


@pytest.mark.requirement("BOX-10")
@pytest.mark.parametrize("by", ["path", "descriptor"])
def test_a_non_root_daemon_grants_exactly_one_more_user(file: Path, by: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert not reads(file, INSIDE)
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with file.open() as opened:
        grant(file if by == "path" else opened.fileno(), INSIDE)
    assert file.stat().st_uid == 0, "it stays the daemon's own"
    assert (reads(file, INSIDE), reads(file, STRANGER)) == (True, False)


@pytest.mark.requirement("BOX-10")
@pytest.mark.parametrize("uid", [None, 1000])
def test_the_daemons_own_user_gets_no_extra_grant(file: Path, uid: int | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    grant(file, uid)
    assert file.stat().st_mode & 0o777 == 0o600


@pytest.mark.requirement("BOX-10")
def test_only_the_daemon_can_read_the_context_and_list_the_directories(tmp_path: Path) -> None:
    directories = Directories(tmp_path / "boxes")
    before = os.umask(0)
    try:
        directories.make("box")
        directories.write_context("box", CurrentContext(session="s", context_id=None, turn=0, assembly=0), None)
    finally:
        os.umask(before)
    modes = [stat.S_IMODE(place.stat().st_mode) for place in (tmp_path / "boxes", directories.directory("box"))]
    assert modes == [0o711, 0o711]
    (file,) = directories.directory("box").iterdir()
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
