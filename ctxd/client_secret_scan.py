"""The search for secrets by a client of the daemon, with the rules of this host."""

import os
from pathlib import Path

from ctxd.config import load
from ctxd.secrets.custom_rules import scanner_of
from ctxd.secrets.redaction import KEY_BYTES, Guard


def host_guard(rules: Path | None = None) -> Guard:
    """Return a guard with the built-in rules and those of the file ``rules``, by default the configured one.

    A client may not read the daemon's key: tags are only comparable within one guard.
    Raises: RulesRefused for invalid rules; ConfigError.
    """
    return Guard(scanner_of(rules or load().secrets_rules), os.urandom(KEY_BYTES))
