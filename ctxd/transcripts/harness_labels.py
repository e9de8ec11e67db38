"""Labels of a session that a harness has: how hooks, imports, hand-overs and ``ctx mcp`` find and describe it. Pure."""

from typing import Final

HARNESS: Final = "harness"
"""The harness."""

NATIVE_SESSION: Final = "native_session"
"""The harness's own id of the session, cut to ``NATIVE_CHARS_MAX``."""

IMPORTED: Final = "imported"
"""The imported file."""

PARSER: Final = "parser"
"""Format and version of the reader that imported the file."""

HIDDEN: Final = "hidden"
"""Reason for which the harness does not list the session."""

HANDED_OVER: Final = "handed_over"
"""Start of the file that a hand-over wrote."""

SPAWNED_BY: Final = "spawned_by"
"""The session of the agent that started this one as a sub-agent."""

HARNESS_LABELS: Final = frozenset({HARNESS, NATIVE_SESSION, IMPORTED, PARSER, HIDDEN, HANDED_OVER, SPAWNED_BY})
"""All of them."""

NATIVE_CHARS_MAX: Final = 256
"""Maximum characters of a harness's session id in a label."""
