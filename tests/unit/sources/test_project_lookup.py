"""Projects of directories, from real repositories of git."""

import os
import shutil
import threading

import anyio
import pytest

from ctxd.sources import project_lookup
from ctxd.sources.project_lookup import ProjectLookup
from ctxd_protocol.session_types import Project
from tests.repositories import git, needs_git, repository

pytestmark = [pytest.mark.anyio, needs_git]


@pytest.mark.requirement("LST-1")
async def test_a_directory_of_a_repository_has_its_roots_its_remotes_and_a_path(tmp_path):
    top = tmp_path / "mono"
    root = repository(top, "https://token@Example.com/o/mono.git")
    git(top, "remote", "add", "a-fork", "git@example.com:me/mono.git")
    (top / "packages" / "one" / "src").mkdir(parents=True)
    lookup = ProjectLookup()
    remotes = ("example.com/o/mono", "example.com/me/mono")
    assert await lookup.project_of(str(top)) == Project(directory=str(top), remotes=remotes, roots=(root,))
    package = await lookup.project_of(str(top / "packages" / "one"))
    assert package == Project(directory=str(top), path="packages/one", remotes=remotes, roots=(root,))


@pytest.mark.requirement("LST-1")
async def test_without_a_repository_the_directory_is_the_project(tmp_path):
    (tmp_path / "plain").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "plain")
    lookup = ProjectLookup()
    assert await lookup.project_of(str(tmp_path / "plain")) == Project(directory=str(tmp_path / "plain"))
    assert await lookup.project_of(str(tmp_path / "link")) == Project(directory=str(tmp_path / "plain"))
    assert await lookup.project_of(str(tmp_path / "gone")) == Project(directory=str(tmp_path / "gone"))
    assert await lookup.project_of("/") == Project(directory="/")


@pytest.mark.requirement("LST-2")
async def test_clones_and_linked_trees_have_one_project_and_forks_another_remote(tmp_path):
    root = repository(tmp_path / "first", "git@example.com:o/r.git")
    git(tmp_path, "clone", "-q", "first", "second")
    git(tmp_path / "second", "remote", "set-url", "origin", "https://example.com/o/r")
    git(tmp_path / "first", "worktree", "add", "-q", str(tmp_path / "linked"))
    git(tmp_path, "clone", "-q", "first", "fork")
    git(tmp_path / "fork", "remote", "set-url", "origin", "https://example.com/me/r")
    git(tmp_path, "clone", "-q", "first", "alone")
    git(tmp_path / "alone", "remote", "remove", "origin")
    lookup = ProjectLookup()
    found = {
        name: await lookup.project_of(str(tmp_path / name)) for name in ("first", "second", "linked", "fork", "alone")
    }
    assert {each.roots for each in found.values()} == {(root,)}
    assert {name: each.remotes for name, each in found.items()} == {
        "first": ("example.com/o/r",), "second": ("example.com/o/r",), "linked": ("example.com/o/r",),
        "fork": ("example.com/me/r",), "alone": (),
    }  # fmt: skip
    assert found["linked"].directory == str(tmp_path / "linked")


@pytest.mark.requirement("LST-2")
async def test_a_submodule_is_a_project_of_its_own(tmp_path):
    inner = repository(tmp_path / "inner")
    outer = repository(tmp_path / "outer")
    git(tmp_path / "outer", "submodule", "--quiet", "add", str(tmp_path / "inner"), "sub")
    lookup = ProjectLookup()
    found = await lookup.project_of(str(tmp_path / "outer" / "sub"))
    assert (found.directory, found.roots) == (str(tmp_path / "outer" / "sub"), (inner,))
    assert (await lookup.project_of(str(tmp_path / "outer"))).roots == (outer,)


@pytest.mark.requirement("LST-2")
async def test_shallow_replaced_and_grafted_history_changes_no_root(tmp_path):
    root = repository(tmp_path / "full")
    head = git(tmp_path / "full", "rev-parse", "HEAD")
    git(tmp_path, "clone", "-q", "--depth=1", f"file://{tmp_path}/full", "shallow")
    git(tmp_path, "clone", "-q", "full", "replaced")
    git(tmp_path / "replaced", "replace", "--graft", head)
    git(tmp_path, "clone", "-q", "full", "grafted")
    (tmp_path / "grafted" / ".git" / "info").mkdir(exist_ok=True)
    (tmp_path / "grafted" / ".git" / "info" / "grafts").write_text(f"{head}\n")
    lookup = ProjectLookup()
    shallow = await lookup.project_of(str(tmp_path / "shallow"))
    assert (shallow.roots, shallow.remotes) == ((), (f"file:{tmp_path}/full",))
    assert (await lookup.project_of(str(tmp_path / "replaced"))).roots == (root,)
    assert (await lookup.project_of(str(tmp_path / "grafted"))).roots == (root,)


