"""IMP: a user of Claude Code who goes back to a message that a compaction has left in the window."""

from pathlib import Path

import pytest

from ctxd_client.sync import SyncClient
from tests.client.running import Running
from tests.spec.claude_records import compaction, fork_of, forked
from tests.spec.imported_contexts import narrative, window, window_at
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
    tips = client.commit_list(session=claude.id, tips=True).commits
    assert {window_at(client, tip.commit) for tip in tips} == {"cdkKrs", "cdefkKvw"}


@pytest.mark.requirement("IMP-17")
@pytest.mark.parametrize("how", ["at once", "later", "without the origin"])
@pytest.mark.parametrize(("after", "expected"), [("d", "cdkK"), ("f", "cdefkK"), ("K", "cdefkK")])
def test_a_fork_that_goes_back_to_a_message_that_its_origin_has_kept_begins_with_the_summary(
    daemon: Running, client: SyncClient, claude: Claude, tmp_path: Path, how: str, after: str, expected: str
) -> None:
    records = compacted(claude)
    origin = write(tmp_path / f"{claude.session}.jsonl", records)
    fork = fork_of(claude, after)
    path = write(tmp_path / f"{fork.session}.jsonl", forked(records, fork.session))
    if how != "at once":
        imported(daemon, "claude", tmp_path)
    if how == "without the origin":
        origin.unlink()
    append(path, *fork.turn("r", "s"))
    imported(daemon, "claude", tmp_path)
    assert window(client, fork.id) == f"{expected}rs"
    append(path, *fork.turn("t", "u"))
    imported(daemon, "claude", tmp_path)
    assert window(client, fork.id) == f"{expected}rstu"
