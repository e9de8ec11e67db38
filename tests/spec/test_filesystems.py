"""FS: whose path it is, by the mounts of a session, its container and the devices of the host."""

import hashlib
import json
import os
import shutil
import tempfile
from pathlib import Path

import pytest

from ctxd_client import SyncClient, SyncSession
from ctxd_protocol.session_types import Mount
from tests.spec.mounts import canonical, mount, shown
from tests.spec.refusal import refused

CONTAINER = "4f" * 32
INSPECTED = [
    {
        "Id": CONTAINER,
        "Mounts": [
            {"Type": "bind", "Source": "/home/a/project", "Destination": "/workspace", "RW": True},
            {"Type": "bind", "Source": "/home/a/.gitconfig", "Destination": "/root/.gitconfig", "RW": False},
            {"Type": "tmpfs", "Source": "", "Destination": "/scratch", "RW": True},
        ],
    }
]
MOUNTINFO = rf"""
1035 768 0:184 / / rw,relatime - overlay overlay rw,lowerdir=/var/lib/docker/overlay2/l/A
1036 1035 0:187 / /proc rw,nosuid,nodev,noexec,relatime - proc proc rw
1040 1035 252:1 /home/a/my\040project /workspace rw,relatime - ext4 /dev/vda1 rw
1041 1035 252:1 /home/a/read /only ro,relatime - ext4 /dev/vda1 rw
1042 1035 252:1 /var/lib/docker/containers/{CONTAINER}/resolv.conf /etc/resolv.conf rw,relatime - ext4 /dev/vda1 rw
""".lstrip()


@pytest.mark.requirement("FS-1")
def test_a_path_below_a_mount_is_canonical_inside_and_shown_as_the_agent_knows_it(
    start, client: SyncClient, tree: Path
) -> None:
    (tree / "src").mkdir()
    (tree / "src" / "a.py").write_text("x = 1\n")
    s = start(workdir="/workspace", mounts=[mount("/workspace", tree)])
    for spelling in ("/workspace/src/a.py", "src/a.py", "./src//a.py", "/workspace/../workspace/src/a.py"):
        place = s.resolve(spelling)
        assert (place.canonical_path, place.display_path) == (f"{tree}/src/a.py", "/workspace/src/a.py")
    read = s.read("src/a.py")
    version = client.object_get(read.object, session=s.id).object
    assert version.source is not None
    assert (version.source.path, version.display_path) == (f"{tree}/src/a.py", "/workspace/src/a.py")
    assert version.payload["content"] == "x = 1\n"
    assert shown(s, read.object) == "/workspace/src/a.py"
    host = start()
    assert host.read(f"{tree}/src/a.py").object == read.object
    assert shown(host, read.object) == f"{tree}/src/a.py"


@pytest.mark.requirement("OBJ-12")
def test_a_file_is_one_object_by_every_name(start, client: SyncClient, tree: Path) -> None:
    (tree / "real").mkdir()
    (tree / "real" / "f.py").write_text("x = 1\n")
    (tree / "link.py").symlink_to("real/f.py")
    (tree / "directory").symlink_to("real")
    (tree / "absolute").symlink_to(tree / "directory")
    s = start(workdir=f"{tree}/directory")
    read = s.read(f"{tree}/link.py")
    assert {s.read(f"{tree}/{name}/f.py").object for name in ("real", "directory", "absolute")} == {read.object}
    assert s.read("f.py").outcome == "unchanged"
    (found,) = s.discover([f"{tree}/link.py"]).objects
    assert (found.object, found.path) == (read.object, f"{tree}/link.py")
    observed = s.observe("cat link.py; ls -1 directory/*", f"x = 1\n{tree}/directory/f.py\n", cwd=str(tree))
    assert {one.object for one in observed.objects} == {read.object}
    assert s.view().session.session_index == (read.object,)
    place = s.resolve(f"{tree}/link.py")
    assert (place.object, place.canonical_path, place.known) == (read.object, f"{tree}/real/f.py", True)
    (tree / "link.py").unlink()
    (tree / "link.py").write_text("another file")
    assert s.read(f"{tree}/link.py").object != read.object


