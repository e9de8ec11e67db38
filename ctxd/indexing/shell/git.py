"""Names in the output of ``git``: status, lists, patches, diffstats, modes, conflicts.

Names relative to the top of the work tree are returned as relative to where git ran, anchored to the repository: only
the disk knows the top.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence

from ctxd.indexing.shell import grep
from ctxd.indexing.shell.command_arguments import Arg, ResolvedCommand, split
from ctxd.indexing.shell.output_format_types import PROSE, SILENT, Emission, Form, Lines
from ctxd.indexing.shell.paths import directory, guessed, looks_like_file

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


def read_names(lines: Sequence[str], readings: Sequence[Reading]) -> Iterator[str]:
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
    """Undo git's C-style quoting of a name."""
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
    """The names in ``a => b``, ``dir/{a => b}/c`` or ``a -> b``; a plain name is returned as is."""
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


def stat_names(line: str) -> Iterator[str]:
    """A row of a diffstat."""
    if line[0] != " " or "|" not in line:
        return
    found = _STAT.match(line)
    if found is not None and not found.group(1).startswith("..."):
        yield from _renamed(_NOTE.sub("", found.group(1)))


def short_names(line: str) -> Iterator[str]:
    """A line of `git status --short`."""
    if line.startswith("## "):
        return
    found = _SHORT.match(line)
    if found is not None and not found.group(1).endswith("/"):
        yield from _renamed(found.group(1))


def porcelain_names(line: str) -> Iterator[str]:
    """A line of `git status --porcelain=v2`."""
    found = _PORCELAIN.match(line)
    if found is not None and not found.group(1).endswith("/"):
        yield from found.group(1).split("\t")


def long_status_names(line: str) -> Iterator[str]:
    """A line of `git status` in its long format."""
    if line[0] != "\t":
        return
    found = _LONG_STATUS.match(line)
    if found is not None and not found.group(1).endswith("/"):
        yield from _renamed(found.group(1))


def patch_names(line: str) -> Iterator[str]:
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


def bare_patch_names(line: str) -> Iterator[str]:
    """Names in the headers of a patch that may lack prefixes: only `diff --git` shows whether `a/x` has one."""
    if not line.startswith(("--- ", "+++ ")):
        yield from patch_names(line)


def _sides(names: str) -> Iterator[str]:
    """The names of ``a/x b/y``. The same name twice has no prefixes, because those differ."""
    middle = len(names) // 2
    if names[middle : middle + 1] == " " and names[:middle] == names[middle + 1 :]:
        yield names[:middle]
        return
    found = _SIDES.match(names)
    for side in found.groups() if found is not None else ():
        yield '"' + side[3:] if side[0] == '"' else side[2:]


def modes_names(line: str) -> Iterator[str]:
    """Files created, deleted and renamed, below a diffstat."""
    if line[0] != " ":
        return
    found = _MODE.match(line)
    if found is not None:
        yield found.group(1)
        return
    found = _RENAME.match(line)
    if found is not None:
        yield from _renamed(found.group(1))


def name_status_names(line: str) -> Iterator[str]:
    """A line of `--name-status`."""
    found = _NAME_STATUS.match(line)
    if found is not None:
        yield from found.group(2).split("\t")


def numstat_names(line: str) -> Iterator[str]:
    """A line of `--numstat`."""
    found = _NUMSTAT.match(line)
    if found is not None:
        yield from _renamed(found.group(1))


def raw_names(line: str) -> Iterator[str]:
    """A line of `--raw`."""
    found = _RAW.match(line)
    if found is not None:
        yield from found.group(1).split("\t")


def tree_names(line: str) -> Iterator[str]:
    """A line of `git ls-tree`, or of `git ls-files --stage`."""
    found = _TREE.match(line)
    if found is not None:
        yield found.group(1)


def tagged_line_names(line: str) -> Iterator[str]:
    """A name after its status letter: `git ls-files -t`."""
    found = _TAGGED.match(line)
    if found is not None:
        yield found.group(1)


def whole_line_names(line: str) -> Iterator[str]:
    """A name and nothing else."""
    if line[0] not in " \t" and not line.startswith(("fatal: ", "error: ", "warning: ")) and "\t" not in line:
        yield line


def slashed_line_names(line: str) -> Iterator[str]:
    """A name and nothing else, where other text may occur."""
    if " " not in line and "\t" not in line and ":" not in line:
        yield guessed(line)


def conflict_names(line: str) -> Iterator[str]:
    """A line of a merge or of `git clean`."""
    found = _CONFLICT.match(line)
    if found is not None:
        yield found.group(1)


def removed_names(line: str) -> Iterator[str]:
    """A line of `git rm`."""
    found = _REMOVED.match(line)
    if found is not None:
        yield found.group(1)


