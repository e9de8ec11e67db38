"""Interpreter of a parsed command: the directory of each part, the file operands, and the output formats.

Follows the order of execution as far as it can be known: ``cd``, loops over known words, ``bash -c``, and pipelines
whose later stages only filter lines. Operands go to ``Findings``; formats go to ``Walk.printed``, in order.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

import msgspec
from msgspec.structs import replace

from ctxd.indexing.shell import git, grep, listings, summaries_and_diagnostics
from ctxd.indexing.shell.command_arguments import (
    TABLE,
    Arg,
    Operands,
    ResolvedCommand,
    fill,
    invoke,
    operand_files,
    split,
)
from ctxd.indexing.shell.output_format_types import PROSE, SILENT, Emission, Form, Lines, Marker, by_line
from ctxd.indexing.shell.parser import ForLoop, Pipeline, Redirect, Script, Simple, Stage, heredoc, parse
from ctxd.indexing.shell.paths import Findings, PossiblePath, directory, looks_like_file

_HERE = "\1"
_GLOB = "*?["


class Listed(msgspec.Struct, frozen=True):
    """Known parts of the values of a loop's variable: each starts and ends like one of ``ends``."""

    ends: tuple[tuple[str, str], ...]


ANY = Listed((("", ""),))
"""Names that another command printed."""


def list_names(words: Iterable[Arg]) -> Listed:
    """The names that globs and substitutions among ``words`` expand to."""
    return Listed(tuple(dict.fromkeys(_ends(word) for word in words)))


def _ends(word: Arg) -> tuple[str, str]:
    if not word.known:
        return "", ""
    if not word.glob:
        return word.text, ""
    at = [position for position, character in enumerate(word.text) if character in _GLOB]
    behind = "" if word.text[at[-1]] == "[" else word.text[at[-1] + 1 :]
    return word.text[: at[0]], behind


def headed(simple: Simple, loops: Mapping[str, Listed], variables: Mapping[str, str], cwd: str | None) -> Form | None:
    """The form of an ``echo`` or ``printf`` that prints a loop's current file; None if it does not."""
    names = [name for name in loops if any(f"\0{name}\0" in word.text for word in simple.words)]
    if len(names) != 1:
        return None
    words = [replace(word, text=word.text.replace(f"\0{names[0]}\0", _HERE)) for word in simple.words[1:]]
    args = [fill(word, variables) for word in words]
    if any(not arg.known for arg in args):
        return None
    texts = [arg.text for arg in args if arg.text not in ("-n", "-e", "-ne", "-en")]
    text = " ".join(texts)
    if simple.words[0].text == "printf":
        text = texts[0].replace("%s", texts[1]) if len(texts) == 2 and texts[0].count("%s") == 1 else ""
    line = next((part for part in text.replace("\\n", "\n").split("\n") if _HERE in part), "")
    if line.count(_HERE) != 1:
        return None
    before, _, behind = line.partition(_HERE)
    return by_line("echo", cwd, _Heading(before, behind, loops[names[0]]).line)


class _Heading(msgspec.Struct, frozen=True):
    """Known text before and after a name."""

    before: str
    behind: str
    names: Listed

    def line(self, line: str) -> str | None:
        if not line.startswith(self.before) or not line.endswith(self.behind):
            return None
        name = line[len(self.before) : len(line) - len(self.behind)]
        begins = [first for first, last in self.names.ends if name.startswith(first) and name.endswith(last)]
        if not name or not begins:
            return None
        framed = self.before.strip() or self.behind.strip() or max(begins)
        return name if framed and looks_like_file(name) else PossiblePath(name)


Undo = Callable[[str], str]
"""Function from a line that a stage printed to the line that it read."""

_SED_PICKS = re.compile(r"(?:\d+|\$)(?:,(?:\d+|\$))?[pdq]$|/[^/]*/[pd]$")
_COUNTED = re.compile(r" {0,20}\d{1,12} ")
_FIRST_FIELDS = re.compile(r"1(?:[,-][12]?)?$")
_PRINTS_FIELD = re.compile(r"\{ ?print \$(\d|NF) ?;?\}$")


def undo(invocation: ResolvedCommand) -> Undo | None:
    """The function that restores a line that this stage read; None if the stage prints text of its own."""
    if invocation.fed:
        return None
    program = invocation.program
    options, values, operands = split(invocation.args, TABLE.get(program, Operands()).with_value)
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
        return any_name
    first = delimiter.text == ":" and fields is not None and _FIRST_FIELDS.match(fields.text)
    return up_to_colon if first else None


def _awk_field(separator: str, script: str) -> Undo | None:
    field = _PRINTS_FIELD.match(script)
    if field is None:
        return None
    if separator == ":":
        return up_to_colon if field.group(1) == "1" else None
    return any_name if not separator else None


