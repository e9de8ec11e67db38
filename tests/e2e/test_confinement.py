"""What a sandbox plants in its directories fetches nothing else of the host."""

from pathlib import Path

import pytest

from ctxd_client import CallFailed, connect
from ctxd_protocol.session_types import Mount
from tests.crash.daemon import daemon_process

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(120)]


@pytest.mark.parametrize("begins", ["create", "configure"])
async def test_a_planted_link_is_not_followed_before_its_session_touched_a_file(tmp_path: Path, begins: str) -> None:
    shared = (tmp_path / "shared").resolve()
    shared.mkdir()
    (tmp_path / "secret").write_text("the host's own")
    (shared / "link").symlink_to(tmp_path / "secret")
    mounts = (Mount(agent_prefix="/workspace", canonical_prefix=str(shared)),)
    with daemon_process(tmp_path) as daemon:
        await daemon.start()
        async with connect(daemon.socket) as client:
            host = await client.session("host", agent="a")
            first = mounts if begins == "create" else ()
            await client.session_create("a", session="box", filesystem_id="c" * 64, mounts=first)
            if begins == "configure":
                await client.session_configure("box", mounts=mounts)
            with pytest.raises(CallFailed) as refused:
                await host.read(str(shared / "link"))
            assert refused.value.code == "path_escapes_mount"


async def test_a_planted_link_is_not_followed_by_the_first_reader_after_a_restart(tmp_path: Path) -> None:
    shared = (tmp_path / "shared").resolve()
    shared.mkdir()
    (tmp_path / "secret").write_text("the host's own")
    (shared / "link").symlink_to(tmp_path / "secret")
    mount = Mount(agent_prefix="/workspace", canonical_prefix=str(shared))
    with daemon_process(tmp_path) as daemon:
        await daemon.start()
        async with connect(daemon.socket) as client:
            await client.session_create("a", session="box", filesystem_id="c" * 64, mounts=(mount,))
            await client.session("host", agent="a")
        await daemon.kill()
        await daemon.start()
        async with connect(daemon.socket) as client:
            host = await client.session("host", agent="a")
            with pytest.raises(CallFailed) as refused:
                await host.read(str(shared / "link"))
            assert refused.value.code == "path_escapes_mount"
