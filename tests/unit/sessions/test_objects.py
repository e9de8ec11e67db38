"""Who may see which object: a session its own, the host every one, and one that is confined to nothing, nothing."""

from pathlib import Path

import pytest

from ctxd.errors import CtxdError
from ctxd.sessions.objects import At, Objects
from tests.unit.sessions.world import world

pytestmark = pytest.mark.anyio


async def test_a_confined_look_ends_at_its_own_index(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("a")
    (tmp_path / "b.txt").write_text("b")
    async with world(tmp_path / "state") as here:
        for session in ("one", "two"):
            await here.call("session.create", session=session, agent="a", system_prompt=session)
        own = await here.read("one", tmp_path / "a.txt")
        other = await here.read("two", tmp_path / "b.txt")
        objects = Objects(here.sessions)
        everything = [own, other, "session:one", "session:two", "chat:two", "system_prompt:two"]
        wide = await objects.sight("one", confined=False)
        assert list(await objects.versions(wide, everything, At(), content=False)) == everything
        confined = await objects.sight("one", confined=True)
        assert list(await objects.versions(confined, everything, At(), content=False)) == [own, "session:one"]
        for id in (other, other[:12], "session:two", "chat:two"):
            with pytest.raises(CtxdError, match="no object"):
                await objects.version(confined, id, At(), content=False)
        assert (await objects.version(confined, own[:12], At(), content=True)).document.content == "a"


async def test_a_confined_look_of_no_session_sees_nothing(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("a")
    async with world(tmp_path / "state") as here:
        await here.call("session.create", session="one", agent="a")
        id = await here.read("one", tmp_path / "a.txt")
        objects = Objects(here.sessions)
        nobody = await objects.sight(None, confined=True)
        assert await objects.versions(nobody, [id, "session:one"], At(), content=False) == {}
        with pytest.raises(CtxdError, match="no object"):
            await objects.version(nobody, id, At(), content=False)
        anybody = await objects.sight(None, confined=False)
        assert (await objects.version(anybody, id, At(), content=True)).document.content == "a"
