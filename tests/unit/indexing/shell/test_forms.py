"""Forms that tools print under options, pipes and settings that the plain ones do not show. Recorded from the tools."""

import pytest

from ctxd.indexing.shell.file_candidates import candidates


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


GREP = [
    ("rg foo", "a.py:import foo\nsrc/b.py:    foo: bar\nMakefile:foo:\n", ["/w/Makefile", "/w/a.py", "/w/src/b.py"]),
    ("rg foo src", "src/b.py:foo: bar\nsrc/run:x\n", ["/w/src/b.py", "/w/src/run"]),
    ("rg foo posts", "posts/2024-01-15-x.md:foo\n", ["/w/posts", "/w/posts/2024-01-15-x.md"]),
    ("rg -o 'def .*' src", "src/b.py:def x(a: int)\n", ["/w/src/b.py"]),
    ("rg -C1 foo src", "src/b.py-x\nsrc/b.py:foo\n--\nsrc/c-d.py:foo\n", ["/w/src/b.py", "/w/src/c-d.py"]),
    ("rg --heading -N foo src", "src/a.py\nfoo: b.py\n\nsrc/b.py\nfoo\nsee c.py\n", ["/w/src/a.py", "/w/src/b.py"]),
    ("rg -p foo", "a.py\n1:hit c.py\n\nsrc/b.py\n7:hit\n", ["/w/a.py", "/w/src/b.py"]),
    ("git grep -n --heading --break foo", "a.py\n1:foo\n\nsrc/b.py\n7:foo\n", ["/w/a.py", "/w/src/b.py"]),
    ("grep -rn foo src | cut -d: -f1 | sort -u", "src/a.py\nsrc/b c.py\n", ["/w/src/a.py", "/w/src/b c.py"]),
    ("grep -rn foo . | cut -d: -f1 | sort | uniq -c | sort -rn", "   3 ./a.py\n", ["/w/a.py"]),
    ("rg -n foo src | awk -F: '{print $1}' | uniq", "src/a.py\n", ["/w/src/a.py"]),
    ("grep -rn foo src | cut -d ':' -f 1,2", "src/a.py:3\n", ["/w/src/a.py"]),
    ("rg -l foo | sort | uniq -c", "   1 src/a.py\n", ["/w/src/a.py"]),
]  # fmt: skip


@pytest.mark.parametrize(("command", "output", "expected"), GREP)
@pytest.mark.requirement("DIS-1")
def test_a_search_whose_lines_have_no_numbers_or_were_cut_names_these_files(
    command: str, output: str, expected: list[str]
):
    assert [path for path in named(command, output) if path != "/w/src"] == sorted(expected)


SHOWN = "diff --git a/x.py b/x.py\n--- a/x.py\n+++ b/x.py\n"

DOUBTFUL_FORMS = [
    # Beside another output, a search without numbers is known by where it starts.
    ("grep -r foo src; git status -s", "src/a.py:foo\n M b.py\n", ["/w/b.py", "/w/src/a.py"]),
    # Without such a start, a line of context is told from a match of another form by its slash.
    ("rg -n -C1 foo", "a.py-3-x\nb.py:4:foo\n", ["/w/b.py"]),
    ("rg -n -C1 foo", "src/a.py-3-x\n", ["/w/src/a.py"]),
    ("grep -n -C1 foo a* b*", "a.py-3-x\nb.py-4-x\n", ["/w/a.py", "/w/b.py"]),
    ("git ls-files", "a.py\na b.py\nfatal: c.py\nerror: d.py\nwarning: e.py\nf\tg.py\n", ["/w/a b.py", "/w/a.py"]),
    # A revision with a path shows that file; neither alone nor an option does.
    ("git show HEAD:a.py", SHOWN, ["/w/a.py"]),
    ("git show :a.py", SHOWN, ["/w/x.py"]),
    ("git show HEAD:", SHOWN, ["/w/x.py"]),
    ("git show --format=a:b HEAD", SHOWN, ["/w/x.py"]),
    # A name in a loop ends as its glob does, but for one that ends in a class.
    ("for f in src/*.py; do echo \"== $f\"; cat $f; done", "== src/a.py\n== src/b.txt\n== src/cpy\n", ["/w/src/a.py"]),
    ("for f in src/*.[ch]; do echo \"== $f\"; cat $f; done", "== src/a.c\n== src/b.h\n", ["/w/src/a.c", "/w/src/b.h"]),
]  # fmt: skip


@pytest.mark.parametrize(("command", "output", "expected"), DOUBTFUL_FORMS)
@pytest.mark.requirement("DIS-1")
def test_ambiguous_lines_name_these_files(command: str, output: str, expected: list[str]):
    assert files(command, output) == expected


