"""``ctx import``: import a harness's sessions as commits, once, repeatedly, or continuously."""

import os
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

import anyio
import click

from ctxd.cli.common_options import Invocation, common
from ctxd.cli.exit_codes import FAILURE, NOT_FOUND
from ctxd.click_support import Command, ExclusiveOptions, Stop
from ctxd.clock import SystemClock
from ctxd.formatting import count
from ctxd.terminal import cell
from ctxd.transcripts.harness_names import HARNESS_OF, HarnessCommand
from ctxd.transcripts.transcript_files import changed_candidate, default_places
from ctxd_client.errors import CallFailed, Unavailable

if TYPE_CHECKING:
    from ctxd.imports.import_result import ImportResult
    from ctxd.imports.importer import TranscriptImport

_IDLE_MS: Final = 2000
"""Milliseconds without a change after which a watch checks whether a scan is due."""

_RESCAN_TIMEOUTS: Final = 30

_SAVED_S_MAX: Final = 5.0
"""Maximum seconds for saving the import record in the daemon when a watch ends."""


@click.command(
    "import",
    cls=Command,
    examples="ctx import claude\nctx import codex ~/.codex/sessions/2026 --dry-run\nctx import opencode --json\n"
    "ctx import pi --watch",
)
@click.argument("harness", type=click.Choice(tuple(HARNESS_OF)))
@click.argument("path", required=False, type=click.Path(path_type=Path))
@click.option(
    "--dry-run",
    is_flag=True,
    help="Read everything and report, but store nothing. Ignores hook events that wait for the daemon.",
)
@click.option("--watch", is_flag=True, help="Keep running and import new lines as they are written, until interrupted.")
@common
def import_(run: Invocation, harness: HarnessCommand, path: Path | None, dry_run: bool, watch: bool) -> None:
    """Import all sessions of HARNESS, as commits.

    They are read from PATH, a file or a folder, by default from the places where HARNESS keeps them. `ctx capture
    --from FILE` commits one transcript, and `ctx session import FILE` stores one as the chat of a session.

    Each session becomes a chain of commits with its unchanged lines and their original times. Branches, sub-agents and
    forks become branches of the chain. The sources are not modified. A repeated import reads only new content and
    creates no duplicate commits. Everything that is left out is listed with the reason. If PATH is a single file
    without a session, the exit code is 1. With --watch and --json, prints one JSON document per line.
    """
    if watch and dry_run:
        raise ExclusiveOptions("--watch", "--dry-run")
    places = [] if watch and path is None else _places(harness, path)
    if not watch and (unchanged := _deliver_and_compare(run, harness, places, dry_run=dry_run)) is not None:
        _conclude(run, unchanged, path)
        return

    async def imported() -> None:
        from ctxd import __version__
        from ctxd.imports.importer import TranscriptImport
        from ctxd.process_setup import tune_gc
        from ctxd_client import connect

        def progress(text: str) -> None:
            if run.screen.terminal and not run.screen.as_json:
                run.screen.note(text)

        tune_gc()
        async with connect(
            run.socket_path(), deadline_s=run.deadline_s, client="ctx", version=__version__, on_retry=run.note_retry
        ) as client:
            work = TranscriptImport(
                client, harness, dry_run=dry_run, watch=watch, progress=progress, note=run.screen.note
            )
            if watch:
                try:
                    await _watch(run, work, harness, places or await _awaited_places(run, harness))
                finally:
                    with anyio.move_on_after(_SAVED_S_MAX, shield=True), suppress(CallFailed):
                        await work.save(when_due=False)
            else:
                _conclude(run, await work.run(places), path)

    anyio.run(imported)


def _places(harness: HarnessCommand, path: Path | None) -> list[Path]:
    """Return the files and folders to import from. Raises: Stop if there are none."""
    if path is not None:
        if not path.exists():
            raise Stop(NOT_FOUND, f"{path}: no such file or folder", symbol="unreadable")
        return [path.absolute()]
    home = default_places(harness, os.environ, Path.home())
    if not (places := [each for each in home if each.exists()]):
        looked = ", ".join(map(str, home))
        raise Stop(NOT_FOUND, f"{harness} has no sessions in {looked}", hint="name a PATH", symbol="unreadable")
    return places


async def _awaited_places(run: Invocation, harness: HarnessCommand) -> list[Path]:
    """Return the places where the harness keeps its sessions, once one of them exists. Cancel: safe."""
    clock, is_noted = SystemClock(), False
    while True:
        try:
            return _places(harness, None)
        except Stop as missing:
            if not is_noted:
                run.screen.note(f"ctx import: {missing.message} yet; waiting for them")
            is_noted = True
        await clock.sleep(_IDLE_MS / 1000)


