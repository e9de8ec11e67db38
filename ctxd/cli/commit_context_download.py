"""Contexts of commits, read from the daemon in pieces."""

from base64 import b64decode
from collections.abc import Callable

from ctxd.cli.artifact import show_progress
from ctxd.cli.exit_codes import FAILURE
from ctxd.click_support import Stop
from ctxd_client.sync import SyncClient
from ctxd_protocol.methods.artifacts import PIECE_BYTES_MAX
from ctxd_protocol.methods.commits import CommitMaterializeResult


def downloaded(
    client: SyncClient, commit: str, *, stop: str = "compaction", format: str | None = None
) -> tuple[bytes, CommitMaterializeResult]:
    """Return a whole context, and its counts. Raises: as ``download``."""
    pieces: list[bytes] = []
    made = download(client, commit, stop, format, pieces.append)
    return b"".join(pieces), made


def download(
    client: SyncClient, commit: str, stop: str, format: str | None, write: Callable[[bytes], object]
) -> CommitMaterializeResult:
    """Write a context piece by piece, with progress on a terminal if there are several; only one is in memory.

    Raises: Stop if the context changes meanwhile, for example after an update of the daemon; CallFailed.
    """
    first = made = client.commit_materialize(commit, stop=stop, format=format, limit=PIECE_BYTES_MAX)
    while True:
        write(b64decode(made.content_base64 or ""))
        if first.next_offset is not None:
            show_progress(made.size if made.next_offset is None else made.next_offset, made.size)
        if made.next_offset is None:
            return first
        made = client.commit_materialize(
            commit, stop=stop, format=format, limit=PIECE_BYTES_MAX, offset=made.next_offset
        )
        if made.artifact_ref != first.artifact_ref:
            raise Stop(
                FAILURE,
                f"the context of {commit} has changed meanwhile",
                hint="run the command again",
                symbol="conflict",
            )
