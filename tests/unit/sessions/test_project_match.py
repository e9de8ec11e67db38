"""What one project is, through all that happens to a directory and to a repository."""

import pytest

from ctxd.sessions.project_match import ProjectFilter, keys_of
from ctxd_protocol.session_types import Project

pytestmark = pytest.mark.requirement("LST-5")

A, B = ("a" * 40,), ("b" * 40,)
REPOSITORY = Project(directory="/src/r", remotes=("hub/o/r",), roots=A)

ONE = [
    ("a clone elsewhere", REPOSITORY, Project(directory="/other/place", remotes=("hub/o/r",), roots=A)),
    ("a shallow clone", REPOSITORY, Project(directory="/shallow", remotes=("hub/o/r",))),
    ("before it had a remote", REPOSITORY, Project(directory="/src/r", roots=A)),
    ("before its first commit", REPOSITORY, Project(directory="/src/r")),
    ("a clone without a remote", REPOSITORY, Project(directory="/alone", roots=A)),
    ("another remote in its place", REPOSITORY, Project(directory="/src/r", remotes=("new/o/r",), roots=A)),
    ("a history that was joined", REPOSITORY, Project(directory="/src/r", remotes=("hub/o/r",), roots=A + B)),
    ("a directory", Project(directory="/d"), Project(directory="/d")),
]
TWO = [
    ("a fork", REPOSITORY, Project(directory="/fork", remotes=("hub/me/r",), roots=A)),
    ("another repository at its place", REPOSITORY, Project(directory="/src/r", remotes=("hub/o/x",), roots=B)),
    ("a new history at its remote", REPOSITORY, Project(directory="/src/r2", remotes=("hub/o/r",), roots=B)),
    ("a directory beside it", REPOSITORY, Project(directory="/src/r2")),
    ("a repository below a directory", Project(directory="/src"), REPOSITORY),
    ("directories", Project(directory="/d"), Project(directory="/e")),
    ("a directory below another", Project(directory="/d"), Project(directory="/d/e")),
]


@pytest.mark.parametrize(("one", "other"), [case[1:] for case in ONE], ids=[case[0] for case in ONE])
def test_equal_projects_match(one, other):
    for at, session in ((one, other), (other, one)):
        wanted = ProjectFilter(at)
        assert wanted.passes(session) and not set(wanted.keys).isdisjoint(keys_of(session))


@pytest.mark.parametrize(("one", "other"), [case[1:] for case in TWO], ids=[case[0] for case in TWO])
def test_different_projects_do_not_match(one, other):
    assert not ProjectFilter(one).passes(other) and not ProjectFilter(other).passes(one)


def test_a_package_is_a_part_of_its_repository():
    package = Project(directory="/src/r", path="packages/one", remotes=("hub/o/r",), roots=A)
    inside = Project(directory="/clone", path="packages/one/src", remotes=("hub/o/r",), roots=A)
    beside = Project(directory="/clone", path="packages/one-more", remotes=("hub/o/r",), roots=A)
    assert ProjectFilter(package).passes(inside) and ProjectFilter(package).passes(package)
    assert not ProjectFilter(package).passes(beside) and not ProjectFilter(package).passes(REPOSITORY)
    assert all(ProjectFilter(REPOSITORY).passes(each) for each in (package, inside, beside))


@pytest.mark.parametrize(
    ("name", "passes"),
    [
        ("r", True), ("o/r", True), ("hub/o/r", True), ("https://u:p@hub/o/r.git", True), ("git@hub:o/r.git", True),
        ("a" * 7, True), ("a" * 40, True), ("a" * 6, False),
        ("/o/r", False), ("x/r", False), ("", False), ("b" * 7, False),
    ],
)  # fmt: skip
def test_a_repository_has_the_names_of_its_remote_and_its_root_commit(name, passes):
    wanted = ProjectFilter(name=name)
    assert wanted.passes(REPOSITORY) == passes
    assert not passes or not wanted.keys or not set(wanted.keys).isdisjoint(keys_of(REPOSITORY))


def test_a_directory_has_its_own_name():
    assert ProjectFilter(name="d").passes(Project(directory="/x/d"))
    assert not ProjectFilter(name="x/d").passes(Project(directory="/x/d")) and not ProjectFilter(name="d").passes(None)
