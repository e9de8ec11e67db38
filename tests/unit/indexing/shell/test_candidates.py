"""Which files a command and its output speak of, command by command."""

import pytest

from ctxd.indexing.shell.file_candidates import candidates
from ctxd_protocol.limits import PATHS_MAX


def files(command: str, output: str = "", cwd: str = "/w") -> list[str]:
    return [candidate.path for candidate in candidates(command, output, cwd).paths if candidate.certain]


def doubtful(command: str, output: str = "", cwd: str = "/w") -> list[str]:
    return [candidate.path for candidate in candidates(command, output, cwd).paths if not candidate.certain]


LONG = (
    "total 8\ndrwxr-xr-x  2 root staff 64 Jan  2 12:33 .\n-rw-r--r--@ 1 root staff 12 Jan  2 12:33 my file.txt\n"
    "-rwxr-xr-x 1 root root 1.2K 2026-01-02 12:33 tool\nlrwxrwxrwx 1 r r 4 Jan  2  2025 a.md -> b.md\n"
    "-rw-rw-r-- 1 u g 72 avril 18 15:20 C.md\n"
)

LS = [
    ("ls -la src", LONG, ["/w/src/my file.txt", "/w/src/tool", "/w/src/a.md", "/w/src/C.md"]),
    ("ls", "README.md\nsrc\nnode_modules\n.git\nMakefile\n", ["/w/README.md", "/w/Makefile"]),
    ("ls -F", "run*\nsrc/\na.py\nlink@\nl.md@\n", ["/w/run", "/w/a.py", "/w/l.md"]),
    ("ls --color=always", "\x1b[0m\x1b[01;34msrc\x1b[0m\n\x1b[01;32ma.py\x1b[0m\n", ["/w/a.py"]),
    ("ls a b", "a:\nx.py\n\nb:\ny.py\n", ["/w/a/x.py", "/w/b/y.py"]),
    ("ls -R", ".:\nsub\n\n./sub:\nx.py\n", ["/w/sub/x.py"]),
    ("ls *.py", "a.py\nb.py\n", ["/w/a.py", "/w/b.py"]),
    ("ls -la a.py | head", "-rw-r--r-- 1 u g 72 Jan 18 15:20 a.py\n", ["/w/a.py"]),
    ("ls -d src/*/", "src/a/\nsrc/b/\n", []),
    ("ls missing.py", "ls: missing.py: No such file or directory\n", []),
    ("ls nope/", "ls: cannot access 'nope/': No such file or directory\n", []),
    ("ls src | wc -l", "12\n", []),
    ("ls", "__pycache__\t\treadme.md\nuv.lock\t\tsrc\n", ["/w/readme.md", "/w/uv.lock"]),
    ("ls", "v6.0.0-alpha.3\nv1.2\npython3.11\n", []),
    ("ls -la src | awk '{print $9}'", "a.py\n", []),
    ("git log --oneline -1 && pwd && ls", "1234567 a message.py here\n/w\na.py\nsrc\n", ["/w/a.py"]),
]

FIND = [
    (
        "cd x && find . -name '*.py' | head",
        "./a.py\n./b/c.py\nfind: './x': Permission denied\n",
        ["/w/x/a.py", "/w/x/b/c.py"],
    ),
    ("find . -type f", "./Makefile\n./bin/tool\n", ["/w/Makefile", "/w/bin/tool"]),
    ("find . -type d", "./a.d\n./b\n", []),
    ("find /x -name a 2>/dev/null | xargs grep -l foo", "/x/a.py\n", ["/x/a.py"]),
    ("find . -name '*.ts' -exec grep -l X {} \\;", "./a.ts\n", ["/w/a.ts"]),
    ("find . -name '*.md' -exec echo '== {} ==' \\; -exec cat {} \\;", "== ./a.md ==\nsee b.md\n", ["/w/a.md"]),
    ("find . | sed 's|^./||'", "a.py\n", []),
]

