import copy
from pathlib import Path

import msgspec
import pytest

from ctxd_protocol.errors import ERRORS
from ctxd_protocol.methods import METHODS, NOTIFICATIONS
from ctxd_protocol.openrpc import breaking_changes, document, rendered

KEPT = Path(__file__).parents[3] / "protocol" / "openrpc.json"


def test_the_document_describes_every_method_error_and_notification():
    made = document()
    assert made["openrpc"].startswith("1.3.")
    assert [method["name"] for method in made["methods"]] == list(METHODS)
    assert made["components"]["errors"].keys() == ERRORS.keys()
    assert [row["name"] for row in made["x-notifications"]] == sorted(NOTIFICATIONS)


def test_every_reference_resolves():
    made = document()

    def refs(value):
        if isinstance(value, dict):
            yield from ([value["$ref"]] if "$ref" in value else [])
            for inner in value.values():
                yield from refs(inner)
        elif isinstance(value, list | tuple):
            for inner in value:
                yield from refs(inner)

    places = {ref: ref.removeprefix("#/components/").split("/") for ref in refs(made)}
    assert {kind for kind, _ in places.values()} == {"schemas", "errors"}
    for ref, (kind, name) in places.items():
        assert name in made["components"][kind], ref


def test_params_say_whether_they_are_required():
    append = next(method for method in document()["methods"] if method["name"] == "session.append")
    assert {param["name"]: param["required"] for param in append["params"]} == {
        "session": True,
        "messages": False,
        "op_id": False,
        "events": False,
    }


@pytest.mark.requirement("RPC-6")
def test_the_kept_document_is_compatible_with_the_types():
    assert breaking_changes(msgspec.json.decode(KEPT.read_bytes()), msgspec.json.decode(rendered())) == []


def method_of(made, name):
    return next(method for method in made["methods"] if method["name"] == name)


def schema_of(made, name):
    return made["components"]["schemas"][name]


def drop_method(made):
    made["methods"].remove(method_of(made, "session.pin"))


def drop_param(made):
    method_of(made, "session.append")["params"].pop()


def require_param(made):
    method_of(made, "session.append")["params"][2]["required"] = True


def require_new_param(made):
    method_of(made, "session.append")["params"].append({"name": "new", "required": True, "schema": {}})


def swap_params(made):
    method_of(made, "session.append")["params"].reverse()


def retype_param(made):
    method_of(made, "session.append")["params"][0]["schema"] = {"type": "integer"}


def tighten_param(made):
    schema = method_of(made, "session.list")["params"][4]["schema"]
    assert schema["maximum"] == 1000
    schema["maximum"] = 10


def refuse_null(made):
    schema = method_of(made, "session.append")["params"][2]["schema"]
    schema["anyOf"] = [kind for kind in schema["anyOf"] if kind != {"type": "null"}]


def refuse_value(made):
    schema_of(made, "Message")["properties"]["role"]["enum"].remove("toolcall")


def require_inner(made):
    schema_of(made, "Message")["required"].append("content")


def drop_result_field(made):
    schema_of(made, "CurrentContext")["properties"].pop("turn")
    schema_of(made, "CurrentContext")["required"].remove("turn")


def optional_result_field(made):
    schema_of(made, "CurrentContext")["required"].remove("turn")


def retype_result_field(made):
    schema_of(made, "CurrentContext")["properties"]["turn"] = {"type": "string"}


def null_result_field(made):
    schema_of(made, "CurrentContext")["properties"]["turn"] = {"anyOf": [{"type": "integer"}, {"type": "null"}]}


def new_result_value(made):
    schema_of(made, "SessionView")["properties"]["state"]["enum"].append("archived")


def retype_deep(made):
    schema_of(made, "Block")["properties"]["offset"] = {"type": "string"}


def drop_error(made):
    made["components"]["errors"].pop("draining")


def drop_notification(made):
    made["x-notifications"].clear()


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (drop_method, "session.pin is gone"),
        (drop_param, "session.append no longer takes events"),
        (require_param, "session.append now requires op_id"),
        (require_new_param, "session.append now requires new"),
        (swap_params, "session.append takes its params in another order"),
        (retype_param, "session.append session is integer, was string"),
        (tighten_param, "session.list limit has a tighter maximum"),
        (refuse_null, "session.append op_id: null is refused"),
        (refuse_value, "session.append messages[].role: 'toolcall' is refused"),
        (require_inner, "session.append messages[] now requires content"),
        (drop_result_field, "context.current result lost turn"),
        (optional_result_field, "context.current result may lack turn"),
        (retype_result_field, "context.current result.turn is string, was integer"),
        (null_result_field, "context.current result.turn: null is new"),
        (new_result_value, "session.get result.session.state: 'archived' is new"),
        (retype_deep, "context.show result.blocks[].offset is string, was integer"),
        (drop_error, "error draining is gone"),
        (drop_notification, "notification events.notice is gone"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
@pytest.mark.requirement("RPC-6")
def test_a_breaking_change_is_reported(change, said):
    old = msgspec.json.decode(rendered())
    new = copy.deepcopy(old)
    change(new)
    assert said in breaking_changes(old, new)


def add_method(made):
    made["methods"].append({"name": "new", "params": [], "result": {"schema": {}}})


def add_optional_param(made):
    method_of(made, "session.append")["params"].append({"name": "new", "required": False, "schema": {}})


def add_result_field(made):
    schema_of(made, "CurrentContext")["properties"]["new"] = {"type": "string"}
    schema_of(made, "CurrentContext")["required"].append("new")


def loosen_param(made):
    method_of(made, "session.list")["params"][4]["schema"]["maximum"] = 5000


def describe(made):
    schema_of(made, "CurrentContext")["description"] = "other words"


@pytest.mark.parametrize("change", [add_method, add_optional_param, add_result_field, loosen_param, describe])
def test_an_addition_breaks_nothing(change):
    old = msgspec.json.decode(rendered())
    new = copy.deepcopy(old)
    change(new)
    assert breaking_changes(old, new) == []
