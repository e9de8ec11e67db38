"""What a connection may call, and how parameters become a method's struct."""

import anyio
import msgspec
import pytest
import structlog

from ctxd import failpoints
from ctxd.errors import CtxdError
from ctxd.rpc.caller import Caller
from ctxd.rpc.dispatch import MethodEntry, bound, build_table, complete
from ctxd.rpc.grants import allowed_methods
from ctxd.rpc.handlers import daemon
from ctxd.rpc.wire_errors import MalformedParams, error_of
from ctxd_protocol.errors import ERRORS
from ctxd_protocol.limits import Limits
from ctxd_protocol.methods import METHODS
from ctxd_protocol.methods.daemon import HelloParams
from ctxd_protocol.methods.declaration import Nothing
from ctxd_protocol.object_types import Receipt
from ctxd_protocol.openrpc import document
from tests.fakes.loopback import frame, serving
from tests.unit.rpc.families import Services


def caller(capability="host", session=None):
    return Caller("uid:1", capability, session, 1, lambda method, params: True)


def params(method, raw):
    return params_of(MethodEntry(METHODS[method], lambda caller, params: params), raw)


def params_of(entry, raw):
    try:
        return entry.decode(msgspec.Raw(raw))
    except (msgspec.DecodeError, UnicodeDecodeError, TypeError) as misfit:
        return entry.other_params(msgspec.Raw(raw), misfit)


@pytest.mark.requirement("RPC-3")
def test_each_capability_reaches_its_own_methods_and_those_below():
    assert allowed_methods("host") == METHODS.keys()
    assert allowed_methods("observe") == {"hello", "rpc.discover", "context.current"}
    assert allowed_methods("observe") < allowed_methods("session") < allowed_methods("host")


@pytest.mark.requirement("RPC-3")
def test_methods_beyond_a_capability_are_not_in_its_table():
    every = {name: lambda caller, params: params for name in METHODS}
    assert build_table(every, "session").keys() == allowed_methods("session")
    assert "session.create" not in build_table(every, "session")


@pytest.mark.requirement("RPC-3")
def test_a_connection_bound_to_a_session_sees_no_other_and_need_not_name_its_own():
    entry = build_table({"object.get": lambda caller, params: params}, "session")["object.get"]
    bound = caller("session", "s-1")
    own = entry.call(bound, params_of(entry, b'{"object":"o-1","session":"s-1"}'))
    unnamed = entry.call(bound, params_of(entry, b'{"object":"o-1"}'))
    assert (own.session, unnamed.session) == ("s-1", "s-1")
    with pytest.raises(CtxdError) as refused:
        entry.call(bound, params_of(entry, b'{"object":"o-1","session":"s-2"}'))
    assert refused.value.code == "session_not_found"


def test_params_by_position_fill_the_fields_in_their_order():
    read = params("session.append", b'["s",[{"role":"user","content":"x"}],"op-1"]')
    assert (read.session, read.messages[0].content, read.op_id) == ("s", "x", "op-1")


@pytest.mark.parametrize("raw", [b"[]", b'["s",1]', b'["s",[],1,2,3]', b"{}", b'{"session":"s","messages":[],"x":1}'])
def test_params_that_do_not_fit_are_invalid(raw):
    with pytest.raises(CtxdError) as refused:
        params("session.append", raw)
    assert refused.value.code == "invalid_params"


@pytest.mark.parametrize("raw", [b"1", b'"x"', b"null", b"true"])
def test_params_that_are_not_a_structure_are_malformed(raw):
    with pytest.raises(MalformedParams):
        params("session.append", raw)


def test_a_table_with_a_missing_duplicate_or_unknown_method_is_rejected():
    every = {name: lambda caller, params: params for name in METHODS}
    assert complete(every) == every
    with pytest.raises(AssertionError, match=r"no handler for \['hello'\]"):
        complete({name: handler for name, handler in every.items() if name != "hello"})
    with pytest.raises(AssertionError, match="two handlers"):
        complete(every, {"hello": every["hello"]})
    with pytest.raises(AssertionError, match="not in the protocol"):
        complete(every, {"hallo": every["hello"]})


@pytest.mark.parametrize("code", sorted(ERRORS))
def test_every_code_becomes_its_number_and_retryability(code):
    exc = CtxdError(code, "m", hint="h", retry_after_ms=7, outcome="unknown")
    error = error_of(exc, method="m", log=structlog.get_logger())
    assert (error.code, error.message) == (ERRORS[code].number, "m")
    assert msgspec.to_builtins(error.data) == {
        "code": code,
        "hint": "h",
        "retry_after_ms": 7,
        "outcome": "unknown",
    } | ({"retryable": True} if ERRORS[code].retryable else {})


