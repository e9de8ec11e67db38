"""Candidates for files in a shell command and its output. Pure: nothing is opened.

Never raises; linear in the length of the output; every candidate is an absolute, normalised path, which may not exist.

The last stage of a pipeline that does more than filter lines determines the format of the output. If several commands
share one output, known text between them (``echo "---"``) splits it; where several formats remain, a line counts only
if it strictly matches one of them.
"""

import re
import shlex
from collections.abc import Iterable, Sequence

import msgspec

from ctxd.indexing.shell.interpreter import Printed, Walk
from ctxd.indexing.shell.output_format_types import Form, Lines, Marker, Silent, UnparsedText
from ctxd.indexing.shell.parser import Script, parse
from ctxd.indexing.shell.paths import Discovery, Findings, PossiblePath, directory
from ctxd.indexing.shell.search_tool_output import add_search_results, search_call

_HEADER = re.compile(
    r"(?:Command: [^\n]{0,65536}\n)?(?:(?:Chunk ID|Wall time|Process exited with code|Process running with session ID|"
    r"Original token count|Exit code|Total output lines):? [^\n]{0,200}\n){1,8}Output:\n?"
)
_ANSI = re.compile(r"\x1b(?:\[[0-9;?]{0,32}[ -/]?[@-~]|\][^\x07\x1b\n]{0,2048}(?:\x07|\x1b\\)|[()][A-Z0-9]|[=>78])")
_NOTE = re.compile(
    r"(?:\.\.\.|…)? ?\[?\d{0,9} ?(?:lines?|characters|chars|tokens|bytes) (?:truncated|omitted)\]?[^\n]{0,60}$"
    r"|…\d{1,9} (?:tokens|chars|lines) truncated…|\.\.\. ?\[\d{1,9} lines truncated\]|\(no output\)$"
    r"|\(Bash completed with no output\)$"
    r"|Command exited with code \d{1,3}$|Command (?:aborted|timed out)|Exit code:? \d{1,3}$|\[Showing (?:lines|last) "
    r"|\[Truncated|\[Output truncated|\[Full output|\[rerun: |Error: Exit code \d"
    r"|<(?:system|error|persisted-output|/?bash_metadata|/?shell_metadata)"
    r"|Shell cwd was reset to |\[stderr\]|<returncode>|</?output>|</?std(?:out|err)>"
)
_CUT = re.compile(r"…\d{1,9} (?:tokens|chars|characters|lines) truncated…")
_COMPLAINT = re.compile(
    r"(?:[\w./ -]{1,80}: )?(?:line \d{1,6}: )?(?:cannot (?:access|stat|open|remove|read) )?"
    r"['‘\"`]?([^'’:\"\n]{1,1024}?)['’\"]?"
    r"(?: for reading)?: (?:No such file or directory|Is a directory|IO error for operation|Not a directory)"
)
_REFUSED = re.compile(
    r"(?:[^:\n]{0,200}: ){0,3}?(?:(?:cd|pushd): (?:can't cd to )?([^\n]{1,1024}?)"
    r"(?:: (?:No such file or directory|Not a directory|Permission denied|too many arguments))?$"
    r"|(?:\S{1,80}:)?cd:\d{1,6}: (?:no such file or directory|not a directory|permission denied): ([^\n]{1,1024})$)"
)
_REFUSED_MAX = 100
_JSON = re.compile(r'\s{0,9}\{\s{0,9}"(?:output|metadata|stdout|stderr|exit_?[cC]ode|returncode|success)"\s{0,9}:')
_STATED = re.compile(r"(?:Command: [^\n]{0,65536}\n)?(?:Directory: [^\n]{0,4200}\n)?(?:Stdout|Output): ")
_STATEMENT = re.compile(r"(?:Stderr|Error|Exit Code|Signal|Background PIDs|Process Group PGID): ")
_TAGS = re.compile(r"</?(?:stdout|stderr|output)>")


class _Shell(msgspec.Struct):
    output: str | None = None
    stdout: str | None = None


def open_envelope(output: str) -> list[str]:
    """The lines that a command printed, without additions by the harness. A line cut in the middle is dropped."""
    if _JSON.match(output):
        try:
            shell = msgspec.json.decode(output.encode("utf-8", "replace"), type=_Shell)
            output = output if shell.output is shell.stdout is None else shell.output or shell.stdout or ""
        except (msgspec.MsgspecError, RecursionError):
            pass  # text that only begins like an envelope is the output itself
    output = _without_statements(output)
    header = _HEADER.match(output)
    if header is not None:
        output = output[header.end() :]
    if "\x1b" in output:
        output = _ANSI.sub("", output)
    if "\r" in output:
        output = output.replace("\r\n", "\n").replace("\r", "\n")
    if "\0" in output:
        output = output.replace("\0", "\n")
    lines = output.split("\n")
    if any(word in output for word in _WORDS):
        lines = [line for line in lines if not _is_note(line)]
    while lines and not lines[-1].strip():
        lines.pop()
    return lines


