"""A file of rules (TOML): families to add, built-in families to leave out, and texts that are not secrets.

```toml
disable = ["assigned-secret"]
allow = ["AKIA7QYV3M5N2X4PLRWD"]

[[rule]]
name = "acme-token"
pattern = 'acme_(?P<s>[0-9a-f]{32})'
entropy = 3.0
```

The whole file is checked before any of it takes effect.
"""

import math
import tomllib
from functools import partial
from pathlib import Path
from typing import Annotated, Final

import msgspec

from ctxd.secrets.built_in_rules import BUILT_IN, Rule
from ctxd.secrets.scanner import RefusedPattern, Scanner, built_in_scanner, compiled
from ctxd.secrets.secret_validators import entropy

RULES_MAX: Final = 200
"""Maximum rules of one file. Each one enlarges the combined pattern."""

_NAME: Final = r"^[a-z][a-z0-9-]{1,39}$(?!\n)"


class RulesRefused(Exception):
    """A file of rules that cannot be used. The message names the file, the rule, and the fault."""


class _Rule(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    name: Annotated[str, msgspec.Meta(pattern=_NAME)]
    pattern: Annotated[str, msgspec.Meta(min_length=1, max_length=2000)]
    entropy: Annotated[float, msgspec.Meta(ge=0, le=8)] = 0.0


class _File(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    rule: Annotated[tuple[_Rule, ...], msgspec.Meta(max_length=RULES_MAX)] = ()
    disable: tuple[str, ...] = ()
    allow: tuple[Annotated[str, msgspec.Meta(min_length=1)], ...] = ()


def scanner_of(path: Path | None) -> Scanner:
    """A scanner for the built-in rules and for those of the file at ``path``, None without a file. Blocks.

    Raises: RulesRefused.
    """
    if path is None:
        return built_in_scanner()
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise RulesRefused(f"{path}: it cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise RulesRefused(f"{path}: it is not UTF-8") from error
    try:
        return _scanner(text)
    except (tomllib.TOMLDecodeError, msgspec.ValidationError, ValueError) as error:
        raise RulesRefused(f"{path}: {error}") from error


def _scanner(text: str) -> Scanner:
    file = msgspec.convert(tomllib.loads(text), _File)
    known = {rule.name for rule in BUILT_IN}
    if unknown := [name for name in file.disable if name not in known]:
        raise ValueError(f"disable: unknown rule {unknown[0]!r}; known rules: {', '.join(sorted(known))}")
    names: set[str] = set()
    for rule in file.rule:
        if rule.name in known or rule.name in names:
            raise ValueError(f"rule {rule.name}: there is a rule of that name already")
        names.add(rule.name)
        pattern = compiled(rule.name, rule.pattern)
        if any((found := pattern.search(text)) and found.start() == found.end() for text in (b"", b"a", b"-")):
            raise RefusedPattern(f"rule {rule.name}: the pattern matches the empty text")
        if math.isnan(rule.entropy):
            raise ValueError(f"rule {rule.name}: entropy is not a number; give 0 to 8 bits a character")
    own = tuple(
        Rule(name=rule.name, pattern=rule.pattern, check=partial(_has_entropy, rule.entropy), custom=True)
        for rule in file.rule
    )
    kept = tuple(rule for rule in BUILT_IN if rule.name not in file.disable)
    return Scanner((*own, *kept), [value.encode() for value in file.allow])


def _has_entropy(bits: float, value: bytes) -> bool:
    return entropy(value) >= bits
