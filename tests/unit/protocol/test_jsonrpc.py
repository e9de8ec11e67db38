import json
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ctxd_protocol import jsonrpc
from ctxd_protocol.jsonrpc import (
    BatchRequest,
    BlockReader,
    Failure,
    Notification,
    Reply,
    Request,
    Stray,
    encode,
    error_object,
    read_frame,
    refuse,
)
from ctxd_protocol.limits import DEPTH_MAX


def code(frame, **settings):
    read = read_frame(frame, **settings)
    assert isinstance(read, Failure), read
    return read.error.data.code


def request(**members):
    return json.dumps({"jsonrpc": "2.0", "id": 1, "method": "m"} | members).encode()


@pytest.mark.parametrize("id", [0, -1, 1, 2**53 - 1, -(2**53 - 1), "", "a", "1", "é" * 64, "x" * 128, None])
def test_an_id_that_can_be_echoed_is_kept_with_its_type(id):
    read = read_frame(request(id=id))
    assert isinstance(read, Request)
    assert (type(read.id), read.id) == (type(id), id)


@pytest.mark.parametrize(
    "id",
    ["1.5", "1.0", "1e3", "true", "false", "[]", "{}", "9007199254740992", "-9007199254740993", "9" * 5000]
    + [json.dumps("x" * 129), json.dumps("é" * 65), json.dumps("x" * 10_240)],
)
def test_an_id_that_cannot_be_echoed_is_refused_under_a_null_id(id):
    frame = b'{"jsonrpc":"2.0","id":%s,"method":"m"}' % id.encode()
    assert code(frame) == "invalid_request"
    assert read_frame(frame).id is None


def test_a_null_id_is_a_request_and_an_absent_one_is_a_notification():
    assert read_frame(b'{"jsonrpc":"2.0","id":null,"method":"m"}').id is None
    assert read_frame(b'{"jsonrpc":"2.0","method":"m"}').id is not None


@pytest.mark.parametrize("version", [2.0, 2, "1.0", "2", None, ["2.0"]])
def test_any_other_version_is_refused_and_the_id_is_echoed(version):
    read = read_frame(request(jsonrpc=version))
    assert (read.id, read.error.code) == (1, -32600)


def test_a_missing_version_is_refused():
    assert code(b'{"id":1,"method":"m"}') == "invalid_request"


@pytest.mark.parametrize("method", [1, None, [], {}])
def test_a_non_string_method_is_rejected(method):
    assert code(request(method=method)) == "invalid_request"


@pytest.mark.parametrize("method", ["", "rpc.foo", "méthode", "a\0b"])
def test_any_string_is_a_method_name_for_the_table_to_judge(method):
    assert read_frame(request(method=method)).method == method


@pytest.mark.parametrize("frame", [b'"x"', b"1", b"null", b"true", b"{}", b"[]"])
def test_an_invalid_request_object_is_rejected(frame):
    assert code(frame) == "invalid_request"


@pytest.mark.parametrize(
    "frame",
    [
        b"{",
        b'{"jsonrpc": "2.0", "method": "foobar, "params": "bar", "baz]',
        b'\xef\xbb\xbf{"jsonrpc":"2.0","id":1,"method":"m"}',
        '{"jsonrpc":"2.0","id":1,"method":"m"}'.encode("utf-16"),
        '{"jsonrpc":"2.0","id":1,"method":"m"}'.encode("utf-16-le"),
        b'{"jsonrpc":"2.0","id":1,"method":"m","params":["\xff"]}',
        b'{"jsonrpc":"2.0","id":1,"method":"m","params":["\xc0\xaf"]}',
        b'{"jsonrpc":"2.0","id":1,"method":"m","params":["\xed\xa0\x80"]}',
        b'{"jsonrpc":"2.0","id":1,"method":"m","params":["\\ud800"]}',
        b'{"jsonrpc":"2.0","id":1,"method":"m","params":["\\udc00 x"]}',
        b'{"jsonrpc":"2.0","id":1,"method":"m","params":[NaN]}',
        b'{"jsonrpc":"2.0","id":1,"method":"m","params":[Infinity]}',
        b'{"jsonrpc":"2.0","id":1,"method":"m","params":[-Infinity]}',
        b'{"jsonrpc":"2.0","id":NaN,"method":"m"}',
        b'{"jsonrpc":"2.0","id":1,"method":"m"}x',
        b'{"jsonrpc":"2.0","id":1,"method":"m"}{"jsonrpc":"2.0","id":2,"method":"m"}',
        b'{"jsonrpc":"2.0","id":1,"method":"m","params":[01]}',
        b'{"jsonrpc":"2.0","id":1,"method":"m","params":["\x01"]}',
        b"[{},",
    ],
)
def test_non_strict_json_is_a_parse_error(frame):
    assert code(frame) == "parse_error"
    assert BlockReader().read(frame + b"\n") is None


