"""What ``git`` prints about files: status, lists, diff headers, diffstats, modes, conflicts. Renames and quoted names
included.

Names relative to the top of the work tree are taken as relative to where git ran, and anchored to the repository:
nobody can tell the top without looking.
"""

import re
from collections.abc import Callable, Mapping

from ctxd.indexing.discovery import git_lines, grep
from ctxd.indexing.discovery.emission import PROSE, SILENT, Emission, Form, Lines
from ctxd.indexing.discovery.invocation import Arg, Invocation, split
from ctxd.indexing.discovery.paths import directory, guessed, looks_like_file

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


def locate(invocation: Invocation, cwd: str | None) -> tuple[str, tuple[Arg, ...], str | None]:
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


def operand_files(invocation: Invocation, cwd: str | None) -> tuple[str | None, list[str], list[str]]:
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


def emission(invocation: Invocation, cwd: str | None) -> Emission:
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
        lambda lines: git_lines.read(lines, whole),
        lambda line: next(reversed([*git_lines.read([line], sure)]), None),  # of a renaming, the name it has now
        _begins(subcommand),
        anchor="repository" if _from_the_top(subcommand, given) else None,
    )


def _from_the_top(subcommand: str, given: set[str]) -> bool:
    """Whether names in the output are relative to the top of the work tree, wherever git runs."""
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


def _readings(subcommand: str, given: set[str], args: tuple[Arg, ...]) -> git_lines.Readings | None:
    """The line forms of a subcommand's output: all of them, and those that stand out in mixed output."""
    if subcommand == "status":
        if "--porcelain=v2" in given:
            return [git_lines.porcelain], [git_lines.porcelain]
        short = given & {"--short", "--porcelain", "--porcelain=v1"} or any(map(_SHORT_OPTION.match, given))
        return ([git_lines.short], [git_lines.short]) if short else ([git_lines.long_status], [git_lines.long_status])
    if subcommand in _HISTORY:
        return _history_readings(subcommand, given, args)
    if subcommand == "ls-files" and given & {"-t", "-v", "-f"}:
        return [git_lines.tagged_line], []
    if subcommand == "ls-tree" and "--name-only" not in given:
        return [git_lines.tree], [git_lines.tree]
    return _READINGS.get(subcommand)


def _history_readings(subcommand: str, given: set[str], args: tuple[Arg, ...]) -> git_lines.Readings | None:
    """The forms of what shows commits and differences."""
    if subcommand == "show" and any(_names_blob(arg.text) for arg in args):
        return None
    if "--name-only" in given:
        return ([git_lines.whole_line] if subcommand in ("diff", "diff-tree") else [git_lines.slashed_line]), [
            git_lines.slashed_line
        ]
    if "--name-status" in given:
        return [git_lines.name_status], [git_lines.name_status]
    patch = git_lines.bare_patch if "--no-prefix" in given else git_lines.patch
    every: list[git_lines.Reading] = [patch, git_lines.stat, git_lines.modes, git_lines.numstat, git_lines.raw]
    return every, every


def _names_blob(text: str) -> bool:
    revision, colon, name = text.partition(":")
    return bool(colon and revision and name and not text.startswith("-"))


_HISTORY = frozenset(("diff", "show", "log", "stash", "whatchanged", "diff-tree", "diff-index", "format-patch"))
_CHANGES: git_lines.Readings = (
    [git_lines.patch, git_lines.stat, git_lines.modes, git_lines.conflict, git_lines.name_status],
    [git_lines.patch, git_lines.stat, git_lines.modes, git_lines.conflict, git_lines.name_status],
)
_READINGS: Mapping[str, git_lines.Readings] = {
    "ls-files": ([git_lines.tree, git_lines.whole_line], [git_lines.tree, git_lines.slashed_line]),
    "ls-tree": ([git_lines.tree, git_lines.whole_line], [git_lines.tree]),
    "rm": ([git_lines.removed], [git_lines.removed]),
    "check-ignore": ([git_lines.ignored, git_lines.slashed_line], [git_lines.ignored]),
    "add": ([git_lines.short_add, git_lines.patch], [git_lines.patch]),
    **dict.fromkeys("commit merge pull rebase cherry-pick revert am apply reset checkout clean".split(), _CHANGES),
}
