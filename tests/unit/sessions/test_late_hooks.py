"""Hooks of tool calls that arrive after the end of their session."""

import json
from pathlib import Path
from typing import Any

import pytest

from ctxd.errors import CtxdError
from ctxd.sessions.live_session import Accepted
from tests.unit.sessions.world import World, world

pytestmark = pytest.mark.anyio

SESSION = "claude-code-n1"


async def hook(run: World, event: str, at: int, **members: Any) -> Any:
    given = {"session_id": "n1", "cwd": "/", "hook_event_name": event, **members}
    return await run.call("session.hook", harness="claude-code", input=json.dumps(given), at=at)


@pytest.mark.requirement("HOK-15")
async def test_a_late_event_whose_recording_fails_leaves_its_session_paused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    call = {"tool_name": "Bash", "tool_input": {"command": "ls"}, "tool_use_id": "c1"}
    async with world(tmp_path) as run:
        await hook(run, "UserPromptSubmit", 1, prompt="go", prompt_id="p1")
        await hook(run, "SessionEnd", 2, reason="other")
        live = await run.sessions.live(SESSION)
        assert live.settings.state == "paused"

        async def fail(*_: object, **__: object) -> Accepted:
            raise CtxdError("disk_full", "no space is left")

        with monkeypatch.context() as patch, pytest.raises(CtxdError, match="no space"):
            patch.setattr(run.operations.toolcalls, "record", fail)
            await hook(run, "PostToolUse", 1, **call)
        assert live.settings.state == "paused"
        await hook(run, "PostToolUse", 1, **call)
        live = await run.sessions.live(SESSION)
        assert live.settings.state == "paused" and "c1" in live.state.index
        # Other writes to the session need a resume.
        with pytest.raises(CtxdError) as refused:
            await run.call("toolcall.record", session=SESSION, id="c2", tool="t", content="")
        assert refused.value.code == "session_not_active"