@pytest.mark.requirement("LST-2")
async def test_every_root_of_a_history_counts_in_order(tmp_path):
    one, two = repository(tmp_path / "one"), repository(tmp_path / "two")
    git(tmp_path / "one", "fetch", "-q", str(tmp_path / "two"))
    git(tmp_path / "one", "merge", "-q", "--allow-unrelated-histories", "-m", "joined", "FETCH_HEAD")
    assert (await ProjectLookup().project_of(str(tmp_path / "one"))).roots == tuple(sorted([one, two]))


@pytest.mark.requirement("LST-1")
async def test_changes_in_a_repository_are_noticed(tmp_path):
    top = tmp_path / "new"
    top.mkdir()
    lookup = ProjectLookup()
    assert await lookup.project_of(str(top)) == Project(directory=str(top))
    git(top, "init", "-q", "-b", "main")
    assert (await lookup.project_of(str(top))).roots == ()
    git(top, "commit", "-q", "--allow-empty", "-m", "first")
    assert len((await lookup.project_of(str(top))).roots) == 1
    git(top, "remote", "add", "origin", "https://example.com/o/new")
    assert (await lookup.project_of(str(top))).remotes == ("example.com/o/new",)


@pytest.mark.requirement("LST-3")
async def test_no_code_of_a_hostile_repository_is_executed(tmp_path):
    root = repository(tmp_path / "full")
    git(tmp_path / "full", "config", "uploadpack.allowFilter", "true")
    (tmp_path / "full" / "file").write_text("x")
    git(tmp_path / "full", "add", "file")
    git(tmp_path / "full", "commit", "-q", "-m", "third")
    git(tmp_path, "clone", "-q", "--filter=tree:0", "--no-checkout", f"file://{tmp_path}/full", "evil")
    evil, ran = tmp_path / "evil", tmp_path / "ran"
    program = tmp_path / "program"
    program.write_text(f"#!/bin/sh\necho ran >> {ran}\n")
    program.chmod(0o755)
    for name in (
        "core.fsmonitor", "core.pager", "core.sshCommand", "core.editor", "core.gitProxy", "core.askPass",
        "core.alternateRefsCommand", "pager.rev-list", "pager.config", "alias.rev-list", "credential.helper",
        "remote.origin.uploadpack", "diff.external",
    ):  # fmt: skip
        git(evil, "config", name, str(program))
    git(evil, "config", "alias.rev-parse", f"!{program}")
    git(evil, "config", "protocol.ext.allow", "always")
    git(evil, "config", "core.hooksPath", str(tmp_path))
    git(evil, "remote", "set-url", "origin", f"ext::{program}")
    # Its commits are gone: a partial clone loads them from its remote.
    for pack in (evil / ".git" / "objects" / "pack").glob("*"):
        if pack.suffix != ".promisor":
            pack.unlink()
    found = await ProjectLookup().project_of(str(evil))
    assert found == Project(directory=str(evil)) and not ran.exists()
    assert (await ProjectLookup().project_of(str(tmp_path / "full"))).roots == (root,)


@pytest.mark.requirement("LST-3")
async def test_neither_the_environment_nor_the_users_configuration_counts(tmp_path, monkeypatch):
    root = repository(tmp_path / "r", "short:o/r")
    other = repository(tmp_path / "other")
    assert root != other
    (tmp_path / "gitconfig").write_text('[url "https://elsewhere.example/"]\n\tinsteadOf = short:\n')
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", str(tmp_path / "gitconfig"))
    monkeypatch.setenv("GIT_DIR", str(tmp_path / "other" / ".git"))
    found = await ProjectLookup().project_of(str(tmp_path / "r"))
    assert (found.roots, found.remotes) == ((root,), ("short/o/r",))


@pytest.mark.requirement("LST-3")
async def test_a_repository_that_takes_too_long_counts_as_a_directory(tmp_path, monkeypatch):
    repository(tmp_path / "r")
    slow = tmp_path / "slow"
    slow.write_text("#!/bin/sh\nexec sleep 600\n")
    slow.chmod(0o755)
    monkeypatch.setattr(project_lookup, "GIT_S", 0.05)
    assert await ProjectLookup(str(slow)).project_of(str(tmp_path / "r")) == Project(directory=str(tmp_path / "r"))


@pytest.mark.requirement("LST-3")
async def test_output_without_an_end_and_a_missing_git_count_as_no_repository(tmp_path):
    repository(tmp_path / "r")
    endless = tmp_path / "endless"
    endless.write_text("#!/bin/sh\nexec yes\n")
    endless.chmod(0o755)
    for program in (str(endless), str(tmp_path / "missing")):
        assert await ProjectLookup(program).project_of(str(tmp_path / "r")) == Project(directory=str(tmp_path / "r"))


