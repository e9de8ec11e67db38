"""Errors on the wire: the outcome of a write that failed."""

import msgspec
import pytest

from ctxd.errors import CtxdError
from ctxd.rpc.wire_errors import params_error, timeout_error, with_outcome
from ctxd_protocol.jsonrpc import error_object
from ctxd_protocol.methods import METHODS


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


@pytest.mark.parametrize(
    ("method", "params", "hint"),
    [
        ("session.create", {"agent": "a", "components": ["dates"]}, "of date, environment, instructions, skills"),
        ("context.assemble", {"session": "s", "format": "x"}, "anthropic-messages, blocks, openai-chat"),
        ("context.assemble", {"session": "s", "tools": [{"type": "function"}]}, "pass MODEL_TOOLS.values()"),
        ("session.append", {"session": "s", "events": [{"event": "nope"}]}, "tool_call"),
        ("daemon.status", {"x` - at `$.y": 1}, "rpc.discover"),
        ("daemon.status", {"x": 1}, ": there are none"),
        ("session.get", {"session": 1}, "rpc.discover"),
    ],
)  # fmt: skip
def test_params_that_do_not_fit_are_refused_with_the_values_or_fields_that_do(method, params, hint):
    kind = METHODS[method].params
    with pytest.raises(msgspec.ValidationError) as refused:
        msgspec.json.decode(msgspec.json.encode(params), type=kind)
    error = params_error(refused.value, kind)
    assert error.message.startswith(str(refused.value))
    assert hint in f"{error.message} {error.hint}"


@pytest.mark.parametrize(
    "params",
    [
        {"session": "s", "x" * 100_000: 1},
        {"session": "s", "x` - at `$." + "y" * 100_000: 1},
        {"session": "s", "messages": [{"role": "x" * 100_000, "content": "x"}]},
    ],
    ids=["field", "field like a place", "value"],
)
def test_a_validation_error_quotes_only_the_beginning_of_a_value(params):
    kind = METHODS["session.append"].params
    with pytest.raises(msgspec.ValidationError) as refused:
        msgspec.json.decode(msgspec.json.encode(params), type=kind)
    error = params_error(refused.value, kind)
    assert len(error.message) < 400 and "…" in error.message


def test_damage_always_has_a_remedy():
    assert "ctxd verify" in CtxdError("corrupt", "x cannot be read").hint
