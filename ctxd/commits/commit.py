"""A commit: its stored form, its rules, and its form on the wire.

Pure. A commit's entity has one version per change of its summary or tags; no other field changes. Commits of newer
programs are read without their unknown fields, and are never rewritten.
"""

from datetime import UTC, datetime, timedelta
from typing import Any, Final

import msgspec

from ctxd.errors import CtxdError
from ctxd.objects.commit_document import Fields, commit_hash, commit_id, created_at, entity_id
from ctxd.objects.document import Document, Stored
from ctxd.objects.hashing import identity_hash
from ctxd.objects.version_state import is_purged
from ctxd.secrets.policy import to_payload
from ctxd_protocol.methods import commits as wire
from ctxd_protocol.secret_types import Secrets

VERSION: Final = 1
"""The version of commits that this program writes."""

_MS: Final = timedelta(milliseconds=1)


def is_same(one: Fields, other: Fields) -> bool:
    """True if both differ at most in the instant."""
    return msgspec.structs.replace(one, at=other.at) == other


def document(commit: str, fields: Fields, artifact_ref: str, secrets: Secrets | None) -> Document:
    """The first version of ``commit``, without its content, whose hash is ``artifact_ref``."""
    payload: dict[str, Any] = {**msgspec.to_builtins(fields), **to_payload(secrets)}
    id = entity_id(commit)
    return Document(
        id=id,
        type="commit",
        identity_hash=identity_hash("commit", None, id),
        content_hash=commit_hash(payload, artifact_ref),
        payload=payload,
    )


def read_fields(stored: Stored) -> Fields:
    """The fields of the version ``stored``. Raises: CtxdError ``corrupt``."""
    try:
        return msgspec.convert(stored.document.payload, Fields)
    except msgspec.ValidationError as error:
        raise CtxdError("corrupt", f"commit {commit_id(stored.document.id)} is damaged: {error}") from error


def require_writable(commit: str, fields: Fields) -> None:
    """Raises: CtxdError ``unsupported`` if a newer program wrote ``commit``."""
    if fields.version > VERSION:
        message = f"commit {commit} has version {fields.version}; this ctxd changes commits up to version {VERSION}"
        raise CtxdError("unsupported", message, hint="Upgrade ctxd.", outcome="not_applied")


def shown(stored: Stored, *, confined: bool) -> wire.Commit:
    """The wire form of the version ``stored``, without the machine's name for a sandbox."""
    fields = read_fields(stored)
    return wire.Commit(
        commit=commit_id(stored.document.id),
        parent=fields.parent or None,
        commit_type=fields.commit_type,
        artifact_ref=None if is_purged(stored.document) else stored.content_ref,
        format=fields.format,
        template=fields.template or "",
        principal=fields.principal,
        machine="" if confined else fields.machine,
        session=fields.session,
        checkpoint=fields.checkpoint,
        ticket_id=fields.ticket_id,
        thread_id=fields.thread_id,
        summary=fields.summary,
        tags=fields.tags or (),
        message_count=fields.message_count,
        token_count=fields.token_count,
        depth=fields.depth,
        created_at=created_at(fields.at),
        created_at_ms=fields.at,
        version=fields.version,
        tx=stored.tx,
    )


def instant_ms(text: str) -> int:
    """The instant ``text``, ISO 8601 with an offset, in ms since 1970.

    Raises: CtxdError ``invalid_params`` for anything else, and for a time without an offset.
    """
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        moment = None
    if moment is None or moment.tzinfo is None:
        raise CtxdError(
            "invalid_params",
            f"at is {text[:40]!r}, not an instant in ISO 8601 with an offset",
            hint="Write 2026-05-01T12:00:00Z or 2026-05-01T14:00:00+02:00.",
        )
    try:
        # Round down: a commit later in the same millisecond is not at or before the instant.
        return int((moment - datetime(1970, 1, 1, tzinfo=UTC)) // _MS)
    except OverflowError as error:
        raise CtxdError("invalid_params", f"at is {text[:40]!r}, out of range") from error
