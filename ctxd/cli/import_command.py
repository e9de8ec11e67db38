"""``ctx import``: sessions of a harness as commits, once and again, or as they grow."""

import os
from pathlib import Path
from typing import TYPE_CHECKING, get_args

import anyio
import click

from ctxd.cli.common_options import Invocation, common
from ctxd.cli.exit_codes import NOT_FOUND
from ctxd.command_line import Command, Stop
from ctxd.formatting import count
from ctxd.terminal import cell
from ctxd.transcripts.discovery import Harness, default_places

if TYPE_CHECKING:
    from ctxd.cli.import_delivery import ImportResult


@click.command(
    "import",
    cls=Command,
    examples="ctx import claude\nctx import codex ~/.codex/sessions/2026 --dry-run\nctx import opencode --json",
)
@click.argument("harness", type=click.Choice(get_args(Harness)))
@click.argument("path", required=False, type=click.Path(path_type=Path))
@click.option("--dry-run", is_flag=True, help="Read everything and report, but store nothing.")
@common
def import_(run: Invocation, harness: Harness, path: Path | None, dry_run: bool) -> None:
    """Import the sessions of HARNESS from PATH, a file or a folder, or from the places where HARNESS keeps them.

    Each session becomes a chain of commits that hold its lines as they are, at the times at which they were written;
    branches, sub-agents and forks become branches of it. Sources are only read. Repeated, an import reads what is new
    and makes nothing twice. All that was left out is listed with the reason.
    """
    if path is not None:
        places = [path.absolute()]
        if not path.exists():
            raise Stop(NOT_FOUND, f"{path}: no such file or folder", symbol="unreadable")
    else:
        home = default_places(harness, os.environ, Path.home())
        places = [each for each in home if each.exists()]
        if not places:
            looked = ", ".join(map(str, home))
            raise Stop(NOT_FOUND, f"{harness} has no sessions in {looked}", hint="name a PATH", symbol="unreadable")

    async def imported() -> None:
        from ctxd import __version__
        from ctxd.cli.import_delivery import TranscriptImport
        from ctxd_client import connect

        def progress(text: str) -> None:
            if run.screen.terminal and not run.screen.as_json:
                run.screen.note(text)

        async with connect(run.socket_path(), deadline_s=run.deadline_s, client="ctx", version=__version__) as client:
            work = TranscriptImport(client, harness, dry_run=dry_run, progress=progress)
            report(run, await work.run(places))

    anyio.run(imported)


def report(run: Invocation, result: "ImportResult") -> None:
    """Show the outcome of an import."""
    if run.screen.as_json:
        run.screen.document(result)
        return
    made = "would make" if result.dry_run else "made"
    run.screen.line(
        f"{count(result.imported, 'source')} imported, {result.unchanged:,} unchanged, {result.rewritten:,} rewritten; "
        f"{made} {count(result.commits, 'commit')} in {count(len(result.sessions), 'session')}"
    )
    for kind, number in sorted(result.events.items()):
        run.screen.line(f"  {kind:<11}  {number:,}")
    if result.copied:
        run.screen.line(f"  {result.copied:,} lines repeat those of another source")
    for each in result.skipped:
        run.screen.line(f"  skipped {cell(each.path)}: {cell(each.reason)}")