@pytest.mark.parametrize(
    "half",
    [
        "\\ud83d",
        "\\uDE00 x",
        "\\ud83d\\ud83d\\ude00",
        "\\ud83d and more text",
        "\\ud83d\\n",
        "\\ud83d\\u0041",
        "x\\\\\\ud83d",
    ],
)
def test_half_a_surrogate_pair_is_refused_under_the_id_of_its_request_with_a_remedy(half):
    text = f'{{"jsonrpc":"2.0","id":5,"method":"m","params":["{half}"]}}'
    read = read_frame(text.encode())
    assert (read.id, read.error.data.code) == (5, "parse_error")
    assert "toWellFormed" in read.error.data.hint
    assert read_frame(text.replace(',"params"', ";").encode()).id is None
    assert isinstance(read_frame(text.replace(half, "\\\\ud83d \\ud83d\\ude00").encode()), Request)


@pytest.mark.requirement("RPC-8")
@pytest.mark.parametrize("end", [b"", b"\\ud83d and more", b'\\ud83d"}}'], ids=["broken", "half", "half at the end"])
def test_a_broken_frame_of_many_escapes_makes_few_calls(end):
    frame = b'{"jsonrpc":"2.0","id":5,"method":"m","params":{"a":"' + b"\\n" * 2_000_000 + end
    calls = 0

    def count(frame, event, argument):
        nonlocal calls
        calls += 1

    sys.setprofile(count)
    try:
        read = read_frame(frame)
    finally:
        sys.setprofile(None)
    assert isinstance(read, Failure)
    assert calls < 1_000, "no function is called for each of two million escapes"


@pytest.mark.parametrize(("depth", "fits"), [(63, True), (64, False)])
@pytest.mark.parametrize("brackets", [b"[]", b"{}"])
@pytest.mark.requirement("RPC-8")
def test_more_than_sixty_four_levels_are_refused(depth, fits, brackets):
    opening = brackets[:1] if brackets == b"[]" else b'{"a":'
    inner = b"1" if brackets == b"{}" else b""
    frame = b'{"jsonrpc":"2.0","id":1,"method":"m","params":%s}' % (opening * depth + inner + brackets[1:] * depth)
    read = read_frame(frame)
    assert isinstance(read, Request) if fits else read.error.data.code == "parse_error"
    assert fits or BlockReader().read(frame + b"\n") is None


def test_brackets_in_strings_and_side_by_side_do_not_count_as_nesting():
    assert isinstance(read_frame(request(params=["[" * 500, '\\"{' * 100, "\\", *[[] for _ in range(200)]])), Request)


@pytest.mark.parametrize("bomb", [b"[" * 5_000_000, b'{"a":' * 1_000_000])
def test_a_nesting_bomb_is_refused(bomb):
    assert code(bomb) == "parse_error"


@pytest.mark.parametrize("name", ["jsonrpc", "method", "id", "params", "other", "m\\u0065thod"])
@pytest.mark.parametrize("padding", [0, 500])
def test_a_member_named_twice_is_refused(name, padding):
    text = '{{"jsonrpc":"2.0","id":1,"method":"m","params":["{}"],"other":1,"{}":"2.0"}}'.format("x" * padding, name)
    assert code(text.encode()) == "invalid_request"
    assert BlockReader().read(text.encode() + b"\n") is None


@pytest.mark.parametrize("padding", [0, 500])
@pytest.mark.parametrize("params", ['{"id":1,"method":"a","params":{}}', '{"id":1,"id":1}', '["\\"id\\":", {}]'])
def test_names_inside_params_are_not_the_envelopes(params, padding):
    text = '{{"jsonrpc":"2.0","id":1,"params":{},"method":"{}"}}'.format(params, "m" * (padding + 1))
    assert isinstance(read_frame(text.encode()), Request)


@pytest.mark.parametrize(
    "string", ['"' + "x9" * 600_000 + '"', '"' + "9" * 5_000 + '"', r'"\\ , \"99999999999999999999"', '""']
)
@pytest.mark.parametrize("number", [9007199254740991, 9007199254740992, -9007199254740992])
def test_an_unsafe_integer_is_found_beside_long_strings_and_not_within_them(string: str, number: int) -> None:
    for params in (f"[{string},{number}]", f"[{number},{string}]", f'{{"a":{string},"b":[{number}]}}'):
        frame = f'{{"jsonrpc":"2.0","id":1,"method":"m","params":{params}}}'.encode()
        assert isinstance(read_frame(frame), Failure) is (abs(number) > 9007199254740991)
    alone = f'{{"jsonrpc":"2.0","id":1,"method":"m","params":[{string}]}}'.encode()
    assert isinstance(read_frame(alone), Request)


