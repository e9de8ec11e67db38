"""Capture of secrets under a policy: flagged by rule and tag, or replaced by ``[REDACTED:rule:tag]``.

Pure except for the given key. Without the key, no tag and no keyed hash reveals its input; equal secrets have equal
tags; redacting a text again does not change it.
"""

import json
import os
from collections.abc import Iterable, Sequence
from typing import Any, Final

import msgspec
from blake3 import blake3

from ctxd.secrets.policy import DEFAULT
from ctxd.secrets.scanner import Hit, Scanner, built_in_scanner
from ctxd_protocol.secret_types import SecretFound, SecretPolicy, Secrets

KEY_BYTES: Final = 32
"""Bytes of a key."""

TAG_DIGITS: Final = 8
"""Hex digits of a tag: enough to distinguish a host's secrets, too few to recover one."""

_APART: Final = "\n"
"""Separator between texts that are scanned together."""

_AGAIN: Final = 64 * 1024
"""Bytes at the end of a piece that are searched again with the next one, and bytes kept before them, so that a name
which makes its value a secret is included. A secret of any kind is shorter."""

_NAMED_MAX: Final = 1024
"""Characters of a text above which its name is ignored: it is too long to be a value assigned to a name."""


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
        """Return the keyed form of ``source_hash``, 64 hex digits each, so that the hashed bytes cannot be guessed."""
        return blake3(bytes.fromhex(source_hash), key=self._key).hexdigest()

    def by(self, author: str) -> "Guard":
        """A guard with the same rules whose tags match no other author's.

        Content recorded by a sandbox, and files that it may have written, get tags of their own: otherwise the sandbox
        could learn a redacted secret by recording guesses and comparing tags.
        """
        return Guard(self.scanner, blake3(author.encode(), key=self._key).digest())

    def redacted(self, text: str) -> str:
        """``text`` with every secret replaced, whatever the policy: for text that leaves the store."""
        return Capture(self, "redact").text(text)


def ephemeral_guard() -> Guard:
    """A guard with the built-in rules and a random key, for uses where no tag outlives the process."""
    return Guard(built_in_scanner(), os.urandom(KEY_BYTES))


