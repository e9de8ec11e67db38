"""Policy on secrets: the stricter of two, the one that a version was captured under, and the binary content that it
keeps. Pure."""

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from ctxd_protocol.secret_types import SecretPolicy, Secrets

DEFAULT: Final[SecretPolicy] = "flag"
"""The policy of a session that sets none; a version without the field was captured under it and has no findings."""

_RANK: Final[dict[SecretPolicy, int]] = {"off": 0, "flag": 1, "redact": 2}


def stricter(one: SecretPolicy, other: SecretPolicy) -> SecretPolicy:
    """The stricter of the two."""
    return one if _RANK[one] >= _RANK[other] else other


def captured_under(payload: Mapping[str, Any]) -> SecretPolicy:
    """The policy under which the version with ``payload`` was captured."""
    secrets = payload.get("secrets")
    policy: SecretPolicy = secrets["policy"] if secrets else DEFAULT
    return policy


def is_laxer(payload: Mapping[str, Any], policy: SecretPolicy) -> bool:
    """Return True if the version with ``payload`` was captured under a laxer policy than ``policy``."""
    return _RANK[captured_under(payload)] < _RANK[policy]


IMAGE_MEDIA_TYPES: Final = ("image/png", "image/jpeg", "image/gif", "image/webp")
"""Media types of the images that models of all providers can read."""


def keeps_bytes(media_type: str, policy: SecretPolicy) -> bool:
    """Return True if bytes of ``media_type``, which cannot be searched for secrets, are kept under ``policy``.

    Under ``redact`` only images are kept; for other bytes, only the hash.
    """
    return policy != "redact" or media_type in IMAGE_MEDIA_TYPES


def to_payload(secrets: Secrets | None) -> dict[str, Any]:
    """Return the payload's field for ``secrets``: empty if there are no findings under the default policy."""
    return {} if secrets is None else {"secrets": msgspec.to_builtins(secrets)}


def rules_found(payload: Mapping[str, Any]) -> tuple[str, ...]:
    """The rules that found a secret in the version with ``payload``, each once."""
    recorded = payload.get("secrets") or {}
    return tuple(dict.fromkeys(found["rule"] for found in recorded.get("found", ())))
