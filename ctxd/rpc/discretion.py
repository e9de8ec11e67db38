"""What a sandbox is not told of what the host is: where its files are on it, and what other sessions know.

Owns the change of results on their way into a sandbox. A result that names a canonical path has the agent's in its
place. Knows the results' shapes and no more.
"""

from collections.abc import Callable, Mapping
from typing import Any, Final

import msgspec

from ctxd.rpc.dispatch import Answer, Handler
from ctxd.rpc.identity import Caller
from ctxd.sessions.session import Accepted
from ctxd_protocol.methods.files import FileResolveParams, FileResolveResult
from ctxd_protocol.methods.objects import ObjectBulkResult, ObjectGetResult
from ctxd_protocol.methods.sessions import SessionResult
from ctxd_protocol.objects import ObjectVersion
from ctxd_protocol.sessions import Mount

Holds = Callable[[str, str], bool]
"""Whether a session's index has an object."""


def discreet(handlers: Mapping[str, Handler], holds: Holds) -> dict[str, Handler]:
    """``handlers`` as sandboxes may have them."""
    veils: dict[str, Callable[[Any, Any], Any]] = {
        "session.get": lambda _, result: _session(result),
        "object.get": lambda _, result: _object(result),
        "object.bulk": lambda _, result: _objects(result),
        "file.resolve": lambda params, result: _place(params, result, holds),
    }
    return {name: _veiled(handler, veils[name]) if name in veils else handler for name, handler in handlers.items()}


def _veiled(handler: Handler, veil: Callable[[Any, Any], Any]) -> Handler:
    def over(params: Any, answer: Answer) -> Answer:  # noqa: ANN401 - the method's own struct
        if not isinstance(answer, Accepted):
            return veil(params, answer)  # type: ignore[no-any-return]
        built = answer.result
        return Accepted(answer.pending, lambda receipt: veil(params, built(receipt)))

    async def call(caller: Caller, params: Any, *request: Any) -> Answer:  # noqa: ANN401 - as above
        return over(params, await handler(caller, params, *request))

    return call


def _session(result: SessionResult) -> SessionResult:
    session = msgspec.structs.replace(result.session, mounts=tuple(map(_mount, result.session.mounts)))
    return msgspec.structs.replace(result, session=session)


def _mount(mount: Mount) -> Mount:
    return msgspec.structs.replace(mount, canonical_prefix=mount.agent_prefix)


def _object(result: ObjectGetResult) -> ObjectGetResult:
    return msgspec.structs.replace(result, object=_version(result.object))


def _objects(result: ObjectBulkResult) -> ObjectBulkResult:
    return msgspec.structs.replace(result, objects=tuple(map(_version, result.objects)))


def _version(version: ObjectVersion) -> ObjectVersion:
    payload, source = version.payload, version.source
    if source is not None and version.display_path is not None:
        source = msgspec.structs.replace(source, path=version.display_path)
    if _MOUNTS in payload:
        payload = {**payload, _MOUNTS: []}
    return msgspec.structs.replace(version, source=source, payload=payload)


_MOUNTS: Final = "mounts"


def _place(params: FileResolveParams, result: FileResolveResult, holds: Holds) -> FileResolveResult:
    known = holds(params.session, result.object)
    return msgspec.structs.replace(result, canonical_path=result.display_path, known=known)
