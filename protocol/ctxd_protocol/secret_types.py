"""Secrets as clients see them: by rule and tag, never by their text."""

from typing import Literal

import msgspec

SecretPolicy = Literal["off", "flag", "redact"]
"""``off``: text is not searched. ``flag``: text is stored unchanged, with the findings. ``redact``: each finding is
replaced by ``[REDACTED:rule:tag]`` before the text is stored."""


class SecretFound(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """One secret in a text, ``count`` times. ``tag`` is a keyed hash: equal secrets of one daemon have equal tags."""

    rule: str
    tag: str
    count: int = 1


class Secrets(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """Secrets of a version: the policy at its capture, and the findings.

    A version without this was captured under ``flag``, with no findings.
    """

    policy: SecretPolicy
    found: tuple[SecretFound, ...] = ()
