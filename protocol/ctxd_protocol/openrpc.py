"""The OpenRPC document of the API, and the check for breaking changes between two of them.

``rpc.discover`` returns the document; ``protocol/openrpc.json`` is a copy. The same table gives the same bytes.
"""

import inspect
from collections.abc import Callable
from typing import Any, Final

import msgspec
from msgspec import NODEFAULT
from msgspec.inspect import IntType, LiteralType, NoneType, StructType, UnionType, VarTupleType

from ctxd_protocol.error_codes import ErrorCode
from ctxd_protocol.errors import ERRORS
from ctxd_protocol.methods import METHODS, NOTIFICATIONS
from ctxd_protocol.methods.daemon import PROTOCOL_VERSIONS
from ctxd_protocol.methods.declaration import Method

_REF: Final = "#/components/schemas/{name}"


def document() -> dict[str, Any]:
    """The OpenRPC 1.3 document of every method in the table."""
    types: list[Any] = []
    for method in METHODS.values():
        types += [method.params, method.result]
    types += NOTIFICATIONS.values()
    schemas, components = msgspec.json.schema_components(types, ref_template=_REF)
    for component in components.values():
        # Python before 3.13 keeps the indentation of docstrings.
        if "description" in component:
            component["description"] = inspect.cleandoc(component["description"])
    by_type = dict(zip(map(id, types), schemas, strict=True))
    return {
        "x-generated": "by `make generate` (protocol/generate.py); do not edit",
        "openrpc": "1.3.2",
        "info": {
            "title": "ctxd",
            "version": f"{PROTOCOL_VERSIONS[-1]}.0.0",
            "description": "JSON-RPC 2.0, one JSON text per line, over a Unix stream socket.",
            "license": {"name": "Apache-2.0"},
        },
        "methods": [_method(method, components, by_type[id(method.result)]) for method in METHODS.values()],
        "components": {
            "schemas": dict(sorted(components.items())),
            "errors": {code: _error(code) for code in ERRORS},
        },
        "x-notifications": [
            {"name": name, "params": by_type[id(params)]} for name, params in sorted(NOTIFICATIONS.items())
        ],
    }


def rendered() -> bytes:
    """The document as in the repository: indented JSON with a trailing line feed."""
    return msgspec.json.format(msgspec.json.encode(document()), indent=2) + b"\n"


def _method(method: Method, components: dict[str, Any], result: dict[str, Any]) -> dict[str, Any]:
    properties = components[method.params.__name__]["properties"]
    return {
        "name": method.name,
        "summary": method.summary,
        **({"description": "\n\n".join(method.documentation)} if method.documentation else {}),
        "paramStructure": "either",
        "params": [
            {
                "name": field.encode_name,
                "required": field.default is NODEFAULT and field.default_factory is NODEFAULT,
                "schema": properties[field.encode_name],
            }
            for field in msgspec.structs.fields(method.params)
        ],
        "result": {"name": "result", "schema": result},
        "errors": [{"$ref": f"#/components/errors/{code}"} for code in method.all_errors],
        "examples": [_example(method)],
        "x-capability": method.capability,
        **({"x-grant": method.grant} if method.grant else {}),
        "x-writes": method.writes,
    }


def _example(method: Method) -> dict[str, Any]:
    return {
        "name": method.name,
        "params": [{"name": name, "value": value} for name, value in method.example.items()],
        "result": {"name": "result", "value": _sample(msgspec.inspect.type_info(method.result), method.example)},
    }


_SCALARS: Final[dict[type, Any]] = {
    msgspec.inspect.StrType: "...",
    msgspec.inspect.BytesType: "",
    msgspec.inspect.FloatType: 0.5,
    msgspec.inspect.BoolType: True,
    msgspec.inspect.DictType: {},
}


def _sample(kind: msgspec.inspect.Type, known: dict[str, Any]) -> Any:  # noqa: ANN401 - any JSON value
    """A valid value of a type; text members named in ``known`` have the value given there."""
    match kind:
        case StructType(fields=fields, tag=tag, tag_field=tag_field):
            value: dict[str, Any] = {tag_field: tag} if tag_field else {}
            for field in fields:
                text = known.get(field.name) if isinstance(field.type, msgspec.inspect.StrType) else None
                value[field.encode_name] = text if isinstance(text, str) else _sample(field.type, known)
            return value
        case UnionType(types=types):
            return None if any(isinstance(each, NoneType) for each in types) else _sample(types[0], known)
        case VarTupleType(item_type=item):
            return [_sample(item, known)]
        case msgspec.inspect.TupleType(item_types=items):
            return [_sample(item, known) for item in items]
        case IntType(ge=least):
            return least or 1
        case LiteralType(values=values):
            return values[0]
        case _:
            return _SCALARS.get(type(kind))


def _error(code: ErrorCode) -> dict[str, Any]:
    kind = ERRORS[code]
    return {
        "code": kind.number,
        "message": code,
        "data": {"code": code, "retryable": kind.retryable},
        "x-category": kind.category,
        "x-meaning": kind.meaning,
    }


