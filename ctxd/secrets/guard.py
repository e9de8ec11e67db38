"""What capture does with secrets: flags them by rule and tag, or puts ``[REDACTED:rule:tag]`` in their place.

Pure but for the key it is given. The promises: without the key, nobody can tell from a tag or a keyed hash what it was
made of; equal secrets have equal tags; text that was redacted once is not changed by being redacted again.
"""

import os
from typing import Any, Final

import msgspec
from blake3 import blake3

from ctxd.secrets.policy import DEFAULT
from ctxd.secrets.scan import Hit, Scanner
from ctxd_protocol.secrets import SecretFound, SecretPolicy, Secrets

KEY_BYTES: Final = 32
"""Bytes of a key."""

TAG_DIGITS: Final = 8
"""Hex digits of a tag: enough to tell a host's secrets apart, too few to be worth anything."""

_encode: Final = msgspec.json.Encoder().encode

_APART: Final = b"\n\n"
"""What stands between two texts that are looked at together."""


class Guard:
    """Scans with one set of rules, and hashes with one key."""

    def __init__(self, scanner: Scanner, key: bytes) -> None:
        """``key`` has 32 bytes."""
        self.scanner = scanner
        self._key = key

    def tag(self, secret: bytes) -> str:
        """The tag of ``secret``: 8 hex digits."""
        return blake3(secret, key=self._key).hexdigest()[:TAG_DIGITS]

    def keyed_hash(self, source_hash: str) -> str:
        """What stands for ``source_hash``, 64 hex digits, where the bytes it is of must not be guessed: 64 others."""
        return blake3(bytes.fromhex(source_hash), key=self._key).hexdigest()

    def capture(self, policy: SecretPolicy) -> "Capture":
        """Begin to capture one version under ``policy``."""
        return Capture(self, policy)

    def redacted(self, text: str) -> str:
        """``text`` with every secret replaced, whatever the policy: for what leaves the store."""
        return self.capture("redact").text(text)


def fleeting_guard() -> Guard:
    """A guard with the built-in rules and a key of its own, for where nothing outlives the process."""
    return Guard(Scanner(), os.urandom(KEY_BYTES))


class Capture:
    """One version on its way into the store: each of its texts passes through here, then ``secrets`` tells of all."""

    __slots__ = ("_counts", "_guard", "_policy")

    def __init__(self, guard: Guard, policy: SecretPolicy) -> None:
        self._guard = guard
        self._policy = policy
        self._counts: dict[tuple[str, str], int] = {}

    @property
    def secrets(self) -> Secrets | None:
        """What was found so far; null if nothing was and the policy is the one that need not be told."""
        if not self._counts and self._policy == DEFAULT:
            return None
        found = tuple(SecretFound(rule=rule, tag=tag, count=n) for (rule, tag), n in self._counts.items())
        return Secrets(policy=self._policy, found=found)

    @property
    def redacted(self) -> bool:
        """Whether anything was replaced."""
        return self._policy == "redact" and bool(self._counts)

    def text(self, text: str) -> str:
        """``text`` as it is to be kept."""
        if self._policy == "off":
            return text
        data = text.encode("utf-8", "surrogatepass")
        hits = self._guard.scanner.hits(data)
        return self._kept(text, data, hits) if hits else text

    def finds_nothing(self, value: Any, *texts: str) -> bool:  # noqa: ANN401 - any JSON value is what it is for
        """Whether ``value`` and ``texts``, looked at in one go, hold nothing that would be flagged or redacted."""
        if self._policy == "off":
            return True
        parts = (_encode(value), *(text.encode("utf-8", "surrogatepass") for text in texts))
        return not self._guard.scanner.hits(_APART.join(parts))

    def value(self, value: Any) -> Any:  # noqa: ANN401 - any JSON value is what it is for
        """A JSON value as it is to be kept; a text under a telling name is looked at together with its name."""
        if self._policy == "off" or not self._guard.scanner.hits(_encode(value)):
            return value
        return self._walked(value, "")

    def _walked(self, value: Any, name: str) -> Any:  # noqa: ANN401
        if isinstance(value, str):
            return self._named(name, value)
        if isinstance(value, dict):
            return {key: self._walked(item, key) for key, item in value.items()}
        if isinstance(value, list | tuple):
            return [self._walked(item, name) for item in value]
        return value

    def _named(self, name: str, text: str) -> str:
        data = text.encode("utf-8", "surrogatepass")
        hits = self._guard.scanner.hits(data)
        if not hits and name:
            prefix = f'{name}="'.encode()
            end = len(prefix) + len(data)
            hits = [
                Hit(hit.rule, hit.start - len(prefix), min(hit.end, end) - len(prefix))
                for hit in self._guard.scanner.hits(prefix + data + b'"')
                if hit.start >= len(prefix)
            ]
        return self._kept(text, data, hits) if hits else text

    def _kept(self, text: str, data: bytes, hits: list[Hit]) -> str:
        parts: list[bytes] = []
        at = 0
        for hit in hits:
            tag = self._guard.tag(data[hit.start : hit.end])
            self._counts[hit.rule, tag] = self._counts.get((hit.rule, tag), 0) + 1
            parts += (data[at : hit.start], f"[REDACTED:{hit.rule}:{tag}]".encode())
            at = hit.end
        if self._policy != "redact":
            return text
        return b"".join((*parts, data[at:])).decode("utf-8", "surrogatepass")
