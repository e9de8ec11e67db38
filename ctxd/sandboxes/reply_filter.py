"""Redaction of everything that is sent to a sandbox: results, notifications and errors.

Redaction depends on the type, not on the method: host paths and other sessions are removed from every mount, source,
object version and notice in a result, so a new method needs no change here. ``ctxd.sessions.sandbox_file_visibility``
decides which versions a sandbox may see.
"""

import re
from collections.abc import Callable, Coroutine, Mapping, Sequence
from functools import cache
from typing import Any, Final, assert_never, get_args, get_type_hints

import msgspec

from ctxd.errors import CtxdError
from ctxd.mounts.mapping import UNMOUNTED, normalise
from ctxd.rpc.caller import Caller
from ctxd.rpc.dispatch import Answer, Handler
from ctxd.sessions.live_session import Accepted
from ctxd_protocol.methods.files import FileResolveResult
from ctxd_protocol.object_types import FilesystemSource, ObjectVersion, Source
from ctxd_protocol.session_types import Mount, Notice, Project, SessionOrigin

_REST_OF_PATH: Final = r"[^\s'\":,;()<>]*"
_PATH: Final = re.compile(r"(?<![\w/<])/[^\s'\":,;()<>]+")
"""Pattern of an absolute path in the text of an error."""

_MOUNTS: Final = "mounts"


def viewed(handlers: Mapping[str, Handler], mounts_of: Callable[[str], Sequence[Mount]]) -> dict[str, Handler]:
    """``handlers`` with redaction. ``mounts_of`` returns the mounts of a session, to translate paths in errors."""
    return {name: _viewed(handler, mounts_of) for name, handler in handlers.items()}


def _viewed(handler: Handler, mounts_of: Callable[[str], Sequence[Mount]]) -> Handler:
    async def call(caller: Caller, params: Any, *request: Any) -> Answer:  # noqa: ANN401 - the method's own struct
        inside = msgspec.structs.replace(
            caller, notify=lambda method, notification: caller.notify(method, redact_reply(notification))
        )
        try:
            answered = handler(inside, params, *request)
            answer = await answered if isinstance(answered, Coroutine) else answered
        except CtxdError as error:
            named = getattr(params, "session", None)
            session = caller.session if named is None else named
            mounts = () if session is None else mounts_of(session)
            raise CtxdError(
                error.code,
                redacted_text(error.message, mounts, params),
                hint=redacted_text(error.hint, mounts, params),
                retry_after_ms=error.retry_after_ms,
                outcome=error.outcome,
            ) from error
        if not isinstance(answer, Accepted):
            return redact_reply(answer)  # type: ignore[no-any-return]
        build = answer.result
        return Accepted(answer.pending, lambda receipt: redact_reply(build(receipt)))

    return call


def redact_reply(value: Any) -> Any:  # noqa: ANN401 - any result
    """``value``, a result or a part of one, without host paths and other sessions."""
    if isinstance(value, msgspec.Struct):
        redact = _REDACTORS.get(type(value))
        if redact is not None:
            return redact(value)
        fields = _carrying(type(value))
        return msgspec.structs.replace(value, **{name: redact_reply(getattr(value, name)) for name in fields})
    if isinstance(value, tuple | list):
        return type(value)(redact_reply(item) for item in value)
    return value


def redacted_text(text: str, mounts: Sequence[Mount], params: msgspec.Struct) -> str:
    """``text`` of an error with the agent's paths in place of the host's. Paths that the caller sent are kept."""
    written = msgspec.json.encode(params).decode()
    for mount in sorted(mounts, key=lambda mount: -len(mount.canonical_prefix)):
        canonical = normalise(mount.canonical_prefix)
        if canonical != "/":
            text = re.sub(
                re.escape(canonical) + rf"(?=/|\W|$){_REST_OF_PATH}",
                # Translated, a path that the caller guessed would be confirmed.
                lambda found, mount=mount, canonical=canonical: (  # type: ignore[misc]
                    path if (path := found.group()) in written else mount.agent_prefix + path[len(canonical) :]
                ),
                text,
            )
    inside = [mount.agent_prefix.rstrip("/") + "/" for mount in mounts]

    def shown(found: re.Match[str]) -> str:
        path = found.group()
        is_own = path in written or any(f"{path}/".startswith(prefix) for prefix in inside)
        return path if is_own else UNMOUNTED

    return _PATH.sub(shown, text)


def _mount(mount: Mount) -> Mount:
    return msgspec.structs.replace(mount, canonical_prefix=mount.agent_prefix)


def _source(source: FilesystemSource) -> FilesystemSource:
    return _at(source, UNMOUNTED)


def _at(source: Source, shown: str) -> Source:
    """``source`` with ``shown`` in place of its host path."""
    match source:
        case FilesystemSource():
            return msgspec.structs.replace(source, path=shown)
        case _:
            assert_never(source)


def _version(version: ObjectVersion) -> ObjectVersion:
    payload, source = version.payload, version.source
    if source is not None:
        shown = UNMOUNTED if version.display_path is None else version.display_path
        source = _at(source, shown)
    if _MOUNTS in payload:
        payload = {**payload, _MOUNTS: []}
    return msgspec.structs.replace(version, source=source, payload=payload)


def _place(result: FileResolveResult) -> FileResolveResult:
    return msgspec.structs.replace(result, canonical_path=result.display_path)


def _notice(notice: Notice) -> Notice:
    return msgspec.structs.replace(notice, by_session=None)


def _no_project(_: Project) -> None:
    """Return None: a sandbox must not learn a project's path on the host, or its remotes."""


def _no_origin(_: SessionOrigin) -> None:
    """Return None: a sandbox must not learn of other sessions."""


_REDACTORS: Final[dict[type, Callable[[Any], Any]]] = {
    Mount: _mount,
    FilesystemSource: _source,
    ObjectVersion: _version,
    FileResolveResult: _place,
    Notice: _notice,
    Project: _no_project,
    SessionOrigin: _no_origin,
}


@cache
def _carrying(struct: type) -> tuple[str, ...]:
    """The fields of ``struct`` whose values may need redaction."""
    return tuple(name for name, hint in get_type_hints(struct).items() if _is_carrier(hint))


def _is_carrier(hint: Any) -> bool:  # noqa: ANN401 - a type hint
    if isinstance(hint, type) and issubclass(hint, msgspec.Struct):
        return hint in _REDACTORS or bool(_carrying(hint))
    return any(map(_is_carrier, get_args(hint)))