def ignored_names(line: str) -> Iterator[str]:
    """A line of `git check-ignore -v`."""
    found = _IGNORED.match(line)
    if found is not None:
        yield found.group(1)
        yield guessed(found.group(2))


def short_add_names(line: str) -> Iterator[str]:
    """A line of `git add -v` and `-n`."""
    if line.startswith(("add '", "remove '")) and line.endswith("'"):
        yield line.partition("'")[2][:-1]


_GLOBAL_VALUES = frozenset(("-C", "-c", "--git-dir", "--work-tree", "--namespace", "--exec-path"))
_SUB_VALUES = frozenset(
    "-m -F -b -B -n -L -S -G -U -C -M -t --message --file --author --date --format --max-count"
    " --since --until --grep --branch"
    " --strategy -s -X -e -u --depth -o --output --pretty --diff-filter --source --skip --reuse-message".split()
)
_VALUES: Mapping[str, frozenset[str]] = {
    "commit": frozenset("-m -F -C -c -t --message --file --author --date --template --trailer --fixup".split()),
    **dict.fromkeys(
        ("log", "show", "diff", "whatchanged", "difftool", "shortlog"),
        frozenset("-n -L -S -G -U -O -l --max-count --since --until --grep --author --skip --output".split()),
    ),
    **dict.fromkeys(("blame", "annotate"), frozenset(("-L", "-S", "--ignore-rev", "--ignore-revs-file", "--date"))),
    "checkout": frozenset(("-b", "-B", "--orphan")),
    "switch": frozenset(("-c", "-C")),
    "add": frozenset(("--chmod", "--pathspec-from-file")),
    "rm": frozenset(),
    "mv": frozenset(),
    "status": frozenset(),
    "ls-files": frozenset(("-x", "-X", "--exclude", "--exclude-from")),
}
_OPERAND_SUBCOMMANDS = frozenset(
    "add rm mv checkout restore diff log show blame ls-files status apply am check-ignore reset stash"
    " difftool annotate shortlog"
    " update-index hash-object whatchanged clean commit".split()
)
_NAMES_ONLY = frozenset(
    "add rm mv restore blame annotate ls-files check-ignore update-index hash-object apply am".split()
)
_RELATIVE = frozenset("ls-files ls-tree check-ignore clean blame annotate".split())
_SHORT_OPTION = re.compile(r"-[bz]*s")
_QUIET = frozenset(("add", "config", "init", "switch", "restore", "update-index", "gc", "mv"))


def locate(invocation: ResolvedCommand, cwd: str | None) -> tuple[str, tuple[Arg, ...], str | None]:
    """The subcommand, its arguments, and the directory ``git`` runs in (``-C``)."""
    args = invocation.args
    index = 0
    while index < len(args) and args[index].text.startswith("-"):
        text = args[index].text
        if text in _GLOBAL_VALUES:
            if text == "-C" and index + 1 < len(args):
                target = args[index + 1]
                cwd = directory(cwd, target.text) if target.known and not target.glob else None
            index += 1
        index += 1
    if index >= len(args):
        return "", (), cwd
    return args[index].text, args[index + 1 :], cwd


def operand_files(invocation: ResolvedCommand, cwd: str | None) -> tuple[str | None, list[str], list[str]]:
    """The directory git runs in, the pathspecs that name files, and the files named from the top of the work tree."""
    subcommand, args, cwd = locate(invocation, cwd)
    if subcommand == "grep":
        return (
            cwd,
            [
                arg.text
                for arg in _grep(args).targets
                if arg.known and not arg.glob and looks_like_file(arg.text) and "/" in arg.text
            ],
            [],
        )
    if subcommand not in _OPERAND_SUBCOMMANDS:
        return cwd, [], []
    marked = [index for index, arg in enumerate(args) if arg.text == "--"]
    before, behind = (args[: marked[0]], args[marked[0] + 1 :]) if marked else (args, ())
    _, values, operands = split(before, _VALUES.get(subcommand, _SUB_VALUES))
    names = list(behind)
    rooted: list[Arg] = []
    only_names = subcommand in _NAMES_ONLY
    for arg in operands:
        revision, colon, name = arg.text.partition(":")
        if colon and revision and subcommand == "show":
            (names if name.startswith("./") else rooted).append(Arg(name, arg.known, arg.glob))
        elif not colon and not _is_revision(arg.text) and (only_names or looks_like_file(arg.text)):
            names.append(arg)
    message = values.get("-F") or values.get("--file")
    if message is not None and subcommand == "commit":
        names.append(message)
    return cwd, _certainties(names), _certainties(rooted)


