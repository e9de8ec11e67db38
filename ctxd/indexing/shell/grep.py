"""Names in the output of ``grep``, ``rg``, ``ag`` and ``git grep``: matches, counts, lists."""

import re
from collections.abc import Iterator, Sequence

import msgspec

from ctxd.indexing.shell.command_arguments import Arg, ResolvedCommand, split
from ctxd.indexing.shell.output_format_types import PROSE, SILENT, Emission, Form
from ctxd.indexing.shell.paths import PATH_CHARS_MAX, guessed, looks_like_file

GREP_VALUES = frozenset(
    "-e -f -A -B -C -m -d -D --regexp --file --include --exclude --exclude-dir --after-context"
    " --before-context --context"
    " --max-count --color --colour --binary-files --label".split()
)
RG_VALUES = frozenset(
    "-e -f -A -B -C -m -g -t -T -d -j -M -r -E --regexp --file --glob --iglob --type --type-not"
    " --max-depth --threads --max-columns"
    " --replace --encoding --after-context --before-context --context --max-count --color --colors"
    " --sort --sortr --max-filesize"
    " --type-add --pre --engine --context-separator".split()
)
GREPS = frozenset(("grep", "egrep", "fgrep", "zgrep", "ggrep"))
RIPGREPS = frozenset(("rg", "ag", "ack", "ugrep"))

_NUMBERED = re.compile(r"([^\0\t:]{1,512}):\d{1,9}:")
_NUMBERED_CONTEXT = re.compile(r"([^\0\t:]{1,512}?)-\d{1,9}-")
_COUNT = re.compile(r"([^\0\t:]{1,512}):\d{1,9}(?::\d{1,9}:)?$")
_BINARY = re.compile(
    r"(?:grep: |rg: )?(?:Binary file )?([^\0\t]{1,512}?)(?:: binary file)? matches(?: \(found .{1,60}\))?$"
)
_ONLY_NUMBER = re.compile(r"\d{1,9}[:-]")


class Search(msgspec.Struct, frozen=True):
    """A parsed search command. ``targets`` are its files and directories, without the pattern."""

    options: frozenset[str]
    targets: tuple[Arg, ...]
    recursive: bool
    ripgrep: bool
    fed: bool

    @property
    def lists_names(self) -> bool:
        """True if the output lists names only: ``-l``, ``--files`` and similar options."""
        return bool(
            self.options & {"-l", "-L", "--files-with-matches", "--files-without-match", "--files", "--name-only"}
        )

    @property
    def names_shown(self) -> bool:
        """True if lines contain the name of their file."""
        if self.options & {"-h", "--no-filename"} or ("-I" in self.options and self.ripgrep):
            return False
        if self.options & {"-H", "--with-filename"} or self.fed or self.recursive or len(self.targets) > 1:
            return not self._one_file
        return any(arg.glob for arg in self.targets)

    @property
    def _one_file(self) -> bool:
        if not self.ripgrep or self.fed or len(self.targets) != 1 or self.options & {"-H", "--with-filename"}:
            return False
        return not self.targets[0].glob and looks_like_file(self.targets[0].text)


def search(invocation: ResolvedCommand) -> Search:
    """Parse a ``grep`` or ``rg``."""
    ripgrep = invocation.program in RIPGREPS
    options, values, operands = split(invocation.args, RG_VALUES if ripgrep else GREP_VALUES)
    given = set(options)
    has_pattern = bool({"-e", "-f", "--regexp", "--file"} & set(values))
    lists_all = ripgrep and bool(given & {"--files", "--type-list", "--version"})
    targets = operands if has_pattern or lists_all else operands[1:]
    recursive = ripgrep or bool(given & {"-r", "-R", "--recursive", "--dereference-recursive"})
    return Search(frozenset(given), tuple(targets), recursive, ripgrep, invocation.fed)


def is_filter(invocation: ResolvedCommand) -> bool:
    """True for a ``grep`` that filters its input, printing lines unchanged or numbered."""
    found = search(invocation)
    if (
        invocation.program not in GREPS | RIPGREPS
        or found.targets
        or found.fed
        or found.options & {"-r", "-R", "--files"}
    ):
        return False
    return not found.options & {
        "-o",
        "-c",
        "-l",
        "-q",
        "-L",
        "--count",
        "--only-matching",
        "--quiet",
        "-b",
        "-r",
        "--replace",
    }


def target_files(invocation: ResolvedCommand) -> Iterator[str]:
    """The targets that are files: all of a plain ``grep``; of a recursive one, some are a `PossiblePath`."""
    found = search(invocation)
    for arg in found.targets:
        if arg.known and not arg.glob and arg.text != "-":
            yield guessed(arg.text) if found.recursive else arg.text


def emission(invocation: ResolvedCommand, cwd: str | None) -> Emission:
    """The form of this search."""
    return search_emission(search(invocation), cwd, "grep")