def _without_statements(output: str) -> str:
    """The output without a wrapper such as ``Stdout: …`` and ``Exit Code: 0``, or a tag around it."""
    if output.startswith(("<stdout>", "<output>")):
        return _TAGS.sub("\n", output).removeprefix("\n")
    stated = _STATED.match(output)
    if stated is None:
        return output
    lines = output[stated.end() :].split("\n")
    end = len(lines)
    while end and (not lines[end - 1] or _STATEMENT.match(lines[end - 1])):
        end -= 1
    return "\n".join(lines[:end]) if any(lines[end:]) else output


_WORDS = (
    "truncated",
    "omitted",
    "output",
    "Output",
    "xit",
    "aborted",
    "timed out",
    "rerun: ",
    "<",
    "Showing",
    "cwd was reset",
    "[stderr]",
)


def _is_note(line: str) -> bool:
    if not line:
        return False
    first = line[0]
    if first in ".…[(CE<S0123456789" and len(line) < 4096 and _NOTE.match(line):
        return True
    return "…" in line and len(line) < 65536 and _CUT.search(line) is not None


def complaints(lines: list[str]) -> list[str]:
    """Names that error lines report as missing or as directories."""
    names: list[str] = []
    for line in lines:
        if "director" in line and len(line) < 4096 and len(names) < 1000:
            found = _COMPLAINT.match(line)
            if found is not None:
                names.append(found.group(1).strip())
    return names


def refused(lines: list[str]) -> frozenset[str]:
    """Directories that ``cd`` could not enter, according to error lines."""
    names: list[str] = []
    for line in lines:
        if "cd:" in line and len(line) < 4096 and len(names) < _REFUSED_MAX:
            found = _REFUSED.match(line)
            if found is not None:
                names.append(found.group(1) or found.group(2))
    return frozenset(names)


COMMAND_CHARS_MAX = 1 << 20
"""Characters of a command that are parsed. A longer command contains data, and its file names are at its start."""

_BLANK = re.compile(r"\s")

_MIXED_LINES_MAX = 50_000
"""Lines read of a shared output. No harness shows an agent more; bounds the time if one does."""

_MIXED_MAX = 16
"""Forms tried on each line of a shared output; bounds the work per line."""


def candidates(command: str, output: str, cwd: str) -> Discovery:
    """The files that ``command``, run in ``cwd``, and its ``output`` name, and the directory the shell is in
    afterwards.

    A search tool of the harness is given by its name and arguments, see ``search_tool_output``.

    Shape: paths absolute and normalised, each once, in order of appearance; operands and redirections before the
    output's. Even certain ones may be missing, and in rare cases directories; the others often are: check before use.
    If there are more than one call may index, certain ones have priority. Relative names are ignored if ``cwd`` is not
    absolute, and names below ``~`` always, because the home directory is unknown.
    Raises: nothing.
    """
    start = directory(None, cwd)
    call = search_call(command[:COMMAND_CHARS_MAX])
    if call is not None:
        found = Findings()
        add_search_results(*call, open_envelope(output), start, found)
        return Discovery(found.candidates(), start or cwd)
    script = parse(_line(command[:COMMAND_CHARS_MAX]))
    lines = open_envelope(output)
    shut = refused(lines)
    findings, walk = _walked(script, start, shut)
    reported = _reported_directory(walk, start, lines)
    if reported is not None:
        findings, walk = _walked(script, reported, shut)
        start = reported
    findings.deny(walk.cwd or start, complaints(lines))
    for printed in walk.printed:
        if printed.cwd != walk.cwd:
            findings.deny(printed.cwd, complaints(lines) if len(walk.printed) == 1 else ())
    if lines:
        _read(walk.printed, lines, findings)
    return Discovery(findings.candidates(), walk.cwd or start or cwd)


def _line(command: str) -> str:
    """The command line; some harnesses record the JSON of its words."""
    if not command.startswith('["'):
        return command
    try:
        return shlex.join(msgspec.json.decode(command.encode("utf-8", "replace"), type=list[str]))
    except (msgspec.MsgspecError, RecursionError):
        return command


def _walked(script: Script, start: str | None, shut: frozenset[str]) -> tuple[Findings, Walk]:
    findings = Findings()
    walk = Walk(findings, start, refused=shut)
    walk.script(script)
    return findings, walk


def _reported_directory(walk: Walk, start: str | None, lines: list[str]) -> str | None:
    """The directory that a leading ``pwd`` printed, if it differs from the one that the harness recorded."""
    first = walk.printed[0] if walk.printed else None
    if first is None or not isinstance(first.emission, Lines) or not first.emission.here or first.cwd != start:
        return None
    if not lines or not lines[0].startswith("/"):
        return None
    reported = directory(None, lines[0])
    return reported if reported != start else None


def _read(printed: Sequence[Printed], lines: list[str], findings: Findings) -> None:
    """Split the output at known text, and read each piece in the formats of the commands that printed it."""
    piece: list[Printed] = []
    for part in printed:
        if isinstance(part.emission, Silent):
            continue
        if not isinstance(part.emission, Marker):
            piece.append(part)
            continue
        at = _find(lines, part.emission.text)
        if at is None:
            continue  # it was not reached, or went elsewhere
        _read_piece(piece, lines[: at[0]], findings)
        piece, lines = [], lines[at[1] :]
    _read_piece(piece, lines, findings)


