"""LST: what a purge takes of an imported session."""

import json
import os
from pathlib import Path

import pytest

from ctxd_client import connect_sync
from tests.client.running import Running
from tests.spec.claude_records import compaction, forked
from tests.spec.imported_contexts import window
from tests.spec.test_import import Claude, append, commits, imported, write
from tests.spec.test_purge import searched
from tests.spec.test_search import found


@pytest.mark.requirement("LST-9")
def test_a_purged_commit_removes_title_and_prompt_and_no_import_restores_them(
    tmp_path: Path,
) -> None:
    claude = Claude()
    records = claude.turn("a", "b")
    records[0]["message"]["content"] = "xyzzyprompt of a customer"
    title = {"type": "ai-title", "aiTitle": "Plughtitle", "sessionId": claude.session}
    file = write(tmp_path / "home" / f"{claude.session}.jsonl", [*records, title])
    with Running(tmp_path, keep_state=True) as daemon, connect_sync(daemon.socket) as client:
        imported(daemon, "claude", file)
        fork = client.session_fork(claude.id).session
        assert client.session_get(claude.id).session.title == "Plughtitle"
        assert {row.session for row in client.session_list(text="plughtitle").sessions} == {fork, claude.id}
        assert found(client, "plughtitle")
        purged = [client.object_purge(f"commit:{commit}") for commit in commits(client, claude.id)]
        assert purged and all(each.complete for each in purged)

        def remnants() -> set[str]:
            views = [client.session_get(session).session for session in (claude.id, fork)]
            words = {text for each in views if each.recorded for text in (each.recorded.title, each.recorded.prompt)}
            return words | {each.title for each in views} | {row.title for row in client.session_list().sessions}

        assert remnants() == {"[purged]"}
        assert not client.search_query("plughtitle").hits
        append(file, *claude.turn("c", "d"))
        imported(daemon, "claude", file)
        write(file, [*records, title, *claude.turn("e", "f")])
        assert imported(daemon, "claude", file)["rewritten"] == 1
        assert remnants() == {"[purged]"}
        client.session_annotate(claude.id, title="Named anew")
        assert client.session_get(claude.id).session.title == "Named anew"
        daemon.kill()
        daemon.start()
        assert remnants() == {"[purged]", "Named anew"}
    assert searched(tmp_path / "state", "xyzzyprompt", "Plughtitle") == set()


@pytest.mark.requirement("LST-9", "IMP-19")
@pytest.mark.parametrize("grows_by", ["compaction", "rewind", "copy"])
def test_a_growing_transcript_does_not_restore_purged_text(tmp_path: Path, grows_by: str) -> None:
    claude = Claude()
    records = claude.turn("a", "b")
    records[0]["message"]["content"] = "xyzzyprompt of a customer"
    records[1]["message"]["content"][0]["text"] = "plughreply to it"
    path = write(tmp_path / "home" / f"{claude.session}.jsonl", records)
    with Running(tmp_path, keep_state=True) as daemon, connect_sync(daemon.socket) as client:
        imported(daemon, "claude", path)
        append(path, *claude.turn("c", "d"))
        imported(daemon, "claude", path)
        assert [client.object_purge(f"commit:{commit}").complete for commit in commits(client, claude.id)] == [True] * 2
        append(path, *claude.turn("e", "f"))
        imported(daemon, "claude", path.parent)
        match grows_by:
            case "compaction":
                kept = {"anchorUuid": "s", "uuids": [claude.ids[each] for each in "bcef"]}
                append(path, *compaction(claude, "k", "K", logical="f", preservedMessages=kept))
            case "rewind":
                append(path, claude("g", after="a"), claude("h", "assistant"))
            case _:
                fork = Claude()
                lines = [json.loads(line) for line in path.read_text().splitlines()]
                write(path.with_name(f"{fork.session}.jsonl"), forked(lines, fork.session))
        imported(daemon, "claude", path.parent)
        if grows_by == "compaction":
            assert window(client, claude.id) == "efkK", "what was not purged is kept"
        if grows_by == "copy":
            assert client.session_get(fork.id).session.title == "[purged]"
        for each in path.parent.iterdir():
            os.utime(each)
        assert imported(daemon, "claude", path.parent)["commits"] == 0
    assert searched(tmp_path / "state", "xyzzyprompt", "plughreply", "text c", "text d") == set()