@pytest.mark.requirement("OBJ-12")
def test_a_missing_file_has_the_name_that_it_will_have(start, tree: Path) -> None:
    (tree / "real").mkdir()
    (tree / "directory").symlink_to("real")
    s = start()
    place = s.resolve(f"{tree}/directory/new.py")
    assert (place.canonical_path, place.known) == (f"{tree}/real/new.py", False)
    (tree / "real" / "new.py").write_text("x")
    assert s.edited(f"{tree}/directory/new.py").object == place.object


@pytest.mark.requirement("OBJ-12")
def test_the_prefix_of_a_mount_is_resolved_and_shown_as_it_was_given(start, client: SyncClient, tree: Path) -> None:
    (tree / "real").mkdir()
    (tree / "real" / "a.py").write_text("x = 1\n")
    (tree / "project").symlink_to("real")
    given = mount("/workspace", tree / "project")
    sandboxed = start(workdir="/workspace", mounts=[given], filesystem_id=CONTAINER)
    read = sandboxed.read("a.py")
    assert start().read(f"{tree}/real/a.py").object == read.object
    assert shown(sandboxed, read.object) == "/workspace/a.py"
    assert sandboxed.view().session.mounts == (given,)
    configured = start(workdir="/elsewhere", filesystem_id=CONTAINER)
    client.session_configure(configured.id, mounts=[mount("/elsewhere", tree / "project")])
    assert configured.read("a.py").object == read.object
    assert shown(configured, read.object) == "/elsewhere/a.py"


@pytest.mark.requirement("OBJ-12")
def test_a_link_in_a_sandbox_names_the_file_that_it_leads_to_there(start, client: SyncClient, tree: Path) -> None:
    (tree / "real").mkdir()
    (tree / "real" / "a.py").write_text("x = 1\n")
    (tree / "link.py").symlink_to("/workspace/real/a.py")
    (tree / "directory").symlink_to("real")
    s = start(workdir="/workspace", mounts=[mount("/workspace", tree)], filesystem_id=CONTAINER)
    read = s.read("link.py")
    assert s.read("directory/a.py").object == read.object == start().read(f"{tree}/real/a.py").object
    assert shown(s, read.object) == "/workspace/real/a.py"


@pytest.mark.requirement("FS-1")
def test_a_path_that_no_mount_covers_stays_as_it_is_on_the_sessions_own_filesystem(start, tree: Path) -> None:
    s = start(workdir="/workspace", mounts=[mount("/workspace", tree)], filesystem_id=CONTAINER)
    outside, inside = s.resolve("/etc/hosts"), s.resolve("/workspace/a")
    assert (outside.canonical_path, outside.display_path, outside.filesystem_id) == (
        "/etc/hosts",
        "/etc/hosts",
        CONTAINER,
    )
    assert inside.filesystem_id == start().view().session.filesystem_id != CONTAINER


@pytest.mark.requirement("FS-1")
def test_changed_mounts_hold_from_then_on(start, client: SyncClient, tree: Path) -> None:
    (tree / "a.py").write_text("x")
    s = start(workdir="/one", mounts=[mount("/one", tree)])
    read = s.read("a.py")
    s.configure(workdir="/two", mounts=[mount("/two", tree)])
    assert canonical(s, "a.py") == f"{tree}/a.py"
    assert client.object_get(read.object, session=s.id).object.display_path == "/two/a.py"
    assert shown(s, read.object) == "/two/a.py"


@pytest.mark.requirement("FS-2")
def test_prefixes_match_whole_components(start, tree: Path) -> None:
    s = start(mounts=[mount("/work", tree / "w"), mount("/x", tree / "short")])
    assert canonical(s, "/work") == f"{tree}/w"
    assert canonical(s, "/work/a") == f"{tree}/w/a"
    assert canonical(s, "/workspace/a") == "/workspace/a"
    assert canonical(s, "/work.bak") == "/work.bak"
    assert s.resolve(f"{tree}/shorter/a").display_path == f"{tree}/shorter/a"
    assert s.resolve(f"{tree}/short/a").display_path == "/x/a"


