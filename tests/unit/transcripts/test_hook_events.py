"""The input of hooks that cannot be read."""

import json

import pytest

from ctxd.transcripts.hook_events import read_hook


@pytest.mark.parametrize("missing", ["session_id", "hook_event_name"])
def test_the_missing_member_is_named(missing: str) -> None:
    given = {"session_id": "n1", "hook_event_name": "Stop"}
    del given[missing]
    with pytest.raises(ValueError, match=f"has a text {missing}"):
        read_hook("claude-code", json.dumps(given), 1)
