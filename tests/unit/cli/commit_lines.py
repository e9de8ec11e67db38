"""Deltas of the commits that tests of commands make."""

import json

LINES = "claude-code-v1"
AT = 1_700_000_000_000


def line(text):
    return json.dumps({"type": "user", "message": {"content": text}}) + "\n"