class Capture(msgspec.Struct):
    """Capture of one version under ``policy``. All of its texts pass through it; ``secrets`` has the sum of their
    findings."""

    guard: Guard
    policy: SecretPolicy
    _counts: dict[tuple[str, str], int] = msgspec.field(default_factory=dict)

    @property
    def secrets(self) -> Secrets | None:
        """Return the findings so far; None without any under the default policy."""
        if not self._counts and self.policy == DEFAULT:
            return None
        found = tuple(SecretFound(rule=rule, tag=tag, count=n) for (rule, tag), n in self._counts.items())
        return Secrets(policy=self.policy, found=found)

    @property
    def redacted(self) -> bool:
        """True if anything was replaced."""
        return self.policy == "redact" and bool(self._counts)

    def add(self, secrets: Secrets | None) -> None:
        """Add the findings of another capture under the same policy."""
        for one in () if secrets is None else secrets.found:
            self._counts[one.rule, one.tag] = self._counts.get((one.rule, one.tag), 0) + one.count

    def search(self, pieces: Iterable[bytes]) -> Hit | None:
        """Count the secrets in bytes of any kind, which come in pieces and cannot be redacted, whatever the policy.
        Returns: the first one, with its offsets in the whole."""
        first: Hit | None = None
        window, at, done = b"", 0, 0
        left = iter(pieces)
        piece = next(left, None)
        while piece is not None:
            following = next(left, None)
            window += piece
            end = at + len(window)
            # A secret that begins near the end may continue in the next piece.
            final = end if following is None else max(done, end - _AGAIN)
            for hit in self.guard.scanner.hits(window):
                if done <= at + hit.start < final:
                    first = first or Hit(hit.rule, at + hit.start, at + hit.end)
                    self._count(hit.rule, window[hit.start : hit.end])
                    done = at + hit.end
            done = max(done, final)
            keep = max(at, min(done, end) - _AGAIN)
            window, at, piece = window[keep - at :], keep, following
        return first

    def _count(self, rule: str, secret: bytes) -> str:
        """Count a secret. Returns: its tag."""
        tag = self.guard.tag(secret)
        self._counts[rule, tag] = self._counts.get((rule, tag), 0) + 1
        return tag

    def text(self, text: str) -> str:
        """``text`` as the policy keeps it."""
        if self.policy == "off":
            return text
        data = text.encode("utf-8", "surrogatepass")
        hits = self.guard.scanner.hits(data)
        return self._kept(text, data, hits) if hits else text

    def finds_nothing(self, value: Any, *texts: str) -> bool:  # noqa: ANN401 - for any JSON value
        """True if ``value`` and ``texts``, scanned together, hold nothing to flag or redact."""
        if self.policy == "off":
            return True
        # Scan strings decoded, as an escape of JSON hides the beginning of a word, and short ones after their name too;
        # scan lists in order, so that lines stay together.
        found: list[str] = []
        left: list[tuple[str, Any]] = [("", value)]
        while left:
            name, item = left.pop()
            if isinstance(item, str):
                found.append(item)
                if name and len(item) <= _NAMED_MAX:
                    found.append(f'{name}="{item}"')
            elif isinstance(item, dict):
                found += item
                left += item.items()
            elif isinstance(item, list | tuple):
                found += [inner for inner in item if isinstance(inner, str)]
                left += [(name, inner) for inner in reversed(item) if name or not isinstance(inner, str)]
        text = _APART.join((*found, *texts))
        return not self.guard.scanner.hits(text.encode("utf-8", "surrogatepass"), first_only=True)

    def value(self, value: Any) -> Any:  # noqa: ANN401 - for any JSON value
        """A JSON value as the policy keeps it, including names; a text under a suspicious name is scanned together with
        it, and a list of single-line texts as the lines of one text."""
        if self.finds_nothing(value):
            return value
        return self._walked(value, "")

    def json(self, text: str) -> str:
        """JSON ``text`` as the policy keeps it: unchanged, unless something in it is redacted.

        If an object repeats a name, all members with it are searched, and a redaction keeps only the last one. Raises:
        ValueError, RecursionError if it is not JSON.
        """
        shadowed: list[Any] = []

        def members(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
            found = dict(pairs)
            if len(found) < len(pairs):
                # Parsers keep the last member of a name, but a secret in another one is in the text all the same.
                shadowed.extend(value for name, value in pairs if found[name] is not value)
            return found

        value = json.loads(text, object_pairs_hook=members)
        kept = self.value(value)
        # Search each of them, so that each is counted.
        changed = [each for each in shadowed if self.value(each) is not each]
        if kept is value and not changed:
            return text
        try:
            whole = json.dumps(kept, ensure_ascii=False, separators=(",", ":"))
            whole.encode()
        except UnicodeEncodeError:
            return json.dumps(kept, separators=(",", ":"))  # Half of a surrogate pair stays an escape.
        return whole

    def _walked(self, value: Any, name: str) -> Any:  # noqa: ANN401
        if isinstance(value, str):
            return self._named(name, value)
        if isinstance(value, dict):
            return {self._named("", key): self._walked(item, key) for key, item in value.items()}
        if isinstance(value, list | tuple):
            return self._lines(value) or [self._walked(item, name) for item in value]
        return value

    def _lines(self, items: Sequence[Any]) -> list[str] | None:
        """``items`` as the policy keeps them if they are lines with a secret that spans several of them; else None."""
        if len(items) < 2 or not all(isinstance(item, str) and "\n" not in item for item in items):
            return None
        text = "\n".join(items)
        data = text.encode("utf-8", "surrogatepass")
        hits = self.guard.scanner.hits(data)
        if not any(b"\n" in data[hit.start : hit.end] for hit in hits):
            return None
        return self._kept(text, data, hits).split("\n")

    def _named(self, name: str, text: str) -> str:
        data = text.encode("utf-8", "surrogatepass")
        hits = self.guard.scanner.hits(data)
        if not hits and name and len(text) <= _NAMED_MAX:
            prefix = f'{name}="'.encode("utf-8", "surrogatepass")
            end = len(prefix) + len(data)
            hits = [
                Hit(hit.rule, hit.start - len(prefix), min(hit.end, end) - len(prefix))
                for hit in self.guard.scanner.hits(prefix + data + b'"')
                if hit.start >= len(prefix)
            ]
        return self._kept(text, data, hits) if hits else text

    def _kept(self, text: str, data: bytes, hits: list[Hit]) -> str:
        parts: list[bytes] = []
        at = 0
        for hit in hits:
            tag = self._count(hit.rule, data[hit.start : hit.end])
            parts += (data[at : hit.start], f"[REDACTED:{hit.rule}:{tag}]".encode())
            at = hit.end
        if self.policy != "redact":
            return text
        return b"".join((*parts, data[at:])).decode("utf-8", "surrogatepass")
