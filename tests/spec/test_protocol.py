"""The wire as a program without a client library meets it: bytes to a socket of a real daemon, and what comes back."""

import json
import socket
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from uuid import uuid4

import anyio
import pytest

from ctxd_client import Conflict, connect_sync
from ctxd_client.sync import SyncClient, SyncSession
from ctxd_protocol.limits import BATCH_MAX, DEPTH_MAX, FRAME_BYTES_HOST_MAX, IN_FLIGHT_MAX
from ctxd_protocol.methods import METHODS
from ctxd_protocol.session_types import Message
from tests.client.running import Running
from tests.crash.daemon import daemon_process
from tests.crash.wire import Refused, Wire

Start = Callable[..., SyncSession]
ANSWER_S_MAX = 30.0
OPENRPC = Path(__file__).parents[2] / "protocol" / "openrpc.json"


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


class Plain:
    """A socket and nothing else: bytes out, lines in."""

    def __init__(self, path: str) -> None:
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._socket.settimeout(ANSWER_S_MAX)
        self._socket.connect(path)
        self._lines = self._socket.makefile("rb")

    def send(self, data: bytes) -> None:
        self._socket.sendall(data)

    def answer(self) -> Any:
        line = self._lines.readline()
        assert line.endswith(b"\n"), "an answer is a whole line"
        return json.loads(line)

    def ask(self, method: str, /, **params: Any) -> Any:
        self.send(request("q", method, **params))
        return self.answer()

    def at_end(self) -> bool:
        """True if the daemon ended the connection."""
        try:
            return self._lines.readline() == b""
        except ConnectionError:
            return True

    def close(self) -> None:
        self._lines.close()
        self._socket.close()


@contextmanager
def plain(path: str) -> Iterator[Plain]:
    made = Plain(path)
    try:
        yield made
    finally:
        made.close()


def request(id: Any, method: str, /, **params: Any) -> bytes:
    return json.dumps({"jsonrpc": "2.0", "id": id, "method": method, "params": params}).encode() + b"\n"


@pytest.mark.requirement("RPC-1")
def test_a_json_lines_client_is_served_without_hello(daemon: Running) -> None:
    with plain(daemon.socket) as wire:
        wire.send(b'{"jsonrpc":"2.0","id":7,"method":"daemon.status"}\n')
        reply = wire.answer()
        assert (reply["jsonrpc"], reply["id"], reply["result"]["state"]) == ("2.0", 7, "ready")
        assert set(reply) == {"jsonrpc", "id", "result"}
        # Two in one packet, one in two, with another line end, and one that nobody answers.
        one, two = request("a", "hello"), request("b", "daemon.status")
        silent = b'{"jsonrpc":"2.0","method":"context.current"}\n'
        wire.send(one + silent + two[:10])
        wire.send(two[10:-1] + b"\r\n" + request(3, "hello", client="late", protocol=[1]))
        assert [wire.answer()["id"] for _ in range(3)] == ["a", "b", 3]


@pytest.mark.requirement("RPC-1")
def test_a_batch_is_one_line_and_its_answers_are_another(daemon: Running) -> None:
    with plain(daemon.socket) as wire:
        members = [{"jsonrpc": "2.0", "id": n, "method": "context.current"} for n in range(5)]
        wire.send(json.dumps(members).encode() + b"\n")
        assert sorted(reply["id"] for reply in wire.answer()) == list(range(5))


MALFORMED = {
    "no JSON": (b"{]\n", -32700, None),
    "not UTF-8": (b'{"jsonrpc":"2.0","id":1,"method":"\xff"}\n', -32700, None),
    "a number": (b"42\n", -32600, None),
    "an empty batch": (b"[]\n", -32600, None),
    "another version": (b'{"jsonrpc":"1.0","id":1,"method":"hello"}\n', -32600, 1),
    "no method": (b'{"jsonrpc":"2.0","id":1}\n', -32600, 1),
    "an unknown method": (b'{"jsonrpc":"2.0","id":1,"method":"no.such"}\n', -32601, 1),
    "an unknown parameter": (b'{"jsonrpc":"2.0","id":1,"method":"session.get","params":{"sesion":"s"}}\n', -32602, 1),
    "a missing parameter": (b'{"jsonrpc":"2.0","id":1,"method":"session.get","params":{}}\n', -32602, 1),
    "too deep": (b"[" * 100_000 + b"\n", -32700, None),
}


