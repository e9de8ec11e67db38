"""DIS: which files a command's output speaks of, on a real tree and mostly with what the commands really print."""

import subprocess
from pathlib import Path

import pytest

from ctxd_client import SyncClient, SyncSession
from ctxd_protocol.methods.toolcalls import ToolObserveResult

FILES = ("README.md", "Makefile", "src/main.py", "src/util.py", "src/lib/deep.py", "docs/a guide.md")
"""The tree of these tests; ``needle`` is in ``src/main.py`` and ``src/lib/deep.py``."""


@pytest.fixture
def project(tree: Path) -> Path:
    """A tree with ``FILES``, under git, with ``src/util.py`` changed and ``README.md`` not tracked."""
    for name in FILES:
        (tree / name).parent.mkdir(parents=True, exist_ok=True)
        (tree / name).write_text("needle = 1\n" if name in ("src/main.py", "src/lib/deep.py") else f"{name}\n")
    for arguments in (["init", "-q"], ["add", "."], ["rm", "-q", "--cached", "README.md"]):
        subprocess.run(["git", *arguments], cwd=tree, check=True, capture_output=True)
    who = ["-c", "user.name=a", "-c", "user.email=a@example.org", "-c", "commit.gpgsign=false"]
    subprocess.run(["git", *who, "commit", "-q", "-m", "x"], cwd=tree, check=True, capture_output=True)
    (tree / "src" / "util.py").write_text("changed\n")
    return tree


def found(result: ToolObserveResult, tree: Path) -> set[str]:
    """The files that became or were objects, as paths below ``tree``."""
    return {one.path.removeprefix(f"{tree}/") for one in result.objects if one.object is not None}


def printed(command: str, cwd: Path) -> str:
    """Output of ``command`` in ``cwd``, errors included."""
    done = subprocess.run(
        ["bash", "-c", command], cwd=cwd, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=30
    )
    return done.stdout


TOP, SRC = {"README.md", "Makefile"}, {"src/main.py", "src/util.py"}
NEEDLES = {"src/main.py", "src/lib/deep.py"}
COMMANDS: list[tuple[str, set[str]]] = [
    ("ls", TOP),
    ("ls -la", TOP),
    ("ls -1 src", SRC),
    ("ls -lh src/*.py", SRC),
    ("ls -R src", SRC | {"src/lib/deep.py"}),
    ("ls docs", {"docs/a guide.md"}),
    ("cd src && ls", SRC),
    ("cd src/lib; ls -l", {"src/lib/deep.py"}),
    ("(cd src && ls) && echo --- && ls docs", SRC | {"docs/a guide.md"}),
    ("find . -name '*.py'", SRC | NEEDLES),
    ("find src -type f", SRC | NEEDLES),
    ("find src -maxdepth 1 -name '*.py' | sort", SRC),
    ("grep -rn needle src", NEEDLES),
    ("grep -rl needle .", NEEDLES),
    ("grep -n needle src/main.py", {"src/main.py"}),
    ("cd src && grep -rn needle .", NEEDLES),
    ("git status --short", {"README.md", "src/util.py"}),
    ("git status", {"README.md", "src/util.py"}),
    ("git ls-files src", SRC | NEEDLES),
    ("git diff", {"src/util.py"}),
    ("git diff --stat", {"src/util.py"}),
    ("git diff --name-only", {"src/util.py"}),
    ("git -C src diff --name-only --relative", {"src/util.py"}),
    ("cat src/main.py", {"src/main.py"}),
    ("head -n 5 README.md Makefile", TOP),
    ("tail -n +1 src/main.py src/util.py", SRC),
    ("sed -n '1,20p' src/lib/deep.py", {"src/lib/deep.py"}),
    ("wc -l src/main.py", {"src/main.py"}),
    ("cat 'docs/a guide.md'", {"docs/a guide.md"}),
    ("cd src && cat main.py && cd lib && cat deep.py", NEEDLES),
]


@pytest.mark.requirement("DIS-1")
@pytest.mark.parametrize(("command", "expected"), COMMANDS, ids=[command for command, _ in COMMANDS])
def test_the_files_that_a_command_really_prints_are_found(
    s: SyncSession, project: Path, command: str, expected: set[str]
) -> None:
    assert found(s.observe(command, printed(command, project)), project) == expected


