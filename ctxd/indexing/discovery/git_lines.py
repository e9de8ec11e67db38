"""Lines that ``git`` prints, form by form: which names each of them tells."""

import re
from collections.abc import Callable, Iterator, Sequence

from ctxd.indexing.discovery.paths import guessed

_STAT = re.compile(
    r" (\S[^|\n]{0,512}?) {1,400}\| {1,12}(?:\d{1,9}(?: [+-]{1,400})?|Bin(?: \d{1,12} -> \d{1,12} bytes)?|Unmerged)$"
)
_SHORT = re.compile(r"(?!  )[MADRCUT?! ]{2} (\S.*)$")
_PORCELAIN = re.compile(r"(?:1 (?:\S{1,64} ){7}|2 (?:\S{1,64} ){8}|u (?:\S{1,64} ){9}|[?!] )(\S.*)$")
_LONG_STATUS = re.compile(
    r"\t(?:(?:modified|new file|deleted|renamed|copied|typechange|both modified|both added|deleted by (?:us|them)|"
    r"added by us|added by them|both deleted): {1,20})?(\S.*?)"
    r"(?: \((?:new commits|modified content|untracked content)[^)]{0,60}\))?$"
)
_MODE = re.compile(r" (?:create|delete) mode \d{6} (.+)$")
_RENAME = re.compile(r" (?:rename|copy|rewrite) (.{1,600}?)(?: \(\d{1,3}%\))$")
_NAME_STATUS = re.compile(r"([MADTUX]|[RC]\d{0,3})\t(.+)$")
_TREE = re.compile(r"(?:100\d{3}|120000) (?:blob )?[0-9a-f]{7,64}(?: +(?:\d+|-))?(?: \d)?\t(.+)$")
_RAW = re.compile(r":\d{6} \d{6} [0-9a-f.]{7,64} [0-9a-f.]{7,64} [A-Z]\d{0,3}\t(.+)$")
_NUMSTAT = re.compile(r"(?:\d{1,9}|-)\t(?:\d{1,9}|-)\t(.+)$")
_HEADER = re.compile(r'(?:---|\+\+\+) ("?)[abciow12]/(.+?)\t?$')
_RENAMED_HEADER = re.compile(r"(?:rename|copy) (?:from|to) (.+)$")
_SIDES = re.compile(r'("(?:[^"\\]|\\.){1,600}"|[abciow12]/.{1,512}?) ("(?:[^"\\]|\\.){1,600}"|[abciow12]/.{1,512})$')
_NOTE = re.compile(r" \((?:new(?: \+[lx])?|gone|mode [+-][lx])\)$")
_CONFLICT = re.compile(
    r"(?:CONFLICT \([^)]{1,40}\): Merge conflict in |Auto-merging |\tneeds merge |Would remove |Removing )(\S.*)$"
)
_TAGGED = re.compile(r"[HSMRCK?Uhsmrck] (\S.*)$")
_REMOVED = re.compile(r"rm '(.{1,512})'$")
_IGNORED = re.compile(r"([^:\s]{1,512}):\d{1,6}:[^\t]{1,200}\t(.+)$")
_BRACED_RENAME = re.compile(r"\{([^{}]{0,512}?) => ([^{}]{0,512}?)\}")
_OCTAL = re.compile(r'\\([0-7]{3}|["\\nt])')

Reading = Callable[[str], Iterator[str]]
Readings = tuple[list[Reading], list[Reading]]


def read(lines: Sequence[str], readings: Sequence[Reading]) -> Iterator[str]:
    """The names of all lines; of each line, those of the first reading that finds any."""
    for line in lines:
        if not line or len(line) > 2048 or (line[0] in "+- " and not _may_name(line)):
            continue
        for reading in readings:
            found = False
            for name in reading(line):
                found = True
                yield _unquoted(name)
            if found:
                break


def _may_name(line: str) -> bool:
    """Most lines of a patch are its contents; this drops them before any pattern is tried."""
    if line[0] != " ":
        return line.startswith(("+++ ", "--- ", "-\t"))
    return (
        "|" in line or line[2:3] == " " or line.startswith((" create ", " delete ", " rename ", " copy ", " rewrite "))
    )


def _unquoted(name: str) -> str:
    """A name as git's C quoting meant it."""
    if len(name) < 2 or name[0] != '"' or name[-1] != '"':
        return name
    inner = name[1:-1]
    if "\\" not in inner:
        return inner
    plain = {"n": b"\n", "t": b"\t", '"': b'"', "\\": b"\\"}
    raw = b""
    at = 0
    for escape in _OCTAL.finditer(inner):
        raw += inner[at : escape.start()].encode("utf-8", "surrogateescape" if inner.isprintable() else "replace")
        code = escape.group(1)
        raw += plain.get(code) or bytes([int(code, 8) & 0xFF])
        at = escape.end()
    raw += inner[at:].encode("utf-8", "replace")
    return raw.decode("utf-8", "replace")


