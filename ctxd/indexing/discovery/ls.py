"""What ``ls`` prints: plain names, long lines, headings of several directories, ``-R``, ``-F``, colours."""

import re
from collections.abc import Iterator, Sequence

from ctxd.indexing.discovery.emission import PROSE, Emission, Form
from ctxd.indexing.discovery.invocation import Arg, Invocation, split
from ctxd.indexing.discovery.paths import Maybe, guessed, looks_like_file

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


def emission(invocation: Invocation, cwd: str | None) -> Emission:
    """The form of this ``ls``."""
    options, _, operands = split(invocation.args, _WITH_VALUE)
    listing = _Listing(options, operands, fed=invocation.fed)
    long = "-l" in options
    return (
        Form("ls", cwd, listing.whole, listing.line, listing.begins if long else None, bare=not long)
        if listing.readable
        else PROSE
    )


def operand_files(invocation: Invocation, lines: Sequence[str]) -> Iterator[str]:
    """The operands that name files. ``ls`` shows by echoing an operand that it is no directory."""
    options, _, operands = split(invocation.args, _WITH_VALUE)
    for arg in operands:
        if not arg.known or arg.glob:
            continue
        if not arg.text.endswith(("/", "/.")):
            yield guessed(arg.text)


class _Listing:
    """The reading of one run's lines. Holds what its options promise about them."""

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
        """The names of a line: a terminal has them in columns."""
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
        """The file a line names. ``sure``: only of long lines, for nothing else tells a name from prose."""
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
            return name if looks_like_file(name) or looks_like_file(target) else Maybe(name)
        if kind != "-":
            return None
        return name[:-1] if self.classified and name[-1] == "*" else name

    def _plain(self, name: str) -> str | None:
        if self.slashed and name[-1] == "/":
            return None
        if self.classified and name[-1] in "*@=|":
            executable = name[-1] == "*"
            name = name[:-1]
            if executable and name:
                return name
        elif self.classified and " " not in name:
            return name
        if name in self.named:
            return guessed(name)
        if name[0] in "'\"" and name[-1] == name[0] and len(name) > 2:
            name = name[1:-1]
        return guessed(name)


def _below(base: str, name: str) -> str:
    return Maybe(f"{base}/{name}") if type(name) is Maybe else f"{base}/{name}"
