"""Outcome of an import of transcripts, as ``ctx import`` prints it."""

import msgspec

from ctxd.transcripts.harness_names import HarnessCommand
from ctxd.transcripts.transcript_files import Skipped


class ImportResult(msgspec.Struct):
    """Outcome of an import: the number of sources, counts of their new content, and skipped files with reasons.

    ``events``: counts by type. ``copied``: lines that repeat lines of another source. ``recorded``: lines that the
    session has already, from its hooks or a hand-over. ``rewritten``: sources that were replaced or truncated since
    their last import.
    """

    harness: HarnessCommand
    dry_run: bool
    sources: int = 0
    imported: int = 0
    unchanged: int = 0
    rewritten: int = 0
    sessions: list[str] = []
    commits: int = 0
    lines: int = 0
    bytes: int = 0
    copied: int = 0
    recorded: int = 0
    events: dict[str, int] = {}
    skipped: list[Skipped] = []