@pytest.mark.requirement("LST-3")
async def test_a_damaged_repository_counts_as_a_directory(tmp_path):
    for name, content in (("empty", ""), ("nowhere", "gitdir: /nowhere\n"), ("binary", "\x00" * 100)):
        (tmp_path / name).mkdir()
        (tmp_path / name / ".git").write_text(content)
        assert await ProjectLookup().project_of(str(tmp_path / name)) == Project(directory=str(tmp_path / name))


@pytest.mark.requirement("LST-3")
async def test_hanging_filesystems_do_not_block_lookups(tmp_path, monkeypatch):
    hangs, ends = threading.Event(), threading.Event()
    real = os.path.realpath

    def hanging(path: str, **options: bool) -> str:
        if "hung" in path:
            hangs.set()
            ends.wait()
        return real(path, **options)

    monkeypatch.setattr(project_lookup, "LOOKUP_S", 0.05)
    monkeypatch.setattr(project_lookup.os.path, "realpath", hanging)
    lookup = ProjectLookup()
    try:
        for _ in range(4):
            assert await lookup.project_of("/hung") == Project(directory="/hung")
        assert hangs.is_set()
        monkeypatch.setattr(project_lookup, "LOOKUP_S", 600.0)
        assert await lookup.project_of(str(tmp_path)) == Project(directory=str(tmp_path)), "it is not waited for"
    finally:
        ends.set()
    with anyio.fail_after(30):
        while lookup._running:
            await anyio.sleep(0)
    repository(tmp_path / "r")
    assert (await lookup.project_of(str(tmp_path / "r"))).roots


@pytest.mark.requirement("LST-4")
async def test_a_repository_of_a_sandbox_is_followed_to_no_other_place(tmp_path):
    repository(tmp_path / "secret", "https://example.com/secret")
    box = tmp_path / "box"
    box.mkdir()
    (box / ".git").write_text(f"gitdir: {tmp_path}/secret/.git\n")
    lookup = ProjectLookup()
    assert (await lookup.project_of(str(box))).remotes, "it does lead there"
    assert await lookup.project_of(str(box), in_sandbox=True) == Project(directory=str(box))
    (box / ".git").unlink()
    (box / ".git").symlink_to(tmp_path / "secret" / ".git")
    assert await lookup.project_of(str(box), in_sandbox=True) == Project(directory=str(box))
    (box / ".git").unlink()
    secret, own = tmp_path / "secret" / ".git", box / ".git"
    for name in ("commondir", "objects/info/alternates", "config", "objects/pack", "refs/heads"):
        repository(box)
        assert (await lookup.project_of(str(box), in_sandbox=True)).roots, "a repository of its own"
        if name in ("commondir", "objects/info/alternates"):
            (own / name).write_text(f"{secret}\n" if name == "commondir" else f"{secret}/objects\n")
        else:
            (own / name).rename(own / "before")
            (own / name).symlink_to(secret / name)
        assert await lookup.project_of(str(box), in_sandbox=True) == Project(directory=str(box)), name
        shutil.rmtree(box)
        box.mkdir()
    (tip,) = [each.read_text() for each in (secret / "refs/heads").iterdir()]
    for ref in ("refs/heads/main", "refs/a/b/main"):
        # Without objects/info, and with the objects of another repository in directories of its own.
        (own / ref).parent.mkdir(parents=True)
        (own / ref).write_text(tip)
        (own / "HEAD").write_text(f"ref: {ref}\n")
        for each in secret.glob("objects/??/*"):
            (own / each.relative_to(secret)).parent.mkdir(parents=True, exist_ok=True)
            (own / each.relative_to(secret)).symlink_to(each)
        assert (await lookup.project_of(str(box))).roots, "it does lead there"
        assert await lookup.project_of(str(box), in_sandbox=True) == Project(directory=str(box)), ref
        shutil.rmtree(box)
        box.mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "secret")
    assert await lookup.project_of(f"{tmp_path}/link", in_sandbox=True) == Project(directory=f"{tmp_path}/link")


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
@pytest.mark.requirement("LST-3")
async def test_as_root_git_has_the_rights_of_the_owner(tmp_path):
    for place in (tmp_path, *tmp_path.parents):
        if place.owner() == "root" and not place.stat().st_mode & 0o001:
            place.chmod(0o711)
    repository(tmp_path / "r")
    os.chown(tmp_path / "r", 65534, 65534)
    said = tmp_path / "said"
    said.touch()
    said.chmod(0o666)
    program = tmp_path / "git"
    program.write_text(f'#!/bin/sh\nid -u >> {said}\nid -G >> {said}\nexec git "$@"\n')
    program.chmod(0o755)
    await ProjectLookup(str(program)).project_of(str(tmp_path / "r"))
    assert said.read_text().split()[:2] == ["65534", "65534"]
