"""Names in counts, checksums, headers and trees, and the places that compilers and test runners report."""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence

from ctxd.indexing.shell.command_arguments import TABLE, Operands, ResolvedCommand, split
from ctxd.indexing.shell.output_format_types import PROSE, Emission, Form, Lines
from ctxd.indexing.shell.paths import PossiblePath, guessed, has_file_suffix

_WC = re.compile(r" {0,20}\d{1,12}(?: {1,20}\d{1,12}){0,3} (\S.{0,1023})$")
_SUM = re.compile(r"[0-9a-f]{32,128} [ *](\S.{0,1023})$")
_DU = re.compile(r"[\d.]{1,12}[KMGTBi]{0,3}\t(\S.{0,1023})$")
_HEADER = re.compile(r"==> (.{1,1024}) <==$")
_KIND = re.compile(r"([^:\t]{1,1024}): {1,60}(?!directory|cannot open|symbolic link to .{1,400}/$)\S")
_PATCHING = re.compile(r"(?:patching|checking) file '?([^']{1,1024})'?$")
_TREE = re.compile(r"([\u2502| \u00a0]{0,400})(?:\u251c|\u2514|\||`)(?:\u2500\u2500|--)[ \u00a0](.{1,1024})$")
_UPDATED = re.compile(r"[AMD] (\S.{0,1023})$")


def summary_format(invocation: ResolvedCommand, cwd: str | None) -> Emission | None:
    """The form of ``wc``, ``head`` and their like; None if this is another program."""
    program = invocation.program
    if program == "tree":
        return _tree(invocation, cwd)
    pattern = _PATTERNS.get(program)
    if pattern is None:
        return None
    spec = TABLE.get(program, Operands())
    _, _, operands = split(invocation.args, spec.with_value)
    if program == "wc" and not operands and not invocation.fed:
        return Lines(1)
    if (
        program in ("head", "tail")
        and len(operands) < 2
        and not any(arg.glob for arg in operands)
        and not invocation.fed
    ):
        return PROSE

    def line(text: str) -> str | None:
        found = pattern.match(text[:1200])
        name = found.group(1) if found is not None else None
        if name is None or "://" in name or (program == "wc" and name == "total"):
            return None
        return name if pattern in (_SUM, _HEADER) else guessed(name)

    return Form(program, cwd, _each(line), line)


_PATTERNS: Mapping[str, re.Pattern[str]] = {
    "wc": _WC,
    **dict.fromkeys("md5sum sha1sum sha256sum sha512sum shasum b3sum cksum".split(), _SUM),
    "du": _DU,
    "head": _HEADER,
    "tail": _HEADER,
    "file": _KIND,
    "patch": _PATCHING,
    "apply_patch": _UPDATED,
}


def _each(line: Callable[[str], str | None]) -> Callable[[Sequence[str]], Iterator[str]]:
    def whole(lines: Sequence[str]) -> Iterator[str]:
        for text in lines:
            name = line(text)
            if name is not None:
                yield name

    return whole


def _tree(invocation: ResolvedCommand, cwd: str | None) -> Emission:
    options, _, operands = split(invocation.args, frozenset(("-L", "-I", "-P", "-o")))
    if "-d" in options or len(operands) > 1 or any(not arg.known or arg.glob for arg in operands):
        return PROSE
    base = operands[0].text.rstrip("/") + "/" if operands else ""

    def whole(lines: Sequence[str]) -> Iterator[str]:
        trail: list[str] = []
        for text in lines:
            found = _TREE.match(text[:2048])
            if found is None:
                continue
            depth = len(found.group(1)) // 4
            name = found.group(2)
            del trail[depth:]
            trail.append(name.rstrip("/"))
            if len(trail) == depth + 1 and depth < 64:
                path = base + "/".join(trail)
                yield path if type(guessed(name)) is str else PossiblePath(path)

    return Form("tree", cwd, whole, lambda _: None)


