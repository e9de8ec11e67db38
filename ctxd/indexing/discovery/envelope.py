"""What harnesses put around a command's output: headers, exit codes, notes about truncation, colours."""

import re

import msgspec

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
    """The lines a command printed, without what the harness added. A line cut in the middle loses both halves."""
    if _JSON.match(output):
        try:
            shell = msgspec.json.decode(output.encode("utf-8", "replace"), type=_Shell)
            output = output if shell.output is shell.stdout is None else shell.output or shell.stdout or ""
        except msgspec.MsgspecError:
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
    if _noted(output):
        lines = [line for line in lines if not _is_note(line)]
    while lines and not lines[-1].strip():
        lines.pop()
    return lines


def _without_statements(output: str) -> str:
    """The output out of what states it, piece by piece: ``Stdout: …``, then ``Exit Code: 0``; or a tag around it."""
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


def _noted(output: str) -> bool:
    return any(word in output for word in _WORDS)


def _is_note(line: str) -> bool:
    if not line:
        return False
    first = line[0]
    if first in ".…[(CE<S0123456789" and len(line) < 4096 and _NOTE.match(line):
        return True
    return "…" in line and len(line) < 65536 and _CUT.search(line) is not None


def complaints(lines: list[str]) -> list[str]:
    """Names of which a line says that they are missing or are directories."""
    names: list[str] = []
    for line in lines:
        if "director" in line and len(line) < 4096 and len(names) < 1000:
            found = _COMPLAINT.match(line)
            if found is not None:
                names.append(found.group(1).strip())
    return names


def refused(lines: list[str]) -> frozenset[str]:
    """Directories of which a line says that no ``cd`` could enter them."""
    names: list[str] = []
    for line in lines:
        if "cd:" in line and len(line) < 4096 and len(names) < _REFUSED_MAX:
            found = _REFUSED.match(line)
            if found is not None:
                names.append(found.group(1) or found.group(2))
    return frozenset(names)
