"""Names in the output of ``ls``, ``find`` and ``fd``."""

import re
from collections.abc import Callable, Iterator, Sequence

import msgspec

from ctxd.indexing.shell.command_arguments import Arg, ResolvedCommand, split
from ctxd.indexing.shell.output_format_types import PROSE, SILENT, Emission, Form, by_line
from ctxd.indexing.shell.paths import PossiblePath, guessed, looks_like_file

_WITH_VALUE = frozenset(("-I", "-w", "-T", "--ignore", "--hide", "--width", "--time-style", "--sort", "--block-size"))
LONG = re.compile(
    r"([-dlbcpsD])[-rwxsStTl]{9}[@+.]?\s{1,20}\d{1,10}\s{1,40}"  # mode, links
    r"(?:[^\s:]{1,64}\s{1,40}){1,3}?"  # owner, group
    r"(?:\d[\d.,]{0,20}[KMGTPB]?)(?:,\s{1,10}\d{1,10})?\s{1,20}"  # size, or device numbers
    r"(?:(?:[^\W\d_]{1,9}\.?\s{1,3}\d{1,2}|\d{1,2}\.?\s{1,3}[^\W\d_]{1,9}\.?|\d{1,2}\s{1,3}\d{1,2})"
    r"\s{1,3}(?:\d{1,2}:\d\d(?::\d\d \d{4})?|\d{4})"
    r"|\d{4}-\d\d-\d\d\s\d\d:\d\d(?::\d\d(?:\.\d{1,9})?)?(?:\s[+-]\d{4})?|\d\d-\d\d\s\d\d:\d\d)\s"
    r"(.+)"
)
_COLUMNS = re.compile(r"\t+ *|  +")
_COMMAS = re.compile(r", *")
_TOTAL = re.compile(r"total \d[\d.,]{0,20}[KMGTP]?i?$")


def ls_format(invocation: ResolvedCommand, cwd: str | None) -> Emission:
    """The form of this ``ls``."""
    options, _, operands = split(invocation.args, _WITH_VALUE)
    listing = _Listing(options, operands, fed=invocation.fed)
    long = "-l" in options
    return (
        Form("ls", cwd, listing.whole, listing.line, listing.begins if long else None, bare=not long)
        if listing.readable
        else PROSE
    )


def ls_operands(invocation: ResolvedCommand) -> Iterator[str]:
    """The operands that are files. ``ls`` echoes an operand that is not a directory."""
    options, _, operands = split(invocation.args, _WITH_VALUE)
    for arg in operands:
        if not arg.known or arg.glob:
            continue
        if not arg.text.endswith(("/", "/.")):
            yield guessed(arg.text)


