"""Errors on the wire: the outcome of a write that failed."""

import pytest

from ctxd.rpc.wire_errors import timeout_error, with_outcome
from ctxd_protocol.jsonrpc import error_object


@pytest.mark.parametrize(
    ("code", "submitted", "outcome"),
    [
        ("invalid_params", False, None),
        ("invalid_params", True, "unknown"),
        ("draining", False, "not_applied"),
        ("draining", True, "unknown"),
        ("store_failed", False, "not_applied"),
        ("store_failed", True, "unknown"),
    ],
)
def test_a_failed_write_has_the_outcome_that_follows_from_how_far_it_came(code, submitted, outcome):
    assert with_outcome(error_object(code, "so"), submitted=submitted).data.outcome == outcome


def test_an_outcome_that_is_known_stays():
    known = error_object("store_failed", "so", outcome="applied")
    assert with_outcome(known, submitted=True) == known


def test_a_write_that_took_too_long_may_have_been_applied_and_a_read_has_no_outcome():
    assert timeout_error(1.5, writes=True).data.outcome == "unknown"
    assert timeout_error(1.5, writes=False).data.outcome is None
    assert "op_id" in timeout_error(1.5, writes=True).data.hint