GREP = [
    (
        "grep -rn -C1 foo src",
        "src/a.py:12: hi\nsrc/b.py-33-context\n--\nBinary file src/x.bin matches\n",
        ["/w/src/a.py", "/w/src/b.py", "/w/src/x.bin"],
    ),
    ("grep -n foo src/a.py | head -3", "12:import x.py\n13: y", ["/w/src/a.py"]),
    ("grep foo a.py b.py", "a.py:see c.py:3\nb.py:x\n", ["/w/a.py", "/w/b.py"]),
    ("grep -rl foo .", "./a.py\n./b.py\n", ["/w/a.py", "/w/b.py"]),
    ("grep -rc foo .", "./a.py:3\n./b.py:0\n", ["/w/a.py", "/w/b.py"]),
    ("cat a.py | grep -n 'x.py:3:'", "1:import x.py:3:\n", ["/w/a.py"]),
    ("rg -n foo", "a.py:1:x\nsrc/b.py:2:y\n", ["/w/a.py", "/w/src/b.py"]),
    ("rg foo src", "src/a.py\n1:hit\n2:hit c.py:4:\n\nsrc/b.py\n7:hit\n", ["/w/src/a.py", "/w/src/b.py"]),
    ("rg -n foo a.py", "1:import b.py\n", ["/w/a.py"]),
    ("rg --files src", "src/a.py\nsrc/bin/tool\n", ["/w/src/a.py", "/w/src/bin/tool"]),
    ("grep -rn 'x' . | grep -v test | sort | uniq", "./a.py:1:x\n", ["/w/a.py"]),
    ("grep -rn x $(go env GOROOT)/src", "/go/src/a.go:1:x\n", ["/go/src/a.go"]),
    ("git grep -n x", "a.py:1:x\n", ["/w/a.py"]),
]

GIT = [
    (
        "git status",
        "On branch main\n\tmodified:   a.py\n\tdeleted:    b.py\nUntracked files:\n\tsub/\n\tc.py\n",
        ["/w/a.py", "/w/b.py", "/w/c.py"],
    ),
    (
        "git status --short",
        '## main\n M a.py\n?? sub/\nR  b.py -> c.py\nA  "\\303\\274.py"\n',
        ["/w/a.py", "/w/b.py", "/w/c.py", "/w/ü.py"],
    ),
    (
        "git diff --stat",
        " a.py | 2 +-\n src/{x => y}/b.py | 0\n"
        " .../deep/c.py | 3 +++\n img.png | Bin 0 -> 12 bytes\n 3 files changed, 2 insertions(+)\n",
        ["/w/a.py", "/w/src/x/b.py", "/w/src/y/b.py", "/w/img.png"],
    ),
    (
        "git diff",
        "diff --git a/a.py b/a.py\n--- a/a.py\n+++ b/a.py\n@@ -1 +1 @@\n-see b.py:1:\n+/x/c.py\n",
        ["/w/a.py"],
    ),
    ("git diff --name-only main..HEAD", "a.py\nLICENSE\n", ["/w/a.py", "/w/LICENSE"]),
    ("git diff --name-status", "M\ta.py\nR100\tb.py\tc.py\n", ["/w/a.py", "/w/b.py", "/w/c.py"]),
    ("git show HEAD:src/a.py", "import b.py\n", ["/w/src/a.py"]),
    ("git commit -m 'fix a.py'", "[main 123] fix a.py\n create mode 100644 b.py\n", ["/w/b.py"]),
    ("git -C sub add x.py y.py", "", ["/w/sub/x.py", "/w/sub/y.py"]),
    ("git checkout -b fix/a.b && git log --oneline", "abc1234 change c.py\n", []),
    ("git ls-files --stage a.py", "100644 0123456789 0\ta.py\n", ["/w/a.py"]),
    ("git log origin/main..HEAD -- a.py", "", ["/w/a.py"]),
    ("git status --short", "no line of its own\n?? new/\n?? b.py\n", ["/w/b.py"]),
    ("git status --porcelain=v2", "# branch.head main\n? new/\n? b.py\n", ["/w/b.py"]),
    ("git ls-tree HEAD", "100644 blob 0123456789abcdef0123456789abcdef01234567\ta.py\n", ["/w/a.py"]),
    ("git ls-tree --name-only HEAD", "a.py\nsrc/b.py\n", ["/w/a.py", "/w/src/b.py"]),
]

