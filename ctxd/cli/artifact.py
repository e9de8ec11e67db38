"""``ctx artifact``: store files of any size, and read them by their address."""

import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING, Final

import click

from ctxd.cli.common_options import Invocation, WholeNumber, common, listing, note_next_page, paged
from ctxd.cli.exit_codes import FAILURE, OK, USAGE
from ctxd.cli.whole_files import whole_file
from ctxd.click_support import Command, ExclusiveOptions, Group, Stop
from ctxd.clock import SystemClock
from ctxd.formatting import age, count

if TYPE_CHECKING:
    from ctxd_client.sync import SyncClient
    from ctxd_protocol.methods.artifacts import ArtifactPolicy, DamagedArtifact

_PIECE_BYTES: Final = 128 * 1024
"""Bytes of a piece. Longer pieces are hardly faster, and other calls wait while a piece is decoded."""
_SHORT_DIGITS: Final = 12
_MS: Final = 1000


@click.group(
    cls=Group, examples="ctx artifact put build.log --tag logs/latest\nctx artifact get tag:logs/latest -o build.log"
)
@common
def artifact(run: Invocation) -> None:
    """Store bytes of any size under their hash.

    ARTIFACT is an address, at least four of its first digits, or tag:NAME.
    """


@artifact.command(
    cls=Command,
    examples="ctx artifact put build.log\ntar c src | ctx artifact put - --tag src/today",
)
@click.argument("file", type=click.Path(dir_okay=False, allow_dash=True))
@click.option("--policy", type=click.Choice(["default", "pin", "ephemeral"]), help="Policy for garbage collection.")
@click.option("--media-type", metavar="TYPE", help="Media type, such as text/plain.")
@click.option("--tag", metavar="NAME", help="Tag the artifact, and move the tag if it exists.")
@common
def put(run: Invocation, file: str, policy: "ArtifactPolicy | None", media_type: str | None, tag: str | None) -> None:
    """Store FILE, or standard input with -, and print its address.

    Long input is sent in pieces. After an interruption, run the command again: for a file, it sends only the missing
    pieces; for standard input, it starts again.
    """
    with run.client() as client, input_file(file) as opened:
        first = opened.read(_PIECE_BYTES)
        if len(first) < _PIECE_BYTES:
            done = client.artifact_put(data=first, policy=policy, media_type=media_type)
        else:
            upload = sent_upload(run, client, opened, first)
            done = client.artifact_put(upload=upload, policy=policy, media_type=media_type)
        if tag is not None:
            client.artifact_tag(tag, artifact=done.artifact)
    if run.screen.as_json:
        run.screen.document(done)
    else:
        run.screen.line(done.artifact)


@contextmanager
def input_file(path: str) -> Iterator[IO[bytes]]:
    """Open a file, or standard input for ``-``. Raises: ``Stop`` if it cannot be read."""
    try:
        with click.open_file(path, "rb") as file:
            yield file
    except OSError as error:
        raise Stop(USAGE, f"{path} cannot be read: {error.strerror}", hint="name a file, or - for a pipe") from error


def sent_upload(run: Invocation, client: "SyncClient", file: IO[bytes], first: bytes) -> str:
    """Send ``file``, whose beginning is ``first``, from where an earlier run ended. Returns: the name of the upload."""
    size, name = 0, f"ctx-{os.getpid()}-{time.monotonic_ns()}"
    if file.seekable():
        found = os.fstat(file.fileno())
        size = found.st_size
        # The upload of the same, unchanged file continues where it was interrupted.
        name = f"ctx-{found.st_dev:x}-{found.st_ino:x}-{size:x}-{found.st_mtime_ns:x}"
    offset = client.artifact_upload(name).offset if size else 0
    if offset:
        run.screen.note(f"resuming the upload at {offset:,} of {size:,} bytes")
        file.seek(offset)
        first = file.read(_PIECE_BYTES)
    while first:
        offset = client.artifact_upload(name, offset=offset, data=first).offset
        show_progress(offset, size)
        first = file.read(_PIECE_BYTES)
    return name


