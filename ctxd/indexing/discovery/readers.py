"""Operands: which words of a command name files it reads, writes, moves, removes or runs.

Owns the table of programs. An operand of a program that is not in the table counts only if its suffix is a common one.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from ctxd.indexing.discovery.invocation import Arg, Invocation, split
from ctxd.indexing.discovery.paths import Maybe, guessed, looks_like_file, surely_file


@dataclass(frozen=True, slots=True)
class Operands:
    """How a program takes operands: ``skip`` of them come before the files unless one of ``instead`` is given.

    ``with_value``: options whose value is the next word. ``value_files``: those of them whose value is a file.
    ``bundles``: whether ``-ab`` means ``-a -b``.
    ``only_likely``: operands may be directories or names of other things, so only what looks like a file counts.
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
    "curl": _of(99, with_value="-H -d -X -u -b -A -e -F --data --header --request -w", value_files="-o --output -K"),
    "wget": _of(99, with_value="-q", value_files="-O --output-document"),
    "pip": _of(99, value_files="-r --requirement -c --constraint"),
    "pip3": _of(99, value_files="-r --requirement -c --constraint"),
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
    "docker": _of(99, value_files="-f"),
    "kubectl": _of(99, value_files="-f"),
    "make": _of(99, value_files="-f"),
    "gh": _of(99, value_files="-F --body-file"),
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


def operand_files(invocation: Invocation) -> Iterator[str]:
    """The names, as written, of files among the operands, and the program itself if it is a file of the project.

    Those that may be directories, or words of another meaning, are a `Maybe`.
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
        args, spec.with_value if spec.skip < 99 else spec.value_files | spec.with_value, bundles=spec.bundles
    )
    for name in spec.value_files:
        if name in values and _usable(values[name]):
            yield values[name].text
    given = set(options)
    if program in ("sed", "gsed") and {"-i", "-I"} & given and operands and operands[0].text == "":
        operands = operands[1:]  # BSD's `sed -i ''`
    if program in ("python", "python3", "node", "bash", "sh", "zsh") and spec.instead & given:
        operands = [arg for arg in operands[0 if "-m" in given else 1 :] if surely_file(arg.text)]
    skip = 0 if spec.instead & given or (spec.skip == 1 and spec.value_files & given) else spec.skip
    if program in ("cp", "mv"):
        yield from _copied(operands)
        return
    yield from _likely(operands[skip:], spec.only_likely, program)


def _of_unknown(args: tuple[Arg, ...]) -> Iterator[str]:
    """What a program that is not in the table is given: words of any meaning."""
    _, _, operands = split(args)
    for arg in operands:
        if _usable(arg) and ("/" in arg.text or looks_like_file(arg.text)) and "://" not in arg.text:
            yield arg.text if surely_file(arg.text) else Maybe(arg.text)


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


def _program(invocation: Invocation) -> Iterator[str]:
    """A script or a binary of the project that is run by its path. Tools of the system are none of its files."""
    path = invocation.path
    if "/" not in path or not invocation.program:
        return
    if not any(part in path for part in _TOOLS) or looks_like_file(path):
        yield path
    elif path[0] != "/" and not any(part in path for part in _ENVIRONMENTS):
        yield Maybe(path)


def _tested(args: tuple[Arg, ...]) -> Iterator[str]:
    """``[ -f name ]``."""
    for option, arg in zip(args, args[1:], strict=False):
        if option.text in _TEST_UNARY and _usable(arg):
            yield guessed(arg.text)


def _copied(operands: list[Arg]) -> Iterator[str]:
    """Sources, and where they arrive: below the last operand if that is a directory."""
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
            yield guessed(inside) if into else Maybe(inside)
    if _usable(target) and len(sources) == 1 and not target.text.endswith("/"):
        yield Maybe(target.text) if into else guessed(target.text)
