"""Shared command line behaviour of ``ctx`` and ``ctxd``: lazy commands, help, failures, exit, shell completion.

A failure is one line on standard error: cause and place, then the remedy. With ``--json`` it is one JSON document.
"""

import json
import os
import sys
from collections.abc import Callable, Sequence
from importlib import import_module
from itertools import takewhile
from typing import Any, Final

import click
from click.shell_completion import get_completion_class

from ctxd.terminal import InputClosed, OutputFailed, ReaderGone, cell, input_of, output_of

FAILURE: Final = 1
INTERRUPTED: Final = 130
_SYMBOLS: Final = {2: "usage", 3: "not_found", 4: "conflict", INTERRUPTED: "interrupted"}
"""Causes by exit code of ``ctx``. All other codes: ``failed``."""

SHELLS: Final = ("bash", "zsh", "fish")
"""Shells with a completion script."""


class Stop(Exception):
    """End the program with exit code ``code`` and one line: ``message``, then ``hint``. Empty: no line.

    ``symbol`` names the cause for scripts that read the JSON form; by default, it follows from the exit code.
    """

    def __init__(self, code: int, message: str = "", *, hint: str = "", symbol: str = "") -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.hint = hint
        self.symbol = symbol or _SYMBOLS.get(code, "failed")


class ExclusiveOptions(click.UsageError):
    """``options`` of a command that cannot be given together, and the reason unless it is clear."""

    def __init__(self, *options: str, reason: str = "") -> None:
        super().__init__(f"{' and '.join(options)} exclude each other{reason and ': '}{reason}")


