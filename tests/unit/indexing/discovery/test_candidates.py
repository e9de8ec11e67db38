"""Which files a command and its output speak of, command by command."""

from ctxd.indexing.discovery.candidates import candidates


def files(command: str, output: str = "", cwd: str = "/w") -> list[str]:
    return [candidate.path for candidate in candidates(command, output, cwd).paths]


def test_a_long_listing_gives_its_regular_files_and_nothing_else():
    output = (
        "total 8\ndrwxr-xr-x  2 root staff 64 Jan  2 12:33 .\n-rw-r--r--@ 1 root staff 12 Jan  2 12:33 my file.txt\n"
        "-rwxr-xr-x 1 root root 1.2K 2026-01-02 12:33 tool\nlrwxrwxrwx 1 r r 4 Jan  2  2025 a.md -> b.md\n"
    )
    assert files("ls -la src", output) == ["/w/src/my file.txt", "/w/src/tool", "/w/src/a.md"]


def test_a_find_gives_paths_below_where_it_started():
    output = "./a.py\n./b/c.py\nfind: './x': Permission denied\n"
    assert files("cd x && find . -name '*.py' | head", output) == ["/w/x/a.py", "/w/x/b/c.py"]


def test_a_recursive_grep_gives_the_files_of_its_matches():
    output = "src/a.py:12: hi\nsrc/b.py-33-context\n--\nBinary file src/x.bin matches\n"
    assert files("grep -rn -C1 foo src", output) == ["/w/src/a.py", "/w/src/b.py", "/w/src/x.bin"]


def test_a_grep_on_one_file_gives_the_operand_only():
    assert files("grep -n foo src/a.py | head -3", "12:import x.py\n13: y") == ["/w/src/a.py"]


def test_what_a_file_contains_is_not_read_for_names():
    assert files("cat a.py", "import b.py\nsrc/c.py:3: x\n") == ["/w/a.py"]