@pytest.mark.requirement("RPC-2")
@pytest.mark.parametrize("kind", MALFORMED)
def test_malformed_input_gets_a_standard_error_and_connections_continue(
    daemon: Running, client: SyncClient, kind: str
) -> None:
    data, number, id = MALFORMED[kind]
    with plain(daemon.socket) as wire:
        wire.send(data)
        reply = wire.answer()
        reply = reply[0] if isinstance(reply, list) else reply
        assert (reply["error"]["code"], reply["id"]) == (number, id)
        assert reply["error"]["data"]["code"]
        assert "result" not in reply
        assert wire.ask("context.current")["id"] == "q"
    assert client.daemon_status().state == "ready"


@pytest.mark.requirement("RPC-3")
def test_hello_names_exactly_the_methods_there_are_and_any_other_is_not_found(
    daemon: Running, client: SyncClient
) -> None:
    """A connection of the host reaches every method; lesser ones are proven where their tables are made."""
    assert client.server is not None
    assert set(client.server.methods) == set(METHODS)
    with plain(daemon.socket) as wire:
        for name in ("journal.truncate", "Session.get", "session.get ", "rpc.stop", "__class__", ""):
            assert wire.ask(name)["error"]["code"] == -32601


@pytest.mark.own_daemon
@pytest.mark.requirement("RPC-4")
def test_every_write_under_an_op_id_is_applied_once_and_other_parameters_are_refused(
    daemon: Running, start: Start, tree: Path
) -> None:
    for name in "abcd":
        (tree / f"{name}.py").write_text("1\n")
    s = start(system_prompt="one")
    s.user("go")
    file = s.read("a.py").object
    s.deactivate(file)
    member = {"session": s.id, "object": file}
    with connect_sync(daemon.socket) as host:
        box = {"sandbox": host.sandbox_register([s.id], grants=(), ttl_s=600).sandbox.sandbox}
        commit = host.commit_checkpoint("codex-v9", "before").commit.commit
        artifact = host.artifact_put(data=b"before").artifact
    user, assistant = [{"role": "user", "content": "x"}], [{"role": "assistant", "content": "y"}]
    hooked = json.dumps({"session_id": s.id, "hook_event_name": "SessionStart", "source": "startup"})
    used = {"session": s.id, "context_id": s.assemble().context_id, "model": "claude-sonnet-5"}
    calls: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
        ("session.create", {"agent": "a", "session": f"{s.id}-made"}, {"agent": "b"}),
        ("session.configure", {"session": s.id, "budget_tokens": 10**6}, {"budget_tokens": 10**5}),
        ("session.append", {"session": s.id, "messages": user}, {"messages": assistant}),
        ("session.set_system_prompt", {"session": s.id, "content": "two"}, {"content": "three"}),
        ("session.pin", member, {"object": "0" * 64}),
        ("session.unpin", member, {"object": "0" * 64}),
        ("session.activate", member, {"object": "0" * 64}),
        ("session.deactivate", member, {"object": "0" * 64}),
        ("session.pool_remove", member, {"object": "0" * 64}),
        ("session.pool_add", member, {"object": "0" * 64}),
        ("toolcall.record", {"session": s.id, "id": f"{s.id}-c", "tool": "t", "content": "o"}, {"content": "p"}),
        ("tool.observe", {"session": s.id, "command": "ls", "output": "c.py\n"}, {"output": ""}),
        ("file.index", {"session": s.id, "path": "b.py", "content": "2\n"}, {"content": "3\n"}),
        ("file.discover", {"session": s.id, "paths": ["d.py"]}, {"paths": []}),
        ("context.assemble", {"session": s.id, "blocks": False}, {"blocks": True}),
        ("session.usage", used | {"usage": {"input": 1, "output": 1}}, {"usage": {"input": 2, "output": 1}}),
        ("session.set_entry", {"session": s.id, "key": "mode", "value": 1}, {"value": 2}),
        ("session.delete_entry", {"session": s.id, "key": "mode"}, {"key": "other"}),
        ("commit.checkpoint", {"format": "codex-v9", "session": s.id, "delta": "a"}, {"delta": "b"}),
        ("commit.annotate", {"commit": commit, "summary": "a"}, {"summary": "b"}),
        ("commit.tag", {"commit": commit, "tag": "a"}, {"tag": "b"}),
        ("artifact.put", {"data": "YQ=="}, {"data": "Yg=="}),
        ("artifact.tag", {"tag": "t", "artifact": artifact}, {"tag": "u"}),
        ("object.purge", {"object": f"{s.id}-c"}, {"object": "0" * 64}),
        ("sandbox.register", {"sessions": [s.id], "grants": [], "ttl_s": 600}, {"ttl_s": 60}),
        ("sandbox.renew", box, {"sandbox": "x"}),
        ("sandbox.release", box, {"sandbox": "x"}),
        ("session.hook", {"harness": "pi", "input": hooked}, {"input": hooked.replace("startup", "resume")}),
        ("session.fork", {"session": s.id}, {"session": f"{s.id}-made"}),
        ("session.annotate", {"session": s.id, "title": "a"}, {"title": "b"}),
        ("session.pause", {"session": s.id}, {"session": f"{s.id}-made"}),
        ("session.resume", {"session": s.id}, {"session": f"{s.id}-made"}),
        ("session.close", {"session": s.id}, {"session": f"{s.id}-made"}),
        ("session.remove", {"session": s.id}, {"session": f"{s.id}-made"}),
        ("session.restore", {"session": s.id}, {"session": f"{s.id}-made"}),
    ]  # fmt: skip
    assert {name for name, _, _ in calls} == {
        name for name, method in METHODS.items() if "op_id" in method.params.__struct_fields__
    }
    with plain(daemon.socket) as wire:
        for name, params, other in calls:
            op = f"{s.id}-{name}"
            first = wire.ask(name, **params, op_id=op)
            assert "result" in first, first
            assert first["result"]["receipt"], f"{name} wrote"
            # What an assembly of a session in a sandbox makes due: a commit of what is new.
            wire.ask("context.current", session=s.id)
            head = wire.ask("daemon.status")["result"]["store"]["head_seq"]
            assert wire.ask(name, **params, op_id=op) == first
            refused = wire.ask(name, **{**params, **other}, op_id=op)
            assert refused["error"]["data"]["code"] == "idempotency_mismatch"
            assert wire.ask("daemon.status")["result"]["store"]["head_seq"] == head, f"{name} wrote once"


