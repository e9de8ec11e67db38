"""Texts of events by which they are found."""

import pytest

from ctxd.search.searchable_texts import event_texts
from ctxd_protocol.event_types import Event, OpaqueEvent, ResponseEvent

TOLD = "429 too many requests"


@pytest.mark.requirement("SRC-1")
@pytest.mark.parametrize(
    "event",
    [
        OpaqueEvent(kind="error", data={"message": TOLD}),
        OpaqueEvent(kind="message", data={"error": {"name": "APIError", "data": {"message": TOLD}}}),
        ResponseEvent(text="", meta={"errorMessage": TOLD}),
    ],
    ids=["codex", "opencode", "pi"],
)
def test_an_error_of_a_provider_is_found_by_its_message(event: Event) -> None:
    (found,) = event_texts([event])
    assert (found.text, found.kind) == (TOLD, "system")


def test_other_records_of_a_harness_have_no_text() -> None:
    assert not [*event_texts([OpaqueEvent(kind="message", data={"error": None}), OpaqueEvent(kind="usage", data={})])]
