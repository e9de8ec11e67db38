"""IMP: records without a usable time, and files with changed times: the newest commit has the whole conversation."""

import os
from pathlib import Path
from typing import Any

import pytest

from ctxd_client.sync import SyncClient
from tests.client.running import Running
from tests.spec.harness_files import Pi
from tests.spec.test_import import Claude, Codex, Record, append, imported, labels, write

IN_2025 = 1_735_689_600
IN_2031 = 1_924_992_000


def newest(client: SyncClient, session: str) -> str:
    """The labels of the records in the newest context of a session."""
    found = client.commit_resolve(session=session).commit
    assert found is not None
    return labels(client, found.commit)


@pytest.mark.requirement("IMP-1")
@pytest.mark.parametrize("harness", ["claude", "codex", "pi"])
@pytest.mark.parametrize("stamp", ["0001-01-01T00:00:00Z", "1969-12-31T23:59:59Z", -5, None, "2031-01-01T00:00:00Z"])
def test_turns_after_one_with_an_unusable_time_are_in_the_newest_context(
    daemon: Running, client: SyncClient, tmp_path: Path, harness: str, stamp: Any
) -> None:
    source: Claude | Codex | Pi
    if harness == "claude":
        source = claude = Claude()
        records = [*claude.turn("a", "b"), *claude.turn("c", "d"), *claude.turn("e", "f")]
        path = tmp_path / f"{claude.session}.jsonl"
    elif harness == "codex":
        source = rollout = Codex()
        for turn in ("ab", "cd", "ef"):
            rollout.turn(*turn)
        records, path = rollout.records, rollout.write(tmp_path)
    else:
        source = pi = Pi()
        path = pi.write(tmp_path)
        records = [pi.header, *pi.turn("a", "b"), *pi.turn("c", "d"), *pi.turn("e", "f")]
    for record in records:
        if record.get("label") not in ("c", "d", "e", "f"):
            record["timestamp"] = stamp
    write(path, records)
    # Without a time of the file either.
    os.utime(path, (IN_2031, IN_2031))
    imported(daemon, harness, path)
    assert newest(client, source.id).endswith("abcdef")


@pytest.mark.requirement("IMP-1")
def test_records_without_a_time_stay_in_order_if_the_time_of_their_file_goes_back(
    daemon: Running, client: SyncClient, claude: Claude, tmp_path: Path
) -> None:
    def undated(*labels: str) -> list[Record]:
        return [{**record, "timestamp": None} for record in claude.turn(*labels)]

    path = write(tmp_path / f"{claude.session}.jsonl", undated("a", "b"))
    imported(daemon, "claude", path)
    append(path, *undated("c", "d"), *undated("e", "f"))
    os.utime(path, (IN_2025, IN_2025))
    imported(daemon, "claude", path)
    assert newest(client, claude.id) == "abcdef"


@pytest.mark.requirement("IMP-3")
def test_a_sub_agent_of_a_conversation_before_1970_is_imported(
    daemon: Running, client: SyncClient, claude: Claude, tmp_path: Path
) -> None:
    agent = [*claude.turn("a", "b"), claude("s", isSidechain=True, agentId="x")]
    records = [*agent, claude("c", after="b"), claude("d", "assistant")]
    early = [{**record, "timestamp": "1969-12-31T23:59:59Z"} for record in records]
    path = write(tmp_path / f"{claude.session}.jsonl", early)
    assert imported(daemon, "claude", path)["skipped"] == []
    assert newest(client, claude.id) == "abcd"


@pytest.mark.requirement("IMP-3")
@pytest.mark.parametrize("is_whole", [True, False])
def test_the_branch_after_a_rewind_is_the_newest_even_if_the_clock_was_set_back(
    daemon: Running, client: SyncClient, claude: Claude, tmp_path: Path, is_whole: bool
) -> None:
    records = [*claude.turn("a", "b"), *claude.turn("c", "d")]
    for record in records[2:]:
        record["timestamp"] = record["timestamp"].replace("T03:", "T04:")
    path = write(tmp_path / f"{claude.session}.jsonl", records)
    if not is_whole:
        imported(daemon, "claude", path)
    append(path, claude("e", after="b"), claude("f", "assistant"), *claude.turn("g", "h"))
    imported(daemon, "claude", path)
    assert newest(client, claude.id) == "abefgh"