@pytest.mark.requirement("RPC-4")
def test_a_resend_gets_the_first_answer_also_from_the_next_daemon_after_a_kill(tmp_path: Path) -> None:
    with Running(tmp_path, keep_state=True) as daemon, connect_sync(daemon.socket) as client:
        s = client.session("s", agent="a")
        first = [s.user("once", op_id="op-1"), s.record("c", "t", "out", op_id="op-2")]
        s.user("later")
        daemon.kill()
        daemon.start()
        assert [s.user("once", op_id="op-1"), s.record("c", "t", "out", op_id="op-2")] == first
        assert s.chat().turn_count == 2
        with pytest.raises(Conflict) as caught:
            s.user("twice", op_id="op-1")
        assert caught.value.code == "idempotency_mismatch"


async def called_in_time(wire: Wire, method: str, **params: Any) -> Any:
    """The result of a call that is made again while it exceeds the daemon's deadline."""
    with anyio.fail_after(ANSWER_S_MAX):
        while True:
            try:
                return await wire.call(method, **params)
            except Refused as refused:
                assert refused.code == "timeout"


@pytest.mark.anyio
@pytest.mark.requirement("RPC-5")
async def test_a_request_can_be_cancelled_and_ends_by_itself_at_its_deadline(tmp_path: Path) -> None:
    """The flush of the append is held: what waits for it is long under way."""
    env = {"CTXD_LIMITS_REQUEST_DEADLINE_S": "0.4"}
    held = tmp_path / "held"
    with daemon_process(tmp_path, env=env) as daemon:
        await daemon.start(failpoints=f"journal.flush=hold:{held}")
        async with await Wire.open(daemon.socket) as wire:
            await called_in_time(wire, "session.create", agent="a", session="s", op_id="c")
            held.touch()
            with pytest.raises(Refused) as late:
                await wire.call(
                    "session.append", session="s", messages=[{"role": "user", "content": "late"}], op_id="o"
                )
            assert (late.value.code, late.value.outcome) == ("timeout", "unknown")
        async with await Wire.open(daemon.socket) as wire:
            await wire.send(request("w", "session.get", session="s"))
            await wire.send(b'{"jsonrpc":"2.0","method":"$/cancelRequest","params":{"id":"w"}}\n')
            with anyio.fail_after(ANSWER_S_MAX):
                reply = json.loads(await wire.line())
            assert (reply["id"], reply["error"]["code"]) == ("w", -32800)
            held.unlink()
            view = await called_in_time(wire, "session.get", session="s")
            assert view["session"]["turn_count"] == 1, "what was answered as unknown was applied"