@pytest.mark.parametrize("offset", range(4))
@pytest.mark.parametrize("digits", [16, 17, 18, 19, 20])
def test_an_unsafe_integer_is_found_wherever_it_begins(offset: int, digits: int) -> None:
    for number in ("9" * digits, "-" + "9" * digits):
        params = f"[{' ' * offset}{number},1]"
        assert isinstance(read_frame(f'{{"jsonrpc":"2.0","id":1,"method":"m","params":{params}}}'.encode()), Failure)


@pytest.mark.parametrize("bracket", ["[]", "{}"])
def test_many_sibling_brackets_are_allowed_and_a_final_deep_one_is_found(bracket: str) -> None:
    opened, closed = bracket
    wide = ",".join([bracket] * 10_000)
    before = '{"jsonrpc":"2.0","id":1,"method":"m","params":'
    assert isinstance(read_frame(f"{before}[{wide}]}}".encode()), Request)
    for depth, kind in ((DEPTH_MAX - 1, Request), (DEPTH_MAX, Failure)):
        nested = "[" * depth + f'"{"x" * 2_000}"' + "]" * depth
        assert isinstance(read_frame(f"{before}{nested}}}".encode()), kind)


@pytest.mark.parametrize(
    "value", ["9007199254740992", "-9007199254740992", "9" * 30, '{"a":[{"b":12345678901234567890}]}']
)
@pytest.mark.parametrize("padding", [0, 500])
def test_an_integer_that_readers_cannot_hold_is_refused_in_params(value, padding):
    text = '{{"jsonrpc":"2.0","id":5,"method":"m","params":["{}",{}]}}'.format("x" * padding, value)
    read = read_frame(text.encode())
    assert (read.id, read.error.code) == (5, -32602)
    assert BlockReader().read(text.encode() + b"\n") is None


@pytest.mark.parametrize(
    "value",
    [
        "9007199254740991",
        "0.12345678901234567890",
        '"12345678901234567890"',
        "1.5e10",
        "-0",
        "1e-1234567890123456789",
        "12345678901234567.5",
        '"\\"", 1',
    ],
)
def test_numbers_that_readers_can_hold_pass(value):
    assert isinstance(read_frame(f'{{"jsonrpc":"2.0","id":5,"method":"m","params":[{value}]}}'.encode()), Request)


def test_a_notification_with_an_unsafe_integer_is_dropped_without_a_response():
    assert isinstance(read_frame(b'{"jsonrpc":"2.0","method":"m","params":[9007199254740992]}'), Stray)


def test_unknown_members_are_ignored_or_rejected_as_the_listener_is_configured():
    frame = request(trace="x", params={"a": 1})
    assert bytes(read_frame(frame).params) == b'{"a": 1}'
    assert code(frame, closed=True) == "invalid_request"


@pytest.mark.parametrize(
    "members",
    [b",".join(b'"a%d":1' % number for number in range(5000)), b",".join([b'"id":1'] * 5000)],
    ids=["unknown", "repeated"],
)
def test_a_wide_request_of_a_sandbox_is_refused_without_looking_at_each_member(monkeypatch, members):
    frame = b'{"jsonrpc":"2.0","method":"m","id":1,' + members + b"}"
    looked: list[int] = []
    monkeypatch.setattr(jsonrpc, "_members", lambda text: looked.append(len(text)) or [])
    refused = read_frame(frame, closed=True)
    assert isinstance(refused, Failure)
    assert (refused.error.data.code, refused.id, looked) == ("invalid_request", 1, [])
    assert "each of its type and no more than once" in refused.error.message


@pytest.mark.parametrize("member", [{"result": 1}, {"error": {}}, {"result": None}])
def test_a_response_object_is_dropped(member):
    assert isinstance(read_frame(json.dumps({"jsonrpc": "2.0", "id": 1} | member).encode()), Stray)


def test_a_batch_keeps_its_members_in_order_and_refuses_each_invalid_one():
    read = read_frame(b'[1,{"jsonrpc":"2.0","id":2,"method":"m"},[],{"foo":"boo"}]')
    assert isinstance(read, BatchRequest)
    assert [type(member).__name__ for member in read.members] == ["Failure", "Request", "Failure", "Failure"]


