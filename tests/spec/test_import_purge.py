"""LST: what a purge takes of an imported session."""

import json
import os
from pathlib import Path

import pytest

from ctxd_client import connect_sync
from tests import programs
from tests.client.running import Running
from tests.spec.claude_records import compaction, forked
from tests.spec.imported_contexts import window
from tests.spec.test_exactly_once import Session
from tests.spec.test_import import Claude, append, commits, imported, text, write
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


@pytest.mark.requirement("SEC-10")
def test_the_purge_of_a_call_erases_its_copies_in_imported_commits_of_its_session(tmp_path: Path) -> None:
    with Running(tmp_path, keep_state=True) as daemon, connect_sync(daemon.socket) as client:
        session = Session(daemon, tmp_path / "home")
        session.turn("a")
        result = {"tool_use_id": "call-a", "type": "tool_result", "content": "output a"}
        record = {"type": "api-request-blob", "sessionId": session.native, "blob": result}
        append(session.file, record)
        session.hook("SessionEnd", reason="other")
        session.imported()
        (copy,) = [each for each in commits(client, session.id) if "api-request-blob" in text(client, each)]
        assert "output a" in text(client, copy)
        done = session.ctx("purge", "call-a", "-s", session.id, "--yes")
        assert f"commit:{copy}" in done and "nothing of it is left" not in done
        left = json.loads(text(client, copy).splitlines()[-1])
        assert left["blob"] == {**result, "content": "[purged]"}
        session.file.unlink()
    assert searched(tmp_path / "state", "output a", "run a") == set()


@pytest.mark.requirement("SEC-10")
def test_a_purge_names_the_other_sessions_whose_texts_it_erases_before_and_after(tmp_path: Path) -> None:
    with Running(tmp_path, keep_state=True) as daemon, connect_sync(daemon.socket) as client:
        origin = client.session(client.session_create("a").session.session)
        origin.user("Go on with it.")
        fork = client.session_fork(origin.id).session
        client.session(fork).user("Go on with it.")
        environ = {**os.environ, "CTXD_SOCKET": daemon.socket}
        words = ["purge", f"chat:{fork}", "--turn", "2"]
        foreseen = programs.run("ctx", [*words, "--dry-run"], env=environ)
        assert foreseen.returncode == 0 and f"the same text in {origin.id}" in foreseen.stdout
        named = json.loads(programs.run("ctx", [*words, "--dry-run", "--json"], env=environ).stdout)
        assert (named["objects"], named["sessions"]) == ([f"chat:{fork}"], [origin.id])
        assert client.session_events(origin.id).events[0].event["text"] == "Go on with it."
        done = json.loads(programs.run("ctx", [*words, "--yes", "--json"], env=environ).stdout)
        assert done["sessions"] == [origin.id]
        assert client.session_events(origin.id).events[0].event["text"] == "[purged]"