def _deliver_and_compare(
    run: Invocation, harness: HarnessCommand, places: Sequence[Path], *, dry_run: bool
) -> "ImportResult | None":
    """Deliver the events that wait, and return the outcome of an import that has nothing to read; None if it has. This
    needs neither an event loop nor the modules that plan commits, which take longer to load than the files to check."""
    from ctxd.cli.spool_maintenance import deliver_waiting
    from ctxd.imports.changed_sources import changed_files
    from ctxd.imports.import_result import ImportResult
    from ctxd.imports.import_state import stored_sources

    with run.client() as client:
        known = stored_sources(client, harness)
    if not dry_run:
        deliver_waiting(run.socket_path())
    result = ImportResult(harness, dry_run)
    return result if next(changed_files(places, known, {}, result), None) is None else None


async def _watch(run: Invocation, work: "TranscriptImport", harness: HarnessCommand, places: Sequence[Path]) -> None:
    """Import changed files until cancelled. All places are also rescanned periodically: file events can be lost."""
    from ctxd.cli.spool_maintenance import deliver_waiting
    from ctxd.worker_threads import in_thread

    folders = [place if place.is_dir() else place.parent for place in places]
    await in_thread(deliver_waiting, run.socket_path())
    left, missed = 0, set[Path]()
    try:
        report(run, await work.run(places), is_one_of_many=True)
    except Unavailable as error:
        run.screen.note(f"ctx import: {error.message}; trying again")
        missed = set(places)
    # Changes made before the watch began are found by the first rescan, after one timeout.
    async for changes in _changes(run, folders):
        found = {_changed_place(harness, Path(name)) for name in changes}
        missed |= {path for path in found if path is not None and _is_below(path, places)}
        if not changes:
            left -= 1
        if left < 0:
            missed, left = set(places), _RESCAN_TIMEOUTS
        try:
            if not missed:
                await work.save(when_due=True)
                continue
            await in_thread(deliver_waiting, run.socket_path())
            result = await work.run(sorted(missed))
        except Unavailable as error:
            run.screen.note(f"ctx import: {error.message}; trying again")
            continue
        missed = set()
        if result.imported:
            report(run, result, is_one_of_many=True)


async def _changes(run: Invocation, folders: Sequence[Path]) -> AsyncIterator[set[str]]:
    """Yield the paths that have changed, an empty set after ``_IDLE_MS`` without a change, until cancelled."""
    from watchfiles import awatch

    try:
        async for changes in awatch(*folders, yield_on_timeout=True, rust_timeout=_IDLE_MS):
            yield {name for _, name in changes}
        return
    except (OSError, RuntimeError) as error:  # The errors of watchfiles are RuntimeErrors.
        # Such as no inotify instance left for this user: fs.inotify.max_user_instances.
        remedy = "sysctl fs.inotify.max_user_instances and max_user_watches raise the limits"
        run.screen.note(f"ctx import: changes are found by rescans only, as files cannot be watched: {error}; {remedy}")
    clock = SystemClock()
    while True:
        await clock.sleep(_IDLE_MS / 1000)
        yield set()


def _changed_place(harness: HarnessCommand, path: Path) -> Path | None:
    """Return the file or folder to read after a change of ``path``; None if it cannot hold sessions. A new folder is
    read whole: files may have been written into it before it was watched."""
    candidate = changed_candidate(harness, path)
    return path if candidate is None and path.is_dir() else candidate


def _is_below(path: Path, places: Sequence[Path]) -> bool:
    return any(path == place or place in path.parents for place in places)


def _conclude(run: Invocation, result: "ImportResult", path: Path | None) -> None:
    """Print the outcome of an import from ``path``. Raises: Stop if that is a single file without a session."""
    report(run, result)
    if path is not None and not path.is_dir() and result.skipped and not result.sources:
        message = f"{path} was not imported: {result.skipped[0].reason}"
        raise Stop(FAILURE, message, hint=f"name a file that {result.harness} wrote", symbol="unreadable")


def report(run: Invocation, result: "ImportResult", *, is_one_of_many: bool = False) -> None:
    """Print the outcome of an import."""
    if run.screen.as_json:
        if is_one_of_many:
            run.screen.record(result)
            run.screen.out.flush()
        else:
            run.screen.document(result)
        return
    made = "would make" if result.dry_run else "made"
    done = f"{count(result.imported, 'source')} imported ({result.rewritten:,} rewritten)"
    commits = f"{made} {count(result.commits, 'commit')} in {count(len(result.sessions), 'session')}"
    run.screen.line(f"{done}, {result.unchanged:,} unchanged; {commits}")
    for kind, number in sorted(result.events.items()):
        run.screen.line(f"  {kind:<11}  {number:,}")
    if result.recorded:
        lines = count(result.recorded, "line")
        run.screen.line(f"  {lines} not imported: the session has them, from its hooks or its start")
    if result.copied:
        has = "has it" if result.copied == 1 else "has them"
        run.screen.line(f"  {count(result.copied, 'line')} not imported: another transcript already {has}")
    for each in result.skipped:
        run.screen.line(f"  skipped {cell(each.path)}: {cell(each.reason)}")
