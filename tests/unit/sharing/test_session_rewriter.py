"""Which versions may share a row of an import."""

from typing import Any, cast

import pytest

from ctxd.sharing.session_rewriter import ROW_CHARS_MAX, PlannedWrite, SessionRewriter

STORED = cast(Any, object())


@pytest.mark.parametrize(
    "filled",
    [
        {},
        {"documents": {"segment:s#0": (STORED, None)}},
        {"objects": {"call-1": STORED}},
        {"deletes": ("segment:s#1",)},
        {"head": STORED},
    ],
    ids=["nothing", "a document", "an object", "a deletion", "a head"],
)
def test_versions_too_large_for_a_row_have_one_of_their_own(filled: dict[str, Any]) -> None:
    row = PlannedWrite()
    row.chars = ROW_CHARS_MAX + 1
    for name, value in filled.items():
        setattr(row, name, value)
    # The answer does not depend on the history: an empty group names no object.
    assert not SessionRewriter.fits(cast(Any, None), row, ())
