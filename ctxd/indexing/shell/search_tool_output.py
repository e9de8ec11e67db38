"""Names in the output of a harness's own search tools: Grep, Glob and LS of Claude Code, and similar ones.

Such a call is not a shell command. It is given as the tool's name with its arguments as JSON (``Grep {"pattern": "x",
"path": "src"}``) or as words (``Glob **/*.py``). Its names are absolute, or relative to the agent's working directory
even if it searches another directory.
"""

import posixpath
import re
from collections.abc import Iterator, Sequence

import msgspec

from ctxd.indexing.shell.grep import SearchReading
from ctxd.indexing.shell.paths import Findings, guessed, looks_like_file

_CALL = re.compile(r"(?:(Grep|Glob|LS)(?:\s+(.*))?|(grep|glob|find|ls|list)\s+(\{.*\}))\s*\Z", re.DOTALL)
_NUMBERED = re.compile(r"[^\0\t:\n]{1,512}:\d{1,9}:")
_MATCH_BELOW = re.compile(r" {1,8}(?:Line )?\d{1,9}: ")
_LISTED_BELOW = re.compile(r"( {0,200})- (\S.{0,1023})$")
_TALLY = re.compile(r"(?:Found \d|No (?:files|matches)|\(Results are |\[Showing |NOTE: )")


class Arguments(msgspec.Struct):
    """Arguments that determine the form of the output, by the names that harnesses use."""

    path: str = ""
    output_mode: str = ""


def search_call(command: str) -> tuple[str, Arguments] | None:
    """The tool in lower case and its arguments; None if ``command`` is a shell command."""
    found = _CALL.match(command)
    if found is None:
        return None
    tool, text = (found[1] or found[3]).lower(), found[2] or found[4] or ""
    if not text.startswith("{"):
        return tool, Arguments()
    try:
        return tool, msgspec.json.decode(text.encode("utf-8", "replace"), type=Arguments)
    except (msgspec.MsgspecError, RecursionError):
        return tool, Arguments()


def add_search_results(tool: str, arguments: Arguments, lines: Sequence[str], cwd: str | None, into: Findings) -> None:
    """Add the files named in ``lines``, the output of ``tool``."""
    if arguments.path and looks_like_file(arguments.path):
        into.add(tool, cwd, (arguments.path,))
    lines = [line for line in lines if not _TALLY.match(line)]
    if tool in ("ls", "list"):
        into.add(tool, cwd, _tree(lines))
    elif tool in ("glob", "find") or (tool == "grep" and arguments.output_mode == "files_with_matches"):
        into.add(tool, cwd, _listed(lines))
    else:
        into.add(tool, cwd, _matches(lines, counts=arguments.output_mode == "count"))


def _listed(lines: Sequence[str]) -> Iterator[str]:
    """Lines that are only a path: the tools list no directories."""
    return (line for line in lines if line and line[0] not in " \t(<[" and "\t" not in line)


def _matches(lines: Sequence[str], *, counts: bool) -> Iterator[str]:
    """Names beside or above matches; without matches, lines that are only names."""
    headings = [line[:-1] for line, below in zip(lines, lines[1:], strict=False) if _is_heading(line, below)]
    if headings:
        yield from headings
        return
    numbered = any(_NUMBERED.match(line) for line in lines)
    if not numbered and not counts and not any(":" in line for line in lines):
        yield from map(guessed, _listed(lines))
        return
    reading = SearchReading(
        prefixes=None, names=True, lists=False, counts=counts, numbered=numbered, headings=False, headed=False
    )
    yield from reading.whole(lines)


def _is_heading(line: str, below: str) -> bool:
    return line.endswith(":") and line[:1] not in ("", " ", "\t") and _MATCH_BELOW.match(below) is not None


def _tree(lines: Sequence[str]) -> Iterator[str]:
    """A tree of ``- name`` lines, with two blanks per level and a slash after directories."""
    trail: list[str] = []
    for line in lines:
        found = _LISTED_BELOW.match(line)
        if found is None:
            continue
        depth = len(found[1]) // 2
        del trail[depth:]
        trail.append(found[2].rstrip("/") if found[2] != "/" else "/")
        if len(trail) == depth + 1 and not found[2].endswith("/"):
            yield guessed(posixpath.join(*trail))
