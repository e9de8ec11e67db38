"""Families of secrets with a known form, each with a check that reduces false positives. Pure data.

A pattern is RE2 over bytes. The secret is the group ``s``, or the whole match if the pattern has no such group.
"""

from collections.abc import Callable
from typing import Final

import msgspec

from ctxd.secrets import secret_validators

Check = Callable[[bytes], bool]


class Rule(msgspec.Struct, frozen=True, kw_only=True):
    """One family. ``check`` decides about a secret; ``end`` finds its end, given the text and the end of the match.

    ``loose``: the form is generic, so a secret that another rule finds within it has precedence. ``custom``: it comes
    from a file of rules, so its pattern may be anything that RE2 accepts.
    """

    name: str
    pattern: str
    check: Check | None = None
    end: Callable[[bytes, int], int | None] | None = None
    loose: bool = False
    custom: bool = False


EDGE: Final = r"(?:\b|\\[nrtbf])"
"""Beginning of a word, also after an escape: in source code or JSON, an escaped line feed ends with a letter."""


def _rule(name: str, pattern: str, check: Check | None = secret_validators.is_random) -> Rule:
    if pattern.startswith(r"\b"):
        pattern = f"{EDGE}(?P<s>{pattern[2:].replace('|' + chr(92) + 'b', '|')})"
    return Rule(name=name, pattern=pattern, check=check)


def _not_example(value: bytes) -> bool:
    return not secret_validators.is_placeholder(value)


_B64URL: Final = "[A-Za-z0-9_-]"
_QUOTE: Final = r"(?:\\{0,3}[\"'])?"
"""An optional quote, escaped where the text itself is quoted."""

_CLOUD: Final = (
    _rule("aws-access-key", r"\b(?:AKIA|ASIA|ABIA|ACCA)[A-Z2-7]{16}\b", _not_example),
    _rule(
        "aws-secret-key",
        rf"(?i:aws_?-?(?:[a-z_-]{{0,20}})(?:secret|sk)[a-z_-]{{0,20}}){_QUOTE}\s{{0,3}}(?:=|:|=>)\s{{0,3}}{_QUOTE}"
        r"(?P<s>[A-Za-z0-9/+]{40})(?:[^A-Za-z0-9/+=]|\z)",
    ),
    _rule("gcp-api-key", r"\bAIza[A-Za-z0-9_-]{35}"),
    _rule("gcp-oauth", r"\b(?:ya29\.[A-Za-z0-9_-]{30,}|GOCSPX-[A-Za-z0-9_-]{28})"),
    _rule("azure-storage-key", r"AccountKey=(?P<s>[A-Za-z0-9+/]{86}==)"),
    _rule("azure-client-secret", r"\b[A-Za-z0-9_~.]{3}[0-9]Q~[A-Za-z0-9_~.-]{31,34}"),
    _rule("digitalocean-token", r"\bdo[opr]_v1_[0-9a-f]{64}\b"),
    _rule("cloudflare-token", r"\bv1\.0-[0-9a-f]{24}-[0-9a-f]{100,}\b"),
    _rule("databricks-token", r"\bdapi[0-9a-f]{32}(?:-[0-9])?\b"),
    _rule("vault-token", r"\bhv[sbr]\.[A-Za-z0-9_-]{24,}"),
    _rule("doppler-token", r"\bdp\.(?:pt|st|ct|sa|scim|audit)\.[A-Za-z0-9_.-]{40,64}"),
    _rule("age-key", r"\bAGE-SECRET-KEY-1[A-Z0-9]{58}\b", secret_validators.is_bech32),
)

_FORGES: Final = (
    _rule("github-token", r"\bgh[pousr]_[A-Za-z0-9]{36}\b", secret_validators.has_crc),
    _rule("github-fine-token", r"\bgithub_pat_[A-Za-z0-9]{22}_[A-Za-z0-9]{59}\b"),
    _rule("gitlab-token", r"\bgl(?:pat|dt|rt|cbt|ptt|ft|imt|agent|soat|oas|ffct)-[A-Za-z0-9_=-]{20,64}"),
    _rule("atlassian-token", r"\bATATT3[A-Za-z0-9_=-]{100,}"),
    _rule("bitbucket-token", r"\bATBB[A-Za-z0-9]{28}[A-Fa-f0-9]{8}\b|\bATCTT3[A-Za-z0-9_=-]{100,}"),
    _rule("npm-token", r"\bnpm_[A-Za-z0-9]{36}\b", secret_validators.has_crc),
    _rule("pypi-token", r"\bpypi-AgE[A-Za-z0-9_-]{50,}"),
    _rule("rubygems-token", r"\brubygems_[0-9a-f]{48}\b"),
    _rule("crates-token", r"\bcio[A-Za-z0-9]{32}\b"),
    _rule("docker-token", r"\bdckr_(?:pat|oat)_[A-Za-z0-9_-]{27,64}"),
)

