"""A file that was deleted and is back can be activated; one that is still gone cannot."""

from pathlib import Path

import pytest

from ctxd.errors import CtxdError
from tests.unit.sessions.world import world

pytestmark = pytest.mark.anyio


async def test_activating_a_deleted_file_checks_whether_it_exists_again(tmp_path: Path) -> None:
    path = tmp_path / "file.txt"
    path.write_text("first")
    async with world(tmp_path / "state") as here:
        await here.call("session.create", session="s", agent="a")
        id = await here.read("s", path)
        path.unlink()
        await here.call("session.resume", session="s")
        await here.call("session.deactivate", session="s", object=id)
        with pytest.raises(CtxdError, match="it is deleted") as refused:
            await here.call("session.activate", session="s", object=id)
        assert (refused.value.code, refused.value.outcome) == ("content_unavailable", "not_applied")
        path.write_text("second")
        moved = await here.call("session.activate", session="s", object=id)
        assert (moved.level, moved.changed) == ("active", True)
        now = (await here.call("object.get", object=id)).object
        assert (now.state, now.payload["content"]) == ("present", "second")
        rows = (await here.call("object.history", object=id)).versions
        assert [row.state for row in rows] == ["present", "deleted", "present"]
