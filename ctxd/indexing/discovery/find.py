"""What ``find`` and ``fd`` print: one path a line, below the directories they start from."""

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from ctxd.indexing.discovery.emission import PROSE, SILENT, Emission, Form, by_line
from ctxd.indexing.discovery.invocation import Arg, Invocation, split
from ctxd.indexing.discovery.ls import LONG
from ctxd.indexing.discovery.paths import Maybe, guessed

_FD_VALUES = frozenset(
    "-e -E -d -t -x -X -c -j -S -o --extension --exclude --max-depth --min-depth --type --exec --color".split()
)

_EXECUTES = ("-exec", "-execdir", "-ok")
_NAMING = frozenset(
    "ls grep egrep fgrep zgrep ggrep rg wc head tail du file md5sum sha1sum sha256sum sha512sum shasum b3sum".split()
)
_SEARCHES = frozenset("grep egrep fgrep zgrep ggrep rg".split())
_DIRECTIVE = re.compile(r"%[-+ 0#]{0,3}\d{0,3}(?:\.\d{1,3})?([ABCT]?[A-Za-z@%])|\\([nt0\\])|([^%\\]+)")
_DIRECTIVES_MAX = 12
_VALUES = {
    "%": "%",
    "y": "(?P<kind>[A-Za-z?])",
    "M": r"[-\w]{10}",
    **dict.fromkeys("tac", r"\w{3} \w{3} {1,2}\d{1,2} [\d:.]{8,20} \d{4}"),
}
_IN_VALUE = re.compile(r"[\w.+]")
_ONE_LINE = re.compile(r"(?:[^\\]|\\[^n0])*\\[n0]")
_LS_LINE = re.compile(r"\s{0,20}\d{1,20}\s{1,20}\d{1,20}\s{1,20}(?=[-l])")
_ESCAPED = re.compile(r"\\(.)")

Runs = Callable[[Invocation, str | None], Emission]
"""What another command prints."""


def starts(args: Sequence[Arg]) -> tuple[list[Arg], Sequence[Arg]]:
    """The directories ``find`` starts from, and the expression behind them."""
    index = 0
    while index < len(args) and args[index].text in ("-L", "-H", "-P", "-E", "-X", "-O3", "-O2", "-O1"):
        index += 1
    first = index
    while index < len(args) and not args[index].text.startswith(("-", "(", "!", ")")):
        index += 1
    return list(args[first:index]), args[index:]


def emission(invocation: Invocation, cwd: str | None, runs: Runs) -> Emission:
    """The form of this ``find``; that of the command it runs, by ``runs``, if that names its files."""
    roots, expression = starts(invocation.args)
    words = [arg.text for arg in expression]
    if "-delete" in words or "-quit" in words and "-print" not in words and not roots:
        return SILENT
    if "-fprint" in words:
        return PROSE
    if any(not root.known for root in roots):
        return PROSE
    prefixes = tuple(_prefix(root) for root in roots) or ("./",)
    search = _Search(prefixes, _only_files(words), _only_directories(words))
    if set(_EXECUTES) & set(words):
        return _executed(expression, words, search, cwd, runs)
    if "-ls" in words:
        return by_line("find", cwd, search.listed)
    if "-printf" in words:
        formatted = _formatted(words[words.index("-printf") + 1 :][:1], search)
        return PROSE if formatted is None else by_line("find", cwd, formatted.line)
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


def _formatted(given: Sequence[str], search: "_Search") -> "_Formatted | None":
    """``-printf``, if each of its lines has one path and ends behind it or behind known text."""
    text = given[0] if given else ""
    pattern, path, open_ended = "", "", False
    for number, found in enumerate(_DIRECTIVE.finditer(text)):
        directive, escape, literal = found.groups()
        if number >= _DIRECTIVES_MAX or (open_ended and (directive or _IN_VALUE.match(literal or ""))):
            return None  # nobody can tell where one value ends, or it would take for ever
        open_ended = directive is not None and directive not in ("%", "y", "M")
        if directive in ("p", "P"):
            if path:
                return None
            path = directive
            pattern += "(?P<path>.{1,4096})"
        elif directive is not None:
            pattern += _VALUES.get(directive, r" {0,20}[\w.+]{1,40}")
        elif escape is not None:
            pattern += {"n": "", "0": "", "t": "\t", "\\": r"\\"}[escape]
        else:
            pattern += re.escape(literal)
    if not path or not _ONE_LINE.fullmatch(text) or pattern.count("(?P<kind>") > 1:
        return None
    if path == "P" and len(search.prefixes) != 1:
        return None
    return _Formatted(search, re.compile(pattern + "$"), search.prefixes[0] if path == "P" else "")


