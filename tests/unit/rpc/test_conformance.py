"""The examples of the JSON-RPC 2.0 specification, and what it leaves open, over a real socket."""

import json

import pytest

from tests.fakes.loopback import frame, serving
from tests.unit.rpc.families import Services

pytestmark = pytest.mark.anyio

CURRENT = {"context_id": None, "session": None, "turn": 0, "assembly": 0}


@pytest.fixture
async def wire(tmp_path):
    async with serving(tmp_path, Services().handlers()) as server, server.connected() as wire:
        yield wire


async def marked(wire):
    """Whether the next line answers a call made now: nothing was sent before it."""
    await wire.send(b'{"jsonrpc":"2.0","id":"mark","method":"context.current"}\n')
    return (await wire.answer())["id"] == "mark"


def failure(answer):
    return answer["id"], answer["error"]["code"]


@pytest.mark.parametrize("params", ['["s-1"]', '{"session":"s-1"}', '{ "session" : "s-1" }'])
async def test_params_go_by_position_or_by_name(wire, params):
    await wire.send(b'{"jsonrpc":"2.0","id":3,"method":"context.current","params":%s}\n' % params.encode())
    assert await wire.answer() == {"jsonrpc": "2.0", "id": 3, "result": CURRENT | {"session": "s-1"}}


async def test_named_params_come_in_any_order(wire):
    for params in ('{"session":"s-1","object":"o-1"}', '{"object":"o-1","session":"s-1"}'):
        await wire.send(b'{"jsonrpc":"2.0","id":1,"method":"session.pin","params":%s}\n' % params.encode())
        assert (await wire.answer())["result"]["object"] == "o-1"


async def test_notifications_never_get_a_response(wire):
    for notification in (
        b'{"jsonrpc":"2.0","method":"context.current","params":[]}\n',
        b'{"jsonrpc":"2.0","method":"foobar"}\n',
        b'{"jsonrpc":"2.0","method":"context.current","params":{"nope":1}}\n',
        b'{"jsonrpc":"2.0","method":"session.get","params":{"session":"s"}}\n',
        b'{"jsonrpc":"2.0","method":"session.chat","params":{"session":"s"}}\n',
    ):
        await wire.send(notification)
    assert await marked(wire)


async def test_an_unknown_method_is_not_found(wire):
    assert failure(await wire.call("foobar", id="1")) == ("1", -32601)


@pytest.mark.parametrize("method", ["", "rpc.foo", "Context.current", "context.current ", "méthode", "a\0b"])
async def test_method_names_are_exact(wire, method):
    assert failure(await wire.call(method)) == (1, -32601)


@pytest.mark.parametrize(
    ("sent", "id", "code"),
    [
        (b'{"jsonrpc": "2.0", "method": "foobar, "params": "bar", "baz]', None, -32700),
        (b'{"jsonrpc": "2.0", "method": 1, "params": "bar"}', None, -32600),
        (
            b'[{"jsonrpc": "2.0", "method": "sum", "params": [1,2,4], "id": "1"},{"jsonrpc": "2.0", "method"',
            None,
            -32700,
        ),
        (b"[]", None, -32600),
        (b'{"jsonrpc":"2.0","id":1,"method":"context.current","params":null}', 1, -32600),
        (b'{"jsonrpc":"2.0","id":1,"method":"context.current","params":""}', 1, -32600),
        (b'{"jsonrpc":"2.0","id":1,"method":"context.current","params":1}', 1, -32600),
        (b'{"jsonrpc":"2.0","id":1,"method":"context.current","params":false}', 1, -32600),
        (b'{"jsonrpc":"2.0","id":1,"method":"foobar","params":"bar"}', 1, -32600),
        (b'{"jsonrpc":"2.0","method":"context.current","params":"bar"}', None, -32600),
        (b'{"jsonrpc":"2.0","id":1,"method":"context.current","params":{"sesion":"s"}}', 1, -32602),
        (b'{"jsonrpc":"2.0","id":1,"method":"context.current","params":["s","t"]}', 1, -32602),
        (b'{"jsonrpc":"2.0","id":1,"method":"context.current","params":[5]}', 1, -32602),
        (b'{"jsonrpc":"2.0","id":1,"method":"session.get"}', 1, -32602),
        (b'{"jsonrpc":"2.0","id":1,"method":"session.get","params":{}}', 1, -32602),
        (b'{"jsonrpc":"2.0","id":1,"method":"session.get","params":[]}', 1, -32602),
        (b'{"jsonrpc":"2.0","id":1,"method":"context.current","params":{"session":1e400}}', 1, -32602),
        (b'{"jsonrpc":"2.0","id":1,"method":"session.chat","params":{"session":"a b"}}', 1, -32602),
    ],
)
@pytest.mark.requirement("RPC-2")
async def test_each_invalid_request_gets_its_standard_error_number(wire, sent, id, code):
    await wire.send(sent + b"\n")
    assert failure(await wire.answer()) == (id, code)
    assert await marked(wire)


