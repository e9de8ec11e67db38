"""Registration of a sandbox and its stored form: the properties fixed for its lifetime. Pure but for randomness.

A registration is an entity of the store: a row of the journal, flushed before the harness receives the reply. An
acknowledged one therefore survives a kill and is in every backup with its sessions, and no second file has to agree
with the journal about the existing sandboxes.
"""

import base64
import os
import secrets
from collections.abc import Sequence
from typing import Final

import msgspec

from ctxd.errors import CtxdError
from ctxd.mounts.mapping import normalise
from ctxd.objects.document import Document, Stored, document_without_source
from ctxd_protocol.methods import GRANTS
from ctxd_protocol.sandbox_types import Grant, Quota
from ctxd_protocol.session_types import Mount

PREFIX: Final = "sandbox:"
"""Prefix of the ids of registrations in the store."""

_ID_BYTES: Final = 10
"""Random bytes of an id: 80 bits cannot be guessed, and 16 characters leave room in a socket's path."""

_FORBIDDEN_ROOTS: Final = ("/proc", "/sys", "/dev", "/run")
"""Directories of the host without projects: kernel files, devices and sockets."""


class Registration(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One sandbox, as registered. ``expires_at`` (ms since 1970) is that of the newest renewal; ``None`` without
    ``ttl_s``: a connection then holds the lease, which ends ``grace_s`` seconds after the connection."""

    id: str
    principal: str
    sessions: tuple[str, ...]
    mounts: tuple[Mount, ...] = ()
    grants: tuple[Grant, ...]
    quota: Quota = Quota()
    ttl_s: int | None = None
    grace_s: int
    uid: int | None = None
    created_at: int
    expires_at: int | None = None

    @property
    def methods(self) -> frozenset[str]:
        """The methods that it may call in addition to those of every connection."""
        return frozenset(name for grant in self.grants for name in GRANTS[grant])


def new_id() -> str:
    """An unguessable id of lower-case letters and digits."""
    return base64.b32encode(secrets.token_bytes(_ID_BYTES)).decode().lower()


def entity_id(sandbox: str) -> str:
    """The id in the store of the registration of ``sandbox``."""
    return PREFIX + sandbox


def document(registration: Registration) -> Document:
    """The stored form of the registration."""
    return document_without_source(entity_id(registration.id), "sandbox", msgspec.to_builtins(registration))


def read(stored: Stored) -> Registration:
    """Decode the registration in a version. Raises: CtxdError corrupt."""
    try:
        return msgspec.convert(stored.document.payload, Registration)
    except msgspec.ValidationError as error:
        raise CtxdError("corrupt", f"the registration {stored.document.id} cannot be read") from error


def _led_to(named: str) -> str:
    try:
        return os.path.realpath(named)
    except OSError:
        return "/"  # A link that the daemon may not read could point anywhere.


def _is_kept_away(root: str, kept: Sequence[str]) -> bool:
    if root == "/" or any(root == each or root.startswith(each + "/") for each in _FORBIDDEN_ROOTS):
        return True
    return any(f"{root}/".startswith(each + "/") or each.startswith(root + "/") for each in kept)


def require_plain_roots(mounts: tuple[Mount, ...], kept: Sequence[str]) -> None:
    """Refuse mounts that would show a sandbox more of the host than a project, in any spelling. Resolves symlinks; may
    block.

    Raises: CtxdError invalid_path for the root, kernel and device directories, and for directories that contain, or are
        in, one of ``kept``, the daemon's own directories.
    """
    for mount in mounts:
        named = normalise(mount.canonical_prefix)
        if _is_kept_away(named, kept) or _is_kept_away(_led_to(named), kept):
            raise CtxdError(
                "invalid_path",
                f"{mount.canonical_prefix} cannot be mounted in a sandbox: system and daemon directories are excluded",
                hint="Mount the directory of a project.",
                outcome="not_applied",
            )