_CHAT: Final = (
    _rule("slack-token", r"\bxox[abeoprs]-(?:[0-9]{1,14}-){0,4}[A-Za-z0-9-]{10,}"),
    _rule("slack-app-token", r"\bxapp-[0-9]-[A-Z0-9]{8,14}-[0-9]{8,16}-[a-f0-9]{40,80}"),
    _rule(
        "slack-webhook",
        r"https://hooks\.slack(?:-gov)?\.com/(?:services|workflows|triggers)/(?P<s>[A-Za-z0-9/]{40,90})",
    ),
    _rule(
        "discord-token",
        r"\b[MNO][A-Za-z0-9_-]{23,25}\.[A-Za-z0-9_-]{6}\.[A-Za-z0-9_-]{27,38}",
        secret_validators.is_bot_number,
    ),
    _rule("discord-webhook", r"discord(?:app)?\.com/api/webhooks/[0-9]{17,20}/(?P<s>[A-Za-z0-9_-]{60,80})"),
    _rule("telegram-token", r"\b[0-9]{8,10}:AA[A-Za-z0-9_-]{33}"),
)

_SERVICES: Final = (
    _rule("anthropic-key", r"\bsk-ant-[a-z]{2,10}[0-9]{2}-[A-Za-z0-9_-]{60,}"),
    _rule("openai-key", r"\bsk-(?:[a-z]{4,10}-)?[A-Za-z0-9_-]{16,80}T3BlbkFJ[A-Za-z0-9_-]{16,80}"),
    _rule("sk-key", r"\bsk-(?:[a-z]{2,8}-)?(?:v[0-9]-)?[A-Za-z0-9_]{32,}\b"),
    _rule("stripe-key", r"\b(?:[rs]k_(?:live|test)|whsec)_[A-Za-z0-9+/]{16,}"),
    _rule("huggingface-token", r"\bhf_[A-Za-z]{34}\b", _not_example),
    _rule("sendgrid-key", r"\bSG\.[A-Za-z0-9_-]{22}\.[A-Za-z0-9_-]{43}"),
    _rule("twilio-key", r"\bSK[0-9a-f]{32}\b"),
    _rule("mailgun-key", r"\bkey-[0-9a-f]{32}\b"),
    _rule("shopify-token", r"\bshp(?:at|ca|pa|ss)_[0-9a-fA-F]{32}\b"),
    _rule("linear-key", r"\blin_(?:api|oauth)_[A-Za-z0-9]{40,64}\b"),
    _rule("notion-key", r"\bntn_[A-Za-z0-9]{40,50}\b|\bsecret_[A-Za-z0-9]{43}\b"),
)

_FORMS: Final = (
    _rule("jwt", rf"\beyJ{_B64URL}{{10,}}\.eyJ{_B64URL}{{10,}}\.{_B64URL}{{16,}}", secret_validators.is_jwt),
    Rule(
        name="private-key",
        pattern=r"-----BEGIN [A-Z0-9 ]{0,40}PRIVATE KEY(?: BLOCK)?-----",
        end=secret_validators.pem_end,
    ),
    _rule(
        "url-credentials",
        r"://[A-Za-z0-9._~%!$&*+=-]{0,64}:(?P<s>[A-Za-z0-9._~%!$&*+=:,;#^?{}\[\]()-]{3,})"
        r"@[A-Za-z0-9_\[]",
        secret_validators.is_url_password,
    ),
    _rule(
        "authorization-header",
        rf"(?i:authorization{_QUOTE}\s{{0,2}}[:=]\s{{0,2}}{_QUOTE}(?:bearer|basic|token)\s{{1,2}})"
        r"(?P<s>[A-Za-z0-9+/=._~-]{16,})",
    ),
)

_NAMES: Final = (
    r"(?:api[_-]?key|apikey|secret|token|credentials?|auth[_-]?key|private[_-]?key|access[_-]?key|client[_-]?key|"
    r"signing[_-]?key|encryption[_-]?key)"
)
_PASSWORDS: Final = r"(?:passw(?:or)?d|passphrase|[_-]pass|pwd)"

NAME: Final = rf"(?i:{_NAMES}|{_PASSWORDS}|authorization|aws_?-?[a-z_-]*(?:secret|sk))[a-z0-9_-]{{0,16}}"
"""Every name that makes its value a secret; the match may begin anywhere in the name."""

_LOOSE: Final = (
    Rule(
        name="assigned-password",
        pattern=rf"(?i:{_PASSWORDS}[a-z0-9_-]{{0,16}}){_QUOTE}\s{{0,4}}(?::=|=>|=|:)\s{{0,4}}\\{{0,3}}[\"'`]"
        r"(?P<s>[!-&(-\[\]-_a-~]{8,64})\\{0,3}[\"'`]",
        check=secret_validators.is_password,
        loose=True,
    ),
    Rule(
        name="assigned-secret",
        pattern=rf"(?i:(?:{_NAMES}|{_PASSWORDS})[a-z0-9_-]{{0,16}}){_QUOTE}\s{{0,4}}(?::=|=>|=|:)\s{{0,4}}(?:\\{{0,3}}[\"'`])?"
        r"(?P<s>[A-Za-z0-9+/_.~!@$%^*=-]{16,256})(?:[^A-Za-z0-9(\[]|\z)",
        check=secret_validators.is_unlikely_word,
        loose=True,
    ),
)

BUILT_IN: Final[tuple[Rule, ...]] = (*_CLOUD, *_FORGES, *_CHAT, *_SERVICES, *_FORMS, *_LOOSE)
"""The rules that apply unless a file of rules disables them."""