@pytest.mark.requirement("FS-2")
@pytest.mark.parametrize("turned", [False, True])
def test_the_longest_prefix_wins_in_both_directions(start, tree: Path, turned: bool) -> None:
    mounts = [mount("/w", tree), mount("/w/deep", tree / "elsewhere"), mount("/v", tree / "sub" / "dir")]
    s = start(mounts=mounts[::-1] if turned else mounts)
    assert canonical(s, "/w/a") == f"{tree}/a"
    assert canonical(s, "/w/deep/a") == f"{tree}/elsewhere/a"
    assert canonical(s, "/w/deeper/a") == f"{tree}/deeper/a"
    assert s.resolve(f"{tree}/sub/a").display_path == "/w/sub/a"
    assert s.resolve(f"{tree}/sub/dir/a").display_path == "/v/a"
    assert s.resolve(f"{tree}/elsewhere/a").display_path == "/w/deep/a"


@pytest.mark.requirement("FS-3")
def test_a_session_has_several_mounts_each_on_its_own_filesystem(start, client: SyncClient, tree: Path) -> None:
    for name in ("one", "two"):
        (tree / name).mkdir()
        (tree / name / "a").write_text(name)
    s = start(mounts=[mount("/1", tree / "one"), mount("/2", tree / "two"), mount("/3", "/exports/x", "nfs-1")])
    contents = [client.object_get(s.read(f"/{n}/a").object).object.payload["content"] for n in (1, 2)]
    assert contents == ["one", "two"]
    far = s.resolve("/3/a")
    assert (far.filesystem_id, far.canonical_path) == ("nfs-1", "/exports/x/a")
    sent = s.read("/3/a", content="three")
    assert shown(s, sent.object) == "/3/a"


@pytest.mark.requirement("FS-3")
def test_a_mount_at_the_root_covers_every_path_that_no_longer_one_does(start, client: SyncClient, tree: Path) -> None:
    (tree / "etc").mkdir()
    (tree / "etc" / "hosts").write_text("mine\n")
    s = start(workdir="/", mounts=[mount("/", tree), mount("/cache", "/var/cache/box")])
    read = s.read("/etc/hosts")
    assert client.object_get(read.object).object.payload["content"] == "mine\n"
    assert shown(s, read.object) == "/etc/hosts"
    assert canonical(s, "/cache/a") == "/var/cache/box/a"
    assert canonical(s, "/") == str(tree)


@pytest.mark.requirement("FS-3")
def test_a_file_under_a_nested_mount_is_shown_by_a_path_that_resolves_to_it(
    start, client: SyncClient, tree: Path
) -> None:
    (tree / "sub").mkdir()
    (tree / "sub" / "a").write_text("hidden")
    s = start(mounts=[mount("/w", tree), mount("/w/sub", tree / "other")])
    read = start().read(f"{tree}/sub/a")
    path = s.resolve(f"{tree}/sub/a").display_path
    assert s.resolve(path).object == read.object
    assert path == f"{tree}/sub/a"


@pytest.mark.requirement("FS-4")
def test_a_session_of_the_host_has_the_hash_of_its_machine_id(s: SyncSession) -> None:
    for place in (Path("/etc/machine-id"), Path("/var/lib/dbus/machine-id")):
        text = place.read_text().strip() if place.exists() else ""
        if text not in ("", "uninitialized"):
            assert s.view().session.filesystem_id == hashlib.sha256(text.encode()).hexdigest()
            return
    pytest.skip("this host has no machine id")


@pytest.mark.requirement("FS-4")
@pytest.mark.parametrize("text", [{"docker_inspect": json.dumps(INSPECTED)}, {"mountinfo": MOUNTINFO}])
def test_a_container_has_its_container_id(start, client: SyncClient, text: dict[str, str]) -> None:
    found = client.mount_detect(**text)
    assert found.filesystem_id == CONTAINER
    s = start(filesystem_id=found.filesystem_id)
    assert s.resolve("/etc/hosts").filesystem_id == CONTAINER


@pytest.mark.requirement("FS-5")
def test_mappings_are_read_from_docker_inspect_and_the_rest_is_named(start, client: SyncClient) -> None:
    found = client.mount_detect(docker_inspect=json.dumps(INSPECTED))
    assert found.mounts == (
        Mount(agent_prefix="/workspace", canonical_prefix="/home/a/project"),
        Mount(agent_prefix="/root/.gitconfig", canonical_prefix="/home/a/.gitconfig", writable=False),
    )
    assert len(found.ignored) == 1
    assert "/scratch" in found.ignored[0]
    assert "tmpfs" in found.ignored[0]
    s = start(workdir="/workspace", mounts=found.mounts)
    assert canonical(s, "a") == "/home/a/project/a"