OPERANDS = [
    ("cat a.py b.py", "c.py\n", ["/w/a.py", "/w/b.py"]),
    ("sed -n '1,20p' a.py", "", ["/w/a.py"]),
    ("sed -i '' 's/a/b/' a.py", "", ["/w/a.py"]),
    ("head -n 20 a.py", "", ["/w/a.py"]),
    ("cp a.py b.py; mv c.py dir/", "", ["/w/a.py", "/w/b.py", "/w/c.py", "/w/dir/c.py"]),
    ("rm -rf build dist a.py", "", ["/w/a.py"]),
    ("python3 -m pytest tests/test_a.py::test_b -q", "", ["/w/tests/test_a.py"]),
    ("python run.py --out=x.json", "", ["/w/run.py"]),
    ("python -c 'open(\"a.py\")'", "", []),
    ("./build.sh && bash scripts/x.sh", "", ["/w/build.sh", "/w/scripts/x.sh"]),
    ("/usr/bin/python3 a.py", "", ["/w/a.py"]),
    ("pip install foo==3.14 -r requirements.txt", "", ["/w/requirements.txt"]),
    ("curl -o out.json https://example.com/x.json", "", ["/w/out.json"]),
    ("npm install chart.js", "", []),
    ("go test ./pkg -run X -count=1", "    a_test.go:12: wrong\n", ["/w/pkg/a_test.go"]),
    ("echo hi > out.txt 2> /dev/null", "", ["/w/out.txt"]),
    ("cat < in.txt >> log.txt", "", ["/w/in.txt", "/w/log.txt"]),
    ("cat > a.ts <<'EOF'\nimport './b.ts'\nEOF", "", ["/w/a.ts"]),
    ("cat *.py $X ~/b.py $(ls).py", "", []),
    ("F=a.py; cat $F \"${F}\"", "", ["/w/a.py"]),
    ("for f in a.py b.py; do sed -n 1p src/$f; done", "", ["/w/a.py", "/w/b.py", "/w/src/a.py", "/w/src/b.py"]),
    ("sudo -u me env A=1 timeout 5 cat a.py", "", ["/w/a.py"]),
    ("bash -lc 'cd sub && cat a.py'", "", ["/w/sub/a.py"]),
    ("sed -e 's/a/b/' a.py", "", ["/w/a.py"]),
    ("grep -e foo a.py b.py", "", ["/w/a.py", "/w/b.py"]),
    ("awk -f prog.awk a.py", "", ["/w/prog.awk", "/w/a.py"]),
    ("grep -rn x . | cut -d: -f1", "./a.py\n", ["/w/a.py"]),
    ("/opt/tools/bin/x.py; /srv/app/run.sh", "", ["/opt/tools/bin/x.py", "/srv/app/run.sh"]),
    ("/usr/bin/tool", "", []),
    ("/ a.py", "", []),
    ("ls x.py |&cat a.py|cat b.py", "", ["/w/x.py", "/w/a.py", "/w/b.py"]),
    ("go run -o x.out main.go", "", ["/w/x.out", "/w/main.go"]),
    ("ffmpeg -ss 10 -i in.mp4 out.mp4", "", ["/w/in.mp4", "/w/out.mp4"]),
    ("time cat a.py; nohup cat b.py", "", ["/w/a.py", "/w/b.py"]),
    ("cat missing.py", "cat: missing.py: No such file or directory\n", []),
    ("wc -l *.py", "  10 a.py\n  12 total\n", ["/w/a.py"]),
    ("npx tsc", "src/a.ts(3,4): error TS1: no\n", ["/w/src/a.ts"]),
    ("python a.py", 'Oh:\n  File "/x/b.py", line 3, in <module>\n  File "<string>", line 1\n', ["/w/a.py", "/x/b.py"]),
    ("npm run fix", "see /w/package.json. and /etc/x.conf file:///w/a.ts?x=1\n", ["/w/package.json", "/w/a.ts"]),
    ("make", "v1.2.3 and/or text. https://a.b/c.tar.gz foo==3.14\n", []),
    ("apply_patch <<'E'\n*** Update File: a.py\n+x\n*** Add File: b.py\nE", "", ["/w/a.py", "/w/b.py"]),
    ("tree src", "src\n├── a\n│   └── b.py\n└── c.py\n", ["/w/src/a/b.py", "/w/src/c.py"]),
]  # fmt: skip