@pytest.mark.parametrize("mark", list("*@=|/"))
def test_a_mark_of_a_classified_listing_without_a_name_names_nothing(mark: str):
    assert named("ls -F a b", f"{mark}\n") == ["/w/a", "/w/b"]


def test_matched_text_of_a_search_is_not_a_file_name():
    assert files("rg foo", "a.py:12: see b.py:3\n") == ["/w/a.py"]
    assert files("rg foo src", "src/a.py\n1:see c.py:4:\n") == ["/w/src/a.py"]
    assert named("rg -I foo src", "from x.py: y\n") == ["/w/src"]


LONG = "-rw-r--r-- 1 root root 4 Nov 21 21:24 {}\n"

FIND = [
    ("find src -type f -printf '%p\\n'", "src/a.py\nsrc/b c.py\n", ["/w/src/a.py", "/w/src/b c.py"]),
    ("find src -type f -printf '%s %p\\n' | sort -n", "12 src/a.py\n", ["/w/src/a.py"]),
    ("find src -printf '%TY-%Tm-%Td %TH:%TM %p\\n'", "2025-11-21 21:24 src/b c.py\n", ["/w/src/b c.py"]),
    ("find src -printf '%y %10s %M %t %u %p\\n'", (
        "d       4096 drwxr-xr-x Fri Nov 21 21:24:03.1234567890 2025 root src/x.d\n"
        "f          4 -rw-r--r-- Fri Nov 21 21:24:03.1234567890 2025 root src/run\n"
    ), ["/w/src/run"]),
    ("find src -printf '%T@ %p\\0'", "1732224240.1234567890 src/a.py\0", ["/w/src/a.py"]),
    ("find src -printf '%p %p\\n'", "src/a.py src/a.py\n", []),
    ("find src -printf '%P\\n'", "a.py\nsub/b.py\n", ["/w/src/a.py", "/w/src/sub/b.py"]),
    ("find src -printf '%f\\n'", "a.py\n", []),
    ("find src -name '*.py' -ls", "  12  4 -rw-r--r--   1 root  root    4 Nov 21 21:24 src/a.py\n", ["/w/src/a.py"]),
    ("find src -exec ls -la {} +", LONG.format("src/a.py"), ["/w/src/a.py"]),
    ("find src -type f -exec ls {} \\;", "src/a.py\nsrc/b.py\n", ["/w/src/a.py", "/w/src/b.py"]),
    ("find src -name '*.py' -exec wc -l {} +", "   2 src/a.py\n   2 total\n", ["/w/src/a.py"]),
    ("find . -type f -exec grep -Hn foo {} \\;", "./src/a.py:1:foo b.py:2:\n", ["/w/src/a.py"]),
    ("find . -type f -exec grep -n foo {} +", "./src/a.py:1:foo\n", ["/w/src/a.py"]),
    ("find . -type f -exec grep -n foo {} \\;", "1:foo ./b.py\n", []),
    ("find . -type f -exec head -3 {} +", "==> ./a.py <==\nb.py\n", ["/w/a.py"]),
    ("find . -type f -exec md5sum {} +", "9daeafb9864cf43055ae93beb0afd6c7  ./a.py\n", ["/w/a.py"]),
    ("find . -name '*.py' -exec cat {} +", "./b.py\n", []),
    ("find . -name '*.py' -exec sh -c 'cat $1' _ {} \\;", "./b.py\n", []),
]  # fmt: skip


@pytest.mark.parametrize(("command", "output", "expected"), FIND)
@pytest.mark.requirement("DIS-1")
def test_a_find_that_formats_or_runs_a_command_names_these_files(command: str, output: str, expected: list[str]):
    assert files(command, output) == expected


LISTINGS = [
    ("ls a && ls b", "x.py\ny.py\n", {"/w/a/x.py", "/w/a/y.py", "/w/b/x.py", "/w/b/y.py"}),
    ("cd a; ls; cd ..; ls b", "x.py\ny z\n\n", {"/w/a/x.py", "/w/b/x.py"}),
    ("ls; cat package.json", "LICENSE\nx.py\n{\n", {"/w/LICENSE", "/w/x.py"}),
    ("ls -C", "LICENSE     Makefile\nREADME.md   my file.txt\n", {"/w/LICENSE", "/w/Makefile", "/w/my file.txt"}),
    ("ls", "LICENSE     Makefile\r\nREADME.md   src\r\n", {"/w/LICENSE", "/w/Makefile", "/w/README.md"}),
    ("ls -m", "LICENSE, Makefile,\nREADME.md\n", {"/w/LICENSE", "/w/Makefile", "/w/README.md"}),
]


