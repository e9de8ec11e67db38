"""Error messages for invalid parameters, with the valid values or fields.

Shared by the daemon and by the command line, which checks parameters before it sends them.
"""

import re
from functools import cache
from typing import Final

import msgspec
from msgspec import inspect

from ctxd_protocol.context_types import ToolDeclaration
from ctxd_protocol.ids import STOP_PATTERN, TOOLCALL_ID_PATTERN

_PLACE: Final = " - at `$"
_STEP: Final = re.compile(r"\.\w+|\[[^\]]*\]")

_BOUND: Final = re.compile(r"Expected `(?:int|float)` (>=|<=) (-?[0-9.]+)")
_LENGTH: Final = re.compile(r"Expected `(\w+)` of length (>=|<=) ([0-9]+)")
_UNITS: Final = {"str": "characters", "bytes": "bytes", "object": "members"}
"""Units of a length, by msgspec's name of the type; items for any other."""

_PATTERN: Final = re.compile(r"Expected `str` matching regex '(.*)'", re.DOTALL)
_NAME: Final = re.compile(r"\^\[A-Za-z0-9\]\[A-Za-z0-9(.+)\]\{0,([0-9]+)\}\$.*")
_WORD: Final = re.compile(r"\^\[A-Za-z0-9(.+)\]\{1,([0-9]+)\}\$.*")
_OTHERS: Final = {
    repr(TOOLCALL_ID_PATTERN)[1:-1]: "1 to 1,024 printable characters",
    repr(STOP_PATTERN)[1:-1]: "compaction, root, or ctx- and 8 to 64 lower-case hexadecimal digits",
}
_HEX: Final = re.compile(r"\^\(?(ctx-)?\[0-9a-f\]\{([0-9]+)(?:,([0-9]+))?\}\)?\??\$.*")

_QUOTED_CHARS_MAX: Final = 200
"""Maximum characters of an error text of msgspec, which may quote sent values of any length."""


def described(error: Exception, params: type[msgspec.Struct]) -> tuple[str, str]:
    """The message and the remedy for ``error``, raised by msgspec for params of the type ``params``."""
    text, place, path = str(error).rpartition(_PLACE)
    if not place or len(path) > _QUOTED_CHARS_MAX:
        # A sent value may have the form of a path.
        text, place, path = str(error), "", ""
    shown = text if len(text) <= _QUOTED_CHARS_MAX else f"{text[:_QUOTED_CHARS_MAX]}…"
    name = f"`{path.removeprefix('.').removesuffix('`')}`"
    if len(path) > 1 and (length := _LENGTH.fullmatch(text)) is not None:
        bound, number, unit = "fewer" if length[2] == ">=" else "more", int(length[3]), _UNITS.get(length[1], "items")
        is_empty = (bound, number) == ("fewer", 1)
        shown, place, path = f"{name} is empty" if is_empty else f"{name} has {bound} than {number:,} {unit}", "", ""
    elif len(path) > 1 and (pattern := _PATTERN.fullmatch(text)) is not None and (form := _form(pattern[1])):
        shown, place, path = f"{name} is not valid: it must be {form}", "", ""
    elif len(path) > 1 and (value := _BOUND.fullmatch(text)) is not None:
        shown, place, path = f"{name} is {'less' if value[1] == '>=' else 'greater'} than {value[2]}", "", ""
    message, hint = f"{shown}{place}{path}", "rpc.discover describes every method's parameters."
    fitting = _at(_type_of(params), path)
    structs = [each for each in fitting if isinstance(each, inspect.StructType)]
    if text.startswith("Object contains unknown field") and structs:
        names = dict.fromkeys(field.encode_name for each in structs for field in each.fields)
        message += f": the fields are {', '.join(names)}" if names else ": there are none"
        if any(each.cls is ToolDeclaration for each in structs):
            hint = "A tool has this form in every format: pass MODEL_TOOLS.values(), not model_tools(format)."
    literals = [each for each in fitting if isinstance(each, inspect.LiteralType)]
    if text.startswith(("Invalid enum value", "Invalid value")) and literals:
        values = dict.fromkeys(str(value) for each in literals for value in each.values)
        message += f": it is one of {', '.join(values)}"
    return message, hint


def _form(pattern: str) -> str:
    """The pattern of a parameter in words; empty for one without words."""
    if (found := _NAME.fullmatch(pattern)) is not None:
        others = " ".join(found[1].replace("\\\\", ""))
        return f"a letter or digit, then letters, digits or {others}, at most {int(found[2]) + 1} characters in all"
    if (found := _HEX.fullmatch(pattern)) is not None:
        digits = found[2] if found[3] is None else f"{found[2]} to {found[3]}"
        return f"{'ctx- and ' if found[1] else ''}{digits} lower-case hexadecimal digits"
    if (found := _WORD.fullmatch(pattern)) is not None:
        return f"1 to {found[2]} letters, digits or {' '.join(found[1])}"
    return _OTHERS.get(pattern, "")


@cache
def _type_of(params: type[msgspec.Struct]) -> inspect.Type:
    return inspect.type_info(params)


def _at(type: inspect.Type, path: str) -> list[inspect.Type]:
    """The types of values at ``path``, in msgspec's notation, in a value of ``type``; empty if it does not exist."""
    found = [type]
    for step in _STEP.findall(path):
        found = [
            inner
            for each in found
            for alternative in (each.types if isinstance(each, inspect.UnionType) else (each,))
            for inner in _inner(alternative, step)
        ]
    return [last for each in found for last in (each.types if isinstance(each, inspect.UnionType) else (each,))]


def _inner(type: inspect.Type, step: str) -> list[inspect.Type]:
    """The types of the values at ``step`` of a value of ``type``: ``.name`` or ``[0]``."""
    match type:
        case inspect.StructType(tag_field=field, tag=tag) if field is not None and step == f".{field}":
            return [inspect.LiteralType((tag,))]
        case inspect.StructType(fields=fields) if step[0] == ".":
            return [each.type for each in fields if each.encode_name == step[1:]]
        case inspect.DictType(value_type=inner):
            return [inner]
        case inspect.VarTupleType(item_type=inner) | inspect.ListType(item_type=inner) if step[0] == "[":
            return [inner]
    return []