@pytest.mark.parametrize(("command", "output", "expected"), LS + FIND + GREP + GIT + OPERANDS)
@pytest.mark.requirement("DIS-1")
@pytest.mark.requirement("DIS-3")
def test_a_command_names_these_files_and_no_others(command: str, output: str, expected: list[str]):
    assert sorted(files(command, output)) == sorted(expected)


DOUBTFUL = [
    ("ls", "gradlew\nsrc\nLICENSE\n", ["/w/gradlew", "/w/src"]),
    ("ls bin", "tool\n", ["/w/bin", "/w/bin/tool"]),
    ("ls -F", "run*\ngradlew\nsrc/\n", []),
    ("ls -l", "lrwxrwxrwx 1 r r 4 Jan  2  2025 now -> then\n", ["/w/now"]),
    ("find . -name x", "./x\n./a.py\n", ["/w/x"]),
    ("find . -type d", "./x\n", []),
    ("cat notes && find .", "hello\n./bin/run\n", ["/w/bin/run"]),
    ("tree", "├── run\n└── a.py\n", ["/w/run"]),
    ("rg foo", "gradlew:12:foo\nhe said:3:foo\n", ["/w/gradlew"]),
    ("grep -rn foo src", "src/run:3:foo\n", ["/w/src"]),
    ("git add gradlew", "", ["/w/gradlew"]),
    ("git checkout main -- run", "", ["/w/run"]),
    ("git log --name-only --format=", "run\nsrc/a.py\n", ["/w/run"]),
    ("wc -l *", "  3 run\n  3 total\n", ["/w/run"]),
    ("du -a", "4\t./run\n", ["/w/run"]),
    ("bash gradlew", "", ["/w/gradlew"]),
    ("rm -rf build a.py", "", ["/w/build"]),
    ("cp gradlew bin", "", ["/w/gradlew", "/w/bin/gradlew", "/w/bin"]),
    ("cp a.py b", "", ["/w/b"]),
    ("./gradlew build && cat run", "", []),
    ("./bin/tool; node_modules/.bin/tsc", "", ["/w/bin/tool"]),
    ("[ -f run ] && [[ -e a.py ]]", "", ["/w/run"]),
    ("frob run bin/run", "", ["/w/bin/run"]),
    ("cat ~/x; ls ~", "x\n", []),
    ("npm run build; make test; cargo run; bun run test; go mod tidy; go env GOPATH", "", []),
    ("git checkout main; git push origin main; git branch run", "", []),
    ("git branch", "* main\n  run\n", []),
    ("git commit -F - -m run", "", []),
    ("echo run; which run; kill run", "run\n", []),
]


@pytest.mark.parametrize(("command", "output", "expected"), DOUBTFUL)
def test_a_name_that_may_be_a_directory_or_a_word_is_doubtful(command: str, output: str, expected: list[str]):
    assert sorted(doubtful(command, output)) == sorted(expected)


def test_a_name_is_certain_once_any_command_makes_it_so():
    assert files("ls && cat gradlew", "gradlew\n") == ["/w/gradlew"]
    assert doubtful("ls && cat gradlew", "gradlew\n") == []
    assert files("find . -type f", "./x\n./x\n") == ["/w/x"]


@pytest.mark.parametrize(
    ("command", "output"),
    [
        ("git diff --stat", " a.py | 2 +-\n"),
        ("git diff --name-only", "a.py\n"),
        ("git log --stat", " a.py | 2 +-\n"),
        ("git show", "+++ b/a.py\n"),
        ("git show HEAD:a.py", ""),
        ("git status --porcelain", " M a.py\n"),
        ("git commit -m x", " create mode 100644 a.py\n"),
        ("git rm -q x.py; git rm -r .", "rm 'a.py'\n"),
    ],
)
def test_names_from_the_top_of_a_work_tree_are_anchored_to_the_repository(command: str, output: str):
    (found,) = [one for one in candidates(f"cd sub && {command}", output, "/w").paths if one.path == "/w/sub/a.py"]
    assert (found.certain, found.anchor, found.base) == (True, "repository", "/w/sub")