def _renamed(text: str) -> Iterator[str]:
    """The names of ``a => b``, ``dir/{a => b}/c`` or ``a -> b``; of a plain name that name."""
    braces = _BRACED_RENAME.search(text)
    if braces is not None:
        head, tail = text[: braces.start()], text[braces.end() :]
        for part in braces.groups():
            yield (head + part + tail).replace("//", "/")
        return
    for arrow in (" => ", " -> "):
        if arrow in text:
            yield from text.split(arrow, 1)
            return
    yield text


def stat(line: str) -> Iterator[str]:
    """A row of a diffstat."""
    if line[0] != " " or "|" not in line:
        return
    found = _STAT.match(line)
    if found is not None and not found.group(1).startswith("..."):
        yield from _renamed(_NOTE.sub("", found.group(1)))


def short(line: str) -> Iterator[str]:
    """A line of `git status --short`."""
    if line.startswith("## "):
        return
    found = _SHORT.match(line)
    if found is not None and not found.group(1).endswith("/"):
        yield from _renamed(found.group(1))


def porcelain(line: str) -> Iterator[str]:
    """The second version of what `git status` prints for scripts."""
    found = _PORCELAIN.match(line)
    if found is not None and not found.group(1).endswith("/"):
        yield from found.group(1).split("\t")


def long_status(line: str) -> Iterator[str]:
    """A line of `git status` as people read it."""
    if line[0] != "\t":
        return
    found = _LONG_STATUS.match(line)
    if found is not None and not found.group(1).endswith("/"):
        yield from _renamed(found.group(1))


def patch(line: str) -> Iterator[str]:
    """A header of a patch."""
    if line.startswith("diff --git "):
        yield from _sides(line.removeprefix("diff --git "))
    elif line.startswith(("--- ", "+++ ")):
        found = _HEADER.match(line)
        if found is not None:
            yield "".join(found.groups())
    elif line.startswith(("rename ", "copy ")):
        found = _RENAMED_HEADER.match(line)
        if found is not None:
            yield found.group(1)


def bare_patch(line: str) -> Iterator[str]:
    """Names in a patch without prefixes: whether `a/x` there has one, only its first line tells."""
    if not line.startswith(("--- ", "+++ ")):
        yield from patch(line)


def _sides(names: str) -> Iterator[str]:
    """The names of ``a/x b/y``. The same name twice has no prefixes, for those are never the same."""
    middle = len(names) // 2
    if names[middle : middle + 1] == " " and names[:middle] == names[middle + 1 :]:
        yield names[:middle]
        return
    found = _SIDES.match(names)
    for side in found.groups() if found is not None else ():
        yield '"' + side[3:] if side[0] == '"' else side[2:]


def modes(line: str) -> Iterator[str]:
    """Files made, removed and renamed, below a diffstat."""
    if line[0] != " ":
        return
    found = _MODE.match(line)
    if found is not None:
        yield found.group(1)
        return
    found = _RENAME.match(line)
    if found is not None:
        yield from _renamed(found.group(1))


def name_status(line: str) -> Iterator[str]:
    """A line of `--name-status`."""
    found = _NAME_STATUS.match(line)
    if found is not None:
        yield from found.group(2).split("\t")


def numstat(line: str) -> Iterator[str]:
    """A line of `--numstat`."""
    found = _NUMSTAT.match(line)
    if found is not None:
        yield from _renamed(found.group(1))


def raw(line: str) -> Iterator[str]:
    """A line of `--raw`."""
    found = _RAW.match(line)
    if found is not None:
        yield from found.group(1).split("\t")


def tree(line: str) -> Iterator[str]:
    """A line of `git ls-tree`, or of `git ls-files --stage`."""
    found = _TREE.match(line)
    if found is not None:
        yield found.group(1)


def tagged_line(line: str) -> Iterator[str]:
    """A name behind the letter of its state: `git ls-files -t`."""
    found = _TAGGED.match(line)
    if found is not None:
        yield found.group(1)


def whole_line(line: str) -> Iterator[str]:
    """A name and nothing else."""
    if line[0] not in " \t" and not line.startswith(("fatal: ", "error: ", "warning: ")) and "\t" not in line:
        yield line


def slashed_line(line: str) -> Iterator[str]:
    """A name and nothing else, where other text is about."""
    if " " not in line and "\t" not in line and ":" not in line:
        yield guessed(line)


def conflict(line: str) -> Iterator[str]:
    """What a merge or `git clean` says of a file."""
    found = _CONFLICT.match(line)
    if found is not None:
        yield found.group(1)


def removed(line: str) -> Iterator[str]:
    """A line of `git rm`."""
    found = _REMOVED.match(line)
    if found is not None:
        yield found.group(1)


def ignored(line: str) -> Iterator[str]:
    """A line of `git check-ignore -v`."""
    found = _IGNORED.match(line)
    if found is not None:
        yield found.group(1)
        yield guessed(found.group(2))


def short_add(line: str) -> Iterator[str]:
    """A line of `git add -v` and `-n`."""
    if line.startswith(("add '", "remove '")) and line.endswith("'"):
        yield line.partition("'")[2][:-1]
