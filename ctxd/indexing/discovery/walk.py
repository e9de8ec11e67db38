"""The walk over a parsed command: where each part runs, which operands are files, and what it will have printed.

Owns the order of execution as far as it can be known: ``cd``, loops over known words, ``bash -c``, pipelines whose
later stages only pick lines. Collects operands into `Findings` and leaves what was printed, in order, in
`Walk.printed`.
"""

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from ctxd.indexing.discovery import diagnostics, find, git, grep, loops, ls, pipes, readers, summaries
from ctxd.indexing.discovery.emission import PROSE, SILENT, Emission, Lines, Marker
from ctxd.indexing.discovery.invocation import Arg, Invocation, fill, invoke, split
from ctxd.indexing.discovery.paths import Findings, directory, looks_like_file
from ctxd.indexing.discovery.shell import parse
from ctxd.indexing.discovery.syntax import Loop, Pipeline, Redirect, Script, Simple, Stage, heredoc

COMMANDS_MAX = 2000
"""Simple commands looked at in one text, loops unrolled. Bounds the work for text that is no command."""

WORDS_MAX = 200_000
"""Words looked at in one text, loops unrolled, for the same reason."""

ROUNDS_MAX = 32
"""Rounds of a loop that are unrolled; a loop over more words is read once, its variable unknown."""

NESTED_MAX = 6
"""Levels of ``bash -c`` and loops that are followed."""

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


@dataclass(frozen=True, slots=True)
class Printed:
    """What one pipeline put on the output, and where it ran."""

    emission: Emission
    cwd: str | None


@dataclass(slots=True)
class Walk:
    """One walk. ``cwd`` is None once nobody can know it; ``printed`` has the emissions in order.

    ``refused``: what the output says no ``cd`` could enter. ``before``: where ``cd -`` leads. ``arrived``: whether the
    ``cd`` that ran last got there; None behind any other command. ``going``: variables of loops over unknown files.
    """

    findings: Findings
    cwd: str | None
    printed: list[Printed] = field(default_factory=list)
    variables: dict[str, str] = field(default_factory=dict)
    stack: list[str | None] = field(default_factory=list)
    refused: frozenset[str] = frozenset()
    before: str | None = None
    arrived: bool | None = None
    going: dict[str, loops.Listed] = field(default_factory=dict)
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
        self.cwd, self.before, self.arrived = cwd, before, None  # its stages run in shells of their own
        last = len(pipeline.stages) - 1
        undone: list[pipes.Undo] = []
        while last > 0:
            undo = self._undo(pipeline.stages[last])
            if undo is None:
                break
            undone.append(undo)
            last -= 1
        if self._is_discarded(pipeline.stages):
            return
        self.printed.extend(Printed(pipes.read_back(part.emission, undone), part.cwd) for part in produced[last])

    def _is_discarded(self, stages: Iterable[Stage]) -> bool:
        *_, last = stages
        return any(_takes_output(redirect) for redirect in last.redirects)

    def _undo(self, stage: Stage) -> pipes.Undo | None:
        invocation = invoke(self._args(stage)) if isinstance(stage, Simple) else None
        return pipes.undo(invocation) if invocation is not None else None

    def _stage(self, stage: Stage) -> list[Printed]:
        if isinstance(stage, Simple):
            return self._simple(stage)
        printed, self.printed = self.printed, []
        cwd = self.cwd
        if isinstance(stage, Loop):
            self._loop(stage)
        else:
            self.script(stage.body)
            if stage.subshell:
                self.cwd = cwd
        emitted, self.printed, self.arrived = self.printed, printed, None
        self._redirects(stage)
        return [] if any(_takes_output(redirect) for redirect in stage.redirects) else emitted

    def _loop(self, loop: Loop) -> None:
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
            self.going[loop.variable] = loops.listed(words)
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
            self.going[invocation.args[-1].text] = loops.ANY
        emitted = None
        if self.going and invocation.path in ("echo", "printf"):
            emitted = loops.headed(simple, self.going, self.variables, cwd)
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
        """What runs inside ``$(…)`` reads files too, but prints nothing that is seen."""
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

    def _inner_command(self, invocation: Invocation) -> str | None:
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

    def _change_directory(self, invocation: Invocation) -> None:
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

    def _operands(self, invocation: Invocation, cwd: str | None, redirects: tuple[Redirect, ...]) -> None:
        program = invocation.program
        add = self.findings.add
        add(program, cwd, readers.operand_files(invocation))
        if program in grep.GREPS or program in grep.RIPGREPS:
            add("grep", cwd, grep.target_files(invocation))
        elif program == "git":
            where, names, rooted = git.operand_files(invocation, cwd)
            add("git", where, names)
            add("git", where, rooted, "repository")
        elif program == "ls":
            add("ls", cwd, ls.operand_files(invocation, ()))
        elif program == "find":
            roots, _ = find.starts(invocation.args)
            add("find", cwd, (arg.text for arg in roots if arg.known and not arg.glob and looks_like_file(arg.text)))
        elif program == "apply_patch":
            for redirect in redirects:
                for line in heredoc(redirect) or ():
                    found = _PATCH_FILE.match(line)
                    if found is not None:
                        add("patch", cwd, (found.group(1) or found.group(2),))