@pytest.mark.parametrize(
    ("command", "output"),
    [
        ("git status --short", " M a.py\n"),
        ("git ls-files", "a.py\n"),
        ("git diff --relative --stat", " a.py | 2 +-\n"),
        ("git show HEAD:./a.py", ""),
        ("git add a.py", ""),
        ("cat a.py", ""),
    ],
)
def test_names_from_the_commands_directory_are_not_anchored(command: str, output: str):
    (found,) = candidates(f"cd sub && {command}", output, "/w").paths
    assert (found.path, found.anchor, found.base) == ("/w/sub/a.py", None, "")


def test_workspace_script_paths_are_relative_to_the_package_npm_reports():
    output = "> a@1 build\n> tsc\n\nsrc/x.ts(1,2): error\n> b@1 build\nsrc/y.ts(1,2): error\nnpm error path /w/b\n"
    assert files("npm run build", output) == ["/w/src/x.ts", "/w/b/src/y.ts"]
    assert files("npm test -w packages/a", "src/x.ts:1:2\n") == ["/w/packages/a/src/x.ts"]
    assert files("make -C sub", "x.c:1:2: error\n") == ["/w/sub/x.c"]
    assert files("npm test -w @scope/a", "src/x.ts:1:2\n") == ["/w/src/x.ts"]


@pytest.mark.parametrize(
    ("command", "cwd"),
    [
        ("ls", "/w"),
        ("cd a/../b && ls", "/w/b"),
        ("cd /x; cd y", "/x/y"),
        ("(cd a && ls)", "/w"),
        ("cd a | cat", "/w"),
        ("pushd a && popd", "/w"),
        ("bash -c 'cd a'", "/w"),
        ("cd $HOME", "/w"),
    ],
)
def test_the_directory_afterwards_is_the_shells_current_one(command: str, cwd: str):
    assert candidates(command, "", "/w").cwd == cwd


def test_a_relative_name_counts_for_nothing_once_the_directory_is_unknown():
    assert files("cd $X && cat a.py /b.py") == ["/b.py"]


def test_a_leading_pwd_corrects_the_directory_the_harness_recorded():
    found = candidates("pwd && ls", "/elsewhere\na.py\n", "/w")
    assert [candidate.path for candidate in found.paths] == ["/elsewhere/a.py"]
    assert found.cwd == "/elsewhere"


def test_known_text_cuts_an_output_of_several_commands():
    output = "x.py\n--- b ---\ny.py\n--- c ---\n12:see z.py\n"
    assert files("ls a && echo '--- b ---' && ls b; echo '--- c ---'; grep -n see w.py", output) == [
        "/w/w.py",
        "/w/a/x.py",
        "/w/b/y.py",
    ]


def test_a_mixed_output_counts_only_strict_lines():
    output = "some text about a.py\nimport c.py\n./src/b.py\n"
    assert files("cat notes.md && find . -name '*.py'", output) == ["/w/notes.md", "/w/src/b.py"]


@pytest.mark.parametrize(
    "output",
    [
        "Chunk ID: 1\nWall time: 0.0 seconds\nProcess exited with code 0\nOriginal token count: 9\nOutput:\n"
        "a.py\nb.py\n",
        'Command: /bin/zsh -lc "ls"\nChunk ID: 1\nWall time: 0.0 seconds\nOutput:\na.py\nb.py\n',
        "Exit code: 0\nWall time: 0.1 seconds\nOutput:\na.py\nb.py\n",
        '{"output":"a.py\\nb.py\\n","metadata":{"exit_code":0}}',
        "a.py\n\n... [123 lines truncated] ...\n\nb.py\n",
        "a.py\nxx.p…12 tokens truncated…x/yy.py\nb.py\n",
        "Exit code 1\na.py\nb.py\n",
        "a.py\nb.py\n\n\nCommand exited with code 1",
        "a.py\r\nb.py\r\n",
    ],
)
def test_harness_text_around_an_output_is_stripped(output: str):
    assert files("ls", output) == ["/w/a.py", "/w/b.py"]


def test_no_more_candidates_come_than_one_call_may_index():
    output = "".join(f"f{number}.py\n" for number in range(PATHS_MAX + 5))
    assert len(files("ls", output)) == PATHS_MAX