@pytest.mark.requirement("DIS-1")
@pytest.mark.parametrize(
    ("command", "output", "expected"),
    [
        ("rg needle", "src/main.py\n1:needle = 1\n\nsrc/lib/deep.py\n1:needle = 1\n", NEEDLES),
        ("rg -n needle src | head", "src/main.py:1:needle = 1\nsrc/lib/deep.py:1:needle = 1\n", NEEDLES),
        ("rg --files src", "src/util.py\nsrc/main.py\nsrc/lib/deep.py\n", SRC | NEEDLES),
        ("cd src && rg -l needle", "main.py\nlib/deep.py\n", NEEDLES),
    ],
)
def test_the_files_in_ripgreps_output_are_found(
    s: SyncSession, project: Path, command: str, output: str, expected: set[str]
) -> None:
    assert found(s.observe(command, output), project) == expected


@pytest.mark.requirement("DIS-1")
def test_names_are_relative_to_the_directory_of_the_call(start, project: Path) -> None:
    assert found(start().observe("ls", "main.py\nutil.py\n", cwd=f"{project}/src"), project) == SRC
    assert found(start().observe("ls", "main.py\nutil.py\n", cwd="src"), project) == SRC
    assert found(start().observe("ls", "main.py\nutil.py\n"), project) == set()
    assert found(start(workdir=f"{project}/src").observe("ls", "main.py\nutil.py\n"), project) == SRC
    assert found(start().observe("cd lib && ls", "deep.py\n", cwd=f"{project}/src"), project) == {"src/lib/deep.py"}


@pytest.mark.requirement("DIS-1")
@pytest.mark.parametrize("command", ["ls {0}", "find {0}", "chmod +x {0}", "rg x {0}", "git diff -- {0}", "stat {0}"])
def test_an_absolute_name_without_an_extension_is_found_where_it_is_a_file(
    s: SyncSession, project: Path, command: str
) -> None:
    (project / "gradlew").write_text("#!/bin/sh\n")
    command = command.format(project / "gradlew")
    assert found(s.observe(command, printed(command, project)), project) == {"gradlew"}


@pytest.mark.requirement("DIS-1")
def test_discovered_files_become_unread_stubs_and_read_files_stay_read(
    s: SyncSession, client: SyncClient, project: Path
) -> None:
    read = s.read("src/main.py")
    result = s.observe("ls src", "main.py\nutil.py\n")
    outcomes = {one.path: one.outcome for one in result.objects if one.object is not None}
    assert outcomes == {f"{project}/src/main.py": "unchanged", f"{project}/src/util.py": "created"}
    stub = s.resolve("src/util.py").object
    assert client.object_get(stub).object.state == "unread"
    view = s.view().session
    assert (view.metadata_pool, view.active_set) == ((read.object, stub), (read.object,))


@pytest.mark.requirement("DIS-2")
def test_only_existing_files_become_objects_and_others_are_ignored_with_a_reason(
    s: SyncSession, client: SyncClient, project: Path
) -> None:
    (project / "link.py").symlink_to("src/main.py")
    (project / "dangling.py").symlink_to("nowhere")
    (project / "conf.d").mkdir()
    result = s.observe("find .", "./Makefile\n./gone.py\n./conf.d\n./link.py\n./dangling.py\n./src/nope/a.py\n")
    made = {one.path.removeprefix(f"{project}/") for one in result.objects if one.object is not None}
    ignored = {one.path.removeprefix(f"{project}/"): one.reason for one in result.objects if one.object is None}
    assert made == {"Makefile", "link.py"}
    assert ignored == {
        "gone.py": "no such file",
        "conf.d": "directory",
        "dangling.py": "no such file",
        "src/nope/a.py": "no such file",
    }
    assert all(one.outcome == "ignored" for one in result.objects if one.object is None)
    view = s.view().session
    assert len(view.session_index) == 2
    assert not any(s.resolve(name).known for name in ignored)


