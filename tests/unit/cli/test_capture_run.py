"""One run of ``ctx capture``: its failure does not keep the agent waiting."""

import subprocess
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ctxd.capture.stream_checkpoints import DEFAULT_POLICY, CheckpointTracker
from ctxd.capture.stream_json import StreamParser
from ctxd.cli.capture import _run
from ctxd.cli.commit_delivery import Chain, CommitDelivery
from ctxd_protocol.event_types import Event

pytestmark = pytest.mark.anyio


@pytest.mark.requirement("CAP-5")
async def test_an_agent_with_much_output_ends_if_its_capture_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(parser: StreamParser, line: bytes, at_ms: int) -> Sequence[Event]:
        raise RuntimeError("the parser failed")

    monkeypatch.setattr(StreamParser, "events", fails)
    run: Any = SimpleNamespace(socket_path=lambda: str(tmp_path / "none.sock"))
    chain = Chain(parent=None, session=None, template="", ticket="", thread="")
    delivery = CommitDelivery(run, chain, holds_input=False)
    with subprocess.Popen(["yes"], stdout=subprocess.PIPE) as agent:
        with pytest.raises(ExceptionGroup) as caught:
            await _run(delivery, CheckpointTracker(DEFAULT_POLICY), agent, 0)
        assert caught.group_contains(RuntimeError, match="the parser failed")
        assert agent.returncode is not None
