"""Output formats of commands: nothing, known lines, names in a known form, or text without names.

Only the value types. The parsers of single commands create them; `file_candidates` applies them to the real output.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence

import msgspec

from ctxd.indexing.shell.paths import Anchor


class Form(msgspec.Struct, frozen=True):
    """The form in which ``command`` names files.

    ``whole`` reads an output of this command alone. ``line`` reads one line of an output that several commands share,
    and returns None unless the line can hardly be anything else. Both return names relative to ``cwd``. ``cwd`` is None
    when the directory is unknown. ``begins`` recognises lines that start the output of one run. ``bare``: lines are
    only names, so that only their position distinguishes them from other text. ``anchor``: base that the names may be
    relative to instead of ``cwd``.
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
    """Known text of ``echo`` or ``printf``, which splits an output of several commands."""

    text: str


class Lines(msgspec.Struct, frozen=True):
    """Exactly ``count`` lines without file names. ``here``: the line is the directory the command runs in (``pwd``)."""

    count: int
    here: bool = False


class Silent(msgspec.Struct, frozen=True):
    """No output."""


class UnparsedText(msgspec.Struct, frozen=True):
    """Text that is not read: file contents, messages."""


Emission = Form | Marker | Lines | Silent | UnparsedText
SILENT = Silent()
PROSE = UnparsedText()