_LINE_CHARS_MAX = 2000
_PLACE = re.compile(
    r"(?:^|(?<=[\s(\"'`\[]))((?:\.{0,2}/)?[\w@+-][\w@.+-]{0,120}(?:/[\w@.+\[\]-]{1,120}){0,40}\.[A-Za-z][A-Za-z0-9]{0,9})"
    r"(?::\d{1,7}(?::\d{1,6})?(?=[\s:)\]]|$)|\(\d{1,7},\d{1,6}\))"
)
_ABSOLUTE_PLACE = re.compile(r"(?:^|(?<=[\s(\"'`\[]))(/[\w@.+/-]{1,1000}\.[A-Za-z][A-Za-z0-9]{0,9}):\d{1,7}")
_TRACEBACK = re.compile(r'\s{0,40}File "([^"<>\n]{1,1024})", line \d')
_STARTED = re.compile(
    r"\s{0,20}(?:✓|✗|✘|×|❯|PASS|FAIL|RUNS?|ERROR|FAILED|PASSED)\s{1,4}(\S{1,1024}?)(?:::\S{0,400})?(?=\s|$)"
)
_PYTEST = re.compile(r"(\S{1,1024}?\.py)(?:::\S{0,400})?(?= [.sFExXP]| {1,4}(?:PASSED|FAILED|ERROR|SKIPPED))")
_TABLE_ROW = re.compile(r"\s{0,20}(\S{1,1024}?)\s{1,200}\|\s{1,20}\d{1,3}(?:\.\d{1,3})?%? {1,20}\|")
_FILE_URL = re.compile(r"file://(/[^\s?#\"'<>)]{1,1024})")
_ABSOLUTE = re.compile(
    r"(?:^|(?<=[\s\"'`(]))(/(?:[\w@+.-]{1,120}/){1,40}[\w@+-][\w@+.-]{0,120}?\.[A-Za-z][A-Za-z0-9]{0,9})(?=[\s\"'`):,;]|\.?$|\.\s)"
)
_NPM_PATH = re.compile(r"npm (?:error|ERR!) path (/[^\n]{1,1024}?)/?$")
_PLACE_HINT = re.compile(r"\.[A-Za-z][A-Za-z0-9]{0,9}(?:[:(]\d|\")")


def diagnostics_format(cwd: str | None, *, bare_names: str | None = "") -> Form:
    """The places a tool's output reports. ``bare_names``: prefix for names without a directory; None drops those.

    ``go test`` shortens names to their last component, so the tested package is needed to locate them. Output of an npm
    workspace's script is relative to the workspace, whose path npm prints if the script failed.
    """

    top = "/" + cwd.split("/")[1] + "/" if cwd is not None and cwd != "/" else "//"

    def whole(lines: Sequence[str]) -> Iterator[str]:
        for package, its_lines in _by_package(lines):
            for name in _reported(its_lines, top, bare_names):
                yield package + name if package and name[0] != "/" else name

    def line(text: str) -> str | None:
        return next(iter(whole((text,))), None)

    return Form("diagnostic", cwd, whole, line)


def _reported(lines: Sequence[str], top: str, bare_names: str | None) -> Iterator[str]:
    """``top``: the first directory of absolute paths, which count anywhere in a line."""
    for line in lines:
        if top in line and len(line) <= _LINE_CHARS_MAX:
            yield from (name for name in _ABSOLUTE.findall(line) if name.startswith(top) and has_file_suffix(name))
        if len(line) <= _LINE_CHARS_MAX and ("/" in line or _PLACE_HINT.search(line)):
            for name in _places(line):
                if "/" in name:
                    yield name
                elif bare_names is not None:
                    yield bare_names + name


def _by_package(lines: Sequence[str]) -> Iterator[tuple[str, Sequence[str]]]:
    """The lines of each script that npm ran, with the directory of its package where npm prints it."""
    first = script = 0
    for index, line in enumerate(lines):
        if line.startswith("> "):
            script = index
        elif line.startswith("npm ") and (package := _NPM_PATH.match(line)) is not None:
            yield "", lines[first:script]
            yield package.group(1) + "/", lines[script:index]
            first = script = index
    yield "", lines[first:] if first else lines


def _places(line: str) -> Iterator[str]:
    if '"' in line:
        trace = _TRACEBACK.match(line)
        if trace is not None:
            if trace.group(1)[0] != "<":
                yield trace.group(1)
            return
    yield from filter(has_file_suffix, _numbered(line))
    stripped = line.strip()
    report = _STARTED.match(line) or _PYTEST.match(line) or (_TABLE_ROW.match(line) if "|" in line else None)
    if report is not None and "/" in report.group(1) and has_file_suffix(report.group(1)):
        yield report.group(1)
    elif "/" in line and " " not in stripped and "(" not in line and has_file_suffix(stripped):
        yield stripped


def _numbered(line: str) -> Iterator[str]:
    """Names followed by a line number, and those in ``file:`` URLs."""
    if ":" in line or "(" in line:
        yield from _PLACE.findall(line)
        if "/" in line:
            yield from _ABSOLUTE_PLACE.findall(line)
    if "file:///" in line:
        yield from _FILE_URL.findall(line)
