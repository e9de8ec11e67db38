"""No way out of a sandbox's mounts, whatever a path says and whatever is renamed meanwhile."""

import ctypes
import os
import threading
from pathlib import Path

import pytest

from ctxd.errors import CtxdError
from ctxd.mounts.mapping import MountTable
from ctxd.sources.open_beneath import open_in_view
from tests.suites.sandboxed_paths import OWN, VECTORS, make_tree, placed

HOST = "a" * 64
RENAME_EXCHANGE = 2
AT_FDCWD = -100


@pytest.fixture(scope="module")
def tree(tmp_path_factory):
    root = tmp_path_factory.mktemp("tree").resolve()
    return root, MountTable(make_tree(root), filesystem_id=OWN, host_filesystem_id=HOST)


@pytest.mark.requirement("BOX-7")
@pytest.mark.parametrize("by_kernel", [True, False], ids=["by the kernel", "step by step"])
@pytest.mark.parametrize("vector", VECTORS, ids=lambda vector: vector["path"][:40].replace("\0", "NUL") or "empty")
def test_a_path_resolves_as_in_the_sandbox_or_not_at_all(tree, vector, by_kernel):
    root, mounts = tree
    try:
        source = mounts.forward(placed(vector["path"], root), "/workspace")
        if source.filesystem_id != HOST:
            raise OSError("not on the host")
        if source.path in mounts.host_roots:
            return
        place = open_in_view(source.path, mounts.view, mounts.host_roots, by_kernel=by_kernel)
    except (OSError, CtxdError):
        assert "refused" in vector
        return
    try:
        led_to = os.readlink(f"/proc/self/fd/{place}")
        assert any(led_to.startswith(str(root / name) + "/") for name in ("project", "data", "other"))
        if "reads" in vector:
            assert Path(f"/proc/self/fd/{place}").read_text() == vector["reads"]
        else:
            assert vector["refused"] == "unsupported"
    finally:
        os.close(place)


def exchanged(one: bytes, other: bytes) -> None:
    assert LIBC.renameat2(AT_FDCWD, one, AT_FDCWD, other, RENAME_EXCHANGE) == 0


LIBC = ctypes.CDLL(None, use_errno=True)


def raced(root: Path, tries: int, *, by_kernel: bool) -> tuple[int, int]:
    """Open a file while a directory on its way is swapped with a link out; how often it opened, and how often what
    opened was outside."""
    (root / "project/dir").mkdir(parents=True)
    (root / "project/dir/secret").write_text("inside")
    (root / "outside").mkdir()
    (root / "outside/secret").write_text("outside")
    (root / "project/swap").symlink_to(root / "outside")
    here, out = os.fsencode(root / "project/dir"), os.fsencode(root / "project/swap")
    view, roots = (("/workspace", str(root / "project")),), (str(root / "project"),)
    path, outside = str(root / "project/dir/secret"), os.stat(root / "outside/secret").st_ino
    ended = threading.Event()

    def attack() -> None:
        while not ended.is_set():
            exchanged(here, out)

    attacker = threading.Thread(target=attack)
    attacker.start()
    opened = escaped = 0
    try:
        for _ in range(tries):
            try:
                place = open_in_view(path, view, roots, by_kernel=by_kernel)
            except OSError:
                continue
            opened += 1
            escaped += os.fstat(place).st_ino == outside
            os.close(place)
    finally:
        ended.set()
        attacker.join()
    return opened, escaped


@pytest.mark.requirement("BOX-7")
@pytest.mark.parametrize("by_kernel", [True, False], ids=["by the kernel", "step by step"])
def test_a_directory_swapped_for_a_link_while_opening_is_not_followed(tmp_path, by_kernel):
    opened, escaped = raced(tmp_path.resolve(), 20_000, by_kernel=by_kernel)
    assert (opened > 0, escaped) == (True, 0)


@pytest.mark.nightly
@pytest.mark.timeout(1200)
def test_a_million_swaps_open_no_outside_file(tmp_path):
    for name, by_kernel, tries in (("kernel", True, 900_000), ("steps", False, 100_000)):
        opened, escaped = raced((tmp_path / name).resolve(), tries, by_kernel=by_kernel)
        assert (opened > 0, escaped) == (True, 0)
