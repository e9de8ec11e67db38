"""Paths to places and back."""

import posixpath

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from ctxd.errors import CtxdError
from ctxd.mounts.mapping import UNMOUNTED, MountTable, ancestors, normalise
from ctxd_protocol.object_types import FilesystemSource
from ctxd_protocol.session_types import Mount

HOST, BOX, DISK = "host", "box", "disk"


def table(*mounts: tuple[str, str] | tuple[str, str, str]) -> MountTable:
    rows = [
        Mount(agent_prefix=m[0], canonical_prefix=m[1], filesystem_id=m[2] if len(m) == 3 else None) for m in mounts
    ]
    return MountTable(rows, filesystem_id=BOX, host_filesystem_id=HOST)


@pytest.mark.requirement("FS-1")
def test_a_path_below_a_mount_maps_to_its_canonical_prefix_and_back() -> None:
    mounts = table(("/workspace", "/home/a/project"))
    source = mounts.forward("/workspace/src/main.ts")
    assert source == FilesystemSource(HOST, "/home/a/project/src/main.ts")
    assert mounts.display(source) == "/workspace/src/main.ts"


def test_an_unmounted_path_is_unchanged_on_the_sessions_own_filesystem() -> None:
    mounts = table(("/workspace", "/home/a/project"))
    assert mounts.forward("/etc/hosts") == FilesystemSource(BOX, "/etc/hosts")
    assert mounts.display(FilesystemSource(BOX, "/etc/hosts")) == "/etc/hosts"


@pytest.mark.requirement("FS-2")
def test_a_prefix_ends_at_a_component() -> None:
    mounts = table(("/workspace", "/home/a/project"))
    assert mounts.forward("/workspace2/x").filesystem_id == BOX
    assert mounts.display(FilesystemSource(HOST, "/home/a/project2/x")) == UNMOUNTED
    assert mounts.forward("/workspace").path == "/home/a/project"
    assert mounts.display(FilesystemSource(HOST, "/home/a/project")) == "/workspace"


@pytest.mark.requirement("FS-3")
def test_the_longest_prefix_of_overlapping_mounts_wins_both_ways() -> None:
    mounts = table(("/w", "/srv/a"), ("/w/lib", "/srv/a/vendor/lib"), ("/", "/var/roots/box"))
    assert mounts.forward("/w/lib/x").path == "/srv/a/vendor/lib/x"
    assert mounts.forward("/w/src/x").path == "/srv/a/src/x"
    assert mounts.forward("/tmp/x").path == "/var/roots/box/tmp/x"
    assert mounts.display(FilesystemSource(HOST, "/srv/a/vendor/lib/x")) == "/w/lib/x"
    assert mounts.display(FilesystemSource(HOST, "/srv/a/src/x")) == "/w/src/x"
    assert mounts.display(FilesystemSource(HOST, "/var/roots/box/tmp/x")) == "/tmp/x"


def test_a_mount_at_the_root_of_the_root_changes_nothing_but_the_filesystem() -> None:
    mounts = table(("/", "/"))
    assert mounts.forward("/") == FilesystemSource(HOST, "/")
    assert mounts.forward("/a/b") == FilesystemSource(HOST, "/a/b")
    assert mounts.display(FilesystemSource(HOST, "/")) == "/"


def test_a_file_hidden_under_another_mount_has_no_path_for_the_agent() -> None:
    mounts = table(("/w", "/srv/a"), ("/w/lib", "/srv/other"))
    assert mounts.display(FilesystemSource(HOST, "/srv/a/lib/x")) == UNMOUNTED


def test_the_same_path_on_another_filesystem_is_not_translated_back() -> None:
    mounts = table(("/w", "/srv/a"), ("/d", "/srv/a", DISK))
    assert mounts.display(FilesystemSource(DISK, "/srv/a/x")) == "/d/x"
    assert mounts.display(FilesystemSource(HOST, "/srv/a/x")) == "/w/x"
    assert mounts.display(FilesystemSource("elsewhere", "/srv/a/x")) == UNMOUNTED
    observed = FilesystemSource("observed", "/srv/a/x")
    own = MountTable((), filesystem_id=BOX, host_filesystem_id=HOST, observations="observed")
    assert own.display(observed) == "/srv/a/x"


def test_a_relative_path_is_taken_from_the_working_directory() -> None:
    mounts = table(("/w", "/srv/a"))
    assert mounts.forward("src/../x", "/w/lib").path == "/srv/a/lib/x"
    assert mounts.forward("../lib2/x", "/w/lib").path == "/srv/a/lib2/x"


