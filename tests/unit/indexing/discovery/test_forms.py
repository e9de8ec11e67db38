"""Forms that tools print under options, pipes and settings that the plain ones do not show. Recorded from the tools."""

import pytest

from ctxd.indexing.discovery.candidates import candidates


def files(command: str, output: str = "", cwd: str = "/w") -> list[str]:
    return sorted(candidate.path for candidate in candidates(command, output, cwd).paths if candidate.certain)


def named(command: str, output: str = "", cwd: str = "/w") -> list[str]:
    """The doubtful ones too: those that a look at the disk makes objects or drops."""
    return sorted(candidate.path for candidate in candidates(command, output, cwd).paths)


QUOTED = 'diff --git "a/\\303\\274.md" "b/\\303\\274.md"\n--- "a/\\303\\274.md"\n+++ "b/\\303\\274.md"\n@@ -1 +1 @@\n'
V2 = (
    "1 D. N... 100644 000000 000000 9daeafb 0000000 LICENSE\n"
    '1 .M N... 100644 100644 100644 5bdcb6e 5bdcb6e "docs/\\303\\274.md"\n'
    "1 .M N... 100644 100644 100644 5bdcb6e 5bdcb6e my dir/b c.py\n"
    "2 R. N... 100644 100644 100644 5bdcb6e 5bdcb6e R100 z.py\ta.py\n"
    "u UU N... 100644 100644 100644 100644 1 2 3 both.py\n"
    "? new.md\n? sub/\n"
)

GIT = [
    ("git diff", QUOTED, ["/w/ü.md"]),
    ("git diff", "diff --git i/a.py w/a.py\n--- i/a.py\n+++ w/a.py\n", ["/w/a.py"]),
    ("git diff --no-prefix", "diff --git s/a.py s/a.py\n--- s/a.py\n+++ s/a.py\n", ["/w/s/a.py"]),
    ("git diff --no-prefix", "diff --git a/x.py a/x.py\n--- a/x.py\n+++ a/x.py\n", ["/w/a/x.py"]),
    ("git diff", "diff --git a/new.py b/new.py\n--- /dev/null\n+++ b/new.py\n", ["/w/new.py"]),
    ("git diff --compact-summary", " LICENSE (gone) | 1 -\n a.py (new +x) | 2 +-\n", ["/w/LICENSE", "/w/a.py"]),
    ("git status --porcelain=v2", V2, [
        "/w/LICENSE", "/w/a.py", "/w/both.py", "/w/docs/ü.md", "/w/my dir/b c.py", "/w/new.md", "/w/z.py",
    ]),
    ("git status -su", " M a.py\n?? sub/b.py\n", ["/w/a.py", "/w/sub/b.py"]),
    ("git ls-files -t docs", "H docs/a.md\nC docs/b.md\n", ["/w/docs/a.md", "/w/docs/b.md"]),
    ("git blame -s README.md", "", ["/w/README.md"]),
    ("git show -s a.py", "", ["/w/a.py"]),
    ("git diff -M a.py", "", ["/w/a.py"]),
    ("git status -s && git diff --stat", "D  LICENSE\nR  a.py -> z.py\n Makefile | 2 +-\n", [
        "/w/LICENSE", "/w/Makefile", "/w/z.py",
    ]),
]  # fmt: skip


@pytest.mark.parametrize(("command", "output", "expected"), GIT)
@pytest.mark.requirement("DIS-1")
def test_git_under_options_and_settings_names_these_files(command: str, output: str, expected: list[str]):
    assert files(command, output) == sorted(expected)
