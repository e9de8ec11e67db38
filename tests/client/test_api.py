"""Both clients follow the method table: one method for each row, with its parameters, defaults and result."""

import inspect
import re
import typing
from collections.abc import Coroutine

import msgspec
import pytest

from ctxd_client import Client, Session, SyncClient, SyncSession, connect, connect_sync
from ctxd_protocol.methods import METHODS
from tests.fakes.daemon import HELLO, smallest

OWN = {"call", "follow", "last_receipt", "server", "session", "socket", "within"}
"""Members that a client has besides the table."""


def attribute(method):
    return method.replace(".", "_")


def public(kind):
    return [
        name
        for base in reversed(kind.__mro__)
        for name in vars(base)
        if base.__module__.startswith("ctxd_client") and not name.startswith("_")
    ]


class Recorder:
    """A client that keeps the call it is asked to make."""

    def __init__(self, kind):
        self.kind = kind

    def call(self, call):
        return call

    def made_by(self, method, **arguments):
        made = getattr(self.kind, attribute(method))(self, **arguments)
        if isinstance(made, Coroutine):
            with pytest.raises(StopIteration) as stopped:
                made.send(None)
            return stopped.value.value
        return made


class AwaitedRecorder(Recorder):
    async def call(self, call):
        return call


def required_of(method):
    several: dict[str, object] = dict.fromkeys(("messages", "paths", "objects", "sessions", "commits", "deltas"), ())
    several["usage"] = {}
    return {
        field.name: several.get(field.name, "x") for field in msgspec.structs.fields(method.params) if field.required
    }


@pytest.mark.parametrize("kind", [Client, SyncClient])
def test_a_client_has_a_method_for_each_row_in_the_order_of_the_table_and_nothing_unlisted(kind):
    names = [name for name in public(kind) if name not in OWN]
    assert names == [attribute(method) for method in METHODS]
    assert OWN <= set(public(kind))


@pytest.mark.parametrize("kind", [Client, SyncClient])
@pytest.mark.parametrize("method", METHODS.values(), ids=METHODS.keys())
def test_a_method_has_the_parameters_and_defaults_of_its_row(kind, method):
    """The connection sets ``descriptor``."""
    signature = inspect.signature(getattr(kind, attribute(method.name)))
    parameters = dict(signature.parameters)
    del parameters["self"]
    fields = {field.name: field for field in msgspec.structs.fields(method.params) if field.name != "descriptor"}
    assert list(parameters) == list(fields)
    for name, parameter in parameters.items():
        field = fields[name]
        if field.required:
            assert parameter.default is parameter.empty
            assert parameter.kind is parameter.POSITIONAL_OR_KEYWORD
        else:
            default = field.default_factory() if field.default is msgspec.NODEFAULT else field.default
            assert parameter.default == default, name
            by_place = name in method.positional
            assert parameter.kind is (parameter.POSITIONAL_OR_KEYWORD if by_place else parameter.KEYWORD_ONLY)


@pytest.mark.parametrize("recorder", [AwaitedRecorder(Client), Recorder(SyncClient)], ids=["async", "sync"])
@pytest.mark.parametrize("method", METHODS.values(), ids=METHODS.keys())
def test_a_method_makes_the_call_of_its_row_and_announces_its_result(recorder, method):
    required = required_of(method)
    call = recorder.made_by(method.name, **required)
    assert call.method is method
    assert type(call.params) is method.params
    assert call.params == method.params(**required), "the defaults are those of the protocol"
    assert call.result == method.result
    assert typing.get_type_hints(getattr(recorder.kind, attribute(method.name)))["return"] == method.result


@pytest.mark.parametrize("kind", [Client, SyncClient, Session, SyncSession])
def test_each_public_method_has_an_example_that_calls_it(kind):
    variable = "client" if kind in (Client, SyncClient) else "s"
    methods = set(public(kind)) - {"last_receipt", "server", "socket", "call", "follow", "client", "id"}
    assert methods
    for name in methods:
        doc = getattr(kind, name).__doc__
        assert re.search(rf"Example: ``[^`]*\b{variable}\.{name}\(", doc), name


@pytest.mark.parametrize("kind", [SyncClient, SyncSession])
def test_an_example_of_the_synchronous_twin_is_plain_code(kind):
    examples = [
        (name, re.findall(r"Example: ``(.*?)``", getattr(kind, name).__doc__ or "", re.S)) for name in public(kind)
    ]
    assert sum(len(found) for _, found in examples) > 10
    for name, found in examples:
        for example in found:
            assert "await" not in example, name
            compile(" ".join(example.split()), name, "exec")


@pytest.mark.requirement("CLT-1")
def test_both_handles_have_the_same_methods_with_the_same_parameters():
    assert public(Session) == public(SyncSession)
    for name in public(Session):
        ours, theirs = (inspect.signature(getattr(kind, name)) for kind in (Session, SyncSession))
        assert [str(p) for p in ours.parameters.values()] == [str(p) for p in theirs.parameters.values()], name
        assert "session" not in ours.parameters


def test_a_handle_has_the_methods_that_the_rows_name():
    assert {row.handle for row in METHODS.values() if row.handle} <= set(public(Session))


@pytest.mark.parametrize("kind", [Client, SyncClient])
def test_a_handle_can_be_made_with_all_that_a_session_can_start_with(kind):
    ours = set(inspect.signature(kind.session).parameters)
    # A handle is for work: of a session that is paused or archived from its beginning there is none.
    assert ours == set(inspect.signature(kind.session_create).parameters) - {"op_id", "state", "archived"}


async def every_call(client):
    """Each method once, with the least it needs; what the daemon saw is checked by the caller."""
    for method in METHODS.values():
        required = {field.name: () if field.name in ("messages", "paths", "objects", "usage") else
                    7 if field.name == "subscription" else "x"
                    for field in msgspec.structs.fields(method.params) if field.required}  # fmt: skip
        result = getattr(client, attribute(method.name))(**required)
        if isinstance(result, Coroutine):
            result = await result
        assert isinstance(result, typing.get_origin(method.result) or method.result), method.name


@pytest.mark.anyio
@pytest.mark.requirement("CLT-1")
async def test_each_method_of_both_clients_makes_the_round_trip(daemon):
    async with connect(daemon.path) as client:
        await every_call(client)
    with connect_sync(daemon.path) as client:
        await every_call(client)
    names = [seen.method for seen in daemon.seen]
    assert names == ["hello", *METHODS] * 2
    ours, theirs = daemon.seen[: len(names) // 2], daemon.seen[len(names) // 2 :]
    for one, other in zip(ours, theirs, strict=True):
        assert {**one.params, "op_id": 0} == {**other.params, "op_id": 0}


def test_scripted_daemon_samples_conform_to_the_protocol():
    for method in METHODS.values():
        msgspec.convert(
            smallest(method.result) if method.name != "hello" else msgspec.to_builtins(HELLO), method.result
        )
