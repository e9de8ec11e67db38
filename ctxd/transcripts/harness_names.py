"""The harnesses: the command that starts each, and its name in sessions."""

from typing import Final, Literal

from ctxd_protocol.session_types import Harness

HarnessCommand = Literal["claude", "codex", "pi", "opencode"]

HARNESS_OF: Final[dict[HarnessCommand, Harness]] = {
    "claude": "claude-code",
    "codex": "codex",
    "pi": "pi",
    "opencode": "opencode",
}
"""The name of each harness in the labels and agents of sessions. The program of hooks has a copy."""