class Command(click.Command):
    """A command whose help shows ``examples``, one per line, after its description."""

    def __init__(self, *args: Any, examples: str = "", **kwargs: Any) -> None:  # noqa: ANN401 - click's own
        super().__init__(*args, **kwargs)
        self.examples = examples

    def invoke(self, ctx: click.Context) -> Any:  # noqa: ANN401 - click's own
        """Run the command; an error in its usage refers to its own help."""
        try:
            return super().invoke(ctx)
        except click.UsageError as error:
            error.ctx = error.ctx or ctx
            raise

    def format_help_text(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the description, then the examples."""
        super().format_help_text(ctx, formatter)
        _write_examples(self.examples, formatter)


class Group(click.Group):
    """A group of commands that are imported when they are used.

    ``lazy`` maps a command's name to ``module:attribute``, in the order of the help. ``sections`` has the names of the
    commands under each heading of the help. An unknown command is answered with the nearest known one.
    """

    def __init__(
        self,
        *args: Any,  # noqa: ANN401 - click's own
        lazy: dict[str, str] | None = None,
        sections: dict[str, Sequence[str]] | None = None,
        examples: str = "",
        **kwargs: Any,  # noqa: ANN401 - click's own
    ) -> None:
        super().__init__(*args, **kwargs)
        self.lazy = lazy or {}
        self.sections = sections or {}
        self.examples = examples

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names of the commands in the order of their declaration."""
        return [*self.lazy, *self.commands]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Return the command, imported now if necessary."""
        if cmd_name not in self.lazy:
            return super().get_command(ctx, cmd_name)
        module, _, attribute = self.lazy[cmd_name].partition(":")
        found = getattr(import_module(module), attribute)
        assert isinstance(found, click.Command), f"{self.lazy[cmd_name]} is a command"
        return found

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Resolve as click does; suggest the nearest command for an unknown name."""
        try:
            return super().resolve_command(ctx, args)
        except click.UsageError as error:
            import difflib

            near = difflib.get_close_matches(args[0], self.list_commands(ctx), n=1)
            suggestion = f"; did you mean {near[0]!r}?" if near else ""
            raise click.UsageError(f"no such command: {args[0]!r}{suggestion}", ctx) from error

    def format_help_text(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the description, then the examples."""
        super().format_help_text(ctx, formatter)
        _write_examples(self.examples, formatter)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the commands under their headings, each with the whole first sentence of its help."""
        headed = {name for names in self.sections.values() for name in names}
        rest = [name for name in self.list_commands(ctx) if name not in headed]
        for heading, names in (*self.sections.items(), ("Commands", rest)):
            commands = [(name, self.get_command(ctx, name)) for name in names]
            rows = [(name, each.get_short_help_str(_SENTENCE_MAX)) for name, each in commands if each is not None]
            if rows:
                with formatter.section(heading):
                    formatter.write_dl(rows)


_SENTENCE_MAX: Final = 1000


def run(
    program: click.Group,
    words: Sequence[str],
    *,
    name: str,
    usage_code: int,
    stop_for: Callable[[Exception], Stop | None],
) -> int:
    """Run ``program`` and return its exit code; failures are reported on standard error.

    ``stop_for`` turns an expected exception into a ``Stop``, and returns None for a bug, which is raised again.
    """
    # The words after "--" are not options, but for example the command of an agent.
    report = _Reporter(name, as_json="--json" in takewhile("--".__ne__, words))
    if sys.stdout is None:
        return report(
            Stop(FAILURE, "standard output is closed", hint="redirect it: >/dev/null", symbol="output_failed")
        )
    sys.stdin, sys.stdout = input_of(sys.stdin), output_of(sys.stdout)
    try:
        result = program.main(args=list(words), prog_name=name, standalone_mode=False)
        sys.stdout.flush()
        return result if isinstance(result, int) else 0
    except (BrokenPipeError, ReaderGone):
        _discard_output()
        return 0
    except OutputFailed as error:
        _discard_output()
        hint = "write to a file system with free space"
        return report(Stop(FAILURE, str(error), hint=hint, symbol="output_failed"))
    except (KeyboardInterrupt, click.Abort):
        return INTERRUPTED
    except click.exceptions.NoArgsIsHelpError as error:
        error.show()
        return usage_code
    except click.ClickException as error:
        message, hint = _usage_error(error, name)
        return report(Stop(usage_code, message, hint=hint, symbol="usage"))
    except Stop as stop:
        return report(stop)
    except Exception as error:
        expected = _without_input(error) or _without_directory(error) or stop_for(error)
        if expected is None:
            raise
        return report(expected)


def _without_input(error: Exception) -> Stop | None:
    if not isinstance(error, InputClosed):
        return None
    return Stop(FAILURE, "standard input is closed", hint="redirect it: <FILE, or </dev/null", symbol="input_failed")


def _usage_error(error: click.ClickException, name: str) -> tuple[str, str]:
    """Return the message and the remedy for wrong use of the program ``name``."""
    if isinstance(error, ExclusiveOptions):
        return error.format_message(), "leave one of them out"
    context = error.ctx if isinstance(error, click.UsageError) else None
    if context is None:
        return error.format_message().rstrip("."), f"see {name} --help"
    if isinstance(error, click.NoSuchOption) and error.option_name in ("-s", "--session"):
        for parameter in context.command.params:
            if isinstance(parameter, click.Argument) and parameter.name in ("session", "sessions", "revision"):
                takes = parameter.make_metavar(context).strip("[]")
                return (
                    f"No such option '{error.option_name}'",
                    f"name the session as an argument: {context.command_path} {takes}",
                )
    return error.format_message().rstrip("."), f"see {context.command_path} --help"


def current_directory() -> str | None:
    """Return the current directory; None if it has been deleted."""
    try:
        return os.getcwd()
    except FileNotFoundError:
        return None


def _without_directory(error: Exception) -> Stop | None:
    # Among the errors that name no file is that of getcwd, which every relative path needs.
    if not isinstance(error, FileNotFoundError) or error.filename is not None or current_directory() is not None:
        return None
    hint = "change to another one, for example with cd, or give absolute paths"
    return Stop(FAILURE, "the current directory has been deleted", hint=hint, symbol="no_directory")


def completion_script(shell: str, program: str, command: click.Command) -> str:
    """Return the script that makes ``shell``, one of ``SHELLS``, complete ``program``, which runs ``command``.

    Raises: Stop if the installed shell is too old.
    """
    kind = get_completion_class(shell)
    assert kind is not None, "click completes every shell of SHELLS"
    try:
        return kind(command, {}, program, f"_{program.upper()}_COMPLETE").source()
    except RuntimeError as error:
        raise Stop(FAILURE, str(error), hint="use a newer shell") from error


class _Reporter:
    def __init__(self, name: str, *, as_json: bool) -> None:
        self._name = name
        self._as_json = as_json

    def __call__(self, stop: Stop) -> int:
        if stop.message and sys.stderr is not None:
            if self._as_json:
                error = {"code": stop.symbol, "message": stop.message, "hint": stop.hint, "exit": stop.code}
                line = json.dumps({"error": error})
            else:
                line = cell(f"{self._name}: {stop.message}" + (f"; {stop.hint}" if stop.hint else ""))
            print(line, file=sys.stderr, flush=True)  # noqa: T201 - the program's own error line
        return stop.code


def _discard_output() -> None:
    # Python would fail at exit to flush the buffer of the closed output.
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _write_examples(examples: str, formatter: click.HelpFormatter) -> None:
    if examples:
        with formatter.section("Examples"):
            formatter.write("".join(f"  {line.strip()}\n" for line in examples.strip().splitlines()))