@pytest.mark.parametrize(("command", "output", "expected"), LISTINGS)
@pytest.mark.requirement("DIS-1")
def test_listings_that_run_into_each_other_or_into_columns_are_settled_by_the_disk(
    command: str, output: str, expected: set[str]
):
    assert expected <= set(named(command, output))


def test_no_name_of_two_listings_is_certain():
    assert files("ls a && ls b", "x.py\ny.py\n") == []


DIRECTORIES = [
    ("cd src && cat a.py && cd - && cat b.py", "", ["/w/b.py", "/w/src/a.py"]),
    ('cd "$PWD/src" && cat a.py', "", ["/w/src/a.py"]),
    ("cd src 2>/dev/null || cd lib; cat a.py", "", ["/w/src/a.py"]),
    ("cd nope; cat a.py", "bash: line 1: cd: nope: No such file or directory\nx\n", ["/w/a.py"]),
    ("cd nope && cat b.py; cat a.py", "bash: line 1: cd: nope: No such file or directory\nx\n", ["/w/a.py"]),
    ("cd nope; cat a.py", "(eval):cd:1: no such file or directory: nope\nx\n", ["/w/a.py"]),
    ("cd nope; cat a.py", "sh: 1: cd: can't cd to nope\nx\n", ["/w/a.py"]),
    ("cd a.py && ls; cat a.py", "bash: line 1: cd: a.py: Not a directory\n", ["/w/a.py"]),
    ("cat $'docs/it\\'s.md' b.py", "", ["/w/b.py", "/w/docs/it's.md"]),
    ("cat $'docs/\\u00fcber\\x2emd'", "", ["/w/docs/über.md"]),
    ('grep -n "^x$" a.py && cat b.py', "", ["/w/a.py", "/w/b.py"]),
    ("echo \"it$'s\"; cat 'b.py'", "", ["/w/b.py"]),
    ("D=lib; cat ${D:-src}/a.py ${E}/b.py", "", ["/w/lib/a.py"]),
    ("cat ${D:-src}/a.py", "", ["/w/src/a.py"]),
]


@pytest.mark.parametrize(("command", "output", "expected"), DIRECTORIES)
@pytest.mark.requirement("DIS-1")
def test_paths_follow_the_shells_directory_and_word_expansion(command: str, output: str, expected: list[str]):
    assert files(command, output) == expected


LOOPS = [
    ('for f in docs/*.md; do echo "== $f"; head -2 "$f"; done', "== docs/a.md\nsee b.md\n", ["/w/docs/a.md"]),
    ("for f in *.py; do echo \"=== ${f} ===\"; sed -n 1p $f; done", "=== a.py ===\n== b.py\n", ["/w/a.py"]),
    ('for f in docs/*.md; do echo "$f"; done', "docs/a.md\ndocs/b c.md\n", ["/w/docs/a.md", "/w/docs/b c.md"]),
    ("find src -name '*.py' | while read -r f; do echo \"--- $f\"; cat \"$f\"; done", "--- src/a.py\nimport b.py\n", [
        "/w/src/a.py",
    ]),
    ('for f in $(git ls-files); do echo "# $f #"; cat $f; done', "# a.py #\n# no\n", ["/w/a.py"]),
]  # fmt: skip


@pytest.mark.parametrize(("command", "output", "expected"), LOOPS)
@pytest.mark.requirement("DIS-1")
def test_a_loop_that_prints_its_current_file_names_these_files(command: str, output: str, expected: list[str]):
    assert files(command, output) == expected


@pytest.mark.parametrize(
    "output",
    [
        "Command: ls\nDirectory: (root)\nStdout: a.py\nb.py\nStderr: (empty)\nError: (none)\nExit Code: 0\n",
        "Output: a.py\nb.py\nError: (none)\nExit Code: 0\nSignal: (none)\nProcess Group PGID: 12\n",
        "Output: a.py\nb.py\nError: c.py\n",
        '{"metadata":{"exit_code":0},"output":"a.py\\nb.py\\n"}',
        '{ "stdout": "a.py\\nb.py\\n", "stderr": "", "exit_code": 0}',
        "<stdout>a.py\nb.py\n</stdout>\n<stderr></stderr>",
    ],
)
@pytest.mark.requirement("DIS-1")
def test_output_wrappers_of_other_harnesses_are_stripped(output: str):
    assert files("ls", output) == ["/w/a.py", "/w/b.py"]


@pytest.mark.parametrize("command", ['["bash","-lc","cd src && cat a.py"]', '["cat", "src/a.py"]'])
@pytest.mark.requirement("DIS-1")
def test_a_command_may_come_as_the_json_of_its_words(command: str):
    assert files(command) == ["/w/src/a.py"]