def _certainties(names: list[Arg]) -> list[str]:
    plain = (arg.text for arg in names if arg.known and not arg.glob)
    return [guessed(text) for text in plain if text != "-" and not text.startswith(":")]


def _is_revision(text: str) -> bool:
    return (
        ".." in text.strip("./")
        and "../" not in text
        or text.startswith(("origin/", "refs/", "HEAD", "upstream/"))
        or "@{" in text
    )


def emission(invocation: ResolvedCommand, cwd: str | None) -> Emission:
    """The form of this git command."""
    subcommand, args, cwd = locate(invocation, cwd)
    given = {arg.text for arg in args}
    if subcommand == "grep":
        return grep.search_emission(_grep(args), cwd, "git")
    if subcommand in _QUIET and not given & {"-n", "-v", "--verbose", "--dry-run", "-p"}:
        return SILENT
    if subcommand == "rev-parse" or (subcommand == "branch" and "--show-current" in given):
        return Lines(1)
    readings = _readings(subcommand, given, args)
    if readings is None:
        return PROSE
    whole, sure = readings
    return Form(
        "git",
        cwd,
        lambda lines: read_names(lines, whole),
        lambda line: next(reversed([*read_names([line], sure)]), None),  # of a rename, the new name
        _begins(subcommand),
        anchor="repository" if _from_the_top(subcommand, given) else None,
    )


def _from_the_top(subcommand: str, given: set[str]) -> bool:
    """True if names in the output are relative to the top of the work tree, wherever git runs."""
    if subcommand == "status":
        return bool(given & {"--porcelain", "--porcelain=v1", "--porcelain=v2"})
    return subcommand not in _RELATIVE and "--relative" not in given


def _begins(subcommand: str) -> Callable[[str], bool] | None:
    if subcommand == "status":
        return lambda line: line.startswith(("On branch ", "HEAD detached at ", "## "))
    return None


def _grep(args: tuple[Arg, ...]) -> grep.Search:
    options, values, operands = split(args, grep.GREP_VALUES)
    has_pattern = bool({"-e", "-f"} & set(values))
    targets = tuple(operands if has_pattern else operands[1:])
    return grep.Search(
        frozenset(options), tuple(arg for arg in targets if "/" in arg.text or "." in arg.text), True, False, False
    )


def _readings(subcommand: str, given: set[str], args: tuple[Arg, ...]) -> Readings | None:
    """The line forms of a subcommand's output: all of them, and those that are distinctive in mixed output."""
    if subcommand == "status":
        if "--porcelain=v2" in given:
            return [porcelain_names], [porcelain_names]
        short = given & {"--short", "--porcelain", "--porcelain=v1"} or any(map(_SHORT_OPTION.match, given))
        return ([short_names], [short_names]) if short else ([long_status_names], [long_status_names])
    if subcommand in _HISTORY:
        return _history_readings(subcommand, given, args)
    if subcommand == "ls-files" and given & {"-t", "-v", "-f"}:
        return [tagged_line_names], []
    if subcommand == "ls-tree" and "--name-only" not in given:
        return [tree_names], [tree_names]
    return _READINGS.get(subcommand)


def _history_readings(subcommand: str, given: set[str], args: tuple[Arg, ...]) -> Readings | None:
    """The line forms of subcommands that show commits and differences."""
    if subcommand == "show" and any(_names_blob(arg.text) for arg in args):
        return None
    if "--name-only" in given:
        return ([whole_line_names] if subcommand in ("diff", "diff-tree") else [slashed_line_names]), [
            slashed_line_names
        ]
    if "--name-status" in given:
        return [name_status_names], [name_status_names]
    patch = bare_patch_names if "--no-prefix" in given else patch_names
    every: list[Reading] = [patch, stat_names, modes_names, numstat_names, raw_names]
    return every, every


def _names_blob(text: str) -> bool:
    revision, _, name = text.partition(":")
    return bool(revision and name and not text.startswith("-"))


_HISTORY = frozenset(("diff", "show", "log", "stash", "whatchanged", "diff-tree", "diff-index", "format-patch"))
_CHANGES: Readings = (
    [patch_names, stat_names, modes_names, conflict_names, name_status_names],
    [patch_names, stat_names, modes_names, conflict_names, name_status_names],
)
_READINGS: Mapping[str, Readings] = {
    "ls-files": ([tree_names, whole_line_names], [tree_names, slashed_line_names]),
    "ls-tree": ([tree_names, whole_line_names], [tree_names]),
    "rm": ([removed_names], [removed_names]),
    "check-ignore": ([ignored_names, slashed_line_names], [ignored_names]),
    "add": ([short_add_names, patch_names], [patch_names]),
    **dict.fromkeys("commit merge pull rebase cherry-pick revert am apply reset checkout clean".split(), _CHANGES),
}
