"""Bounds of a Datalog query: the limit and the timeout, added to its map; and its rows in JSON types.

Pure. Only a map is accepted, so that the bounds can be added to it: XTDB's HTTP server enforces none.
"""

import re
from typing import Any, Final

from ctxd.errors import CtxdError

_HINT: Final = 'Write a map: {:find [e] :where [[e :tool "bash"]]}.'
_OPENING: Final = tuple("([{")
_CLOSING: Final = tuple(")]}")
_TOKENS: Final = re.compile(
    r"""(?:[\s,]+ | ;[^\n]*) | ("(?:\\.|[^"\\])*" | \\\S[^\s()\[\]{}";,]* | [()\[\]{}] | [^\s()\[\]{}";,\\]+)""",
    re.VERBOSE | re.DOTALL,
)
"""EDN tokens, captured in a group, and separators: space, commas, comments."""


def bounded(query: str, *, limit: int, timeout_ms: int) -> str:
    """Return ``query`` with ``:limit`` and ``:timeout`` added to its map.

    Raises: CtxdError ``invalid_params`` for text that is not one map, or that has one of the two already.
    """
    end, keys = _scan(query)
    for key in (":limit", ":timeout"):
        if key in keys:
            hint = f"Remove {key} from the query; give it as a parameter."
            raise CtxdError("invalid_params", f"the query holds {key}", hint=hint)
    return f"{query[:end]} :limit {limit} :timeout {timeout_ms}{query[end:]}"


def _scan(query: str) -> tuple[int, set[str]]:
    """Return where the map in ``query`` closes, and the tokens at its top level."""
    depth, end, at = 0, -1, 0
    keys: set[str] = set()
    for found in _TOKENS.finditer(query):
        if found.start() != at:
            break
        at, token = found.end(), found[1]
        if token is None:
            continue
        if end >= 0 or (depth == 0 and token != "{"):
            raise _not_a_map(f"{token[:40]!r} stands outside of it")
        if depth == 1:
            keys.add(token)
        depth += (token in _OPENING) - (token in _CLOSING)
        if depth == 0:
            end = found.start()
    if at != len(query) or end < 0:
        raise _not_a_map("a text or a bracket in it does not end")
    return end, keys


def _not_a_map(why: str) -> CtxdError:
    return CtxdError("invalid_params", f"the query is not one map: {why}", hint=_HINT)


def to_json_types(value: Any) -> Any:  # noqa: ANN401 - any value of a row
    """Return ``value`` in JSON types: keywords as text without their colon, sets as arrays."""
    if isinstance(value, dict):
        return {str(key): to_json_types(item) for key, item in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [to_json_types(item) for item in value]
    return str(value) if isinstance(value, str) else value
