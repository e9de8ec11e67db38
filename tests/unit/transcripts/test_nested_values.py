"""Values of many levels: decoded whole, or with their lowest levels as text."""

import json

import pytest

from ctxd.transcripts.record_decoding import decoded, flattened

pytestmark = pytest.mark.requirement("IMP-6")


@pytest.mark.parametrize("open_, close", [(b"[", b"]"), (b'{"a":', b"}"), (b'{"\\ud83d":', b"}")])
@pytest.mark.parametrize("inner", [b'"\\ud83d"', b"12345678901234567890"])
def test_values_in_as_many_levels_as_the_decoder_accepts_become_accepted_ones(open_, close, inner):
    value = decoded(open_ * 800 + inner + close * 800)
    for _ in range(800):
        (value,) = value.values() if isinstance(value, dict) else value
    assert value in ("\ufffd", "12345678901234567890")


@pytest.mark.parametrize(
    ("raw", "flat"),
    [
        (b'{"a": [1, {"b": []}]}', {"a": [1, '{"b": []}']}),
        (b'[[[1], [2]], "[[[", [["]"]]]', [["[1]", "[2]"], "[[[", ['["]"]']]),
        (b'{"a[": {"\\"{": {"c\\\\": "caf\xc3\xa9"}}}', {"a[": {'"{': '{"c\\\\": "caf\u00e9"}'}}),
        (b"[[1], [[]]]", [[1], ["[]"]]),
        (b"[[1], [2]]", [[1], [2]]),
    ],
)
def test_values_below_some_levels_become_their_text(raw, flat):
    assert json.loads(flattened(raw, 2)) == flat


def test_flattening_a_value_of_many_brackets_takes_bounded_time():
    assert decoded(flattened(b"[" * 3_000_000 + b"]" * 3_000_000)), "brackets in a row"
    with pytest.raises(ValueError, match="nested too deeply"):
        flattened(b"[" * 300 + b"[]," * 1_000_000 + b"1" + b"]" * 300)
