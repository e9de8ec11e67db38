"""Transit reads back as it was written, also by a writer that caches as XTDB does; other input is refused."""

import json
import math
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ctxd.backends.xtdb import transit
from ctxd.backends.xtdb.transit import Keyword, NotTransit, decode, encode

signed = st.builds(
    str.__add__, st.sampled_from(("~", "^", "`", "~:", "~#", "~i1", "^ ", "^0", "~~", "")), st.text(max_size=6)
)
text = st.text(max_size=12) | signed
numbers = st.integers() | st.sampled_from((2**53 - 1, 2**53, -(2**53), 2**63 - 1, 2**63, -(2**63) - 1, 2**64, 10**30))
values = st.recursive(
    st.none() | st.booleans() | numbers | st.floats(allow_nan=False, allow_infinity=False) | text,
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(text, inner, max_size=5),
    max_leaves=25,
)


class CachingWriter:
    """Transit as XTDB answers it: maps as arrays, and what repeats as codes of a cache that starts anew when full."""

    def __init__(self) -> None:
        self._codes: dict[str, str] = {}

    def _cached(self, spelled: str, *, key: bool) -> str:
        if len(spelled) <= 3 or not (key or spelled[:2] in ("~:", "~$", "~#")):
            return spelled
        if spelled in self._codes:
            return self._codes[spelled]
        if len(self._codes) == 44 * 44:
            self._codes.clear()
        high, low = divmod(len(self._codes), 44)
        self._codes[spelled] = "^" + (chr(48 + high) if high else "") + chr(48 + low)
        return spelled

    def write(self, value: Any, *, key: bool = False) -> Any:
        if isinstance(value, Keyword):
            return self._cached(f"~:{value}", key=key)
        if isinstance(value, str):
            return self._cached(f"~{value}" if value[:1] and value[0] in "~^`" else value, key=key)
        if isinstance(value, int) and not isinstance(value, bool) and abs(value) > 2**53:
            return f"~i{value}" if -(2**63) <= value < 2**63 else f"~n{value}"
        if isinstance(value, list):
            return [self.write(item) for item in value]
        if isinstance(value, dict):
            flat = ["^ "]
            for name, item in value.items():
                flat += [self.write(name, key=True), self.write(item)]
            return flat
        return value


def as_answered(value: Any) -> bytes:
    return json.dumps(CachingWriter().write(value), ensure_ascii=False).encode()


def same(one: Any, other: Any) -> bool:
    """Equal, also in the kind of each number."""
    return repr(one) == repr(other)


@given(values)
@settings(max_examples=400)
def test_encoded_values_are_decoded_unchanged(value):
    assert same(decode(encode(value)), value)


@given(values)
@settings(max_examples=300)
def test_values_from_a_caching_writer_are_decoded_unchanged(value):
    assert same(decode(as_answered(value)), value)


@given(st.lists(values, max_size=6))
@settings(max_examples=200)
def test_values_encoded_together_equal_each_encoded_alone(several):
    assert transit.encode_all(several) == [encode(value) for value in several]


def test_a_full_cache_restarts_on_both_sides():
    maps = [{f"key {n % 5000}": n, "same": n, Keyword(f"k/{n % 2500}"): [Keyword("value")]} for n in range(10_000)]
    read = decode(as_answered(maps))
    assert read == maps
    assert type(list(read[7_000])[2]) is Keyword


def test_a_key_of_three_characters_is_not_cached():
    assert decode(b'[["^ ","abc",1,"abcd",2],["^ ","^0",3]]') == [{"abc": 1, "abcd": 2}, {"abcd": 3}]


@pytest.mark.parametrize(
    ("spelled", "meant"),
    [
        (
            b'["^ ","~:xtdb.api/tx-id",33,"~:xtdb.api/tx-time","~m1795233646744"]',
            {"xtdb.api/tx-id": 33, "xtdb.api/tx-time": 1795233646744},
        ),
        (b'["~#list",[["a",null]]]', [["a", None]]),
        (b'["~#set",[1,2]]', [1, 2]),
        (b'["~#\'","~:a"]', "a"),
        (b'["~#xtdb/oid","00ff"]', "00ff"),
        (b'"~t2020-01-01T00:00:00.123Z"', 1577836800123),
        (b'"~?t"', True),
        (b'"~_"', None),
        (b'"~zINF"', math.inf),
        (b'"~d2.5"', 2.5),
        (b'{"~:a":{"b":"~i9007199254740993"}}', {"a": {"b": 9007199254740993}}),
        (b"1E20", 1e20),
        (b"-0.0", -0.0),
    ],
)
def test_other_spellings_of_a_node_are_decoded(spelled, meant):
    assert decode(spelled) == meant
    assert type(decode(spelled)) is type(meant) or isinstance(meant, str)


@pytest.mark.parametrize(
    "spelled",
    [
        b"",
        b"{",
        b'["^ ","a"]',
        b'["^ ","a",1,"a",2]',
        b'"^0"',
        b'"^00"',
        b'["~:abcd","^1"]',
        b'"~"',
        b'"^ "',
        b'"`x"',
        b'"~x1"',
        b'"~i1.5"',
        b'"~m"',
        b'["~#unknown",1]',
        b'["~#cmap",[["^ ","a",1],2.5]]',
        b'["~#list",[1],[2]]',
        b'["~#t","yesterday"]',
        b'["~#m","~zINF"]',
        b'["~#m",1.5]',
        b"[1,2]]",
        b"\xff",
        b'"\\ud800"',
        b"NaN",
        b"[" * 100_000,
        b'["~#list",' * 5_000 + b"1" + b"]" * 5_000,
    ],
)
def test_invalid_transit_is_rejected(spelled):
    with pytest.raises(NotTransit):
        decode(spelled)


@given(st.binary(max_size=60) | values.map(as_answered).map(lambda data: data[: len(data) * 2 // 3]))
@settings(max_examples=300)
def test_anything_at_all_is_read_or_refused(data):
    try:
        decode(data)
    except NotTransit:
        pass


@pytest.mark.parametrize("value", [math.nan, math.inf, {"a": [None, -math.inf]}, "\ud800", {"a": object()}])
def test_values_without_a_json_form_are_not_encoded(value):
    with pytest.raises((ValueError, TypeError)):
        encode(value)


def test_nesting_that_exhausts_the_stack_is_an_error_of_the_value():
    nested: Any = []
    for _ in range(100_000):
        nested = [nested]
    with pytest.raises(ValueError, match="nested too deeply"):
        encode(nested)


def test_a_date_is_milliseconds():
    assert encode_date_of(1_600_000_000_123) == "~m1600000000123"


def encode_date_of(milliseconds: int) -> Any:
    return msgspec.json.decode(transit.encode_date(milliseconds))
