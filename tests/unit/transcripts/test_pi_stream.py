"""Headless output of pi, which versions name differently."""

import pytest

from ctxd.transcripts.pi import read_stream
from ctxd.transcripts.record_decoding import Line
from ctxd_protocol.event_types import CompactionEvent, OpaqueEvent


@pytest.mark.requirement("IMP-16")
@pytest.mark.parametrize("kind", ["auto_compaction_end", "compaction_end"])
def test_a_compaction_in_headless_output_has_its_summary(kind: str) -> None:
    result = {"summary": "they asked for tabs", "firstKeptEntryId": "0a", "tokensBefore": 9000, "details": {}}
    done = {"type": kind, "reason": "threshold", "result": result, "aborted": False, "willRetry": False}
    found = [entry.event for entry in read_stream([Line(1, done), Line(2, {"type": kind, "aborted": True})])]
    meta = {"firstKeptEntryId": "0a", "details": {}}
    assert found == [
        CompactionEvent(summary="they asked for tabs", kept_from="0a", tokens_before=9000, meta=meta),
        OpaqueEvent(kind=kind, data={"type": kind, "aborted": True}),
    ]
