"""Stages of a pipeline that pick lines, or parts of lines, of what an earlier stage printed: what stood there before.

Owns which stages these are and how a line is put back into the form it had. What a stage's line came from is then read
by the form of the command that printed it.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace

from ctxd.indexing.discovery import grep, readers
from ctxd.indexing.discovery.emission import PROSE, Emission, Form
from ctxd.indexing.discovery.invocation import Arg, Invocation, split
from ctxd.indexing.discovery.paths import Maybe

Undo = Callable[[str], str]
"""From a line that a stage printed to the line it read."""

_SED_PICKS = re.compile(r"(?:\d+|\$)(?:,(?:\d+|\$))?[pdq]$|/[^/]*/[pd]$")
_COUNTED = re.compile(r" {0,20}\d{1,12} ")
_FIRST_FIELDS = re.compile(r"1(?:[,-][12]?)?$")
_PRINTS_FIELD = re.compile(r"\{ ?print \$(\d|NF) ?;?\}$")


def undo(invocation: Invocation) -> Undo | None:
    """How a line of this stage was read; None if the stage makes text of its own."""
    if invocation.fed:
        return None
    program = invocation.program
    options, values, operands = split(invocation.args, readers.TABLE.get(program, readers.Operands()).with_value)
    if program in grep.GREPS or program in grep.RIPGREPS:
        if not grep.is_filter(invocation):
            return None
        return _without_number if "-n" in options else same
    if program in ("head", "tail", "sort", "less", "more", "cat", "tac"):
        return same if not operands and "-n" not in (options if program == "cat" else ()) else None
    if program == "uniq":
        return None if operands else _without_count if "-c" in options else same
    if program == "tee" or (program == "sed" and len(operands) == 1 and _SED_PICKS.match(operands[0].text)):
        return same
    if program == "cut":
        return _cut_field(values) if not operands else None
    if program in ("awk", "gawk") and len(operands) == 1:
        return _awk_field(values["-F"].text if "-F" in values else "", operands[0].text)
    return None


def _cut_field(values: Mapping[str, Arg]) -> Undo | None:
    delimiter, fields = values.get("-d"), values.get("-f")
    if delimiter is None:
        return a_name
    first = delimiter.text == ":" and fields is not None and _FIRST_FIELDS.match(fields.text)
    return up_to_colon if first else None


def _awk_field(separator: str, script: str) -> Undo | None:
    field = _PRINTS_FIELD.match(script)
    if field is None:
        return None
    if separator == ":":
        return up_to_colon if field.group(1) == "1" else None
    return a_name if not separator else None


def read_back(emission: Emission, undone: Sequence[Undo]) -> Emission:
    """``emission`` as it is seen behind stages that are ``undone`` in this order, the last one of the pipeline first.

    Where a stage left only the name, any line may be one: every name is a `Maybe`.
    """
    steps = [step for step in undone if step is not same]
    if not steps or not isinstance(emission, Form):
        return emission
    form = emission
    if a_name in steps:
        return replace(form, whole=_names, line=_no_name, begins=None) if form.command in ("git", "find") else PROSE
    if up_to_colon in steps and form.command not in ("grep", "git"):
        return PROSE

    def before(line: str) -> str:
        for step in steps:
            line = step(line)
        return line

    return replace(
        form,
        whole=lambda lines: form.whole([before(line) for line in lines]),
        line=lambda line: form.line(before(line)),
        begins=None,
        bare=False,
    )


def same(line: str) -> str:
    """The line as it was."""
    return line


def up_to_colon(line: str) -> str:
    """A match that ended behind the name of its file, or the number of its line."""
    return f"{line}:1:"


def a_name(line: str) -> str:
    """A name that stood anywhere in its line."""
    return line


def _without_number(line: str) -> str:
    number, colon, rest = line.partition(":")
    return rest if colon and number.isdigit() else line


def _without_count(line: str) -> str:
    return _COUNTED.sub("", line, count=1) if _COUNTED.match(line) else line


def _names(lines: Sequence[str]) -> Iterator[str]:
    for line in lines:
        name = line.strip()
        if name and ("/" in name or "." in name) and " " not in name:
            yield Maybe(name)


def _no_name(_: str) -> None:
    return None
