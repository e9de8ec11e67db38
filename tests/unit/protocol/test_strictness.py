"""Parameters are closed: an unknown member is refused at every level of every method's parameters."""

import copy
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
from msgspec import inspect

from ctxd.errors import CtxdError
from ctxd.rpc.dispatch import MethodEntry
from ctxd_protocol.methods import METHODS

SCALARS = {inspect.StrType: "x1", inspect.FloatType: 0.5, inspect.BoolType: True, inspect.AnyType: {"free": "form"}}
SCALARS |= {inspect.BytesType: "eA=="}


def fullest(kind: inspect.Type) -> Any:
    """A valid value with every member present and an item of each type in each list."""
    match kind:
        case inspect.StructType(fields=fields, tag=tag, tag_field=name):
            tagged = {} if name is None else {name: tag}
            return tagged | {field.encode_name: fullest(field.type) for field in fields}
        case inspect.UnionType(types=types):
            return fullest(next(each for each in types if not isinstance(each, inspect.NoneType)))
        case inspect.VarTupleType(item_type=inspect.UnionType(types=types)):
            return [fullest(each) for each in types]
        case inspect.VarTupleType(item_type=item):
            return [fullest(item)]
        case inspect.IntType(ge=least):
            return least or 1
        case inspect.LiteralType(values=values):
            return values[0]
        case inspect.DictType():
            return {}
        case inspect.StrType():
            return text(kind)
        case _:
            return SCALARS[type(kind)]


def text(kind: inspect.StrType) -> str:
    pattern = kind.pattern or ""
    if "ctx-" in pattern:
        return "ctx-00000000"
    return "0" * 64 if "{64}" in pattern else "x1".ljust(kind.min_length or 0, "x")


def structs(kind: inspect.Type, path: tuple[str | int, ...] = ()) -> Iterator[tuple[str | int, ...]]:
    """The paths of all structs within a value that ``fullest`` makes."""
    match kind:
        case inspect.StructType(fields=fields):
            yield path
            for field in fields:
                yield from structs(field.type, (*path, field.encode_name))
        case inspect.UnionType(types=types):
            yield from structs(next(each for each in types if not isinstance(each, inspect.NoneType)), path)
        case inspect.VarTupleType(item_type=inspect.UnionType(types=types)):
            for nth, each in enumerate(types):
                yield from structs(each, (*path, nth))
        case inspect.VarTupleType(item_type=item):
            yield from structs(item, (*path, 0))


PLACES = [
    pytest.param(name, path, id=f"{name}-{'.'.join(map(str, path)) or 'params'}")
    for name, row in METHODS.items()
    for path in structs(inspect.type_info(row.params))
]


def test_the_walk_reaches_the_structs_within_parameters():
    paths = {(place.values[0], place.values[1]) for place in PLACES}
    assert {
        ("session.append", ("messages", 0)),
        ("session.append", ("messages", 0, "secrets", "found", 0)),
        ("session.append", ("events", 7, "usage")),
        ("session.create", ("mounts", 0)),
        ("session.create", ("collapse",)),
        ("sandbox.register", ("quota",)),
        ("hello", ("last_receipt",)),
    } <= paths


@pytest.mark.requirement("RPC-10")
@pytest.mark.parametrize(("name", "path"), PLACES)
def test_an_unknown_member_is_refused_at_every_level(name, path):
    entry = MethodEntry(METHODS[name], lambda caller, params: params)
    value = fullest(inspect.type_info(METHODS[name].params))
    entry.decode(msgspec.json.encode(value))  # as it is, it is valid
    surplus = copy.deepcopy(value)
    place: Any = surplus
    for step in path:
        place = place[step]
    place["surplus"] = 1
    raw = msgspec.Raw(msgspec.json.encode(surplus))
    with pytest.raises(msgspec.DecodeError) as misfit:
        entry.decode(raw)
    with pytest.raises(CtxdError) as refused:
        entry.other_params(raw, misfit.value)
    assert refused.value.code == "invalid_params"
    assert "surplus" in refused.value.message