def test_certain_ones_go_before_doubtful_ones_where_there_are_too_many():
    output = "".join(f"d{number}\n" for number in range(PATHS_MAX + 5)) + "a.py\nb.py\n"
    found = candidates("ls", output, "/w").paths
    assert len(found) == PATHS_MAX
    assert [one.path for one in found if one.certain] == ["/w/a.py", "/w/b.py"]
    assert found[0].path == "/w/d0"


DOUBTFUL = [
    ("ls /w/gradlew", "/w/gradlew\n"),
    ("find /w", "/w\n/w/gradlew\n"),
    ("chmod +x /w/gradlew", ""),
    ("rg x /w/gradlew", "1:x\n"),
    ("git diff -- /w/gradlew", ""),
    ("stat /w/gradlew", ""),
    ("file /w/gradlew", "/w/gradlew: POSIX shell script\n"),
    ("./run /w/gradlew", ""),
]


@pytest.mark.parametrize(("command", "output"), DOUBTFUL, ids=[command for command, _ in DOUBTFUL])
def test_an_uncertain_absolute_name_is_a_plain_string_in_the_result(command: str, output: str) -> None:
    found = {candidate.path: candidate for candidate in candidates(command, output, "/x").paths}
    assert not found["/w/gradlew"].certain
    assert {type(path) for path in found} == {str}


SEARCH_TOOLS = [
    (
        'Grep {"pattern": "Powered by"}',
        "Found 2 files\ncmd/cli/session_test.go\nMakefile\n",
        ["cmd/cli/session_test.go", "Makefile"],
    ),
    (
        'Grep {"pattern": "x", "path": "/w/redact", "output_mode": "files_with_matches"}',
        "Found 1 file\nredact/run\n",
        ["redact/run"],
    ),
    ("Grep Powered", "Found 1 file\nhooks.go\n", ["hooks.go"]),
    ('Grep {"pattern": "fn main", "path": "."}', "src/main.rs:fn main() {\n", ["src/main.rs"]),
    (
        'Grep {"pattern": "slog", "path": "/w/cli", "output_mode": "content", "-C": 2}',
        "/w/cli/registry.go-162-\tslog.A(a: b)\ncli/registry.go:164:\tslog.Int()\n--\n/w/cli/b_test.go-17-const (\n",
        ["cli/registry.go", "cli/b_test.go"],
    ),
    (
        'Grep {"pattern": "func T", "path": "/w/a/logger_test.go", "output_mode": "content"}',
        "301:func TestLogging(t *testing.T) {\n302-\ttmpDir := t.TempDir()\n",
        ["a/logger_test.go"],
    ),
    (
        'Grep {"pattern": "x", "output_mode": "count"}',
        "a.py:3\nb.py:1\n\nFound 4 total occurrences across 2 files.\n",
        ["a.py", "b.py"],
    ),
    (
        'Glob {"pattern": "**/*"}',
        "/w/a.py\n/w/bin/run\n(Results are truncated. Consider a more specific path.)\n",
        ["a.py", "bin/run"],
    ),
    ("Glob **/*.json", "No files found", []),
    (
        'grep {"pattern": "x"}',
        "Found 2 matches\n/w/src/a.ts:\n  Line 12: x = 1\n\n/w/b.ts:\n  Line 1: x\n",
        ["src/a.ts", "b.ts"],
    ),
    (
        'LS {"path": "/w"}',
        "- /w/\n  - src/\n    - a.py\n  - README.md\n\nNOTE: do any of the files above seem malicious?\n",
        ["src/a.py", "README.md"],
    ),
]


@pytest.mark.requirement("DIS-5")
@pytest.mark.parametrize(("command", "output", "expected"), SEARCH_TOOLS)
def test_search_tools_of_harnesses_are_read(command: str, output: str, expected: list[str]) -> None:
    assert files(command, output) == [f"/w/{name}" for name in expected]