def search_emission(found: Search, cwd: str | None, command: str) -> Emission:
    """The form of a parsed search, also that of `git grep`."""
    options = found.options
    if options & {"-q", "--quiet", "--silent"}:
        return SILENT
    if options & {"--version", "--help", "--type-list", "--json"}:
        return PROSE
    numbered = bool(options & {"-n", "--line-number", "--vimgrep", "--column", "-p", "--pretty"})
    reading = SearchReading(
        prefixes=_prefixes(found),
        names=found.names_shown,
        lists=found.lists_names,
        counts=bool(options & {"-c", "--count", "--count-matches"}),
        numbered=numbered,
        headings=found.ripgrep or "--heading" in options,
        headed="--heading" in options and not numbered,
    )
    if not (reading.names or reading.lists):
        return PROSE
    return Form(command, cwd, reading.whole, reading.line)


def _prefixes(found: Search) -> tuple[str, ...] | None:
    """The prefixes of the names in the output; None if they are unknown."""
    if found.fed or not found.targets:
        return None
    prefixes: list[str] = []
    for arg in found.targets:
        text = arg.text
        if not arg.known:
            return None
        cut = min((text.find(char) for char in "*?[{" if char in text), default=len(text)) if arg.glob else len(text)
        if not cut:
            return None
        prefixes.append(text[:cut])
    return tuple(prefixes)


class SearchReading(msgspec.Struct, frozen=True):
    """Reader of the output lines, by the options."""

    prefixes: tuple[str, ...] | None
    names: bool
    lists: bool
    counts: bool
    numbered: bool
    headings: bool
    headed: bool

    def whole(self, lines: Sequence[str]) -> Iterator[str]:
        if self.headed and not self.lists:
            yield from self._headings(lines)
            return
        last = ""
        heading = ""
        for line in lines:
            if last and line.startswith(last):
                continue  # the same file again, by its name and the separator after it
            name = self._listed(line) if self.lists else self._named(line)
            if name is not None:
                last = line[: len(name) + 1] if not self.lists else ""
                heading = ""
                yield name
            elif heading and _ONLY_NUMBER.match(line):
                yield guessed(heading)
                heading = ""
            else:
                heading = line if self.headings and self._is_path(line) and _is_likely(line) else ""

    def _headings(self, lines: Sequence[str]) -> Iterator[str]:
        """Names above matches without numbers: the lines after empty ones."""
        for before, line in zip(("", *lines), lines, strict=False):
            if not before and ":" not in line and self._is_path(line) and _is_likely(line):
                yield guessed(line)

    def line(self, line: str) -> str | None:
        """Strict: only slashes and suffixes distinguish a list of names from prose."""
        if self.lists:
            name = self._listed(line)
            return guessed(name) if name is not None and " " not in name and "/" in name else None
        found = _NUMBERED.match(line)
        name = found.group(1) if found is not None else None
        if name is None and self.prefixes is not None:
            name = self._named(line)
        return guessed(name) if name is not None and self._is_path(name) and _is_likely(name) else None

    def _listed(self, line: str) -> str | None:
        if not line or line == "--" or len(line) > PATH_CHARS_MAX or line.startswith(("grep: ", "rg: ")):
            return None
        name = line.rstrip("\0")
        if not self._is_path(name):
            return None
        return guessed(name) if self.prefixes is None else name

    def _named(self, line: str) -> str | None:
        if line.startswith(("grep: ", "rg: ", "Binary file ")):
            binary = _BINARY.match(line)
            return binary.group(1) if binary is not None else None
        if self.counts:
            found = _COUNT.match(line)
        elif self.numbered:
            found = _NUMBERED.match(line)
            if found is None and (self.prefixes is not None or "/" in line[:200]):
                found = _NUMBERED_CONTEXT.match(line)
        elif self.headings and _ONLY_NUMBER.match(line):
            return None  # a match below its heading, as on a terminal
        else:
            found = _NUMBERED.match(line) if self.headings else None
            if found is None:
                return self._before_colon(line)
        if found is None:
            return None
        return self._judged(found.group(1))

    def _before_colon(self, line: str) -> str | None:
        name, colon, _ = line[: PATH_CHARS_MAX + 1].partition(":")
        return self._judged(name) if colon else None

    def _judged(self, name: str) -> str | None:
        if not self._is_path(name) or not _is_likely(name):
            return None
        # A name without a suffix counts only if it starts with a searched directory.
        is_below = self.prefixes is not None and "/" in name and " " not in name and "=" not in name
        return name if is_below else guessed(name)

    def _is_path(self, name: str) -> bool:
        if not name or len(name) > PATH_CHARS_MAX or name[0] in " \t\"'(<{[#=+" or "://" in name or "\t" in name:
            return False
        if self.prefixes is not None:
            return name.startswith(self.prefixes)
        return " " not in name or "/" in name


def _is_likely(name: str) -> bool:
    return " " not in name or looks_like_file(name)
