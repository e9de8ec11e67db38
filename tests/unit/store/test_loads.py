"""What is accepted while a lookup waits for its turn is not overwritten by what the lookup finds."""

import anyio
import pytest
from anyio.lowlevel import checkpoint

from ctxd import failpoints
from ctxd.clock import SystemClock
from ctxd.objects import next_version
from ctxd.objects.document import Stored
from ctxd.store.versions import VersionStore
from ctxd.store.writes import Write

pytestmark = pytest.mark.anyio


async def test_a_write_between_a_lookup_and_its_reading_stays_the_newest(tmp_path):
    store = VersionStore(tmp_path / "state", SystemClock())
    document = next_version.toolcall("call-1", tool="bash", args={}, content="x", chat_ref="chat:s")
    async with anyio.create_task_group() as group:
        await group.start(store.run)
        # The flush outlasts the lookup, so that the lookup finds nothing on the disk.
        failpoints.arm("journal.flush=sleep:100ms*1")
        try:
            group.start_soon(store.heads, ["call-1"])
            await checkpoint()
            pending = store.submit(Write(kind="toolcall.record", principal="test", puts=(document,)))
            assert isinstance((await store.heads(["call-1"]))["call-1"], Stored)
            await pending.wait()
            assert isinstance(store.peek("call-1"), Stored)
        finally:
            failpoints.disarm()
        group.cancel_scope.cancel()