@pytest.mark.parametrize(
    ("path", "normal"),
    [
        ("/a//b", "/a/b"),
        ("//a/./b/", "/a/b"),
        ("/a/b/..", "/a"),
        ("/a/..", "/"),
        ("/", "/"),
        (".", "/"),
        ("/...", "/..."),
    ],
)
def test_spellings_of_one_path_are_one(path: str, normal: str) -> None:
    assert normalise(path) == normal


@pytest.mark.requirement("FS-6")
@pytest.mark.parametrize(
    "path",
    ["", "/..", "/a/../..", "../x", "/a\0b", "/" + "x" * 4096, "/" + "é" * 2048, "/caf\udce9"],
    ids=["empty", "above", "above after going down", "above relatively", "NUL", "long", "long in bytes", "no UTF-8"],
)
def test_an_invalid_path_is_rejected(path: str) -> None:
    with pytest.raises(CtxdError) as caught:
        table(("/w", "/srv/a")).forward(path)
    assert caught.value.code == "invalid_path"


def test_a_path_is_refused_that_a_mount_makes_too_long() -> None:
    mounts = table(("/w", "/srv/" + "y" * 100))
    with pytest.raises(CtxdError) as caught:
        mounts.forward("/w/" + "x" * 4090)
    assert caught.value.code == "invalid_path"


@pytest.mark.parametrize("mounts", [[("w", "/a")], [("/w", "a")], [("/w", "/a"), ("/w/", "/b")], [("/w/../..", "/a")]])
def test_an_ambiguous_table_is_rejected(mounts: list[tuple[str, str]]) -> None:
    with pytest.raises(CtxdError) as caught:
        table(*mounts)
    assert caught.value.code == "invalid_path"


def test_host_roots_are_the_host_directories_visible_to_a_sandbox() -> None:
    assert set(table(("/w", "/srv/a"), ("/d", "/x", DISK), ("/r", "/")).host_roots) == {"/srv/a", "/"}
    on_host = MountTable(
        [Mount(agent_prefix="/w", canonical_prefix="/srv/a")], filesystem_id=HOST, host_filesystem_id=HOST
    )
    assert on_host.host_roots == ()


names = st.sampled_from(["a", "b", "ab", "c"])
paths = st.lists(names, max_size=4).map(lambda parts: "/" + "/".join(parts))
prefixes = st.lists(names, max_size=3).map(lambda parts: "/" + "/".join(parts))
mount_rows = st.lists(
    st.tuples(prefixes, prefixes, st.sampled_from([HOST, DISK, BOX])), max_size=4, unique_by=lambda row: row[0]
)


@given(mount_rows, paths)
@settings(deadline=None)
def test_a_path_shown_to_the_agent_names_the_same_file_again(rows: list[tuple[str, str, str]], path: str) -> None:
    mounts = table(*rows)
    source = mounts.forward(path)
    shown = mounts.display(source)
    assert shown in (source.path, UNMOUNTED) or mounts.forward(shown) == source
    assert shown != source.path or source.filesystem_id == BOX or mounts.forward(shown) == source


@given(mount_rows, paths)
@settings(deadline=None)
def test_the_agent_sees_its_own_path_again_wherever_a_file_has_one_name(
    rows: list[tuple[str, str, str]], path: str
) -> None:
    mounts = table(*rows)
    source = mounts.forward(path)
    names = {path}
    for agent, canonical, filesystem in rows:
        if filesystem == source.filesystem_id and posixpath.commonpath([canonical, source.path]) == canonical:
            names.add(posixpath.normpath(f"{agent}/{posixpath.relpath(source.path, canonical)}"))
    if source.filesystem_id == BOX:
        names.add(source.path)
    assume(len(names) == 1)
    assert mounts.display(source) == path


@given(st.text(alphabet="ab./", min_size=1).map(lambda text: "/" + text))
@settings(deadline=None)
def test_normalising_twice_changes_nothing(path: str) -> None:
    try:
        normal = normalise(path)
    except CtxdError:
        return
    assert normalise(normal) == normal
    assert "//" not in normal and "/./" not in normal + "/" and "/../" not in normal + "/"


@pytest.mark.parametrize(
    ("path", "above"),
    [("/", [""]), ("/a", [""]), ("/a/b/c", ["", "/a", "/a/b"]), ("/a/b/", ["", "/a", "/a/b"]), ("a", []), ("", [])],
)
def test_a_path_is_below_each_directory_that_its_name_begins_with(path: str, above: list[str]) -> None:
    assert list(ancestors(path)) == above