@pytest.mark.requirement("RPC-6")
def test_the_daemon_answers_the_checked_in_document(client: SyncClient) -> None:
    assert client.rpc_discover() == json.loads(OPENRPC.read_text())


def pipelined(wire: Plain, calls: Sequence[tuple[str, dict[str, Any]]]) -> list[Any]:
    """The answers by order of the calls, which all go out before the first answer is read."""
    wire.send(b"".join(request(number, name, **params) for number, (name, params) in enumerate(calls)))
    answers = {reply["id"]: reply for reply in (wire.answer() for _ in calls)}
    return [answers[number] for number in range(len(calls))]


@pytest.mark.requirement("RPC-7")
def test_calls_of_a_session_take_effect_as_they_arrive_also_behind_those_that_read_the_disk(
    daemon: Running, s: SyncSession, tree: Path
) -> None:
    for number in range(12):
        (tree / f"f{number}").write_text(f"{number}\n" * 20_000)
    calls: list[tuple[str, dict[str, Any]]] = []
    for number in range(12):
        calls += [
            ("file.index", {"session": s.id, "path": f"f{number}"}),
            ("toolcall.record", {"session": s.id, "id": f"{s.id}-c{number}", "tool": "t", "content": ""}),
            ("session.append", {"session": s.id, "messages": [{"role": "assistant", "content": f"m{number}"}]}),
        ]
    with plain(daemon.socket) as wire:
        replies = pipelined(wire, calls)
    view = s.view().session
    in_order = [reply["result"]["object"] for reply in replies if "object" in reply["result"]]
    assert list(view.session_index) == in_order
    seqs = [reply["result"]["receipt"]["seq"] for reply in replies]
    assert seqs == sorted(set(seqs))
    chat = [message["content"] for turn in s.chat().turns for message in turn["messages"]]
    assert chat == [f"m{number}" for number in range(12)]


@pytest.mark.requirement("RPC-7")
def test_calls_of_a_session_that_is_being_created_wait_for_it(daemon: Running, tree: Path) -> None:
    for _ in range(5):
        session = f"s-{uuid4().hex}"
        message = {"role": "user", "content": "first"}
        with plain(daemon.socket) as wire:
            created, appended, _, refused = pipelined(
                wire,
                [
                    ("session.create", {"agent": "a", "session": session, "workdir": str(tree)}),
                    ("session.append", {"session": session, "messages": [message]}),
                    ("session.create", {"agent": "a", "session": session}),
                    ("session.append", {"session": f"{session}-none", "messages": [message]}),
                ],
            )
        assert appended["result"]["receipt"]["seq"] > created["result"]["receipt"]["seq"]
        assert refused["error"]["data"]["code"] == "session_not_found"