@pytest.mark.requirement("DIS-2")
def test_given_paths_are_checked_individually(s: SyncSession, project: Path) -> None:
    given = ["Makefile", "src", "gone.py", "/../x", "src/main.py", "/dev/null", "./Makefile"]
    objects = s.discover(given).objects
    assert [one.path for one in objects] == given
    assert [one.outcome for one in objects] == [
        "created", "ignored", "ignored", "ignored", "created", "ignored", "unchanged",
    ]  # fmt: skip
    reasons = [one.reason for one in objects]
    assert reasons[:3] == [None, "directory", "no such file"]
    assert "climbs" in (reasons[3] or "")
    assert reasons[4:] == [None, "character device", None]


JUNK = (
    "total", "48", "drwxr-xr-x", "-rw-r--r--", "root", "-la", "-rn", "--color=auto", "https:", "http:", "example.org",
    "modified:", "M", "??", "@@", "needle", "warning:", "error:", "Permission", "denied", "No", "such", "file", "On",
    "branch", "main", "a.py", "b.py", "Binary", "matches", "changed,", "insertion(+)", "|", "++-", "1", "2",
)  # fmt: skip
"""Words of the outputs below, each also the name of a file that exists: nothing but its place tells it is no file."""

NOISE = [
    ("ls -la", "total 48\ndrwxr-xr-x 2 root root 4096 Jan 1 00:00 .\ndrwxr-xr-x 9 root root 4096 Jan 1 00:00 ..\n"
     "-rw-r--r-- 1 root root 2 Jan 1 00:00 README.md\n", {"README.md"}),
    ("ls -l --color=auto src", "total 48\n-rw-r--r-- 1 root root 2 Jan 1 00:00 main.py\n"
     "drwxr-xr-x 2 root root 4096 Jan 1 00:00 lib\n", {"src/main.py"}),
    ("ls none", "ls: cannot access 'none': No such file or directory\n", set()),
    ("find src", "src\nsrc/lib\nsrc/main.py\nfind: 'src/locked': Permission denied\n", {"src/main.py"}),
    ("grep -rn needle src", "grep: src/lib: Is a directory\nsrc/main.py:1:see https://example.org/a.py b.py\n"
     "Binary file src/util.py matches\n", {"src/main.py", "src/util.py"}),
    ("git status", "On branch main\nChanges not staged for commit:\n"
     '  (use "git add <file>..." to update what will be committed)\n\tmodified:   src/util.py\n\n'
     'no changes added to commit (use "git add" and/or "git commit -a")\n', {"src/util.py"}),
    ("git diff --stat", " src/util.py | 2 ++-\n 1 file changed, 1 insertion(+), 1 deletion(-)\n", {"src/util.py"}),
    ("curl -s https://example.org/README.md", "# README.md\nsee src/main.py\n", set()),
    ("echo README.md Makefile", "README.md Makefile\n", set()),
    ("make", "make: *** No rule to make target 'needle'.  Stop.\nerror: a.py b.py\n", set()),
]  # fmt: skip


@pytest.mark.requirement("DIS-3")
@pytest.mark.parametrize(("command", "output", "expected"), NOISE, ids=[command for command, _, _ in NOISE])
def test_text_around_file_names_never_becomes_an_object_even_if_such_a_file_exists(
    s: SyncSession, project: Path, command: str, output: str, expected: set[str]
) -> None:
    for name in JUNK:
        (project / name).write_text("x")
    assert found(s.observe(command, output), project) == expected
    assert len(s.view().session.session_index) == len(expected)


@pytest.mark.requirement("DIS-3")
def test_a_directory_never_becomes_an_object(s: SyncSession, client: SyncClient, project: Path) -> None:
    for command, output in (
        ("ls", "docs\nsrc\n"),
        ("ls -F", "docs/\nsrc/\n"),
        ("ls -ld src", "drwxr-xr-x 3 root root 4096 Jan 1 00:00 src\n"),
        ("find . -type d", ".\n./src\n./src/lib\n"),
        ("cat src", "cat: src: Is a directory\n"),
        ("cd src && pwd", f"{project}/src\n"),
    ):
        assert found(s.observe(command, output), project) == set()
    s.discover(["src", "docs/", "."])
    assert s.view().session.session_index == ()
    assert client.object_list(session=s.id).objects == ()
