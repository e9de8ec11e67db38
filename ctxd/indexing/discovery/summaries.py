"""What commands print that name their operands beside something: counts, sums, headers of several files, trees."""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence

from ctxd.indexing.discovery.emission import PROSE, Emission, Form, Lines
from ctxd.indexing.discovery.invocation import Invocation, split
from ctxd.indexing.discovery.paths import Maybe, guessed
from ctxd.indexing.discovery.readers import TABLE, Operands

_WC = re.compile(r" {0,20}\d{1,12}(?: {1,20}\d{1,12}){0,3} (\S.{0,1023})$")
_SUM = re.compile(r"[0-9a-f]{32,128} [ *](\S.{0,1023})$")
_DU = re.compile(r"[\d.]{1,12}[KMGTBi]{0,3}\t(\S.{0,1023})$")
_HEADER = re.compile(r"==> (.{1,1024}) <==$")
_KIND = re.compile(r"([^:\t]{1,1024}): {1,60}(?!directory|cannot open|symbolic link to .{1,400}/$)\S")
_PATCHING = re.compile(r"(?:patching|checking) file '?([^']{1,1024})'?$")
_TREE = re.compile(r"([\u2502| \u00a0]{0,400})(?:\u251c|\u2514|\||`)(?:\u2500\u2500|--)[ \u00a0](.{1,1024})$")
_UPDATED = re.compile(r"[AMD] (\S.{0,1023})$")


def emission(invocation: Invocation, cwd: str | None) -> Emission | None:
    """The form of ``wc``, ``head`` and their like; None if this is none of them."""
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


def _tree(invocation: Invocation, cwd: str | None) -> Emission:
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
                yield path if type(guessed(name)) is str else Maybe(path)

    return Form("tree", cwd, whole, lambda _: None)