def _takes_output(redirect: Redirect) -> bool:
    return redirect.op in (">", ">>") and redirect.fd in ("", "1", "&") and redirect.target.text != ""


def _emission(invocation: Invocation, cwd: str | None) -> Emission:
    """What a command prints."""
    program = invocation.program
    if program in ("echo", "printf"):
        return _said(invocation)
    if program in _SILENT:
        return SILENT
    if program in _ONE_LINE:
        return Lines(1, here=program == "pwd")
    own = _FORMS.get(program)
    if own is not None:
        return own(invocation, cwd)
    if program == "gofmt" and not {"-l", "-d"} & {arg.text for arg in invocation.args}:
        return SILENT
    summary = summaries.emission(invocation, cwd)
    if summary is not None:
        return summary
    if program in _READERS:
        return PROSE
    bare_names = _package(invocation) if program == "go" else ""
    return diagnostics.form(_runs_in(invocation, cwd), bare_names=bare_names)


_FORMS: Mapping[str, Callable[[Invocation, str | None], Emission]] = {
    "ls": ls.emission,
    "git": git.emission,
    **dict.fromkeys(_FINDS, lambda invocation, cwd: find.emission(invocation, cwd, _emission)),
    **dict.fromkeys(("fd", "fdfind"), find.fd_emission),
    **dict.fromkeys(grep.GREPS | grep.RIPGREPS, grep.emission),
}


_DIRECTORY_OPTIONS: Mapping[str, frozenset[str]] = {
    "npm": frozenset(("--prefix", "-w", "--workspace")),
    "pnpm": frozenset(("-C", "--dir", "--prefix")),
    "yarn": frozenset(("--cwd",)),
    "bun": frozenset(("--cwd",)),
    "make": frozenset(("-C", "--directory")),
}


def _runs_in(invocation: Invocation, cwd: str | None) -> str | None:
    """Where a program that is told another directory runs what prints. A workspace may be told by its name only."""
    options = _DIRECTORY_OPTIONS.get(invocation.program)
    if options is None:
        return cwd
    _, values, _ = split(invocation.args, options, bundles=invocation.program == "make")
    told = [value for name, value in values.items() if name in options and value.known and not value.glob]
    if len(told) != 1 or told[0].text[0:1] in ("", "@") or ("-w" in values and "/" not in told[0].text):
        return cwd
    return directory(cwd, told[0].text)


def _package(invocation: Invocation) -> str | None:
    """The directory of the one package a ``go`` command is about."""
    operands = [arg.text for arg in invocation.args[1:] if arg.known and arg.text.startswith("./")]
    if len(operands) != 1 or operands[0].endswith("..."):
        return None
    return operands[0].rstrip("/") + "/"


def _said(invocation: Invocation) -> Emission:
    args = [arg for arg in invocation.args if arg.text not in ("-n", "-e", "-ne", "-en")]
    if any(not arg.known for arg in args):
        return PROSE
    if invocation.program == "printf":
        args = args[:1] if len(args) == 1 else []
    text = " ".join(arg.text for arg in args).replace("\\n", "\n")
    return Marker(text) if text.strip() else (PROSE if invocation.program == "printf" else SILENT)
