"""A file system that does not respond keeps neither who reads elsewhere, nor the daemon's end."""

from pathlib import Path

import anyio
import pytest

from ctxd_client import CallFailed, connect
from ctxd_protocol.session_types import Mount
from tests.crash.daemon import daemon_process
from tests.e2e.hanging import hanging

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(120)]

HANGS_S = 5.0
"""Seconds after which the daemon gives up what hangs."""
ENDS_S_MAX = 30.0
"""Seconds that a daemon may take to end on a busy machine; one that waits for what hangs never ends."""


@pytest.mark.requirement("FS-9")
async def test_a_hanging_filesystem_blocks_neither_other_reads_nor_shutdown(tmp_path: Path) -> None:
    root = tmp_path.resolve()
    (root / "near").mkdir()
    refused: list[str] = []
    with hanging(root / "far") as far, daemon_process(root) as daemon:
        await daemon.start()
        async with connect(daemon.socket, deadline_s=60) as client:

            async def reads(session: str, path: str) -> None:
                with pytest.raises(CallFailed) as error:
                    await client.file_index(session, path)
                refused.append(error.value.code)

            mounts = {name: (Mount(agent_prefix="/w", canonical_prefix=str(root / name)),) for name in ("near", "far")}
            await client.session_create("a", session="near", filesystem_id="b" * 64, mounts=mounts["near"])
            names = [f"far{number}" for number in range(8)]
            for name in names:
                await client.session_create("a", session=name, filesystem_id="c" * 64, mounts=mounts["far"])
            answered = 0
            async with anyio.create_task_group() as group:
                for name in names:
                    group.start_soon(reads, name, f"/w/{name}")
                for number in range(20):
                    (root / "near" / f"{number}").write_text("x")
                    assert (await client.file_index("near", f"/w/{number}")).outcome == "created"
                    answered += not refused
            assert answered > 0, "some while all of the others hang"
            assert refused == ["source_unreachable"] * len(names)
            with anyio.fail_after(HANGS_S):
                await reads("far0", "/w/again")  # It is known to hang.
        with anyio.fail_after(ENDS_S_MAX):
            assert await daemon.stop() == 0, daemon.said()
    assert far.exists()
