"""Commits in lists on the screen: one line each, with the summary of a commit or the beginning of its conversation."""

from collections.abc import Iterable, Sequence
from typing import Final

from ctxd.cli.common_options import Invocation
from ctxd.formats.cbor_array import UnreadableDelta
from ctxd.formats.delta_formats import DELTA_FORMATS
from ctxd.formats.losses import args_text
from ctxd.formatting import count, moment
from ctxd.terminal import Colour, cell, width
from ctxd.transcripts.codex import request_in
from ctxd_client.sync import SyncClient
from ctxd_protocol.event_types import CompactionEvent, Event, PromptEvent, ResponseEvent, ToolCallEvent
from ctxd_protocol.limits import PAGE_ITEMS_MAX
from ctxd_protocol.methods.commits import Commit

_TEXT_CHARS_MAX: Final = 90


def beginnings(client: SyncClient, commits: Sequence[Commit]) -> dict[str, str]:
    """Return the first line of the conversation in the delta of each commit without a summary, by its id: of the first
    prompt, else of the first reply or compaction, else the first tool call. A commit has none if it has no message, was
    purged, is longer than 4 MiB, or is of an unknown format. Cost: reads those deltas. Raises: CallFailed."""
    left = [each.commit for each in commits if not each.summary and each.artifact_ref and each.format in DELTA_FORMATS]
    found: dict[str, str] = {}
    while left:
        deltas = client.commit_deltas(left[:PAGE_ITEMS_MAX]).deltas
        for each in deltas:
            if each.data is not None:
                found[each.commit] = _beginning(each.format, each.data)
        left = left[len(deltas) :]
    return found


def commit_line(run: Invocation, commit: Commit, beginning: str = "", *, lanes: str = "", chain: str = "") -> str:
    """Return a commit as one line, cut at the terminal's edge. ``beginning``: that of its conversation, which a summary
    replaces. ``lanes`` stands before the line. ``chain``: the length of its chain, at the end if it has space."""
    marks = [commit.commit_type] if commit.commit_type != "delta" else []
    marks += ["root"] if commit.parent is None else []
    marks += [f"thread: {cell(commit.thread_id)}"] if commit.thread_id else []
    marks += [f"tag: {cell(tag)}" for tag in commit.tags]
    text = cell(" ".join((commit.summary.partition("\n")[0] or beginning).split()))
    counts = f"[{commit.checkpoint}, {count(commit.message_count, 'message')}]"
    parts: list[tuple[str, Colour | None]] = [
        (lanes, None),
        (commit.commit, "yellow"),
        (f"  {moment(commit.created_at_ms)}", None),
    ]
    if marks:
        parts.append((f"  ({', '.join(marks)})", "cyan"))
    if text:
        parts.append((f"  {text}", None))
    more: list[tuple[str, Colour | None]] = []
    if not commit.summary:
        more.append((f"{' ' if text else '  '}{counts}", "dim"))
    if chain:
        more.append((f"  ({chain})", None))
    return run.screen.spans(*parts, *_fitting(run, parts, more))


def _fitting(
    run: Invocation, parts: list[tuple[str, Colour | None]], more: list[tuple[str, Colour | None]]
) -> list[tuple[str, Colour | None]]:
    """Return ``more`` if it fits behind ``parts``: a text is cut only once nothing follows it."""
    edge = run.screen.columns
    return [] if edge and sum(width(text) for text, _ in (*parts, *more)) > edge else more


def _beginning(format: str, delta: bytes) -> str:
    try:
        return _short(_first_text(DELTA_FORMATS[format].events([delta])))
    except UnreadableDelta:
        return ""


def _first_text(events: Iterable[Event]) -> str:
    reply = call = ""
    for event in events:
        match event:
            case PromptEvent() if event.text.strip():
                return request_in(event.text)
            case ResponseEvent():
                reply = reply or event.text.strip()
            case CompactionEvent():
                reply = reply or event.summary.strip()
            case ToolCallEvent():
                call = call or f"{event.tool} {args_text(event.args)}"
    return reply or call


def _short(text: str) -> str:
    line = text.strip().partition("\n")[0].rstrip()
    return line if len(line) <= _TEXT_CHARS_MAX else line[:_TEXT_CHARS_MAX].rstrip() + "…"
