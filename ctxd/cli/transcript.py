"""``ctx transcript``: show the events of a transcript file that a harness wrote."""

import sqlite3
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Final

import click
import msgspec

from ctxd.cli.common_options import Invocation, streaming
from ctxd.cli.exit_codes import FAILURE, USAGE
from ctxd.click_support import Command, ExclusiveOptions, Stop
from ctxd.formats.cbor_array import encoded, joined
from ctxd.formats.delta_formats import DELTA_FORMATS
from ctxd.formats.events_v1 import NAME as EVENTS_V1
from ctxd.formats.events_v1 import item_of
from ctxd.formats.translation import WANTED, Delta, Materialization
from ctxd.formatting import count, moment
from ctxd.terminal import cell
from ctxd.transcripts.format_detection import UnknownFormat, read
from ctxd.transcripts.record_decoding import Entry, total_usage
from ctxd.transcripts.source_lines import DAMAGED_FRAME, open_source
from ctxd_protocol.event_types import Event

_TEXT_CHARS: Final = 200


@click.command(
    cls=Command,
    examples="ctx transcript ~/.claude/projects/-srv-app/0b1c….jsonl\nctx transcript rollout.jsonl --summary\n"
    "ctx transcript rollout.jsonl --as claude-code-v1 > 0b1c….jsonl\n"
    "ctx transcript session.jsonl --json | jq 'select(.event == \"prompt\").text'",
)
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--summary", is_flag=True, help="Only the format, the number of events of each kind, and the tokens.")
@click.option(
    "--as", "wanted", type=click.Choice(WANTED), metavar="FORMAT",
    help=f"Write the session in this format; losses are listed. Formats: {', '.join(WANTED)}.",
)  # fmt: skip
@streaming
def transcript(run: Invocation, file: Path, summary: bool, wanted: str | None) -> None:
    """Show the events in FILE, a transcript of a harness.

    FILE is a session of Claude Code, codex, pi or opencode, or the headless output of one; it is only read. With
    --json, one event per line. No daemon is needed.
    """
    if wanted is not None and (summary or run.screen.as_json):
        option = "--summary" if summary else "--json"
        raise ExclusiveOptions("--as", option, reason="--as writes the session itself")
    with opened(file) as (format, entries):
        if wanted is not None:
            _translate(run, file, format, entries, wanted)
        elif summary:
            _summary(run, format, entries)
        else:
            for entry in entries:
                _show(run, entry)


@contextmanager
def opened(file: Path) -> Iterator[tuple[str, Iterator[Entry]]]:
    """The format of the transcript ``file``, and its events. Raises: Stop if it cannot be read, also from the body."""
    try:
        yield read(file)
    except UnknownFormat as error:
        raise Stop(USAGE, str(error), symbol="unknown_format") from None
    except (OSError, ValueError, *DAMAGED_FRAME, sqlite3.Error) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise Stop(FAILURE, f"cannot read {file}: {reason}", symbol="unreadable") from None


def _show(run: Invocation, entry: Entry) -> None:
    event = entry.event
    if run.screen.as_json:
        run.screen.record({"line": entry.line, **msgspec.to_builtins(event)})
        return
    at = moment(event.at) if event.at is not None else ""
    text = " ".join(_text(event).split())[:_TEXT_CHARS]
    side = "  (sub-agent)" if event.sidechain is not None else ""
    run.screen.line(run.screen.clipped(f"{at:<24}  {_kind(event):<11}  {cell(text)}{side}"))


def _content(file: Path) -> bytes:
    with open_source(file) as source:
        return source.read()


def _translate(run: Invocation, file: Path, format: str, entries: Iterator[Entry], wanted: str) -> None:
    name = f"{format}-v1"
    if name in DELTA_FORMATS:
        delta = Delta(name, partial(_content, file), 0, 0)
    else:
        # A database or an export: nothing can be appended to it, so it is not a format of deltas.
        array = joined([encoded(item_of(entry.event)) for entry in entries])
        delta = Delta(EVENTS_V1, lambda: array, 0, 0)
    found = Materialization([delta], wanted)
    output = sys.stdout.buffer
    for chunk in found.chunks():
        output.write(chunk)
    output.flush()
    if found.format != wanted:
        run.screen.note(f"the session cannot be written as {wanted}; the output is {found.format}")
    for loss in found.lost:
        run.screen.note(f"lost: {count(loss.times)} of {loss.part}")


def _summary(run: Invocation, format: str, entries: Iterator[Entry]) -> None:
    kinds: Counter[str] = Counter()

    def counting() -> Iterator[Entry]:
        for entry in entries:
            kinds[_kind(entry.event)] += 1
            yield entry

    usage = total_usage(counting())
    if run.screen.as_json:
        run.screen.document({"format": format, "events": kinds, "usage": usage})
        return
    run.screen.line(f"format       {format}")
    for kind, number in kinds.most_common():
        run.screen.line(f"{kind:<11}  {count(number)}")
    cached = f"{count(usage.cache_read)} read from and {count(usage.cache_write)} written to the cache"
    run.screen.line(f"tokens       {count(usage.input)} input, {count(usage.output)} output, {cached}")


def _kind(event: Event) -> str:
    return str(event.__struct_config__.tag)


def _text(event: Any) -> str:  # noqa: ANN401 - an event of any kind
    match _kind(event):
        case "tool_call":
            return f"{event.tool} {event.args}"
        case "compaction":
            return str(event.summary)
        case "opaque":
            return f"[{event.kind}]"
        case "system":
            return f"[{event.kind}] {event.text}"
        case _:
            return str(event.text)
