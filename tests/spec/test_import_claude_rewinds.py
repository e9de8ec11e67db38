"""IMP: a user of Claude Code who goes back to a message that a compaction has left in the window."""

import json
from pathlib import Path

import pytest

from ctxd_client.sync import SyncClient
from tests.client.running import Running
from tests.spec.claude_records import compaction
from tests.spec.imported_contexts import narrative, window
from tests.spec.test_import import Claude, Record, append, imported, write


def compacted(claude: Claude) -> list[Record]:
    """Three turns, and a compaction that keeps the last two."""
    records = [*claude.turn("a", "b"), *claude.turn("c", "d"), *claude.turn("e", "f")]
    kept = [claude.ids[each] for each in "cdef"]
    boundary, summary = compaction(claude, "k", "K", logical="f")
    boundary["compactMetadata"]["preservedMessages"] = {"anchorUuid": summary["uuid"], "uuids": kept}
    return [*records, boundary, summary]


@pytest.mark.requirement("IMP-17")
@pytest.mark.parametrize("is_whole", [True, False])
@pytest.mark.parametrize("how", ["at once", "later", "without a prompt"])
def test_the_summary_stays_with_the_messages_up_to_the_one_gone_back_to(
    daemon: Running, client: SyncClient, claude: Claude, tmp_path: Path, how: str, is_whole: bool
) -> None:
    records = compacted(claude)
    if how != "at once":
        records += [claude("g", after="f"), claude("h", "assistant")]
    path = write(tmp_path / f"{claude.session}.jsonl", records)
    if not is_whole:
        imported(daemon, "claude", path)
    if how == "without a prompt":
        pin = {"type": "last-prompt", "explicit": True, "leafUuid": claude.ids["d"], "sessionId": claude.session}
        append(path, {**pin, "label": "p"})
    else:
        append(path, claude("r", after="d"), claude("s", "assistant"))
    imported(daemon, "claude", path)
    assert window(client, claude.id) == ("cdkKp" if how == "without a prompt" else "cdkKrs")
    text = narrative(client, claude.id)
    assert "text K" in text and "text d" in text
    assert not any(f"text {each}" in text for each in "abefgh")
    if how != "without a prompt":
        append(path, *claude.turn("t", "u"))
        imported(daemon, "claude", path)
        assert window(client, claude.id) == "cdkKrstu"


@pytest.mark.requirement("IMP-17")
def test_a_second_branch_from_a_kept_message_has_its_own_part_of_the_window(
    daemon: Running, client: SyncClient, claude: Claude, tmp_path: Path
) -> None:
    path = write(tmp_path / f"{claude.session}.jsonl", compacted(claude))
    append(path, claude("r", after="d"), claude("s", "assistant"), claude("v", after="f"), claude("w", "assistant"))
    imported(daemon, "claude", path)
    assert window(client, claude.id) == "cdefkKvw"
    assert set(_windows(client, claude.id)) == {"cdkKrs", "cdefkKvw"}


def _windows(client: SyncClient, session: str) -> list[str]:
    """The labels of the window at the end of each branch of a session."""
    tips = client.commit_list(session=session, tips=True).commits
    contents = (str(client.commit_materialize(tip.commit).content) for tip in tips)
    return ["".join(json.loads(line).get("label", "") for line in content.splitlines()) for content in contents]