def _find(lines: list[str], marker: str) -> tuple[int, int] | None:
    """The first line of the known text, and the line after it."""
    wanted = [line.rstrip() for line in marker.split("\n") if line.strip()]
    if not wanted:
        return None
    try:
        at = lines.index(wanted[-1])
    except ValueError:
        stripped = [index for index, line in enumerate(lines) if line.rstrip() == wanted[-1]]
        if not stripped:
            return None
        at = stripped[0]
    return max(0, at - len(wanted) + 1), at + 1


def _read_piece(piece: list[Printed], lines: list[str], findings: Findings) -> None:
    """Read lines that the commands of ``piece`` printed, and no others."""
    if not lines:
        return
    while piece and isinstance(piece[0].emission, Lines):
        lines = lines[piece[0].emission.count :]
        piece = piece[1:]
    while piece and isinstance(piece[-1].emission, Lines) and lines:
        lines = lines[: len(lines) - piece[-1].emission.count]
        piece = piece[:-1]
    if len(piece) == 1:
        only = piece[0].emission
        if isinstance(only, Form):
            findings.add(only.command, only.cwd, only.whole(lines), only.anchor)
        return
    if _bares(piece) and (_bares(piece[:-1]) or not _is_bare(piece[-1])):
        lines, piece = _read_listings(piece, lines, findings)
    else:
        lines, piece = _read_edges(piece, lines, findings)
    forms = [part.emission for part in piece if isinstance(part.emission, Form)]
    if not forms:
        return
    if len(forms) == len(piece) and _read_runs(forms, lines, findings):
        return
    _read_mixed(forms[:_MIXED_MAX], lines, findings)


def _read_edges(piece: list[Printed], lines: list[str], findings: Findings) -> tuple[list[str], list[Printed]]:
    """Read the lines without blanks at the end as those of an ``ls`` that ran last. Returns the rest."""
    last = piece[-1].emission if piece else None
    if not isinstance(last, Form) or not last.bare:
        return lines, piece
    at = len(lines)
    while at and lines[at - 1] and not _BLANK.search(lines[at - 1]):
        at -= 1
    findings.add(last.command, last.cwd, last.whole(lines[at:]), last.anchor)
    return lines[:at], piece[:-1]


def _is_bare(part: Printed) -> bool:
    return isinstance(part.emission, Form) and part.emission.bare


def _bares(piece: Sequence[Printed]) -> list[Form]:
    return [part.emission for part in piece if isinstance(part.emission, Form) and part.emission.bare]


def _read_listings(piece: list[Printed], lines: list[str], findings: Findings) -> tuple[list[str], list[Printed]]:
    """Several ``ls``, or one before other commands: the end of each is unknown, so each name is checked on disk."""
    first = next((at for at, part in enumerate(piece) if not _is_bare(part)), len(piece))
    last = next((at for at in range(len(piece), first, -1) if not _is_bare(piece[at - 1])), first)
    head = next((at for at, line in enumerate(lines) if not line or _BLANK.search(line)), len(lines))
    tail = next((at for at in range(len(lines), head, -1) if not lines[at - 1] or _BLANK.search(lines[at - 1])), head)
    if first == len(piece):
        head = len(lines)
    for forms, listed in ((_bares(piece[:first]), lines[:head]), (_bares(piece[last:]), lines[tail:])):
        for form in forms[:_MIXED_MAX]:
            names = map(PossiblePath, form.whole(listed[:_MIXED_LINES_MAX]))
            findings.add(form.command, form.cwd, names, form.anchor)
    return lines, [part for part in piece if not _is_bare(part)]


def _read_runs(forms: list[Form], lines: list[str], findings: Findings) -> bool:
    """Formats whose runs all start with a known line: split there. False if the lines do not match that."""
    starts = [index for index, line in enumerate(lines) if forms[0].begins is not None and forms[0].begins(line)]
    if len(starts) != len(forms) or starts[0] != 0 or any(form.begins is None for form in forms):
        return False
    for form, first, end in zip(forms, starts, [*starts[1:], len(lines)], strict=True):
        findings.add(form.command, form.cwd, form.whole(lines[first:end]), form.anchor)
    return True


def _read_mixed(forms: Iterable[Form], lines: list[str], findings: Findings) -> None:
    for line in lines[:_MIXED_LINES_MAX]:
        if not line:
            continue
        a_word = "/" not in line and "." not in line
        doubtful: tuple[Form, str] | None = None
        for form in forms:
            name = form.line(line)
            if name is None:
                continue
            if type(name) is PossiblePath:
                doubtful = doubtful or (None if a_word else (form, name))
                continue
            findings.add(form.command, form.cwd, (name,), form.anchor)
            break
        else:
            if doubtful is not None:
                form, name = doubtful
                findings.add(form.command, form.cwd, (name,), form.anchor)


__all__ = ["Discovery", "UnparsedText", "candidates"]
