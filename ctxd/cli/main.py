"""The entry point of ``ctx``: the commands by name, and how every failure ends."""

import json
import os
import sys
from collections.abc import Sequence
from typing import Any, Final

import click

from ctxd import __version__
from ctxd.cli.command import Group, Invocation, adopt
from ctxd.cli.exits import FAILURE, INTERRUPTED, MEANINGS, OK, USAGE, OutputFailed, ReaderGone, Stop
from ctxd.cli.screen import cell

_COMMANDS: Final = {
    "status": "ctxd.cli.status:status",
    "top": "ctxd.cli.top:top",
    "session": "ctxd.cli.session:session",
    "context": "ctxd.cli.context:context",
    "object": "ctxd.cli.object:object_group",
    "activate": "ctxd.cli.membership:activate",
    "deactivate": "ctxd.cli.membership:deactivate",
    "pin": "ctxd.cli.membership:pin",
    "unpin": "ctxd.cli.membership:unpin",
    "watch": "ctxd.cli.watch:watch",
    "tracker": "ctxd.cli.tracker:tracker",
    "current": "ctxd.cli.current:current",
    "sandbox": "ctxd.cli.sandbox:sandbox",
    "install": "ctxd.cli.install:install_group",
    "rpc": "ctxd.cli.rpc:rpc",
    "scan": "ctxd.cli.scan:scan",
    "purge": "ctxd.cli.scan:purge",
    "doctor": "ctxd.cli.doctor:doctor",
    "completion": "ctxd.cli.completion:completion",
}

_EXAMPLES: Final = """
ctx status
ctx session ls
ctx context
ctx context s1 --diff t3 t4
ctx object cat /workspace/a.py -s s1
ctx doctor
"""

_EPILOG: Final = "\b\nExit codes:\n" + "\n".join(f"  {code:<4} {meaning}" for code, meaning in MEANINGS)


@click.group(
    cls=Group,
    lazy=_COMMANDS,
    examples=_EXAMPLES,
    epilog=_EPILOG,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.option("--json", "as_json", is_flag=True, help="One JSON document instead of text.")
@click.option("--socket", metavar="PATH", help="The daemon's socket; else $CTXD_SOCKET, else the usual places.")
@click.option("--timeout", "deadline_s", type=click.FloatRange(min=0.001), metavar="SECONDS", help="Per call; 30.")
@click.version_option(__version__, prog_name="ctx")
@click.pass_context
def cli(ctx: click.Context, /, **options: Any) -> None:  # noqa: ANN401 - click's options
    """See and steer what coding agents have in their context.

    SESSION and object ids may be shortened to a unique prefix. SESSION defaults to $CTXD_SESSION, then to the only
    session there is. Data goes to standard output, everything else to standard error; with --json, errors too are one
    JSON document. Colour obeys NO_COLOR, FORCE_COLOR and TERM=dumb.
    """
    ctx.obj = Invocation()
    adopt(ctx.obj, options)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the program and exit; ``arguments`` null means the process's own."""
    sys.exit(run(arguments))


def run(arguments: Sequence[str] | None = None) -> int:
    """Run the program: its exit code. Failures have been told on standard error."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    as_json = "--json" in words
    try:
        result = cli.main(args=words, prog_name="ctx", standalone_mode=False)
        _flush()
        return result if isinstance(result, int) else OK
    except (BrokenPipeError, ReaderGone):
        _write_no_more()  # the reader has seen enough
        return OK
    except OutputFailed as stop:
        _write_no_more()
        return _tell(stop, as_json=as_json)
    except (KeyboardInterrupt, click.Abort):
        return INTERRUPTED
    except click.exceptions.NoArgsIsHelpError as error:
        error.show()
        return USAGE
    except click.ClickException as error:
        return _tell(_usage(error), as_json=as_json)
    except Stop as stop:
        return _tell(stop, as_json=as_json)
    except Exception as error:  # noqa: BLE001 - what is no failed call is raised again
        return _tell(_failed(error), as_json=as_json)


def _flush() -> None:
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        raise
    except OSError as error:
        raise OutputFailed(error) from error


def _write_no_more() -> None:
    # Standard output is pointed elsewhere, or Python would complain at exit.
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _usage(error: click.ClickException) -> Stop:
    path = error.ctx.command_path if isinstance(error, click.UsageError) and error.ctx else "ctx"
    return Stop(USAGE, error.format_message().rstrip("."), hint=f"see {path} --help", symbol="usage")


def _failed(error: Exception) -> Stop:
    """The end for a call or a setting that failed. Anything else is a bug, and is raised again with its trace."""
    from ctxd.cli.failures import stop_for
    from ctxd.config import ConfigError
    from ctxd_client.errors import CallFailed

    if isinstance(error, CallFailed):
        return stop_for(error)
    if isinstance(error, ConfigError):
        return Stop(FAILURE, str(error), symbol="config")
    raise error


def _tell(stop: Stop, *, as_json: bool) -> int:
    if stop.message:
        if as_json:
            error = {"code": stop.symbol, "message": stop.message, "hint": stop.hint, "exit": stop.code}
            line = json.dumps({"error": error})
        else:
            line = cell(f"ctx: {stop.message}" + (f"; {stop.hint}" if stop.hint else ""))
        print(line, file=sys.stderr, flush=True)  # noqa: T201 - this is where the program speaks
    return stop.code


if __name__ == "__main__":
    main()
