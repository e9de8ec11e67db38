"""What ``find`` and ``fd`` print: one path a line, below the directories they start from."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ctxd.indexing.discovery.emission import PROSE, SILENT, Emission, Form
from ctxd.indexing.discovery.invocation import Arg, Invocation, split
from ctxd.indexing.discovery.paths import guessed

_FD_VALUES = frozenset(
    "-e -E -d -t -x -X -c -j -S -o --extension --exclude --max-depth --min-depth --type --exec --color".split()
)


def starts(args: Sequence[Arg]) -> tuple[list[Arg], Sequence[Arg]]:
    """The directories ``find`` starts from, and the expression behind them."""
    index = 0
    while index < len(args) and args[index].text in ("-L", "-H", "-P", "-E", "-X", "-O3", "-O2", "-O1"):
        index += 1
    first = index
    while index < len(args) and not args[index].text.startswith(("-", "(", "!", ")")):
        index += 1
    return list(args[first:index]), args[index:]


def emission(invocation: Invocation, cwd: str | None) -> Emission:
    """The form of this ``find``; its text if it runs another command or formats by itself."""
    roots, expression = starts(invocation.args)
    words = [arg.text for arg in expression]
    if "-delete" in words or "-quit" in words and "-print" not in words and not roots:
        return SILENT
    if "-ls" in words or "-printf" in words or "-fprint" in words:
        return PROSE
    if any(not root.known for root in roots):
        return PROSE
    prefixes = tuple(_prefix(root) for root in roots) or ("./",)
    search = _Search(prefixes, _only_files(words), _only_directories(words))
    if {"-exec", "-execdir", "-ok"} & set(words):
        return _executed(words, search, cwd)
    return Form("find", cwd, search.whole, search.line)


def fd_emission(invocation: Invocation, cwd: str | None) -> Emission:
    """The form of ``fd`` and ``fdfind``."""
    options, values, operands = split(invocation.args, _FD_VALUES)
    if {"-x", "-X", "--exec", "-l"} & set(options):
        return PROSE
    kind = values.get("-t") or values.get("--type")
    prefixes = tuple(_prefix(root) for root in operands[1:]) or ("",)
    search = _Search(
        prefixes, kind is not None and kind.text in ("f", "file"), kind is not None and kind.text in ("d", "directory")
    )
    return Form("find", cwd, search.whole, search.line)


def _prefix(root: Arg) -> str:
    text = root.text
    if root.glob:
        cut = min((text.find(char) for char in "*?[" if char in text), default=len(text))
        return text[:cut]
    return text if text.endswith("/") else text + "/"


def _only_files(words: Sequence[str]) -> bool:
    return any(
        word == "-type" and following.startswith("f") for word, following in zip(words, words[1:], strict=False)
    ) and ("-o" not in words and "-or" not in words)


def _only_directories(words: Sequence[str]) -> bool:
    kinds = [following for word, following in zip(words, words[1:], strict=False) if word == "-type"]
    return bool(kinds) and all(kind == "d" for kind in kinds)


def _executed(words: Sequence[str], search: "_Search", cwd: str | None) -> Emission:
    """``-exec``: names come only from commands that print them, and from ``-print``."""
    at = next(index for index, word in enumerate(words) if word in ("-exec", "-execdir", "-ok"))
    if words[at + 1 : at + 2] == ["echo"] and any("{}" in word for word in words[at + 2 : at + 3]):
        before, _, behind = words[at + 2].partition("{}")
        headed = _Headed(search, before, behind)
        return Form("find", cwd, headed.whole, headed.line)
    run = words[at + 1 : at + 3]
    prints_names = bool(run) and (
        (run[0].endswith("grep") and any(word.startswith("-") and "l" in word for word in run[1:])) or "-print" in words
    )
    if not prints_names:
        return PROSE
    return Form("find", cwd, search.strictly, search.line)


@dataclass(frozen=True, slots=True)
class _Search:
    """Where the paths may lie, and what the expression promises about them."""

    prefixes: tuple[str, ...]
    only_files: bool
    only_directories: bool

    def whole(self, lines: Sequence[str]) -> Iterator[str]:
        if self.only_directories:
            return
        prefixes, only_files = self.prefixes, self.only_files
        for line in lines:
            if line.startswith(prefixes) and not _is_complaint(line):
                yield line if only_files else guessed(line)

    def strictly(self, lines: Sequence[str]) -> Iterator[str]:
        for line in lines:
            name = self.line(line)
            if name is not None:
                yield name

    def line(self, line: str) -> str | None:
        if self.only_directories or not line.startswith(self.prefixes):
            return None
        if "" in self.prefixes and "/" not in line:
            return None
        return None if " " in line or ":" in line else guessed(line)


@dataclass(frozen=True, slots=True)
class _Headed:
    """Paths that ``-exec echo "== {} =="`` frames."""

    search: _Search
    before: str
    behind: str

    def whole(self, lines: Sequence[str]) -> Iterator[str]:
        for line in lines:
            name = self.line(line)
            if name is not None:
                yield name

    def line(self, line: str) -> str | None:
        if not line.startswith(self.before) or not line.endswith(self.behind):
            return None
        return self.search.line(line[len(self.before) : len(line) - len(self.behind) or None])


def _is_complaint(line: str) -> bool:
    return line.endswith(
        ("Permission denied", "No such file or directory", "Operation not permitted", "Not a directory")
    )