def test_an_unexpected_error_is_logged_in_full_and_reported_without_detail():
    with structlog.testing.capture_logs() as logged:
        error = error_of(ValueError("secret"), method="hello", log=structlog.get_logger())
    assert "secret" not in error.message + error.data.hint
    assert logged[0]["method"] == "hello" and str(logged[0]["exc_info"]) == "secret"


def daemon_handlers(check=lambda receipt: None):
    return bound(
        daemon.DaemonCalls(
            incarnation=3, journal="j3", limits=Limits(), status=lambda: "the status", check_receipt=check
        )
    )


def answered(handlers, method, caller, params):
    """The answer of a handler that does not suspend."""
    with pytest.raises(StopIteration) as done:
        handlers[method](caller, params).send(None)
    return done.value.value


@pytest.mark.requirement("RPC-8")
def test_hello_agrees_on_the_newest_common_version_and_announces_bounds():
    said = answered(daemon_handlers(), "hello", caller(), HelloParams(protocol=(1, 99)))
    assert (said.server, said.protocol, said.incarnation, said.limits) == ("ctxd", 1, 3, Limits())
    assert said.methods == tuple(sorted(METHODS))
    assert answered(daemon_handlers(), "hello", caller("observe"), HelloParams()).methods == tuple(
        sorted(allowed_methods("observe"))
    )


def test_hello_without_a_common_version_lists_the_versions_of_both_sides():
    hello = daemon_handlers()["hello"](caller(), HelloParams(protocol=(2, 3)))
    with pytest.raises(CtxdError, match=r"\[2, 3\], the daemon \[1\]") as refused:
        hello.send(None)
    assert refused.value.code == "unsupported"


@pytest.mark.parametrize(
    ("journal", "capability", "compared"),
    [("j3", "host", True), ("j2", "host", False), (None, "host", False), ("j3", "session", False)],
)
def test_hello_has_a_host_clients_receipt_of_this_journal_witnessed(journal, capability, compared):
    witnessed = []
    receipt = Receipt(7, "c", 1)
    said = answered(
        daemon_handlers(witnessed.append),
        "hello",
        caller(capability),
        HelloParams(last_receipt=receipt, journal=journal),
    )
    assert witnessed == ([receipt] if compared else [])
    assert said.journal == "j3"


def test_the_status_is_returned():
    assert answered(daemon_handlers(), "daemon.status", caller(), Nothing()) == "the status"


@pytest.mark.anyio
async def test_concurrent_callers_get_one_document(monkeypatch):
    made = []
    monkeypatch.setattr(daemon, "document", lambda: made.append(1) or document())
    handlers, answers = daemon_handlers(), []

    async def discover():
        answers.append(await handlers["rpc.discover"](caller(), Nothing()))

    async with anyio.create_task_group() as group:
        for _ in range(3):
            group.start_soon(discover)
    assert made == [1] and len(answers) == 3 and len(set(map(bytes, answers))) == 1
    assert [method["name"] for method in msgspec.json.decode(answers[0])["methods"]] == list(METHODS)


@pytest.mark.anyio
async def test_every_failpoint_of_the_edge_is_passed(tmp_path):
    names = ("conn.accept", "conn.frame", "rpc.dispatch", "rpc.reply", "drain.start")
    with failpoints.armed(";".join(f"{name}=count" for name in names)):
        async with serving(tmp_path, Services().handlers()) as server:
            async with server.connected() as wire:
                await wire.send(frame("context.current"))
                await wire.answer()
            with anyio.fail_after(30):
                await server.server.drain()
        assert {name: failpoints.passes(name) for name in names} == dict.fromkeys(names, 1)


@pytest.mark.anyio
async def test_a_fault_at_accept_costs_that_connection_only(tmp_path):
    async with serving(tmp_path, Services().handlers()) as server:
        with failpoints.armed("conn.accept=error:EMFILE*1"):
            async with server.connected() as wire:
                assert await wire.closed()
            async with server.connected() as wire:
                assert "result" in await wire.call("context.current")


class _Family:
    """A family with one handler, and with members that are no methods of the protocol."""

    helper = 1

    async def object_get(self, caller, params):
        return "got"

    async def object_got(self, caller, params):
        return "not a method"


def test_handlers_are_bound_by_name():
    table = bound(_Family())
    assert table.keys() == {"object.get"}
    assert answered(table, "object.get", caller(), None) == "got"
    others = {name: lambda caller, params: params for name in METHODS if name != "object.get"}
    assert complete(others, _Family()).keys() == METHODS.keys()
