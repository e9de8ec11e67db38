"""Versions that a sandbox may see: each file is looked up once, and again once its mounts or registrations change."""

from pathlib import Path

import pytest

from ctxd_protocol.session_types import Mount
from tests.unit.sessions.world import world

pytestmark = pytest.mark.anyio


async def test_a_visible_file_is_looked_up_once_for_each_mount_table_and_registration(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tree = (tmp_path / "tree").resolve()
    tree.mkdir()
    (tree / "a").write_text("x")
    mounts = (Mount(agent_prefix="/w", canonical_prefix=str(tree)),)
    async with world(tmp_path / "state") as w:
        await w.call("session.create", agent="a", session="s", filesystem_id="b" * 64, mounts=mounts, workdir="/w")
        id = (await w.call("file.index", session="s", path="a")).object
        visibility, live = w.sessions.visibility, await w.sessions.live("s")
        visibility.restrict("box", ("s",), 1)
        lookups: list[object] = []
        heads = w.store.heads

        async def counted(ids):
            lookups.append(list(ids))
            return await heads(ids)

        monkeypatch.setattr(w.store, "heads", counted)

        async def looked_up() -> int:
            lookups.clear()
            assert await visibility.hidden(live, [id]) == []
            return len(lookups)

        assert [await looked_up(), await looked_up()] == [1, 0]
        visibility.restrict("another", ("s",), 2)
        assert [await looked_up(), await looked_up()] == [1, 0]
        visibility.note_past(id)
        assert [await looked_up(), await looked_up()] == [1, 0], "a version at a past time may be the newest"
        for sandbox in ("box", "another"):
            visibility.lift(sandbox, ("s",))
        await w.call(
            "session.configure", session="s", mounts=(*mounts, Mount(agent_prefix="/m", canonical_prefix="/m"))
        )
        assert [await looked_up(), await looked_up()] == [1, 0]
