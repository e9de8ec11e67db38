"""The table of outcomes."""

import pytest

from ctxd.indexing.file_version_decision import (
    DeletedSource,
    Oversized,
    ReadSource,
    SourceState,
    UnavailableSource,
    decide_outcome,
    is_due,
    is_overtaken,
)
from ctxd.objects.document import Document, Stored, file_binary, file_stub, file_text, file_tombstone, file_too_large
from ctxd.objects.generated_ids import file_id
from ctxd.objects.hashing import source_hash
from ctxd_protocol.object_types import FilesystemSource

SOURCE = FilesystemSource("host", "/a")
ID = file_id(SOURCE)
OLD, NEW = source_hash(b"old"), source_hash(b"new")
HEADS: dict[str, Document | None] = {
    "nothing": None,
    "unread": file_stub(ID, SOURCE),
    "text": file_text(ID, SOURCE, "old", OLD),
    "binary": file_binary(ID, SOURCE, OLD, b"\0"),
    "large": file_too_large(ID, SOURCE, 9, 1),
    "deleted": file_tombstone(ID, SOURCE),
}
STATES: dict[str, SourceState] = {
    "old": ReadSource(OLD, "old"),
    "new": ReadSource(NEW, "new"),
    "large": Oversized(9, 1),
    "later": Oversized(9, 2),
    "sent": Oversized(9),
    "larger": Oversized(10, 1),
    "gone": DeletedSource(),
    "away": UnavailableSource("missing"),
}
TABLE = """
           old        new        large      later      sent       larger     gone       away
nothing    created    created    created    created    created    created    orphaned   orphaned
unread     updated    updated    updated    updated    updated    updated    deleted    orphaned
text       unchanged  updated    updated    updated    updated    updated    deleted    orphaned
binary     unchanged  updated    updated    updated    updated    updated    deleted    orphaned
large      updated    updated    unchanged  updated    unchanged  updated    deleted    orphaned
deleted    updated    updated    updated    updated    updated    updated    unchanged  orphaned
"""
_HEADER, *_ROWS = [line.split() for line in TABLE.strip().splitlines()]
CELLS = [(row[0], state, outcome) for row in _ROWS for state, outcome in zip(_HEADER, row[1:], strict=True)]


@pytest.mark.parametrize(("head", "state", "outcome"), CELLS)
def test_every_head_and_state_have_one_outcome(head: str, state: str, outcome: str) -> None:
    assert decide_outcome(HEADS[head], STATES[state]) == outcome


def test_a_version_is_due_only_where_something_changed() -> None:
    assert is_due("created") and is_due("updated") and is_due("deleted")
    assert not is_due("unchanged") and not is_due("orphaned")


def test_a_concurrent_version_is_noticed_even_with_equal_content() -> None:
    head = HEADS["text"]
    assert head is not None
    first = Stored(document=head, content_ref=None, valid_time=1, tx=1, tx_time=0)
    second = Stored(document=head, content_ref=None, valid_time=2, tx=2, tx_time=0)
    assert not is_overtaken(None, None)
    assert not is_overtaken(first, first)
    assert is_overtaken(None, first)
    assert is_overtaken(first, second)
