"""Commits of a session that is emptied: those that the daemon made go, unless something else reaches them."""

from pathlib import Path

import pytest

from ctxd.errors import CtxdError
from tests.unit.commits.test_session_checkpoints import household
from tests.unit.sessions.world import say
from tests.unit.store.running import verified

pytestmark = [pytest.mark.anyio, pytest.mark.requirement("SES-25")]


@pytest.mark.parametrize("tagged", [None, 0, 1, 2])
async def test_commits_that_the_daemon_made_go_with_their_session_unless_something_reaches_them(
    tmp_path: Path, tagged: int | None
) -> None:
    async with household(tmp_path) as home:
        w = home.world
        await w.call("session.create", agent="a", session="s")
        for n in range(3):
            await say(w, "s", ("user", f"question {n} of the session"))
            await home.current()
        made = await w.call("commit.checkpoint", format="claude-code-v1", delta='{"by":"hand"}\n', session="s")
        commits = [each for each in await home.commits() if each.format == "events-v1"]
        if tagged is not None:
            await w.call("commit.tag", commit=commits[tagged].commit, tag="kept")
        await w.call("session.remove", session="s")
        (done,) = (await w.call("session.gc", keep_ms=0)).sessions
        assert done.action == "emptied"
        kept = 0 if tagged is None else tagged + 1
        now = {each.commit: each.artifact_ref for each in await home.commits()}
        assert [now[each.commit] is not None for each in commits] == [n < kept for n in range(3)]
        assert now[made.commit.commit] is not None
        if tagged is not None:
            text = await home.narrative(commits[tagged].commit)
            assert [f"question {n}" in text for n in range(3)] == [n < kept for n in range(3)]
    verified(tmp_path)
    raw = b"".join(path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())
    if tagged is None:
        assert b"of the session" not in raw


async def test_a_session_that_was_removed_for_good_takes_no_commits(tmp_path: Path) -> None:
    async with household(tmp_path) as home:
        w = home.world
        await w.call("session.create", agent="a", session="s")
        await w.call("session.remove", session="s")
        (done,) = (await w.call("session.gc", keep_ms=0)).sessions
        assert done.action == "emptied"
        before = await home.commits()
        with pytest.raises(CtxdError, match="removed for good") as refused:
            await w.call("commit.checkpoint", format="claude-code-v1", delta='{"a":1}\n', session="s")
        assert refused.value.code == "session_removed" and refused.value.hint
        assert await home.commits() == before