@pytest.mark.parametrize(
    ("command", "certain", "doubted"),
    [
        ("command -v a.py", [], []),
        ("command -V a.py", [], []),
        ("command cat a.py", ["/w/a.py"], []),
        ("printf 'a.py\\n' | xargs cat b.py", ["/w/b.py"], []),
        ("uv run pytest tests/a.py -q", ["/w/tests/a.py"], []),
        ("poetry run python a.py", ["/w/a.py"], []),
        ("uv pip install -r r.txt", ["/w/r.txt"], []),
        ("uv", [], []),
        ("npx", [], []),
        ("python -m json.tool a.json", ["/w/a.json"], []),
        ("python3 -m pytest", [], []),
        ("python -m http.server", [], []),
        ("python -m mod a.py b.py", ["/w/a.py", "/w/b.py"], []),
        ("python a.py b.py data", ["/w/a.py", "/w/b.py"], ["/w/data"]),
        ("tar -xf a.tar b", ["/w/a.tar"], ["/w/b"]),
        ("node --require x.js a.js", ["/w/a.js"], []),
        ("node -e 'x' a.js", [], []),
        ("node a.js run", ["/w/a.js"], ["/w/run"]),
        ("cp a.py b.py dir", ["/w/a.py", "/w/b.py", "/w/dir/a.py", "/w/dir/b.py"], []),
        ("cp a.py .", ["/w/a.py"], []),
        ("cp a.py ..", ["/a.py", "/w/a.py"], []),
        ("mv a.py b/", ["/w/a.py", "/w/b/a.py"], []),
        ("mv a.py b.py", ["/w/a.py", "/w/b.py"], ["/w/b.py/a.py"]),
        ("cp a.py b", ["/w/a.py", "/w/b/a.py"], ["/w/b"]),
        ("gsed -i s/a/b/ a.py", ["/w/a.py"], []),
        ("gsed -n 1p a.py b.py", ["/w/a.py", "/w/b.py"], []),
        ("sed -n -e 1p -f x.sed a.py", ["/w/a.py", "/w/x.sed"], []),
        ("gawk '{print}' a.py b.py", ["/w/a.py", "/w/b.py"], []),
        ("gawk -F: '{print}' a.py", ["/w/a.py"], []),
        ("make -f build.mk a.py", ["/w/build.mk"], []),
        ("wget -O x.bin b.bin", ["/w/x.bin"], []),
        ("curl -o x.json b.json", ["/w/x.json"], []),
        ("docker -f D.yml up x.py", ["/w/D.yml"], []),
        ("kubectl apply -f k.yml x.py", ["/w/k.yml"], []),
        ("bash -c 'cat a.py' b.py", ["/w/a.py"], []),
        ("time -p cat a.py", ["/w/a.py"], []),
        ("nice -n 5 cat a.py", ["/w/a.py"], []),
        ("env -u X A=1 cat a.py", ["/w/a.py"], []),
        ("timeout -k 1 5 cat a.py", ["/w/a.py"], []),
        ("stdbuf -oL cat a.py", ["/w/a.py"], []),
        ("sudo -E cat a.py", ["/w/a.py"], []),
        ("cat -- -a.py", ["/w/-a.py"], []),
        ("? a.py", [], []),
        ("ssh host cat a.py", [], []),
        (".venv/bin/pytest t/a.py", ["/w/t/a.py"], []),
        ("bin/run a.py", ["/w/a.py", "/w/bin/run"], []),
        ("sub/bin/tool", [], ["/w/sub/bin/tool"]),
        ("/w/bin/tool", [], []),
        ("/srv/app/run", ["/srv/app/run"], []),
    ],
)
@pytest.mark.requirement("DIS-1")
def test_operands_of_a_program_are_distinguished_from_its_options(command: str, certain: list[str], doubted: list[str]):
    found = candidates(command, "", "/w").paths
    assert sorted(one.path for one in found if one.certain) == certain
    assert sorted(one.path for one in found if not one.certain) == doubted


@pytest.mark.parametrize(
    ("command", "output"),
    [
        ("cat a.py", '{"output": "x", "other": ' + "[" * 100_000 + "]" * 100_000 + "}"),
        ('["cat", ' + "[" * 100_000 + "]" * 100_000 + "]", "x"),
        ('Grep({"pattern": ' + "[" * 100_000 + "]" * 100_000 + "})", "x"),
    ],
)
def test_deeply_nested_json_is_text(command: str, output: str) -> None:
    assert set(files(command, output)) <= {"/w/a.py"}
