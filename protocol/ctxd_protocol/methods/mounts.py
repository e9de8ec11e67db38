"""Method ``mount.detect``: mount mappings from the output of docker or of the kernel."""

from typing import Final

from ctxd_protocol.methods.declaration import Method, Params, Result
from ctxd_protocol.session_types import Mount


class MountDetectParams(Params, frozen=True, kw_only=True):
    """Exactly one source text.

    ``docker_inspect``: the output of ``docker inspect CONTAINER``; ``mountinfo``: ``/proc/self/mountinfo`` of the
    sandbox.
    """

    docker_inspect: str | None = None
    mountinfo: str | None = None


class MountDetectResult(Result, frozen=True, kw_only=True):
    """Mappings, the container's own filesystem id if the text has it, and the reasons why mounts were ignored."""

    mounts: tuple[Mount, ...]
    filesystem_id: str | None
    ignored: tuple[str, ...]


ROWS: Final = (
    Method(
        name="mount.detect",
        params=MountDetectParams,
        result=MountDetectResult,
        access="host",
        summary="Derive mount mappings from docker inspect or mountinfo text.",
        errors=("invalid_path",),
        example={"mountinfo": "36 35 98:0 /mnt1 /mnt2 rw - ext3 /dev/root rw\n"},
        shows=".mounts",
    ),
)