@pytest.mark.parametrize(("members", "fits"), [(100, True), (101, False)])
def test_a_batch_has_at_most_a_hundred_members(members, fits):
    frame = b"[" + b",".join([b'{"jsonrpc":"2.0","id":1,"method":"m"}'] * members) + b"]"
    assert isinstance(read_frame(frame), BatchRequest) if fits else code(frame) == "batch_too_large"


NAMES = st.sampled_from(["jsonrpc", "method", "id", "params", "x", "i\\u0064"])
VALUES = st.sampled_from(
    [
        '"2.0"',
        '"m"',
        "1",
        "null",
        '"a"',
        "[]",
        "{}",
        '{"id":1}',
        "9007199254740993",
        "1.5",
        '"é"',
        '"\\n"',
        "tru",
        "1e400",
    ]
)
LINES = st.one_of(
    st.lists(st.tuples(NAMES, VALUES), max_size=5).map(
        lambda members: "{" + ",".join(f'"{name}":{value}' for name, value in members) + "}"
    ),
    st.sampled_from(
        [
            '{"jsonrpc":"2.0","id":1,"method":"m"}',
            '{"jsonrpc":"2.0","id":"b","method":"m","params":{"a":[1,2]}}',
            '{"jsonrpc":"2.0","id":1,"method":"m"}{"jsonrpc":"2.0","id":1,"method":"m"}',
            '{"jsonrpc":"2.0","id":1,"method":"m","params":',
            "{}}",
            "",
            " ",
            '{"jsonrpc":"2.0","method":"m"}\r',
        ]
    ),
)


@given(st.lists(st.lists(LINES, min_size=1, max_size=4), min_size=1, max_size=3))
def test_reading_all_lines_at_once_equals_reading_each(blocks):
    reader = BlockReader()
    for lines in blocks:
        together = reader.read("".join(line + "\n" for line in lines).encode())
        if together is not None:
            assert together == [read_frame(line.strip().encode()) for line in lines]


def test_plain_lines_are_read_at_once_and_only_a_bounded_number_of_shapes_is_kept():
    reader = BlockReader()
    for number in range(5000):
        line = b'{"jsonrpc":"2.0","id":1,"method":"%s"}\n' % "".join(chr(107 + int(d)) for d in str(number)).encode()
        assert reader.read(line) is not None
        assert len(reader._plain) <= 1024


def test_messages_are_written_exactly():
    assert encode(Reply("2.0", None, None)) == b'{"jsonrpc":"2.0","id":null,"result":null}\n'
    assert encode(Notification("2.0", "n", {"a": 1})) == b'{"jsonrpc":"2.0","method":"n","params":{"a":1}}\n'
    failure = refuse("x", error_object("draining", "m", retry_after_ms=5))
    assert json.loads(encode(failure)) == {
        "jsonrpc": "2.0",
        "id": "x",
        "error": {"code": -32011, "message": "m", "data": {"code": "draining", "retryable": True, "retry_after_ms": 5}},
    }
    assert encode([Reply("2.0", 1, 2)]) == b'[{"jsonrpc":"2.0","id":1,"result":2}]\n'


CORPUS = [
    b'{"jsonrpc":"2.0","id":1,"method":"m","params":{"a":[1,2.5e3,null,"x\\u00e9\\n"]}}',
    b'[{"jsonrpc":"2.0","id":"a","method":"m"},{"jsonrpc":"2.0","method":"n","params":[{}]}]',
    b'{"jsonrpc":"2.0","id":null,"result":{"\xc3\xa9":true}}',
    b'{"jsonrpc":"2.0","id":9007199254740993,"method":"m","params":["' + b"y" * 200 + b'"],"x":{"id":1}}',
]
EDITS = st.lists(st.tuples(st.integers(0, 400), st.integers(0, 3), st.binary(max_size=3)), max_size=6)


@given(st.sampled_from(CORPUS), EDITS, st.booleans())
def test_a_damaged_frame_is_read_or_refused_and_never_raises(frame, edits, closed):
    damaged = bytearray(frame)
    for place, cut_out, put_in in edits:
        place %= len(damaged) + 1
        damaged[place : place + cut_out] = put_in.replace(b"\n", b"")
    read = read_frame(bytes(damaged).strip(b" \t\r") or b"x", closed=closed)
    assert isinstance(read, Request | Failure | BatchRequest | Stray)
    if isinstance(read, Failure):
        assert encode(read).endswith(b"}\n")


@given(st.binary(min_size=1, max_size=200))
def test_arbitrary_bytes_are_refused_and_never_raise(text):
    assert isinstance(read_frame(text), Request | Failure | BatchRequest | Stray)
