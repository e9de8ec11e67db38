"""Resolution of ids from clients: full ids, a harness's own ids of tool calls, and unique prefixes. Pure."""

from collections.abc import Iterable, Iterator
from typing import Final

from ctxd.errors import CtxdError
from ctxd.objects.generated_ids import INFRASTRUCTURE_PREFIXES, INNER_PREFIXES
from ctxd.objects.kinds import ContentKind
from ctxd.sessions.session_state import SessionState
from ctxd_protocol.ids import PREFIX_CHARS_MIN, toolcall_alias

_NOUNS: Final[dict[ContentKind | None, str]] = {None: "object", "file": "file", "toolcall": "tool call"}


def ids_of_call(call: str, session: str, ancestors: Iterable[str]) -> Iterator[str]:
    """Yield the ids that the tool call ``call`` of a harness may have in ``session``: its own, then the aliases of the
    session and of its ``ancestors``, from which a fork inherits calls."""
    yield call
    for each in (session, *ancestors):
        yield toolcall_alias(each, call)


def resolve(
    state: SessionState, session: str, text: str, kind: ContentKind | None = None, *, ancestors: Iterable[str] = ()
) -> str:
    """Return the id in the index of ``session`` that ``text`` means: an id, else a harness's own id of a tool call,
    else a prefix of at least 8 characters. With ``kind``, only objects of that kind match, so that a tool call is found
    by its own id even if a file has the same id. ``ancestors``: see ``ids_of_call``.

    Raises: CtxdError infrastructure_object, not_in_index, ambiguous_id.
    """
    # A harness's own id may look reserved: the session's tool call of that name takes precedence.
    for id in ids_of_call(text, session, ancestors):
        if state.is_a(id, kind):
            return id
    if text.startswith((*INFRASTRUCTURE_PREFIXES, *INNER_PREFIXES)):
        if kind is not None:
            hint = f"Give the id of a {_NOUNS[kind]} from object.list."
            raise CtxdError("not_in_index", f"{text} is part of the session itself, not a {_NOUNS[kind]}", hint=hint)
        raise CtxdError(
            "infrastructure_object",
            f"{text} is part of the session itself, with a fixed place in the context",
            hint="Only files and tool calls can be activated, pinned or hidden.",
        )
    near = state.starting_with(text) if len(text) >= PREFIX_CHARS_MIN else []
    found = [id for id in near if state.is_a(id, kind)]
    if not found:
        raise CtxdError(
            "not_in_index",
            f"no {_NOUNS[kind]} {text} in the index of session {session}",
            hint=f"Give an id from object.list, or at least {PREFIX_CHARS_MIN} characters of one.",
        )
    if len(found) > 1:
        names = ", ".join(found[:3])
        raise CtxdError("ambiguous_id", f"{len(found)} objects begin with {text}", hint=f"Among them: {names}.")
    return found[0]