def read_back(emission: Emission, undone: Sequence[Undo]) -> Emission:
    """``emission`` after later stages, which are undone by ``undone``, the last stage of the pipeline first.

    If a stage left only the name, any line may be one, so every name is a `PossiblePath`.
    """
    steps = [step for step in undone if step is not same]
    if not steps or not isinstance(emission, Form):
        return emission
    form = emission
    if any_name in steps:
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
    """The unchanged line."""
    return line


def up_to_colon(line: str) -> str:
    """A match that was cut after its file name or line number."""
    return f"{line}:1:"


def any_name(line: str) -> str:
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
            yield PossiblePath(name)


def _no_name(_: str) -> None:
    return None


COMMANDS_MAX = 2000
"""Maximum simple commands interpreted in one text, with loops unrolled. Bounds the work for other text."""

WORDS_MAX = 200_000
"""Maximum words interpreted in one text, for the same reason."""

ROUNDS_MAX = 32
"""Maximum unrolled iterations of a loop; a loop over more words is interpreted once, with its variable unknown."""

NESTED_MAX = 6
"""Maximum nesting of ``bash -c`` and loops that is interpreted."""

_SHELLS = frozenset("bash sh zsh dash ksh".split())
_FINDS = frozenset(("find", "gfind"))
_SILENT = frozenset(
    "cd mkdir rmdir rm cp mv touch export source . set unset chmod chown ln true false : [ [[ test"
    " sleep kill pkill popd shopt"
    " alias local declare readonly trap wait read".split()
)
_ONE_LINE = frozenset("pwd whoami hostname uname which basename dirname realpath mktemp nproc id".split())
_READERS = frozenset(
    "cat tac less more bat nl sed gsed awk gawk cut sort uniq jq yq xxd od hexdump strings diff cmp"
    " stat tr curl wget man gh date env"
    " printenv ps history column fold paste join comm printf echo tee".split()
)
_PATCH_FILE = re.compile(r"\*\*\* (?:Add|Update|Delete) File: (.+)$|\*\*\* Move to: (.+)$")


class Printed(msgspec.Struct, frozen=True):
    """Output of one pipeline, and the directory it ran in."""

    emission: Emission
    cwd: str | None


