"""How strict a policy is, and under which one a version was captured. Pure."""

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from ctxd_protocol.secrets import SecretPolicy, Secrets

DEFAULT: Final[SecretPolicy] = "flag"
"""What holds where nothing is said; a version that says nothing was captured under it, and nothing was found."""

_RANK: Final[dict[SecretPolicy, int]] = {"off": 0, "flag": 1, "redact": 2}


def stricter(one: SecretPolicy, other: SecretPolicy) -> SecretPolicy:
    """The stricter of both."""
    return one if _RANK[one] >= _RANK[other] else other


def captured_under(payload: Mapping[str, Any]) -> SecretPolicy:
    """The policy under which the version with ``payload`` was captured."""
    told = payload.get("secrets")
    policy: SecretPolicy = told["policy"] if told else DEFAULT
    return policy


def to_payload(secrets: Secrets | None) -> dict[str, Any]:
    """The field of a payload that tells of ``secrets``: none if there is nothing to tell."""
    return {} if secrets is None else {"secrets": msgspec.to_builtins(secrets)}


def rules_found(payload: Mapping[str, Any]) -> tuple[str, ...]:
    """The rules that found a secret in the version with ``payload``, each once."""
    told = payload.get("secrets") or {}
    return tuple(dict.fromkeys(found["rule"] for found in told.get("found", ())))
