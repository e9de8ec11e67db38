"""Any text is survived, in time that grows with its length and not faster."""

import posixpath
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ctxd.indexing.shell.file_candidates import candidates
from ctxd_protocol.limits import PATHS_MAX

CPU_S_MAX = 15.0
"""Seconds of processor time, a hundred times what linear work takes: quadratic work takes minutes."""

LENGTH = 100_000
"""Characters of a text that a parser gets."""

COMMANDS = (
    "ls",
    "ls -laR x",
    "ls -F a b",
    "find . -type f",
    "grep -rn x .",
    "grep -r x src",
    "rg x",
    "git status",
    "git status -s",
    "git log -p --stat",
    "git diff --name-status",
    "make",
    "wc -l *",
    "tree",
    "file *",
    "du -a",
    "cat x | grep y",
    "make; find . ; git log -p; grep -rn y .; ls -la",
    "find . -printf '%s%s%s%s%s%s%s%s%s%s%p\\n'",
    "find . -printf '%TY-%Tm-%Td %TH:%TM %10s %10s %10s %t %p x\\n'",
    "find . -ls",
    "rg x | cut -d: -f1 | uniq -c",
    "rg --heading -N x",
    "ls -m",
    "ls a; ls b; cat x; ls",
    'for f in a/*.py; do echo "== $f =="; cat $f; done',
    "cd x; ls; cd y && find .",
    "echo --- && ls && echo --- && find .",
)
PIECES = (
    " ", "a", "a/", ":", "1", "-1", "-1-", "(", ")", "a.b ", "\n", "\x1b[", "\x1b]",
    "-rw-r--r-- 1 a b 1 Jan 1 ", "{a => ", "|", "│   ",
    "├── ", "../", "…1 tokens truncated", "\r", '"', "x/" * 900 + ".py:1: foo\n", " " * 1990 + "x\n",
    "a.b:" * 480 + "\n",
    "a-1" * 640 + "\n", "bash: cd: a: ", "cd:1: no such file or directory: x\n", "Output: ", "Error: (none)\n",
    '{"output":', "<stdout>", "director: " * 190 + "\n", "a: is a directory\n", " M ", "\tmodified: ", "--- a/",
    "\0", "'", "=> ", "exit code ",
)  # fmt: skip
SHELL_PIECES = (
    "'", '"', "`", "$(", "${", "((", "(", ")", "{a,", "{a,b}", "for i in a b; do ", "while ", "if ", "case ",
    "bash -c '", "cat <<A\n",
    "<<A ", ">a ", "a|", "cat a.py;", "env ", "\\", "cd a;", "cd ../;", "x=$x$x;", "*", "#", "\n", "&", "~/",
    "pushd a;", "find . -exec ",
)  # fmt: skip


def check(command: str, output: str, cwd: str = "/w") -> None:
    found = candidates(command, output, cwd)
    assert len(found.paths) <= PATHS_MAX
    for candidate in found.paths:
        assert candidate.path.startswith("/") and not candidate.path.startswith("//")
        assert candidate.path == posixpath.normpath(candidate.path) != "/"
        assert candidate.command


words = st.sampled_from(
    (
        "ls cd find grep rg git cat sed cp mv rm -la -n -rn -c . .. / // ~ a.py src/a.py ../x.go *.ts $X $(ls) 'q r'"
        " && || ; | > < 2>&1 >> << EOF ( ) { } for in do done if then fi echo --- bash -lc sudo env xargs status diff"
        " --stat -exec {} \\; -C -- = A=b ` \" '"
    ).split(" ")
    + ["\n"]
)
lines = st.sampled_from(
    ("./a.py", "src/a.py:12: x", "total 8", "-rw-r--r-- 1 a b 3 Jan 1 12:00 a b.py", " M a.py", "?? x/",
    "diff --git a/x b/x", "--- a/x", "",
     " a => b | 2 +-", "a:", "==> a.py <==", "12 a.py", "src/a.ts(1,2): error", '  File "a.py", line 3',
     "rename {a => b}/c", "x/../../..", "é.py")
)  # fmt: skip


@settings(max_examples=250, deadline=None)
@given(
    st.lists(words, max_size=25).map(" ".join),
    st.lists(lines, max_size=12).map("\n".join),
    st.sampled_from(("/w", "/", "w", "", "/a/../b", "//x")),
)
def test_likely_commands_and_outputs_give_absolute_normalised_paths(command: str, output: str, cwd: str):
    check(command, output, cwd)


@settings(max_examples=250, deadline=None)
@given(st.text(max_size=200), st.text(max_size=300), st.text(max_size=20))
def test_any_text_is_parsed_without_an_error(command: str, output: str, cwd: str):
    check(command, output, cwd)


@settings(max_examples=150, deadline=None)
@given(st.sampled_from(COMMANDS), st.text(max_size=400))
def test_any_output_of_a_known_command_is_parsed_without_an_error(command: str, output: str):
    check(command, output)


@pytest.mark.parametrize("command", COMMANDS)
def test_no_output_makes_a_parser_slower_than_linear(command: str):
    for piece in PIECES:
        output = piece * (LENGTH // len(piece))
        start = time.process_time()
        check(command, output)
        assert time.process_time() - start < CPU_S_MAX, piece[:20]


@pytest.mark.parametrize("piece", SHELL_PIECES)
def test_no_command_makes_the_shell_parser_slower_than_linear(piece: str):
    start = time.process_time()
    check(piece * (LENGTH // len(piece)), "")
    check("x=a;" + piece * 300 + "cat $x", "a.py\n")
    assert time.process_time() - start < CPU_S_MAX


def test_doubling_variables_do_not_explode():
    check("x=a;" + "x=$x$x;" * 200 + "cat $x$x$x", "")


def test_ten_megabytes_of_matches_take_linear_time():
    output = "".join(f"src/pkg/module_{n // 20}.py:{n}:    value = compute(other, {n})\n" for n in range(190_000))
    assert len(output) > 10_000_000
    start = time.process_time()
    found = candidates("grep -rn value src", output, "/w")
    assert sum(candidate.certain for candidate in found.paths) == 9_500
    assert time.process_time() - start < CPU_S_MAX