@pytest.mark.requirement("RPC-7")
def test_a_call_sees_the_effects_of_earlier_calls_on_its_connection(
    daemon: Running, s: SyncSession, tree: Path
) -> None:
    (tree / "a").write_text("x" * 100_000)
    id = s.resolve("a").object
    s.configure(collapse=None, budget_tokens=None, labels={"k": "v"})
    calls: list[tuple[str, dict[str, Any]]] = [
        ("file.index", {"session": s.id, "path": "a"}),
        ("session.pin", {"session": s.id, "object": id}),
        ("session.get", {"session": s.id}),
        ("session.deactivate", {"session": s.id, "object": id}),
        ("context.assemble", {"session": s.id}),
        ("session.activate", {"session": s.id, "object": id}),
        ("context.assemble", {"session": s.id}),
        ("session.pool_remove", {"session": s.id, "object": id}),
        ("session.get", {"session": s.id}),
        ("session.pause", {"session": s.id}),
        ("session.append", {"session": s.id, "messages": [{"role": "user", "content": "too late"}]}),
        ("session.resume", {"session": s.id}),
        ("session.append", {"session": s.id, "messages": [{"role": "user", "content": "in time"}]}),
        ("session.chat", {"session": s.id}),
    ]
    for _ in range(5):
        with plain(daemon.socket) as wire:
            replies = pipelined(wire, calls)
        assert replies[2]["result"]["session"]["pinned_set"] == [id]
        assert "ACTIVE_CONTENT" not in replies[4]["result"]["text"]
        assert "ACTIVE_CONTENT" in replies[6]["result"]["text"]
        assert replies[8]["result"]["session"]["metadata_pool"] == []
        assert replies[10]["error"]["data"]["code"] == "session_not_active"
        assert replies[13]["result"]["turns"][-1]["messages"] == [{"role": "user", "content": "in time"}]


@pytest.mark.requirement("RPC-8")
def test_the_bounds_are_announced_and_held(daemon: Running, client: SyncClient) -> None:
    with plain(daemon.socket) as wire:
        limits = wire.ask("hello")["result"]["limits"]
        assert (limits["frame_bytes"], limits["depth"], limits["batch"], limits["in_flight"]) == (
            FRAME_BYTES_HOST_MAX,
            DEPTH_MAX,
            BATCH_MAX,
            IN_FLIGHT_MAX,
        )
        member = {"jsonrpc": "2.0", "id": 1, "method": "context.current"}
        whole = [{**member, "id": n} for n in range(limits["batch"])]
        wire.send(json.dumps(whole).encode() + b"\n")
        assert all("result" in reply for reply in wire.answer())
        wire.send(json.dumps([*whole, {**member, "id": "one more"}]).encode() + b"\n")
        assert wire.answer()["error"]["data"]["code"] == "batch_too_large"
        assert nested(wire, limits["depth"])["error"]["code"] == -32602, "read, and found to be no parameter"
        assert nested(wire, limits["depth"] + 1)["error"]["code"] == -32700
        assert framed(wire, limits["frame_bytes"])["error"]["code"] == -32602, "read, and found to be no parameter"
        wire.send(b"x" * (limits["frame_bytes"] + 1))
        assert wire.answer()["error"]["data"]["code"] == "frame_too_large"
        assert wire.at_end()
    assert client.daemon_status().state == "ready"


def nested(wire: Plain, depth: int) -> Any:
    """The answer to a request of ``depth`` levels."""
    inner = "[" * (depth - 2) + "]" * (depth - 2)
    wire.send(f'{{"jsonrpc":"2.0","id":1,"method":"context.current","params":{{"x":{inner}}}}}\n'.encode())
    return wire.answer()


