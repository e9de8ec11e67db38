"""Output formats of commands: nothing, known lines, names in a known form, or text without names.

Owns these values only. The parsers of single commands make them; `candidates` lays them beside the real output.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence

import msgspec

from ctxd.indexing.shell.paths import Anchor


class Form(msgspec.Struct, frozen=True):
    """The form in which ``command`` names files.

    ``whole`` reads an output that is this command's alone. ``line`` reads one line of an output that several commands
    share: it answers None unless the line can hardly be anything else. Both answer names relative to ``cwd``.
    ``cwd`` is None when the directory is unknown. ``begins`` recognises lines that start the output of one run.
    ``bare``: lines are names and nothing else, so that only their position sets them apart from other text.
    ``anchor``: what the names may be relative to instead of ``cwd``.
    """

    command: str
    cwd: str | None
    whole: Callable[[Sequence[str]], Iterable[str]]
    line: Callable[[str], str | None]
    begins: Callable[[str], bool] | None = None
    bare: bool = False
    anchor: Anchor | None = None


def by_line(command: str, cwd: str | None, line: Callable[[str], str | None]) -> Form:
    """The format of a command whose lines are read one by one, without their context."""

    def whole(lines: Sequence[str]) -> Iterator[str]:
        return (name for name in map(line, lines) if name is not None)

    return Form(command, cwd, whole, line)


class Marker(msgspec.Struct, frozen=True):
    """Known text, by ``echo`` or ``printf``: it cuts an output of several commands into pieces."""

    text: str


class Lines(msgspec.Struct, frozen=True):
    """Exactly ``count`` lines that name no file. ``here``: the line is the directory the command runs in (``pwd``)."""

    count: int
    here: bool = False


class Silent(msgspec.Struct, frozen=True):
    """No output."""


class Prose(msgspec.Struct, frozen=True):
    """Text of which no line is read: file contents, messages."""


Emission = Form | Marker | Lines | Silent | Prose
SILENT = Silent()
PROSE = Prose()