@pytest.mark.requirement("FS-5")
def test_mappings_are_read_from_mountinfo_and_the_rest_is_named(start, client: SyncClient) -> None:
    found = client.mount_detect(mountinfo=MOUNTINFO)
    assert found.mounts == (
        Mount(agent_prefix="/workspace", canonical_prefix="/home/a/my project"),
        Mount(agent_prefix="/only", canonical_prefix="/home/a/read", writable=False),
    )
    assert [row.split(": ")[0] for row in found.ignored] == ["/", "/proc", "/etc/resolv.conf"]
    assert all(row.split(": ")[1] for row in found.ignored)
    assert canonical(start(mounts=found.mounts), "/workspace/a") == "/home/a/my project/a"


@pytest.mark.requirement("FS-5")
def test_this_machines_mountinfo_is_parsed(start, client: SyncClient) -> None:
    text = Path("/proc/self/mountinfo").read_text()
    found = client.mount_detect(mountinfo=text)
    assert len(found.mounts) + len(found.ignored) <= len(text.splitlines())
    assert found.mounts or found.ignored
    start(mounts=found.mounts)


@pytest.mark.requirement("FS-5")
@pytest.mark.parametrize("text", [{}, {"docker_inspect": "[]", "mountinfo": ""}, {"docker_inspect": "Error: no such"}])
def test_a_text_of_neither_mount_format_is_rejected(client: SyncClient, text: dict[str, str]) -> None:
    with refused("invalid_params"):
        client.mount_detect(**text)


@pytest.mark.requirement("FS-6")
@pytest.mark.parametrize(
    "path",
    ["/..", "/a/../../b", "../" * 50 + "etc/passwd", "a\0b", "/" + "é" * 2048, "x" * 4096],
    ids=["root", "over a component", "from the workdir", "NUL", "bytes", "with the workdir"],
)
def test_an_invalid_path_is_rejected_by_every_operation(s: SyncSession, path: str) -> None:
    before = s.view()
    for call in (s.resolve, s.read, lambda path: s.edited(path, content="x")):
        with refused("invalid_path"):
            call(path)
    (found,) = s.discover([path]).objects
    assert (found.outcome, found.object) == ("ignored", None)
    assert found.reason
    assert s.view() == before


@pytest.mark.requirement("FS-6")
def test_a_path_of_4096_bytes_is_taken_and_one_more_is_refused(s: SyncSession) -> None:
    longest = "/" + "/".join(["d" * 254] * 16) + "/" + "d" * 15
    assert len(longest) == 4096
    assert canonical(s, longest) == longest
    with refused("invalid_path", "invalid_params"):
        s.resolve(longest + "d")


@pytest.mark.requirement("FS-6")
def test_a_mount_cannot_make_a_path_climb_or_grow_too_long(start, tree: Path) -> None:
    s = start(workdir="/w", mounts=[mount("/w", tree / ("d" * 200))])
    assert canonical(s, "/w/../etc/passwd") == "/etc/passwd"
    with refused("invalid_path"):
        s.resolve("/w/" + "/".join(["e" * 255] * 15) + "/" + "e" * 200)
    for prefix in ("relative", "/.."):
        with refused("invalid_path"):
            start(mounts=[mount(prefix, tree)])


@pytest.mark.requirement("FS-8")
def test_an_unmounted_path_gets_its_devices_filesystem_when_detection_is_on(start, tree: Path) -> None:
    shm = Path("/dev/shm")
    if not shm.is_dir() or os.stat(shm).st_dev == os.stat(tree).st_dev:
        pytest.skip("this host has no second filesystem at hand")
    place = Path(tempfile.mkdtemp(dir=shm))
    try:
        (place / "a").write_text("there\n")
        plain, told = start(), start(detect_filesystems=True)
        mounted = start(detect_filesystems=True, mounts=[mount("/m", place)])
        host = plain.view().session.filesystem_id
        assert plain.resolve(f"{place}/a").filesystem_id == host
        assert mounted.resolve("/m/a").filesystem_id == host
        far = told.resolve(f"{place}/a")
        assert far.filesystem_id not in ("", host)
        assert mounted.resolve(f"{place}/a").object == far.object
        assert (told.read(f"{place}/a").object, told.resolve(str(tree)).filesystem_id) == (far.object, host)
    finally:
        shutil.rmtree(place)
