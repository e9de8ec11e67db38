"""Simple commands: arguments, options and operands, and which operands are files.

Wrappers such as ``sudo`` are removed first. Operands of programs that are not in ``TABLE`` need a common suffix.
"""

import re
from collections.abc import Container, Iterable, Iterator, Mapping

import msgspec

from ctxd.indexing.shell.parser import Word
from ctxd.indexing.shell.paths import PossiblePath, guessed, has_file_suffix, looks_like_file

FILLED_CHARS_MAX = 4096
"""Maximum characters of a word with variables. A longer one is not a file name; without a limit, values that double
would explode.
"""

_VARIABLE = re.compile("\0([^\0]*)\0")


class Arg(msgspec.Struct, frozen=True):
    """One argument. ``known`` is False if part of ``text`` depends on the shell's state. ``glob``: a pattern."""

    text: str
    known: bool = True
    glob: bool = False


class ResolvedCommand(msgspec.Struct, frozen=True):
    """``program`` is the last component of the word that names it, ``path`` that word as written.

    ``fed``: its operands come from another command's output (``xargs``), so there are more than ``args`` shows.
    """

    program: str
    path: str
    args: tuple[Arg, ...]
    fed: bool = False


def fill(word: Word, variables: Mapping[str, str]) -> Arg:
    """The argument that a word expands to with ``variables``."""
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


