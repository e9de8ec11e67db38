"""The program ``ctx``: its commands by name, and the reporting of failures."""

import errno
import sys
from collections.abc import Sequence
from typing import Any, Final

import click

from ctxd import __version__
from ctxd.cli.common_options import Invocation, adopt, common, common_options
from ctxd.cli.exit_codes import FAILURE, MEANINGS, USAGE
from ctxd.click_support import SHELLS, Command, Group, Stop, completion_script
from ctxd.click_support import run as run_program

_COMMANDS: Final = {
    "status": "ctxd.cli.status:status",
    "top": "ctxd.cli.top:top",
    "session": "ctxd.cli.session:session",
    "context": "ctxd.cli.context:context",
    "epoch": "ctxd.cli.epoch:epoch",
    "search": "ctxd.cli.search:search",
    "object": "ctxd.cli.object:object_group",
    "query": "ctxd.cli.object:query",
    "checkpoint": "ctxd.cli.commit:checkpoint",
    "log": "ctxd.cli.commit:log",
    "show": "ctxd.cli.commit:show",
    "diff": "ctxd.cli.commit:diff",
    "branch": "ctxd.cli.commit:branch",
    "materialize": "ctxd.cli.commit:materialize",
    "resolve": "ctxd.cli.commit:resolve",
    "annotate": "ctxd.cli.commit:annotate",
    "tag": "ctxd.cli.commit:tag",
    "fork": "ctxd.cli.fork_and_resume:fork",
    "resume": "ctxd.cli.fork_and_resume:resume",
    "activate": "ctxd.cli.activation:activate",
    "deactivate": "ctxd.cli.activation:deactivate",
    "pin": "ctxd.cli.activation:pin",
    "unpin": "ctxd.cli.activation:unpin",
    "artifact": "ctxd.cli.artifact:artifact",
    "watch": "ctxd.cli.watch:watch",
    "tracker": "ctxd.cli.tracker:tracker",
    "mcp": "ctxd.cli.mcp:mcp",
    "current": "ctxd.cli.current:current",
    "sandbox": "ctxd.cli.sandbox:sandbox",
    "install": "ctxd.cli.install:install_group",
    "uninstall": "ctxd.cli.install:uninstall",
    "capture": "ctxd.cli.capture:capture",
    "import": "ctxd.cli.import_command:import_",
    "transcript": "ctxd.cli.transcript:transcript",
    "rpc": "ctxd.cli.rpc:rpc",
    "scan": "ctxd.cli.scan:scan",
    "purge": "ctxd.cli.purge:purge",
    "doctor": "ctxd.cli.doctor:doctor",
}

_SECTIONS: Final = {
    "Sessions and the window": (
        "session", "context", "activate", "deactivate", "pin", "unpin", "current", "epoch", "watch",
    ),
    "Files, tool calls and text": ("search", "object", "query", "tracker", "artifact"),
    "Commits": (
        "log", "show", "diff", "branch", "checkpoint", "fork", "resume", "materialize", "resolve", "annotate", "tag",
    ),
    "Harnesses": ("install", "uninstall", "import", "capture", "transcript", "mcp"),
    "Secrets": ("scan", "purge"),
    "The daemon and this host": ("status", "top", "doctor", "sandbox", "rpc", "completion"),
}  # fmt: skip

_EXAMPLES: Final = """
ctx status
ctx session ls
ctx context
ctx context s1 --diff @3 @~1
ctx object cat /workspace/a.py -s s1
ctx doctor
"""

_EPILOG: Final = "\b\nExit codes:\n" + "\n".join(f"  {code:<4} {meaning}" for code, meaning in MEANINGS)


@click.group(
    cls=Group,
    lazy=_COMMANDS,
    sections=_SECTIONS,
    examples=_EXAMPLES,
    epilog=_EPILOG,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@common_options
@click.version_option(__version__, prog_name="ctx")
@click.pass_context
def cli(ctx: click.Context, /, **options: Any) -> None:  # noqa: ANN401 - click's options
    """Inspect and control the context of coding agents.

    SESSION may be shortened to a unique prefix, object ids to one of at least 8 characters. SESSION defaults to
    $CTXD_SESSION, then to the only open session, then to the one whose working directory contains the current
    directory. Data goes to standard output, everything else to standard error; with --json, errors too are JSON. Colour
    follows NO_COLOR, FORCE_COLOR and TERM=dumb.

    REV is a session, or a moment of one: s1@12 is turn 12, which begins with the 12th user message; @~2 is two turns
    back; @{2 hours ago} and @{yesterday 13:44} are times; ctx-1a2b3c4d is a recorded context. s1@12~1 is the turn
    before turn 12. A bare @ is the default session.

    COMMIT is a context commit: ctx-1a2b3c4d, a tag, a session (its newest), a session at a turn (s1@12, @~2), or
    PRINCIPAL@TIME; HEAD is the newest of the default session, and HEAD~2 two commits before it.
    """
    ctx.obj = Invocation()
    adopt(ctx.obj, options)


@cli.command(
    cls=Command,
    examples='eval "$(ctx completion bash)"\nctx completion fish > ~/.config/fish/completions/ctx.fish',
)
@click.argument("shell", type=click.Choice(SHELLS))
@common
def completion(invocation: Invocation, shell: str) -> None:
    """Print the completion script for SHELL."""
    source = completion_script(shell, "ctx", cli)
    if invocation.screen.as_json:
        invocation.screen.document({"shell": shell, "script": source})
    else:
        invocation.screen.content(source)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the program and exit; ``arguments`` None means those of the process."""
    sys.exit(run(arguments))


def run(arguments: Sequence[str] | None = None) -> int:
    """Run the program and return its exit code; failures are reported on standard error."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    return run_program(cli, words, name="ctx", usage_code=USAGE, stop_for=_stop_for)


def _stop_for(error: Exception) -> Stop | None:
    from ctxd.cli.call_failures import stop_for
    from ctxd.config import ConfigError
    from ctxd_client.errors import CallFailed

    if isinstance(error, CallFailed):
        return stop_for(error)
    if isinstance(error, ConfigError):
        return Stop(FAILURE, str(error), symbol="config")
    if isinstance(error, OSError) and error.errno == errno.ENAMETOOLONG:
        # Path.exists() and its like raise this one.
        return Stop(FAILURE, f"{str(error.filename)[:80]}…: the name is too long", symbol="unreadable")
    return None


if __name__ == "__main__":
    main()