async def test_each_member_of_an_invalid_batch_gets_its_own_refusal(wire):
    await wire.send(b"[1,2,3]\n")
    assert [failure(answer) for answer in await wire.answer()] == [(None, -32600)] * 3
    await wire.send(b"[1]\n")
    assert [failure(answer) for answer in await wire.answer()] == [(None, -32600)]


async def test_a_mixed_batch_of_six_gets_five_answers(wire):
    batch = [
        {"jsonrpc": "2.0", "method": "context.current", "params": ["a"], "id": "1"},
        {"jsonrpc": "2.0", "method": "context.current", "params": []},
        {"jsonrpc": "2.0", "method": "context.current", "params": ["b"], "id": "2"},
        {"foo": "boo"},
        {"jsonrpc": "2.0", "method": "foo.get", "params": {"name": "myself"}, "id": "5"},
        {"jsonrpc": "2.0", "method": "context.current", "id": "9"},
    ]
    await wire.send(json.dumps(batch).encode() + b"\n")
    answers = await wire.answer()
    results = {answer["id"]: answer["result"]["session"] for answer in answers if "result" in answer}
    assert results == {"1": "a", "2": "b", "9": None}
    assert {failure(answer) for answer in answers if "error" in answer} == {(None, -32600), ("5", -32601)}
    assert len(answers) == 5


async def test_a_batch_of_notifications_and_answers_is_silent(wire):
    await wire.send(b'[{"jsonrpc":"2.0","method":"context.current"},{"jsonrpc":"2.0","method":"nope"}]\n')
    await wire.send(b'[{"jsonrpc":"2.0","id":1,"result":5}]\n{"jsonrpc":"2.0","id":1,"result":5}\n')
    assert await marked(wire)


async def test_an_id_twice_in_a_batch_is_refused_the_second_time(wire):
    call = '{"jsonrpc":"2.0","id":1,"method":"context.current"}'
    await wire.send(f"[{call},{call},{call.replace('1,', 'null,')},{call.replace('1,', 'null,')}]\n".encode())
    answers = await wire.answer()
    assert [answer.get("error", {}).get("data", {}).get("code") for answer in answers] == [
        None,
        "duplicate_id",
        None,
        None,
    ]


@pytest.mark.requirement("RPC-8")
async def test_a_batch_beyond_the_limit_is_refused_whole(wire):
    calls = b",".join(frame("context.current", id=number).strip() for number in range(101))
    await wire.send(b"[" + calls + b"]\n")
    answer = await wire.answer()
    assert (answer["id"], answer["error"]["data"]["code"]) == (None, "batch_too_large")


@pytest.mark.parametrize("id", ["0", "-1", '""', '"1"', "1", "null", "9007199254740991", '"é"'])
async def test_ids_are_echoed_with_their_type(wire, id):
    await wire.send(f'{{"jsonrpc":"2.0","id":{id},"method":"context.current"}}\n'.encode())
    line = (await wire.line()).decode()
    assert f'"id":{id},' in line


@pytest.mark.requirement("RPC-1")
async def test_lines_may_end_in_crlf_be_blank_and_come_in_pieces(wire):
    call = b'{"jsonrpc":"2.0","id":1,"method":"context.current"}'
    await wire.send(b"\n\r\n  \n" + call + b"\r\n")
    assert (await wire.answer())["result"] == CURRENT
    for piece in (call[:5], call[5:40], call[40:] + b"\n" + call[:3], call[3:] + b"\n"):
        await wire.send(piece)
    assert [(await wire.answer())["id"], (await wire.answer())["id"]] == [1, 1]


async def test_errors_carry_code_hint_and_no_inner_detail(wire):
    answer = await wire.call("session.chat", {"session": "x"})
    assert answer["error"] == {
        "code": -32004,
        "message": "there is no session x",
        "data": {"code": "session_not_found", "hint": "session.list lists them"},
    }
    answer = await wire.call("session.get", {"session": "x"})
    assert answer["error"]["code"] == -32603
    assert "hunter2" not in json.dumps(answer)
    assert "Traceback" not in json.dumps(answer)