def show_progress(done: int, size: int) -> None:
    """Write the progress of a transfer to a terminal, over the previous progress."""
    if sys.stderr.isatty():
        of = f" of {size:,}" if size else ""
        click.echo(f"\r{done:,}{of} bytes", err=True, nl=done >= size > 0)


@artifact.command(
    cls=Command, examples="ctx artifact get 3f9a01bc -o build.log\nctx artifact get tag:src/today | tar x"
)
@click.argument("artifact")
@click.option(
    "-o", "--output", type=click.Path(dir_okay=False, path_type=Path), help="Write to this file, whole or not at all."
)
@common
def get(run: Invocation, artifact: str, output: Path | None) -> None:
    """Write ARTIFACT to standard output or to a file."""
    if run.screen.as_json and output is None:
        raise click.UsageError("--json requires -o FILE: standard output has the artifact itself")
    with run.client() as client:
        if output is None:
            _download(client, artifact, sys.stdout.buffer)
            sys.stdout.buffer.flush()
            return
        with whole_file(output) as file:
            size = _download(client, artifact, file)
    if run.screen.as_json:
        run.screen.document({"path": str(output), "size": size})


def _download(client: "SyncClient", artifact: str, target: IO[bytes]) -> int:
    offset: int | None = 0
    size = 0
    while offset is not None:
        part = client.artifact_get(artifact, offset=offset, limit=_PIECE_BYTES)
        # Continue by address: a tag may move meanwhile.
        artifact, size = part.artifact, part.size
        target.write(part.data)
        show_progress(part.offset + len(part.data), size)
        offset = part.next_offset
    return size


@artifact.command(cls=Command, examples="ctx artifact stat tag:logs/latest\nctx artifact stat 3f9a01bc --json")
@click.argument("artifact")
@common
def stat(run: Invocation, artifact: str) -> None:
    """Show size, policy, tags and references of ARTIFACT."""
    with run.client() as client:
        found = client.artifact_stat(artifact)
    if run.screen.as_json:
        run.screen.document(found)
        return
    run.screen.line(found.artifact)
    run.screen.line(f"size        {count(found.size, 'byte')}")
    run.screen.line(f"policy      {found.policy or 'none: content of another object'}")
    run.screen.line(f"tags        {', '.join(found.tags) or 'none'}")
    run.screen.line(f"references  {found.references}")


@artifact.command(cls=Command, examples="ctx artifact ls\nctx artifact ls --limit 10 --json")
@paged
@listing
@common
def ls(run: Invocation, limit: int, cursor: str | None) -> None:
    """List artifacts by address."""
    with run.client() as client:
        page = client.artifact_list(limit=limit, cursor=cursor)
    if run.screen.listing(page.artifacts, [each.artifact for each in page.artifacts], next_cursor=page.next_cursor):
        return
    now = SystemClock().wall_ms()
    run.screen.table(
        ("ARTIFACT", "BYTES", "POLICY", "AGE", "TAGS"),
        [
            (
                each.artifact[:_SHORT_DIGITS],
                f"{each.size:,}",
                each.policy,
                age(each.created_at, now),
                ", ".join(each.tags),
            )
            for each in page.artifacts
        ],
        right=(1,),
    )
    note_next_page(run, page.next_cursor)


