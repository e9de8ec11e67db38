"""The tree a shell command parses to: words, redirections, commands, groups, loops, pipelines, lists.

Owns the values only. What they are made from is `shell`'s business, what they mean is `walk`'s.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Word:
    """One word after quote removal.

    ``text`` holds ``$name`` variables as ``\\0name\\0``, to be filled in by whoever knows their values. ``opaque``: a
    part cannot be known (a command substitution, ``~``, ``${x%y}``). ``glob``: unquoted ``*``, ``?`` or ``[``.
    ``bare``: no quoting at all, so it can be a reserved word. ``inner``: the scripts of its substitutions.
    """

    text: str
    opaque: bool = False
    glob: bool = False
    bare: bool = True
    inner: tuple["Script", ...] = ()


@dataclass(frozen=True, slots=True)
class Redirect:
    """``fd op target``; for a here-document ``target`` is its body and ``op`` is ``<<``."""

    fd: str
    op: str
    target: Word


@dataclass(frozen=True, slots=True)
class Simple:
    """A simple command: leading ``NAME=value`` words, then words, with its redirections in order."""

    assignments: tuple[tuple[str, Word], ...]
    words: tuple[Word, ...]
    redirects: tuple[Redirect, ...]


@dataclass(frozen=True, slots=True)
class Group:
    """``( … )`` (``subshell``), ``{ … }``, or a body of ``if``/``while``, with the redirections behind it."""

    body: "Script"
    subshell: bool
    redirects: tuple[Redirect, ...] = ()


@dataclass(frozen=True, slots=True)
class Loop:
    """``for variable in words; do body; done``."""

    variable: str
    words: tuple[Word, ...]
    body: "Script"
    redirects: tuple[Redirect, ...] = ()


Stage = Simple | Group | Loop


@dataclass(frozen=True, slots=True)
class Pipeline:
    """Stages joined by ``|``. ``after`` is the operator before it: ``&&``, ``||``, ``;`` or empty for the first."""

    stages: tuple[Stage, ...]
    after: str


@dataclass(frozen=True, slots=True)
class Script:
    """A list of pipelines in order of writing."""

    pipelines: tuple[Pipeline, ...]


class HereDocument(Word):
    """A here-document's body. It stands behind the command, so its lines arrive after the word was made."""

    __slots__ = ("lines",)
    lines: list[str]

    def __init__(self, lines: list[str]) -> None:
        Word.__init__(self, "")
        object.__setattr__(self, "lines", lines)


def heredoc(redirect: Redirect) -> list[str] | None:
    """The lines of a here-document's body; None if ``redirect`` is none."""
    return redirect.target.lines if isinstance(redirect.target, HereDocument) else None
