"""A simple command as it will run: variables filled in, wrappers such as ``sudo`` taken off, options apart from
operands.

Owns what an argument is and which leading words only run another command. Knows nothing of what single commands print.
"""

import re
from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass

from ctxd.indexing.discovery.syntax import Word

FILLED_CHARS_MAX = 4096
"""Characters of a word with variables in it. A longer one names no file; without a bound, values that double would
explode.
"""

_VARIABLE = re.compile("\0([^\0]*)\0")


@dataclass(frozen=True, slots=True)
class Arg:
    """One argument. ``known`` is False if part of ``text`` depends on what only the shell knew. ``glob``: a pattern."""

    text: str
    known: bool = True
    glob: bool = False


@dataclass(frozen=True, slots=True)
class Invocation:
    """``program`` is the last component of the word that names it, ``path`` that word as written.

    ``fed``: its operands come from another command's output (``xargs``), so there are more than ``args`` shows.
    """

    program: str
    path: str
    args: tuple[Arg, ...]
    fed: bool = False


def fill(word: Word, variables: Mapping[str, str]) -> Arg:
    """The argument a word becomes where ``variables`` have these values."""
    if "\0" not in word.text:
        return Arg(word.text, not word.opaque, word.glob)
    known = not word.opaque
    if len(word.text) > FILLED_CHARS_MAX:
        return Arg(word.text[:FILLED_CHARS_MAX].replace("\0", "$"), False, word.glob)

    def value(found: re.Match[str]) -> str:
        nonlocal known
        name, dash, default = found.group(1).partition("-")
        if name in variables:
            return variables[name]
        known = known and bool(dash and default)
        return default if dash else found.group()

    text = _VARIABLE.sub(value, word.text)
    if len(text) > FILLED_CHARS_MAX:
        return Arg(text[:FILLED_CHARS_MAX].replace("\0", "$"), False, word.glob)
    return Arg(text.replace("\0", "$"), known, word.glob)


_WRAPPERS: Mapping[str, str] = {
    # program: its options that take a value, as one string of names
    "sudo": "-u -g -h -p -C -T --user --group",
    "doas": "-u -C",
    "env": "-u -C -S --unset --chdir",
    "time": "-f -o --format --output",
    "nice": "-n --adjustment",
    "ionice": "-c -n -p",
    "nohup": "",
    "command": "",
    "exec": "-a",
    "builtin": "",
    "timeout": "-s -k --signal --kill-after",
    "gtimeout": "-s -k --signal --kill-after",
    "stdbuf": "-i -o -e",
    "xargs": "-I -i -n -P -L -d -s -a -E -J -R --max-args --max-procs --replace --delimiter",
    "caffeinate": "",
    "setsid": "",
    "unbuffer": "",
    "npx": "-p --package -c",
    "bunx": "",
    "pnpx": "",
    "arch": "",
}
_RUNNERS: Mapping[str, frozenset[str]] = {
    # program: the subcommands that run another command
    "uv": frozenset(("run",)),
    "poetry": frozenset(("run",)),
    "pipenv": frozenset(("run",)),
    "pdm": frozenset(("run",)),
    "rye": frozenset(("run",)),
    "hatch": frozenset(("run",)),
    "conda": frozenset(("run",)),
    "pnpm": frozenset(("exec", "dlx")),
    "yarn": frozenset(("exec", "dlx")),
    "npm": frozenset(("exec", "x")),
    "bundle": frozenset(("exec",)),
    "mise": frozenset(("exec", "x")),
    "direnv": frozenset(("exec",)),
}
_RUNNER_VALUES = (
    "-n --name -p --python --with --package --project --directory --filter -F --env-file --extra --group".split()
)
_ASSIGNMENT = re.compile(r"[A-Za-z_][A-Za-z0-9_]*=")
_DURATION = re.compile(r"\d+(\.\d+)?[smhd]?$")


def invoke(args: tuple[Arg, ...]) -> Invocation | None:
    """What really runs once wrappers are taken off; None if nothing does, or nobody can know what."""
    fed = False
    for _ in range(8):  # sudo env timeout … : nobody nests deeper
        if not args or not args[0].known or (args[0].glob and args[0].text not in ("[", "[[")):
            return None
        path = args[0].text
        program = path.rpartition("/")[2]
        if not program:
            return None
        if program in _WRAPPERS:
            if program == "command" and len(args) > 1 and args[1].text in ("-v", "-V"):
                return Invocation("which", path, args[1:])
            fed = fed or program == "xargs"
            args = _unwrapped(program, args[1:])
            continue
        subcommands = _RUNNERS.get(program)
        if subcommands is not None and len(args) > 1 and args[1].text in subcommands:
            args = _after_options(args[2:], _RUNNER_VALUES)
            continue
        if program.startswith("python") and len(args) > 2 and args[1].text == "-m":
            args = args[2:]
            continue
        return Invocation(program, path, args[1:], fed)
    return None


def _unwrapped(program: str, args: tuple[Arg, ...]) -> tuple[Arg, ...]:
    args = _after_options(args, _WRAPPERS[program].split())
    if program in ("env", "sudo"):
        while args and _ASSIGNMENT.match(args[0].text):
            args = args[1:]
    if program in ("timeout", "gtimeout") and args and _DURATION.match(args[0].text):
        args = args[1:]
    return args


def _after_options(args: tuple[Arg, ...], with_value: Container[str]) -> tuple[Arg, ...]:
    index = 0
    while index < len(args) and args[index].text.startswith("-"):
        if args[index].text == "--":
            return args[index + 1 :]
        index += 2 if args[index].text in with_value else 1
    return args[index:]


def split(
    args: Iterable[Arg], with_value: Container[str] = (), *, bundles: bool = True
) -> tuple[list[str], dict[str, Arg], list[Arg]]:
    """Arguments apart: the options in order, the values of those named in ``with_value``, and the operands.

    Short options in a bundle (``-la``) come one by one; a one-letter option of ``with_value`` takes the rest of its
    bundle. ``bundles`` False: ``-count`` is one option, as ``go`` and ``ffmpeg`` have them.
    """
    options: list[str] = []
    values: dict[str, Arg] = {}
    operands: list[Arg] = []
    wants: str | None = None
    plain = False
    for arg in args:
        text = arg.text
        if wants is not None:
            values[wants] = arg
            wants = None
        elif plain or len(text) < 2 or text[0] != "-":
            operands.append(arg)
        elif text == "--":
            plain = True
        elif text.startswith("--") or not bundles:
            name, equals, value = text.partition("=")
            options.append(name)
            if equals:
                values[name] = Arg(value, arg.known, arg.glob)
            elif name in with_value:
                wants = name
        else:
            wants = _bundle(arg, with_value, options, values)
    return options, values, operands


def _bundle(arg: Arg, with_value: Container[str], options: list[str], values: dict[str, Arg]) -> str | None:
    """Take ``-abc`` apart. The name of the option whose value is the next argument, if one is."""
    for position, letter in enumerate(arg.text[1:64], start=1):
        name = f"-{letter}"
        options.append(name)
        if name in with_value:
            rest = arg.text[position + 1 :]
            if not rest:
                return name
            values[name] = Arg(rest, arg.known, arg.glob)
            return None
    return None