def invoke(args: tuple[Arg, ...]) -> ResolvedCommand | None:
    """The command without its wrappers; None if it is unknown."""
    fed = False
    for _ in range(8):  # sudo env timeout … : real commands do not nest deeper
        if not args or not args[0].known or (args[0].glob and args[0].text not in ("[", "[[")):
            return None
        path = args[0].text
        program = path.rpartition("/")[2]
        if not program:
            return None
        if program in _WRAPPERS:
            if program == "command" and len(args) > 1 and args[1].text in ("-v", "-V"):
                return ResolvedCommand("which", path, args[1:])
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
        return ResolvedCommand(program, path, args[1:], fed)
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
    """Split arguments into the options in order, the values of those in ``with_value``, and the operands.

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
    """Split ``-abc``. Returns the option whose value is the next argument, if there is one."""
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


NO_OPERANDS = 99
"""``Operands.skip`` of a program whose operands are not files."""


class Operands(msgspec.Struct, frozen=True):
    """Operands of a program: ``skip`` of them come before the files unless one of ``instead`` is given.

    ``with_value``: options whose value is the next word. ``value_files``: those of them whose value is a file.
    ``bundles``: whether ``-ab`` means ``-a -b``.
    ``only_likely``: operands may be directories or other names, so only those that look like files count.
    """

    skip: int = 0
    with_value: frozenset[str] = frozenset()
    instead: frozenset[str] = frozenset()
    value_files: frozenset[str] = frozenset()
    bundles: bool = True
    only_likely: bool = False


def _of(
    skip: int = 0,
    with_value: str = "",
    instead: str = "",
    value_files: str = "",
    *,
    only_likely: bool = False,
    bundles: bool = True,
) -> Operands:
    every = frozenset(with_value.split()) | frozenset(value_files.split()) | frozenset(instead.split())
    return Operands(skip, every, frozenset(instead.split()), frozenset(value_files.split()), bundles, only_likely)


_FILES = _of()
_LIKELY = _of(only_likely=True)
_SCRIPT = _of(
    with_value="-W -X -O --require -r --import --loader --env-file -I", instead="-c -m -e --eval -p", only_likely=True
)
TABLE: Mapping[str, Operands] = {
    **dict.fromkeys(
        "cat tac less more bat batcat nl touch tee cmp zcat gzcat realpath readlink xxd od hexdump strings".split(),
        _FILES,
    ),
    **dict.fromkeys(
        "vim vi nvim nano emacs code subl open pbcopy md5 md5sum sha1sum sha256sum shasum b3sum cksum".split(), _LIKELY
    ),
    **dict.fromkeys("rm cp mv ln chmod chown du file stat diff colordiff unzip zip gzip gunzip".split(), _LIKELY),
    "head": _of(with_value="-n -c --lines --bytes"),
    "tail": _of(with_value="-n -c -s --lines --bytes --pid"),
    "wc": _FILES,
    "sort": _of(with_value="-k -t -S -T --key --field-separator", value_files="-o"),
    "uniq": _of(with_value="-f -s -w"),
    "cut": _of(with_value="-d -f -c -b --delimiter --fields"),
    "sed": _of(1, with_value="-l", instead="-e --expression", value_files="-f"),
    "gsed": _of(1, instead="-e --expression", value_files="-f"),
    "awk": _of(1, with_value="-F -v", value_files="-f"),
    "gawk": _of(1, with_value="-F -v", value_files="-f"),
    "jq": _of(1, with_value="--arg --argjson --indent", value_files="-f"),
    "yq": _of(1, only_likely=True),
    "patch": _of(with_value="-p -d -F", value_files="-i -o -r"),
    "source": _LIKELY,
    ".": _LIKELY,
    **dict.fromkeys(
        "python python3 python2 pypy node nodejs deno ruby perl php lua Rscript tsx ts-node bun".split(), _SCRIPT
    ),
    **dict.fromkeys("bash sh zsh dash fish ksh".split(), _of(instead="-c", with_value="-o", only_likely=True)),
    "curl": _of(
        NO_OPERANDS,
        with_value="-H -d -X -u -b -A -e -F --data --header --request -w",
        value_files="-o --output -K",
    ),
    "wget": _of(NO_OPERANDS, with_value="-q", value_files="-O --output-document"),
    "pip": _of(NO_OPERANDS, value_files="-r --requirement -c --constraint"),
    "pip3": _of(NO_OPERANDS, value_files="-r --requirement -c --constraint"),
    "tar": _of(only_likely=True, value_files="-f", with_value="-C"),
    "pytest": _of(only_likely=True, with_value="-k -m -p -n -o --tb --cov --maxfail --timeout"),
    "ffmpeg": _of(
        only_likely=True,
        with_value="-vf -c:v -t -ss -r -filter_complex -map -pix_fmt -preset -crf",
        value_files="-i",
        bundles=False,
    ),
    "go": _of(
        1,
        with_value="-run -timeout -count -tags -ldflags -bench",
        value_files="-o -coverprofile",
        only_likely=True,
        bundles=False,
    ),
    "docker": _of(NO_OPERANDS, value_files="-f"),
    "kubectl": _of(NO_OPERANDS, value_files="-f"),
    "make": _of(NO_OPERANDS, value_files="-f"),
    "gh": _of(NO_OPERANDS, value_files="-F --body-file"),
}
_NONE = frozenset(
    "echo printf npm pnpm yarn cargo brew apt apt-get mkdir rmdir cd pushd popd export unset kill"
    " pkill sleep date pwd which type"
    " whereis man ssh scp rsync ps top lsof hash alias set unalias true false uname whoami hostname id"
    " ulimit umask exit return"
    " conda nvm rustup basename dirname seq tr yes ls find fd fdfind tree git grep egrep fgrep rg ag"
    " ack entire claude codex".split()
)
_SUBCOMMANDS_FIRST = frozenset(("go", "bun", "deno"))
"""Programs whose operands are mostly subcommands, tasks and packages: ``bun run test``, ``go mod tidy``."""

_REDUNDANT = re.compile(r"(::.*|:\d+(:\d+)?)$")
_TEST_UNARY = frozenset("-f -e -s -r -w -x -L -h".split())
_ENVIRONMENTS = ("node_modules/", "venv/", ".tox/", "env/")
_TOOLS = ("/bin/", "/sbin/", "/libexec/", "/MacOS/")


def operand_files(invocation: ResolvedCommand) -> Iterator[str]:
    """The names, as written, of files among the operands, and the program itself if it is a file of the project.

    Operands that may be directories or other words are a `PossiblePath`.
    """
    yield from _program(invocation)
    program, args = invocation.program, invocation.args
    if program in _NONE:
        return
    if program in ("[", "test", "[["):
        yield from _tested(args)
        return
    spec = TABLE.get(program)
    if spec is None:
        yield from _of_unknown(args)
        return
    options, values, operands = split(
        args,
        spec.with_value if spec.skip < NO_OPERANDS else spec.value_files | spec.with_value,
        bundles=spec.bundles,
    )
    for name in spec.value_files:
        if name in values and _usable(values[name]):
            yield values[name].text
    given = set(options)
    if program in ("sed", "gsed") and {"-i", "-I"} & given and operands and operands[0].text == "":
        operands = operands[1:]  # BSD's `sed -i ''`
    if program in ("python", "python3", "node", "bash", "sh", "zsh") and spec.instead & given:
        operands = [arg for arg in operands[0 if "-m" in given else 1 :] if has_file_suffix(arg.text)]
    skip = 0 if spec.instead & given or (spec.skip == 1 and spec.value_files & given) else spec.skip
    if program in ("cp", "mv"):
        yield from _copied(operands)
        return
    yield from _likely(operands[skip:], spec.only_likely, program)


def _of_unknown(args: tuple[Arg, ...]) -> Iterator[str]:
    """Operands of a program that is not in the table, which may mean anything."""
    _, _, operands = split(args)
    for arg in operands:
        if _usable(arg) and ("/" in arg.text or looks_like_file(arg.text)) and "://" not in arg.text:
            yield arg.text if has_file_suffix(arg.text) else PossiblePath(arg.text)


def _likely(operands: Iterable[Arg], only_likely: bool, program: str) -> Iterator[str]:
    for arg in operands:
        if not _usable(arg):
            continue
        name = _REDUNDANT.sub("", arg.text[:4096]) if program == "pytest" else arg.text
        if not name or name == "-" or "://" in name:
            continue
        if program in _SUBCOMMANDS_FIRST and not looks_like_file(name) and not name.startswith(("./", "../", "/")):
            continue
        yield guessed(name) if only_likely else name


def _usable(arg: Arg) -> bool:
    return arg.known and not arg.glob and arg.text not in ("", "-", ".", "..")


def _program(invocation: ResolvedCommand) -> Iterator[str]:
    """A script or binary of the project that is run by its path, but not a system tool."""
    path = invocation.path
    if "/" not in path or not invocation.program:
        return
    if not any(part in path for part in _TOOLS) or looks_like_file(path):
        yield path
    elif path[0] != "/" and not any(part in path for part in _ENVIRONMENTS):
        yield PossiblePath(path)


def _tested(args: tuple[Arg, ...]) -> Iterator[str]:
    """``[ -f name ]``."""
    for option, arg in zip(args, args[1:], strict=False):
        if option.text in _TEST_UNARY and _usable(arg):
            yield guessed(arg.text)


def _copied(operands: list[Arg]) -> Iterator[str]:
    """The sources and their targets, which are below the last operand if that is a directory."""
    if not operands:
        return
    *sources, target = operands
    into = target.text.endswith("/") or len(sources) > 1 or target.text in (".", "..")
    into = into or (len(sources) == 1 and looks_like_file(sources[0].text) and not looks_like_file(target.text))
    for arg in sources:
        if not _usable(arg):
            continue
        yield guessed(arg.text)
        if target.known and not target.glob:
            inside = f"{target.text.rstrip('/') or '/'}/{arg.text.rstrip('/').rpartition('/')[2]}"
            yield guessed(inside) if into else PossiblePath(inside)
    if _usable(target) and len(sources) == 1 and not target.text.endswith("/"):
        yield PossiblePath(target.text) if into else guessed(target.text)
