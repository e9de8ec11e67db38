"""Places in files that tools report: compilers, linters, test runners, tracebacks. Only forms that nothing else has."""

import re
from collections.abc import Iterator, Sequence

from ctxd.indexing.discovery.emission import Form
from ctxd.indexing.discovery.paths import surely_file

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


def form(cwd: str | None, *, bare_names: str | None = "") -> Form:
    """The places a tool's output reports. ``bare_names``: what goes before names without a directory; None drops those.

    ``go test`` shortens names to their last component, so only the package it tests tells where they are. What a script
    of an npm workspace printed is relative to that; npm tells which one it was if the script failed.
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
    """``top``: the first directory of absolute paths that count wherever they stand in a line."""
    for line in lines:
        if top in line and len(line) <= _LINE_CHARS_MAX:
            yield from (name for name in _ABSOLUTE.findall(line) if name.startswith(top) and surely_file(name))
        if len(line) <= _LINE_CHARS_MAX and ("/" in line or _PLACE_HINT.search(line)):
            for name in _places(line):
                if "/" in name:
                    yield name
                elif bare_names is not None:
                    yield bare_names + name


def _by_package(lines: Sequence[str]) -> Iterator[tuple[str, Sequence[str]]]:
    """The lines of each script that npm ran, with the directory of its package where npm tells it."""
    first = script = 0
    for index, line in enumerate(lines):
        if line.startswith("> "):
            script = index
        elif line.startswith("npm ") and (told := _NPM_PATH.match(line)) is not None:
            yield "", lines[first:script]
            yield told.group(1) + "/", lines[script:index]
            first = script = index
    yield "", lines[first:] if first else lines


def _places(line: str) -> Iterator[str]:
    if '"' in line:
        trace = _TRACEBACK.match(line)
        if trace is not None:
            if trace.group(1)[0] != "<":
                yield trace.group(1)
            return
    yield from filter(surely_file, _numbered(line))
    stripped = line.strip()
    report = _STARTED.match(line) or _PYTEST.match(line) or (_TABLE_ROW.match(line) if "|" in line else None)
    if report is not None and "/" in report.group(1) and surely_file(report.group(1)):
        yield report.group(1)
    elif "/" in line and " " not in stripped and "(" not in line and surely_file(stripped):
        yield stripped


def _numbered(line: str) -> Iterator[str]:
    """Names with the number of a line behind them, and those of ``file:`` addresses."""
    if ":" in line or "(" in line:
        yield from _PLACE.findall(line)
        if "/" in line:
            yield from _ABSOLUTE_PLACE.findall(line)
    if "file:///" in line:
        yield from _FILE_URL.findall(line)
