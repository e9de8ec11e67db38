"""IMP: messages in rollouts of codex that a person did not type as they stand there: context, images and IDE texts."""

from pathlib import Path

import pytest

from ctxd_client.sync import SyncClient
from tests.client.running import Running
from tests.spec.harness_files import Thread
from tests.spec.imported_contexts import window
from tests.spec.test_import import imported


@pytest.mark.requirement("IMP-3")
@pytest.mark.requirement("IMP-14")
def test_a_rollback_takes_back_the_turn_that_a_hook_continued(
    daemon: Running, client: SyncClient, tmp_path: Path
) -> None:
    rollout = Thread()
    rollout.turn("a", "b")
    rollout.begin()
    rollout.ask("c")
    rollout.answer("d")
    told = '<hook_prompt hook_run_id="stop:0:hooks.json">Run the linter.</hook_prompt>'
    rollout.add("e", type="message", role="user", content=[{"type": "input_text", "text": told}])
    rollout.answer("f")
    rollout.end()
    path = rollout.write(tmp_path)
    found = imported(daemon, "codex", path)
    assert found["events"]["prompt"] == 2
    assert window(client, rollout.id) == "mabcdef", "the model has seen the text of the hook"
    rollout.event("thread_rolled_back", "r", num_turns=1)
    rollout.turn("g", "h")
    rollout.write(tmp_path)
    imported(daemon, "codex", path)
    assert window(client, rollout.id) == "mabrgh"