class _Listing:
    """Reader of one run's lines, by its options."""

    def __init__(self, options: list[str], operands: list[Arg], *, fed: bool) -> None:
        self.classified = "-F" in options or "--classify" in options
        self.slashed = self.classified or "-p" in options
        self.recursive = "-R" in options or "--recursive" in options
        self.commas = "-m" in options
        self.inode = "-i" in options or "-s" in options
        named = [arg.text for arg in operands if arg.known and not arg.glob]
        self.own_names = "-d" in options or fed or any(arg.glob for arg in operands)
        self.headed = self.recursive or self.own_names or len(operands) > 1
        self.named = frozenset(named)
        self.readable = len(named) == len(operands) or self.own_names
        self.base = named[0] if len(operands) == 1 and named and not self.own_names else ""

    def begins(self, line: str) -> bool:
        return _TOTAL.match(line) is not None

    def whole(self, lines: Sequence[str]) -> Iterator[str]:
        base, fresh = self.base, True
        for line in lines:
            if not line:
                fresh = True
                continue
            if line[-1] == ":" and (fresh or self.recursive) and self._is_heading(line[:-1]):
                base, fresh = line[:-1], False
                continue
            fresh = False
            for part in self._parts(line):
                name = self._name(part, sure=False) if part else None
                if name is None:
                    continue
                if name in self.named or name[0] == "/" or not base:
                    yield name
                else:
                    yield _below(base, name)

    def _parts(self, line: str) -> Sequence[str]:
        """The names in a line: on a terminal they are in columns."""
        if self.commas:
            return _COMMAS.split(line)
        columns = ("\t" in line or "  " in line) and not self.inode and not LONG.match(line) and line[0] != " "
        return _COLUMNS.split(line) if columns else (line,)

    def line(self, line: str) -> str | None:
        if self.headed:
            return None
        name = self._name(line, sure=True)
        if name is None or name in self.named or name[0] == "/" or not self.base:
            return name
        return _below(self.base, name)

    def _is_heading(self, name: str) -> bool:
        if not self.headed:
            return name == self.base
        return self.own_names or name in self.named or self.recursive

    def _name(self, line: str, *, sure: bool) -> str | None:
        """The file named in a line. ``sure``: only in long format, because other names look like prose."""
        long = LONG.match(line) if len(line) > 30 and line[0] in "-lbcpdsD" else None
        if long is not None:
            return self._long(long.group(1), long.group(2))
        if sure or line[0] in " \t" and not self.inode or _TOTAL.match(line):
            return None
        if self.inode:
            line = line.lstrip().partition(" ")[2].lstrip() or line
        if line.startswith(("ls: ", "gls: ")) or ": No such file" in line:
            return None
        return self._plain(line)

    def _long(self, kind: str, name: str) -> str | None:
        if kind == "l":
            name, _, target = name.partition(" -> ")
            return name if looks_like_file(name) or looks_like_file(target) else PossiblePath(name)
        if kind != "-":
            return None
        return name[:-1] if self.classified and name[-1] == "*" else name

    def _plain(self, name: str) -> str | None:
        if self.slashed and name[-1] == "/":
            return None
        if self.classified and name[-1] in "*@=|":
            executable = name[-1] == "*"
            name = name[:-1]
            if not name:
                return None
            if executable:
                return name
        elif self.classified and " " not in name:
            return name
        if name in self.named:
            return guessed(name)
        if name[0] in "'\"" and name[-1] == name[0] and len(name) > 2:
            name = name[1:-1]
        return guessed(name)


def _below(base: str, name: str) -> str:
    return PossiblePath(f"{base}/{name}") if type(name) is PossiblePath else f"{base}/{name}"


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

Runs = Callable[[ResolvedCommand, str | None], Emission]
"""Returns the output format of another command."""


def starts(args: Sequence[Arg]) -> tuple[list[Arg], Sequence[Arg]]:
    """The directories that ``find`` starts from, and the expression after them."""
    index = 0
    while index < len(args) and args[index].text in ("-L", "-H", "-P", "-E", "-X", "-O3", "-O2", "-O1"):
        index += 1
    first = index
    while index < len(args) and not args[index].text.startswith(("-", "(", "!", ")")):
        index += 1
    return list(args[first:index]), args[index:]


def find_format(invocation: ResolvedCommand, cwd: str | None, runs: Runs) -> Emission:
    """The form of this ``find``, or that of the command it runs, from ``runs``, if that prints file names."""
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


def fd_format(invocation: ResolvedCommand, cwd: str | None) -> Emission:
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
    """``-printf``, if each of its lines has one path and ends with it or with known text."""
    text = given[0] if given else ""
    pattern, path, open_ended = "", "", False
    for number, found in enumerate(_DIRECTIVE.finditer(text)):
        directive, escape, literal = found.groups()
        if number >= _DIRECTIVES_MAX or (open_ended and (directive or _IN_VALUE.match(literal or ""))):
            return None  # the end of a value is ambiguous, or matching would take too long
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
        return runs(ResolvedCommand(name, program[0], args, fed=together or name not in _SEARCHES), cwd)
    run = words[at + 1 : at + 3]
    prints_names = bool(run) and (
        (run[0].endswith("grep") and any(word.startswith("-") and "l" in word for word in run[1:])) or "-print" in words
    )
    if not prints_names:
        return PROSE
    return by_line("find", cwd, search.line)


class _Search(msgspec.Struct, frozen=True):
    """Prefixes of the paths, and their kinds by the expression."""

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
                yield guessed(before)  # `find` started from a file, or an empty directory.
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
        return name if kind == "-" else PossiblePath(name)

    def line(self, line: str) -> str | None:
        if self.only_directories or not line.startswith(self.prefixes):
            return None
        if "" in self.prefixes and "/" not in line:
            return None
        return None if " " in line or ":" in line else guessed(line)


class _Formatted(msgspec.Struct, frozen=True):
    """Paths that ``-printf`` printed among other text. ``root`` is prepended to each."""

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


class _Headed(msgspec.Struct, frozen=True):
    """Paths framed by ``-exec echo "== {} =="``."""

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