def framed(wire: Plain, size: int) -> Any:
    """The answer to a request of ``size`` bytes."""
    head, tail = b'{"jsonrpc":"2.0","id":1,"method":"context.current","params":{"x":"', b'"}}'
    wire.send(head + b"x" * (size - len(head) - len(tail)) + tail + b"\n")
    return wire.answer()


@pytest.mark.anyio
@pytest.mark.requirement("RPC-8")
async def test_requests_in_flight_are_limited_as_announced_and_the_rest_are_served_later(tmp_path: Path) -> None:
    held = tmp_path / "held"
    with daemon_process(tmp_path) as daemon:
        await daemon.start(failpoints=f"journal.flush=hold:{held}")
        async with await Wire.open(daemon.socket) as wire, await Wire.open(daemon.socket) as other:
            await wire.call("session.create", agent="a", session="s")
            held.touch()
            count = 3 * IN_FLIGHT_MAX
            calls = [request(n, "toolcall.record", session="s", id=f"c{n}", tool="t", content="") for n in range(count)]
            await wire.send(b"".join(calls))
            seen = [0]
            # Calls are begun one at a time beside a client that waits for each answer.
            while seen[-1] < IN_FLIGHT_MAX and len(seen) < 2000:
                seen.append((await other.call("daemon.status"))["in_flight"])
            seen += [(await other.call("daemon.status"))["in_flight"] for _ in range(20)]
            assert max(seen) == IN_FLIGHT_MAX
            held.unlink()
            replies = [json.loads(await wire.line()) for _ in range(count)]
            assert sorted(reply["id"] for reply in replies if "result" in reply) == list(range(count))


@pytest.mark.requirement("RPC-4")
def test_messages_sent_twice_are_kept_once(s: SyncSession) -> None:
    messages = [Message(role="user", content="once")]
    assert s.append(messages, op_id=f"{s.id}-o") == s.append(messages, op_id=f"{s.id}-o")
    assert s.chat().turn_count == 1


SURPLUS = {
    "a message": ("session.append", {"session": "s", "messages": [{"role": "user", "text": "x"}]}),
    "a collapse window": ("session.create", {"agent": "a", "collapse": {"per_trn": 1}}),
    "a mount": (
        "session.create",
        {"agent": "a", "mounts": [{"agent_prefix": "/w", "canonical_prefix": "/w", "readonly": True}]},
    ),
    "a quota": ("sandbox.register", {"sessions": ["s"], "quota": {"request_per_s": 1}}),
    "a user message without content": ("session.append", {"session": "s", "messages": [{"role": "user"}]}),
}


@pytest.mark.own_daemon
@pytest.mark.requirement("RPC-10")
@pytest.mark.parametrize(("method", "params"), SURPLUS.values(), ids=SURPLUS.keys())
def test_misspelt_members_and_empty_user_messages_are_refused_and_nothing_is_written(
    daemon: Running, method: str, params: dict[str, Any]
) -> None:
    with plain(daemon.socket) as wire:
        wire.ask("session.create", agent="a", session="s")
        before = wire.ask("daemon.status")["result"]["store"]["head_seq"]
        assert wire.ask(method, **params)["error"]["data"]["code"] == "invalid_params"
        assert wire.ask("daemon.status")["result"]["store"]["head_seq"] == before


@pytest.mark.requirement("RPC-10")
@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity", "1e999", "-1e999"])
def test_a_number_that_is_not_finite_is_refused(daemon: Running, number: str) -> None:
    with plain(daemon.socket) as wire:
        wire.ask("session.create", agent="a", session="s")
        call = request("q", "toolcall.record", session="s", id="c", tool="t", content="x", args={"x": "HERE"})
        wire.send(call.replace(b'"HERE"', number.encode()))
        assert wire.answer()["error"]["data"]["code"] in ("parse_error", "invalid_params")
        assert "error" in wire.ask("object.get", object="c", session="s")