def breaking_changes(old: dict[str, Any], new: dict[str, Any]) -> list[str]:
    """Changes from document ``old`` to ``new`` that break clients of ``old``, one sentence each."""
    found: list[str] = []
    methods = {method["name"]: method for method in new["methods"]}
    for was in old["methods"]:
        now = methods.get(was["name"])
        if now is None:
            found.append(f"{was['name']} is gone")
            continue
        found += _param_changes(was, now, old, new)
        compare = _Comparison(old, new, sends=False)
        found += compare.changes(was["result"]["schema"], now["result"]["schema"], f"{was['name']} result")
    for code in old["components"]["errors"].keys() - new["components"]["errors"].keys():
        found.append(f"error {code} is gone")
    notifications = {row["name"]: row["params"] for row in new["x-notifications"]}
    for row in old["x-notifications"]:
        if row["name"] not in notifications:
            found.append(f"notification {row['name']} is gone")
            continue
        compare = _Comparison(old, new, sends=False)
        found += compare.changes(row["params"], notifications[row["name"]], f"{row['name']} params")
    return found


def _param_changes(was: dict[str, Any], now: dict[str, Any], old: dict[str, Any], new: dict[str, Any]) -> list[str]:
    name = was["name"]
    before = {param["name"]: param for param in was["params"]}
    after = {param["name"]: param for param in now["params"]}
    found = [f"{name} no longer takes {param}" for param in before if param not in after]
    for param in after.values():
        earlier = before.get(param["name"])
        if param["required"] and (earlier is None or not earlier["required"]):
            found.append(f"{name} now requires {param['name']}")
        if earlier is not None:
            compare = _Comparison(old, new, sends=True)
            found += compare.changes(earlier["schema"], param["schema"], f"{name} {param['name']}")
    kept = [param for param in before if param in after]
    if list(after)[: len(kept)] != kept:
        found.append(f"{name} takes its params in another order")
    return found


_TIGHTER: Final[dict[str, Callable[[Any, Any], bool]]] = {
    "minimum": lambda was, now: now > was,
    "minLength": lambda was, now: now > was,
    "minItems": lambda was, now: now > was,
    "maximum": lambda was, now: now < was,
    "maxLength": lambda was, now: now < was,
    "maxItems": lambda was, now: now < was,
    "pattern": lambda was, now: now != was,
}
"""Bounds of sent values, each with a test whether the new bound refuses values that the old one accepts."""


class _Comparison:
    """Comparison of two schemas of values that the client ``sends`` or, if false, receives."""

    def __init__(self, old: dict[str, Any], new: dict[str, Any], *, sends: bool) -> None:
        self._old = old["components"]["schemas"]
        self._new = new["components"]["schemas"]
        self._sends = sends
        self._seen: set[str] = set()

    def changes(self, was: dict[str, Any], now: dict[str, Any], where: str) -> list[str]:
        """Breaking changes from ``was`` to ``now``, each with its place ``where``."""
        ref = was.get("$ref", "")
        if ref:
            if ref in self._seen:
                return []
            self._seen.add(ref)
        was, now = _resolved(was, self._old), _resolved(now, self._new)
        if "anyOf" in was or "anyOf" in now:
            return self._alternatives(was.get("anyOf", [was]), now.get("anyOf", [now]), where)
        if was.get("type") != now.get("type"):
            return [f"{where} is {now.get('type', 'anything')}, was {was.get('type', 'anything')}"]
        found = self._members(was, now, where) + self._values(was, now, where)
        for inner in ("items", "additionalProperties"):
            if isinstance(was.get(inner), dict) and isinstance(now.get(inner), dict):
                found += self.changes(was[inner], now[inner], f"{where}[]")
        return found

    def _members(self, was: dict[str, Any], now: dict[str, Any], where: str) -> list[str]:
        before, after = was.get("properties", {}), now.get("properties", {})
        found = [f"{where} lost {name}" for name in before if name not in after]
        for name in before.keys() & after.keys():
            found += self.changes(before[name], after[name], f"{where}.{name}")
        required, required_now = set(was.get("required", ())), set(now.get("required", ()))
        if self._sends:
            found += [f"{where} now requires {name}" for name in sorted(required_now - required)]
        else:
            found += [f"{where} may lack {name}" for name in sorted((required - required_now) & after.keys())]
        return found

    def _values(self, was: dict[str, Any], now: dict[str, Any], where: str) -> list[str]:
        before, after = set(was.get("enum", ())), set(now.get("enum", ()))
        odd = before - after if self._sends else after - before
        found = [f"{where}: {value!r} is {'refused' if self._sends else 'new'}" for value in sorted(odd) if before]
        if self._sends and after and not before:
            found.append(f"{where} takes fewer values")
        if self._sends:
            for bound, is_tighter in _TIGHTER.items():
                if bound in now and (bound not in was or is_tighter(was[bound], now[bound])):
                    found.append(f"{where} has a tighter {bound}")
        return found

    def _alternatives(self, was: list[dict[str, Any]], now: list[dict[str, Any]], where: str) -> list[str]:
        before = {_kind(schema): schema for schema in was}
        after = {_kind(schema): schema for schema in now}
        odd = before.keys() - after.keys() if self._sends else after.keys() - before.keys()
        found = [f"{where}: {kind} is {'refused' if self._sends else 'new'}" for kind in sorted(odd)]
        for kind in before.keys() & after.keys():
            found += self.changes(before[kind], after[kind], where)
        return found


def _kind(schema: dict[str, Any]) -> str:
    return str(schema.get("$ref") or schema.get("type") or "anything")


def _resolved(schema: dict[str, Any], components: dict[str, Any]) -> dict[str, Any]:
    ref = schema.get("$ref")
    return schema if ref is None else dict(components[ref.rpartition("/")[2]])
