"""SES: turns that the daemon commits by itself, over kills."""

from pathlib import Path

import pytest

from ctxd_client import SyncClient, connect_sync
from ctxd_protocol.session_types import Message
from tests.client.running import Running
from tests.spec.test_commands import ctx
from tests.waiting import block_until


def told(client: SyncClient) -> int:
    """The messages in all commits of the session."""
    return sum(commit.message_count for commit in client.commit_list(session="s", limit=1000).commits)


@pytest.mark.requirement("SES-30")
def test_a_chain_has_each_event_once_over_kills_in_the_middle_of_its_turns(kept: Running) -> None:
    texts: list[str] = []
    for n in range(5):
        with connect_sync(kept.socket) as client:
            if n == 0:
                client.session_create("a", session="s", checkpoint="turn")
            s = client.session("s")
            for turn in range(3):
                texts += [f"question {n}.{turn}", f"answer {n}.{turn}"]
                s.append([Message(role="user", content=texts[-2]), Message(role="assistant", content=texts[-1])])
        kept.kill()
        kept.start()
    with connect_sync(kept.socket) as client:
        client.session_close("s")
        block_until(lambda: told(client) >= len(texts))
        commits = client.commit_list(session="s", limit=1000).commits
        assert told(client) == len(texts)
        assert [each.parent for each in commits] == [*(each.commit for each in commits[1:]), None], "one chain"
        text = client.commit_materialize(commits[0].commit, stop="root", format="narrative-v1").content
        assert text is not None
        assert [text.count(each) for each in texts] == [1] * len(texts)
        assert sorted(texts, key=text.index) == texts


@pytest.mark.requirement("SES-30")
def test_the_policy_is_an_option_of_a_new_session(kept: Running, tmp_path: Path) -> None:
    made = ctx(kept, "session", "new", "demo", "--id", "s", "--checkpoint", "turn")
    assert "each turn" in made.stdout
    with connect_sync(kept.socket) as client:
        assert client.session_get("s").session.checkpoint == "turn"
        assert client.session_create("demo").session.checkpoint == "none"