@artifact.command(
    cls=Command,
    examples="ctx artifact tag logs/latest 3f9a01bc\nctx artifact tag logs/latest -d\n"
    "ctx artifact tag logs/latest 3f9a01bc --expect ''",
)
@click.argument("tag")
@click.argument("artifact", required=False)
@click.option("-d", "--delete", "--remove", "delete", is_flag=True, help="Remove the tag.")
@click.option(
    "--expect", metavar="ADDRESS", help="Change the tag only if it has this address; '' only if it does not exist."
)
@common
def tag(run: Invocation, tag: str, artifact: str | None, delete: bool, expect: str | None) -> None:
    """Tag ARTIFACT with TAG, or remove TAG."""
    if delete and artifact is not None:
        raise ExclusiveOptions("ARTIFACT", "-d")
    if not (delete or artifact is not None):
        raise click.UsageError("Missing argument 'ARTIFACT'; to remove TAG, add -d.")
    with run.client() as client:
        done = client.artifact_tag(tag, artifact=artifact, expected=expect)
    if run.screen.as_json:
        run.screen.document(done)
    else:
        before = f", before {done.previous[:_SHORT_DIGITS]}" if done.previous else ""
        run.screen.line(f"{tag} names {(done.artifact or 'nothing')[:_SHORT_DIGITS]}{before}")


@artifact.command(
    cls=Command,
    examples="ctx artifact gc --dry-run\nctx artifact gc --grace 86400\nctx artifact gc --max-bytes 10000000000",
)
@click.option("--dry-run", is_flag=True, help="List the artifacts without removing them.")
@click.option(
    "--grace",
    "grace_s",
    type=WholeNumber(0),
    default=3600,
    show_default=True,
    help="Seconds that an artifact is kept after its last use.",
)
@click.option("--max-bytes", type=WholeNumber(0), help="Stop once at most this many bytes are left.")
@common
def gc(run: Invocation, dry_run: bool, grace_s: int, max_bytes: int | None) -> None:
    """Remove artifacts that no version, tag or pin reaches."""
    removed: list[str] = []
    freed = left = 0
    with run.client() as client:
        while True:
            done = client.artifact_gc(grace_ms=grace_s * _MS, max_bytes=max_bytes, dry_run=dry_run)
            removed += done.removed
            freed, left = freed + done.removed_bytes, done.left_bytes
            if dry_run or not done.more or not done.removed:
                break
            run.screen.note(f"{count(len(removed), 'artifact')} removed so far")
    if run.screen.as_json:
        run.screen.document({"removed": removed, "removed_bytes": freed, "left_bytes": left, "dry_run": dry_run})
        return
    for ref in removed:
        run.screen.line(ref)
    verb = "would be removed" if dry_run else "removed"
    run.screen.note(f"{count(len(removed), 'artifact')} {verb}, {count(freed, 'byte')}; {left:,} left")


@artifact.command(cls=Command, examples="ctx artifact fsck\nctx artifact fsck --json")
@common
def fsck(run: Invocation) -> int:
    """Compare every stored byte of artifacts with its hash. Exits with 1 if an artifact is damaged.

    Damaged artifacts are listed. To repair one, put the same bytes again, or restore a backup.
    """
    checked = size = 0
    damaged: list[DamagedArtifact] = []
    faults: list[str] = []
    cursor: str | None = None
    with run.client() as client:
        while True:
            page = client.artifact_fsck(cursor=cursor)
            checked, size = checked + page.checked, size + page.checked_bytes
            damaged += page.damaged
            faults += page.faults
            cursor = page.next_cursor
            if cursor is None:
                break
            if sys.stderr.isatty():
                click.echo(f"\r{checked:,} artifacts, {size:,} bytes", err=True, nl=False)
    if run.screen.as_json:
        run.screen.document({"checked": checked, "checked_bytes": size, "damaged": damaged, "faults": faults})
    else:
        for one in damaged:
            run.screen.line(f"{one.artifact}  {one.fault}")
        for fault in faults:
            run.screen.line(fault)
        run.screen.note(f"{count(checked, 'artifact')} checked, {count(size, 'byte')}, {len(damaged)} damaged")
    if damaged or faults:
        hint = "put the same bytes again, or restore a backup"
        raise Stop(FAILURE, f"{count(len(damaged), 'artifact')} damaged", hint=hint, symbol="corrupt")
    return OK