class Walk(msgspec.Struct):
    """One walk. ``cwd`` is None once it is unknown; ``printed`` has the emissions in order.

    ``refused``: directories that ``cd`` could not enter. ``before``: the directory of ``cd -``. ``arrived``: whether
    the last ``cd`` succeeded; None after any other command. ``going``: variables of loops over unknown files.
    """

    findings: Findings
    cwd: str | None
    printed: list[Printed] = []
    variables: dict[str, str] = {}
    stack: list[str | None] = []
    refused: frozenset[str] = frozenset()
    before: str | None = None
    arrived: bool | None = None
    going: dict[str, Listed] = {}
    commands: int = 0
    words: int = 0
    nested: int = 0

    def script(self, script: Script) -> None:
        """Walk a list."""
        for pipeline in script.pipelines:
            if self.commands > COMMANDS_MAX or self.words > WORDS_MAX:
                return
            if self.arrived is not None and pipeline.after == ("||" if self.arrived else "&&"):
                continue  # the shell did not run it
            self.arrived = None
            self._pipeline(pipeline)

    def _pipeline(self, pipeline: Pipeline) -> None:
        if len(pipeline.stages) == 1:
            self.printed.extend(self._stage(pipeline.stages[0]))
            return
        cwd, before, produced = self.cwd, self.before, [self._stage(stage) for stage in pipeline.stages]
        self.cwd, self.before, self.arrived = cwd, before, None  # its stages run in subshells
        last = len(pipeline.stages) - 1
        undone: list[Undo] = []
        while last > 0:
            undo = self._undo(pipeline.stages[last])
            if undo is None:
                break
            undone.append(undo)
            last -= 1
        if self._is_discarded(pipeline.stages):
            return
        self.printed.extend(Printed(read_back(part.emission, undone), part.cwd) for part in produced[last])

    def _is_discarded(self, stages: Iterable[Stage]) -> bool:
        *_, last = stages
        return any(_takes_output(redirect) for redirect in last.redirects)

    def _undo(self, stage: Stage) -> Undo | None:
        invocation = invoke(self._args(stage)) if isinstance(stage, Simple) else None
        return undo(invocation) if invocation is not None else None

    def _stage(self, stage: Stage) -> list[Printed]:
        if isinstance(stage, Simple):
            return self._simple(stage)
        printed, self.printed = self.printed, []
        cwd = self.cwd
        if isinstance(stage, ForLoop):
            self._loop(stage)
        else:
            self.script(stage.body)
            if stage.subshell:
                self.cwd = cwd
        emitted, self.printed, self.arrived = self.printed, printed, None
        self._redirects(stage)
        return [] if any(_takes_output(redirect) for redirect in stage.redirects) else emitted

    def _loop(self, loop: ForLoop) -> None:
        words = [fill(word, self.variables) for word in loop.words]
        for arg in words:
            if arg.known and not arg.glob and looks_like_file(arg.text):
                self.findings.add("loop", self.cwd, (arg.text,))
        self.nested += 1
        known = all(arg.known and not arg.glob for arg in words)
        if known and 0 < len(words) <= ROUNDS_MAX and self.nested <= NESTED_MAX:
            self.going.pop(loop.variable, None)
            for arg in words:
                self.commands += 1
                self.variables[loop.variable] = arg.text
                self.script(loop.body)
        else:
            self.variables.pop(loop.variable, None)
            self.going[loop.variable] = list_names(words)
            self.script(loop.body)
            self.going.pop(loop.variable, None)
        self.nested -= 1

    def _args(self, simple: Simple) -> tuple[Arg, ...]:
        if self.cwd is not None:
            self.variables["PWD"] = self.cwd
        else:
            self.variables.pop("PWD", None)
        return tuple(fill(word, self.variables) for word in simple.words)

    def _simple(self, simple: Simple) -> list[Printed]:
        self.commands += 1
        self.words += len(simple.words)
        if self.commands > COMMANDS_MAX or self.words > WORDS_MAX:
            return []
        for word in simple.words:
            self._substitutions(word.inner)
        args = self._args(simple)
        self._assign(simple, keep=not args)
        self._redirects(simple)
        if not args:
            return []
        invocation = invoke(args)
        if invocation is None:
            return [Printed(PROSE, self.cwd)]
        if invocation.program in _SHELLS:
            inner = self._inner_command(invocation)
            if inner is not None:
                return self._nested_shell(inner)
        cwd = self.cwd
        self._change_directory(invocation)
        self._operands(invocation, cwd, simple.redirects)
        if any(_takes_output(redirect) for redirect in simple.redirects):
            return []
        if invocation.program == "read" and invocation.args:
            self.going[invocation.args[-1].text] = ANY
        emitted = None
        if self.going and invocation.path in ("echo", "printf"):
            emitted = headed(simple, self.going, self.variables, cwd)
        return [Printed(emitted or _emission(invocation, cwd), cwd)]

    def _assign(self, simple: Simple, *, keep: bool) -> None:
        for name, word in simple.assignments:
            self._substitutions(word.inner)
            value = fill(word, self.variables)
            if keep and value.known and not value.glob:
                self.variables[name] = value.text
            elif keep:
                self.variables.pop(name, None)

    def _substitutions(self, scripts: tuple[Script, ...]) -> None:
        """Commands inside ``$(…)`` read files too, but their output is not seen."""
        for script in scripts:
            printed, cwd = self.printed, self.cwd
            self.printed = []
            self.script(script)
            self.printed, self.cwd = printed, cwd

    def _redirects(self, stage: Stage) -> None:
        for redirect in stage.redirects:
            if redirect.op in ("<<", "<<<"):
                continue
            self._substitutions(redirect.target.inner)
            target = fill(redirect.target, self.variables)
            if target.known and not target.glob and target.text:
                self.findings.add("redirect", self.cwd, (target.text,))

    def _inner_command(self, invocation: ResolvedCommand) -> str | None:
        """The text of ``bash -c 'text'``."""
        for index, arg in enumerate(invocation.args):
            if not arg.text.startswith("-"):
                return None
            if "c" in arg.text and not arg.text.startswith("--"):
                following = invocation.args[index + 1 : index + 2]
                return following[0].text if following and "\0" not in following[0].text else None
        return None

    def _nested_shell(self, command: str) -> list[Printed]:
        self.nested += 1
        emitted: list[Printed] = []
        if self.nested <= NESTED_MAX:
            printed, cwd, variables = self.printed, self.cwd, dict(self.variables)
            self.printed = []
            self.script(parse(command))
            emitted, self.printed, self.cwd, self.variables = self.printed, printed, cwd, variables
        self.nested -= 1
        return emitted

    def _change_directory(self, invocation: ResolvedCommand) -> None:
        program = invocation.program
        if program not in ("cd", "pushd", "popd"):
            return
        if program == "popd":
            self.cwd = self.stack.pop() if self.stack else None
            return
        _, _, operands = split(invocation.args)
        known = len(operands) == 1 and operands[0].known and not operands[0].glob and operands[0].text != ""
        self.arrived = not (known and operands[0].text in self.refused)
        if not self.arrived:
            return
        if program == "pushd":
            self.stack.append(self.cwd)
        back, self.before = self.before, self.cwd
        if known and operands[0].text == "-":
            self.cwd = back
        else:
            self.cwd = directory(self.cwd, operands[0].text) if known else None

    def _operands(self, invocation: ResolvedCommand, cwd: str | None, redirects: tuple[Redirect, ...]) -> None:
        program = invocation.program
        add = self.findings.add
        add(program, cwd, operand_files(invocation))
        if program in grep.GREPS or program in grep.RIPGREPS:
            add("grep", cwd, grep.target_files(invocation))
        elif program == "git":
            where, names, rooted = git.operand_files(invocation, cwd)
            add("git", where, names)
            add("git", where, rooted, "repository")
        elif program == "ls":
            add("ls", cwd, listings.ls_operands(invocation))
        elif program == "find":
            roots, _ = listings.starts(invocation.args)
            add("find", cwd, (arg.text for arg in roots if arg.known and not arg.glob and looks_like_file(arg.text)))
        elif program == "apply_patch":
            for redirect in redirects:
                for line in heredoc(redirect) or ():
                    found = _PATCH_FILE.match(line)
                    if found is not None:
                        add("patch", cwd, (found.group(1) or found.group(2),))