def _executed(
    expression: Sequence[Arg], words: Sequence[str], search: "_Search", cwd: str | None, runs: Runs
) -> Emission:
    """``-exec``: names come only from commands that print them, and from ``-print``."""
    at = next(index for index, word in enumerate(words) if word in _EXECUTES)
    if words[at + 1 : at + 2] == ["echo"] and any("{}" in word for word in words[at + 2 : at + 3]):
        before, _, behind = words[at + 2].partition("{}")
        return by_line("find", cwd, _Headed(search, before, behind).line)
    program = words[at + 1 : at + 2]
    if program and program[0].rpartition("/")[2] in _NAMING and words[at] != "-execdir":
        end = next((index for index in range(at, len(words)) if words[index] in (";", "+")), len(words))
        args = tuple(arg for arg in expression[at + 2 : end] if arg.text != "{}")
        name = program[0].rpartition("/")[2]
        together = words[end : end + 1] == ["+"]
        return runs(Invocation(name, program[0], args, fed=together or name not in _SEARCHES), cwd)
    run = words[at + 1 : at + 3]
    prints_names = bool(run) and (
        (run[0].endswith("grep") and any(word.startswith("-") and "l" in word for word in run[1:])) or "-print" in words
    )
    if not prints_names:
        return PROSE
    return by_line("find", cwd, search.line)


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
        before = ""
        for line in (*lines, ""):
            if f"{before}/" in prefixes and not line.startswith(f"{before}/"):
                yield guessed(before)  # `find` was started from a file, or from an empty directory.
            before = line
            if line.startswith(prefixes) and not _is_complaint(line):
                yield line if only_files else guessed(line)

    def listed(self, line: str) -> str | None:
        """A line of ``-ls``."""
        inode = _LS_LINE.match(line)
        long = LONG.match(line, inode.end()) if inode is not None and len(line) <= 8192 else None
        if long is None:
            return None
        kind, name = long.groups()
        name = _ESCAPED.sub(r"\1", name.partition(" -> ")[0] if kind == "l" else name)
        return name if kind == "-" else Maybe(name)

    def line(self, line: str) -> str | None:
        if self.only_directories or not line.startswith(self.prefixes):
            return None
        if "" in self.prefixes and "/" not in line:
            return None
        return None if " " in line or ":" in line else guessed(line)


@dataclass(frozen=True, slots=True)
class _Formatted:
    """Paths that ``-printf`` put among other things. ``root`` goes before each."""

    search: _Search
    pattern: re.Pattern[str]
    root: str

    def line(self, line: str) -> str | None:
        if self.search.only_directories or len(line) > 8192:
            return None
        found = self.pattern.match(line)
        if found is None or found.groupdict().get("kind") == "d":
            return None
        path = self.root + found["path"]
        if not path.startswith(self.search.prefixes):
            return None
        return path if self.search.only_files or found.groupdict().get("kind") == "f" else guessed(path)


@dataclass(frozen=True, slots=True)
class _Headed:
    """Paths that ``-exec echo "== {} =="`` frames."""

    search: _Search
    before: str
    behind: str

    def line(self, line: str) -> str | None:
        if not line.startswith(self.before) or not line.endswith(self.behind):
            return None
        return self.search.line(line[len(self.before) : len(line) - len(self.behind) or None])


def _is_complaint(line: str) -> bool:
    return line.endswith(
        ("Permission denied", "No such file or directory", "Operation not permitted", "Not a directory")
    )
