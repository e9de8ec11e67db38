"""Secrets as clients see them: by rule and tag, never by their text."""

from typing import Literal

import msgspec

SecretPolicy = Literal["off", "flag", "redact"]
"""``off``: text is not looked at. ``flag``: it is kept as it came, and says what was found. ``redact``: what was found
is replaced by ``[REDACTED:rule:tag]`` before anything is kept."""


class SecretFound(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """One secret in a text, ``count`` times. ``tag`` is a keyed hash: equal secrets of one daemon have equal tags."""

    rule: str
    tag: str
    count: int = 1


class Secrets(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """What is known of the secrets in a version: the policy it was captured under, and what was found then.

    A version without this was captured under ``flag``, and nothing was found.
    """

    policy: SecretPolicy
    found: tuple[SecretFound, ...] = ()