def _takes_output(redirect: Redirect) -> bool:
    return redirect.op in (">", ">>") and redirect.fd in ("", "1", "&") and redirect.target.text != ""


def _emission(invocation: ResolvedCommand, cwd: str | None) -> Emission:
    """The output format of a command."""
    program = invocation.program
    if program in ("echo", "printf"):
        return _printed(invocation)
    if program in _SILENT:
        return SILENT
    if program in _ONE_LINE:
        return Lines(1, here=program == "pwd")
    own = _FORMS.get(program)
    if own is not None:
        return own(invocation, cwd)
    if program == "gofmt" and not {"-l", "-d"} & {arg.text for arg in invocation.args}:
        return SILENT
    summary = summaries_and_diagnostics.summary_format(invocation, cwd)
    if summary is not None:
        return summary
    if program in _READERS:
        return PROSE
    bare_names = _package(invocation) if program == "go" else ""
    return summaries_and_diagnostics.diagnostics_format(_runs_in(invocation, cwd), bare_names=bare_names)


_FORMS: Mapping[str, Callable[[ResolvedCommand, str | None], Emission]] = {
    "ls": listings.ls_format,
    "git": git.emission,
    **dict.fromkeys(_FINDS, lambda invocation, cwd: listings.find_format(invocation, cwd, _emission)),
    **dict.fromkeys(("fd", "fdfind"), listings.fd_format),
    **dict.fromkeys(grep.GREPS | grep.RIPGREPS, grep.emission),
}


_DIRECTORY_OPTIONS: Mapping[str, frozenset[str]] = {
    "npm": frozenset(("--prefix", "-w", "--workspace")),
    "pnpm": frozenset(("-C", "--dir", "--prefix")),
    "yarn": frozenset(("--cwd",)),
    "bun": frozenset(("--cwd",)),
    "make": frozenset(("-C", "--directory")),
}


def _runs_in(invocation: ResolvedCommand, cwd: str | None) -> str | None:
    """The directory that an option makes a program run in. A workspace given only by name is ignored."""
    options = _DIRECTORY_OPTIONS.get(invocation.program)
    if options is None:
        return cwd
    _, values, _ = split(invocation.args, options, bundles=invocation.program == "make")
    given = [value for name, value in values.items() if name in options and value.known and not value.glob]
    if len(given) != 1 or given[0].text[0:1] in ("", "@") or ("-w" in values and "/" not in given[0].text):
        return cwd
    return directory(cwd, given[0].text)


def _package(invocation: ResolvedCommand) -> str | None:
    """The directory of the single package of a ``go`` command."""
    operands = [arg.text for arg in invocation.args[1:] if arg.known and arg.text.startswith("./")]
    if len(operands) != 1 or operands[0].endswith("..."):
        return None
    return operands[0].rstrip("/") + "/"


def _printed(invocation: ResolvedCommand) -> Emission:
    args = [arg for arg in invocation.args if arg.text not in ("-n", "-e", "-ne", "-en")]
    if any(not arg.known for arg in args):
        return PROSE
    if invocation.program == "printf":
        args = args[:1] if len(args) == 1 else []
    text = " ".join(arg.text for arg in args).replace("\\n", "\n")
    return Marker(text) if text.strip() else (PROSE if invocation.program == "printf" else SILENT)
