"""What is opened below directories of sandboxes: which of them count for a path, and in whose view."""

import errno
import os
from collections.abc import Iterator
from contextlib import suppress
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from ctxd.sources import open_beneath
from ctxd.sources.confinement import VIEWS_MAX, Confinement
from ctxd.sources.user_rights import User, require


@pytest.fixture
def top(tmp_path: Path) -> Path:
    root = tmp_path.resolve()
    for name in ("box/inner/deep", "box2", "data0", "data1"):
        (root / name).mkdir(parents=True)
        (root / name / "file").write_text(name)
    (root / "box/inner/link").symlink_to("/data/file")
    return root


def led_to(confined: Confinement, path: Path) -> str:
    place = confined.opened(str(path))
    try:
        return os.readlink(f"/proc/self/fd/{place}")
    finally:
        os.close(place)


def view_of(top: Path, data: str) -> tuple[tuple[str, str], ...]:
    return (("/inner", f"{top}/box/inner"), ("/data", f"{top}/{data}"))


def refusal_of(confined: Confinement, path: Path) -> int | None:
    with pytest.raises(OSError) as caught:
        led_to(confined, path)
    return caught.value.errno


@pytest.mark.requirement("BOX-7")
def test_only_paths_below_a_confined_directory_are_confined(top: Path) -> None:
    confined = Confinement()
    confined.confine(f"{top}/box")
    assert confined.holds(f"{top}/box/file")
    assert confined.holds(f"{top}/box/inner/deep/file")
    for name in ("box", "box2", "box2/file", "bo", ""):
        assert not confined.holds(f"{top}/{name}")
    confined.confine("/")
    assert not confined.holds(f"{top}/box2/file"), "the root is no directory of a project"


@pytest.mark.requirement("BOX-7")
def test_all_nested_confined_directories_apply(top: Path) -> None:
    confined = Confinement()
    confined.confine(f"{top}/box/inner", view_of(top, "data0"))
    confined.confine(f"{top}/data0", view_of(top, "data0"))
    assert led_to(confined, top / "box/inner/link") == f"{top}/data0/file"
    assert not confined.leads_out(f"{top}/box/inner/a", f"{top}/box/inner/b")
    assert confined.leads_out(f"{top}/box/inner/a", f"{top}/box/b")
    confined.confine(f"{top}/box", (("/inner", f"{top}/box/inner"), ("/data", f"{top}/data1")))
    confined.confine(f"{top}/data1", view_of(top, "data1"))
    assert refusal_of(confined, top / "box/inner/link") == errno.EXDEV, "the link means two files"
    assert led_to(confined, top / "box/inner/deep/file") == f"{top}/box/inner/deep/file"


@pytest.mark.requirement("BOX-7")
def test_of_a_directory_that_very_many_share_links_are_followed_only_below_it(top: Path) -> None:
    confined = Confinement()
    for data in ("data0", "data1"):
        confined.confine(f"{top}/{data}", view_of(top, data))
    confined.confine(f"{top}/box/inner", view_of(top, "data0"))
    for number in range(VIEWS_MAX):
        assert refusal_of(confined, top / "box/inner/link") == errno.EXDEV if number else True
        confined.confine(f"{top}/box/inner", (*view_of(top, "data1"), (f"/{number}", None)))
    assert refusal_of(confined, top / "box/inner/link") == errno.EXDEV, "a view that is left out keeps its veto"
    (top / "box/inner/near").symlink_to("deep/file")
    assert led_to(confined, top / "box/inner/near") == f"{top}/box/inner/deep/file"


@pytest.mark.requirement("BOX-7")
def test_a_link_that_means_the_same_file_in_as_many_views_as_are_kept_is_followed(top: Path) -> None:
    confined = Confinement()
    confined.confine(f"{top}/data0", view_of(top, "data0"))
    for number in range(VIEWS_MAX):
        confined.confine(f"{top}/box/inner", (*view_of(top, "data0"), (f"/{number}", None)))
    assert led_to(confined, top / "box/inner/link") == f"{top}/data0/file"
    confined.confine(f"{top}/box/inner", (*view_of(top, "data0"), ("/another", None)))
    assert refusal_of(confined, top / "box/inner/link") == errno.EXDEV, "one view more than are kept"


@pytest.mark.requirement("BOX-7")
def test_a_view_that_several_directories_above_share_counts_once(top: Path) -> None:
    confined = Confinement()
    for data in ("data0", "data1"):
        confined.confine(f"{top}/{data}", view_of(top, data))
    shared = [(*view_of(top, "data1"), (f"/{number}", None)) for number in range(VIEWS_MAX - 1)]
    confined.confine(f"{top}/box/inner", shared[0])
    confined.confine(f"{top}/box", (*view_of(top, "data0"), ("", f"{top}/box")))
    for view in shared:
        confined.confine(f"{top}/box", view)
        confined.confine(f"{top}/box/inner", view)
    assert refusal_of(confined, top / "box/inner/link") == errno.EXDEV, "one of the newest means another file"


def open_paths() -> Iterator[str]:
    """The paths of all that this process has open."""
    for number in os.listdir("/proc/self/fd"):
        with suppress(FileNotFoundError):
            yield os.readlink(f"/proc/self/fd/{number}")


@pytest.mark.requirement("BOX-7")
def test_an_exception_in_a_later_view_leaves_no_descriptor_open(top: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    confined = Confinement()
    for name in ("/x", "/y"):
        confined.confine(f"{top}/box", ((name, f"{top}/box"),))
    confined.limit("one", [f"{top}/box"], User(0))
    calls, in_first_view = count(), len(["box", "inner", "deep", "file"])

    def require_once(user: User, place: int) -> None:
        if next(calls) >= in_first_view:
            raise ValueError("a list of an unknown form")
        require(user, place)

    monkeypatch.setattr("ctxd.sources.confinement.require", require_once)
    with pytest.raises(ValueError, match="unknown form"):
        confined.opened(f"{top}/box/inner/deep/file")
    assert next(calls) == in_first_view + 1, "the first view was judged to its end"
    assert not [each for each in open_paths() if each.startswith(str(top))]


@pytest.mark.requirement("BOX-7")
@pytest.mark.parametrize("by_kernel", [True, False], ids=["by the kernel", "step by step"])
def test_a_file_system_that_is_mounted_below_is_not_entered(monkeypatch: pytest.MonkeyPatch, by_kernel: bool) -> None:
    if not os.path.isdir("/dev/shm") or os.stat("/dev/shm").st_dev == os.stat("/dev").st_dev:
        pytest.skip("this host has no second file system at hand")
    monkeypatch.setattr("ctxd.sources.open_beneath._KERNEL.can", by_kernel)
    confined = Confinement()
    confined.confine("/dev")
    with TemporaryDirectory(dir="/dev/shm") as folder:
        Path(folder, "file").write_text("there")
        Path(folder, "link").symlink_to("file")
        for name in ("file", "link"):
            assert refusal_of(confined, Path(folder, name)) == errno.EXDEV
        # A link that was on the way is gone when the path is opened again.
        real = open_beneath._KERNEL.open
        for name in ("file", "link"):
            gone = [OSError(errno.ELOOP, "a link")]

            def opened(*given: Any, gone: list[OSError] = gone, **how: Any) -> int:
                if gone:
                    raise gone.pop()
                return real(*given, **how)

            monkeypatch.setattr(open_beneath._KERNEL, "open", opened)
            assert refusal_of(confined, Path(folder, name)) == errno.EXDEV
        assert led_to(confined, Path("/dev/null")) == "/dev/null"
