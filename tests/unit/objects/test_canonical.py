"""The canonical encoding against the RFC's own implementation, and against fixed values."""

import hashlib
import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import pytest
import rfc8785
from hypothesis import example, given, settings

from ctxd.objects.hashing import canonical
from ctxd_protocol.limits import SAFE_INTEGER_MAX

VECTORS: dict[str, Any] = json.loads((Path(__file__).parents[3] / "protocol/vectors/hashes.json").read_text("utf-8"))

text = st.text(alphabet=st.characters(exclude_categories=["Cs"]))
keys = st.one_of(st.text(alphabet="abcXYZ_-0189 "), text)
atoms = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-SAFE_INTEGER_MAX, SAFE_INTEGER_MAX),
    st.floats(allow_nan=False, allow_infinity=False),
    text,
)
values = st.recursive(atoms, lambda inner: st.lists(inner) | st.dictionaries(keys, inner), max_leaves=30)


@given(values)
@example({"\U0001f600": 1, "\uffff": 2})
@example({"b": {"é": 1.0, "a": -0.0}, "a": [1e21, 1e-7, 1e20, 0.000001]})
@example('\x00\x08\x0b\x0c\x1f\x7f/\u2028"\\')
@settings(max_examples=500, deadline=None)
@pytest.mark.requirement("OBJ-6")
def test_every_value_is_encoded_as_in_the_rfc(value: Any) -> None:
    assert canonical(value) == rfc8785.dumps(value)


@given(st.floats(allow_nan=False, allow_infinity=False))
@settings(max_examples=500, deadline=None)
@pytest.mark.requirement("OBJ-6")
def test_every_number_reads_back_as_itself(value: float) -> None:
    assert float(canonical(value)) == value


@given(st.dictionaries(keys, atoms))
@settings(deadline=None)
def test_the_order_in_which_keys_were_set_does_not_show(value: dict[str, Any]) -> None:
    assert canonical(dict(reversed(value.items()))) == canonical(value)


@pytest.mark.parametrize("row", VECTORS["canonical"], ids=lambda row: row["name"])
def test_fixed_values_keep_their_encoding_and_hash(row: dict[str, Any]) -> None:
    encoded = canonical(row["value"])
    assert encoded.decode() == row["canonical"]
    assert hashlib.sha256(encoded).hexdigest() == row["sha256"]


@pytest.mark.parametrize("written", VECTORS["refused"])
def test_a_value_json_readers_disagree_on_is_rejected(written: str) -> None:
    with pytest.raises(ValueError):
        canonical(json.loads(written))


def refused() -> Iterator[Any]:
    for bad in (math.nan, math.inf, -math.inf, 2**53, -(2**53), "\ud800", b"bytes", {1, 2}, object()):
        yield bad
        yield {"key": bad}
        yield [bad]
        yield {"é": [bad]}
    yield {1: "a key that is no text"}
    yield {"a": {None: 1}}
    yield {"\udc00": 1}


@pytest.mark.parametrize("value", list(refused()), ids=lambda _: "bad")
def test_values_without_a_json_form_are_rejected_at_any_depth(value: Any) -> None:
    with pytest.raises(ValueError):
        canonical(value)


def test_endless_nesting_is_rejected_without_a_stack_overflow() -> None:
    value: list[Any] = []
    value.append(value)
    with pytest.raises(ValueError, match="nested too deeply"):
        canonical(value)


def test_the_largest_exact_integers_are_taken() -> None:
    assert canonical([SAFE_INTEGER_MAX, -SAFE_INTEGER_MAX]) == b"[9007199254740991,-9007199254740991]"
