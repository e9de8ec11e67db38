"""A process that writes until it is killed: ``python -m tests.unit.store.crash_writer STATE_DIR FIRST COUNT``.

Operation n puts tool call ``t{n}`` and segment n of one session. Each acknowledgement is written to standard output as
``n seq chain``. Operations that were sent before are sent again under their ids, as a client would.
"""

import os
import sys
from pathlib import Path

import anyio

from ctxd import limits
from ctxd.clock import SystemClock
from ctxd.store.idempotency import Resend
from ctxd.store.version_store import VersionStore
from tests.unit.store.documents import document
from tests.unit.store.running import put


async def operation(store, n):
    text = f"{n} " * (400_000 if n % 9 == 0 else 3_000)
    puts = (
        document(f"t{n}", text),
        document("head", type="session", n=n),
        document(f"segment:s1#{n:010d}", type="segment"),
    )
    return await put(store, *puts, op_id=f"op-{n}", request=b"%d" % n, result=b"result %d" % n, knows=(f"t{n}",))


async def send(store, n):
    replay = await store.replay(("host", f"op-{n}"), Resend("toolcall.record", "s1", b"%d" % n))
    pending = await operation(store, n) if replay is None else replay.pending
    receipt = replay.receipt if pending is None else await pending.wait()
    os.write(1, f"{n} {receipt.seq} {receipt.chain}\n".encode())


async def main(root, first, count):
    limits.CHECKPOINT_BYTES = 300_000
    limits.CHECKPOINT_IDLE_S = 0.02
    store = VersionStore(root, SystemClock())
    async with anyio.create_task_group() as group:
        await group.start(store.run)
        for start in range(first, first + count, 5):
            async with anyio.create_task_group() as clients:
                for n in range(start, min(start + 5, first + count)):
                    clients.start_soon(send, store, n)
        await anyio.sleep(0.1)
        group.cancel_scope.cancel()


if __name__ == "__main__":
    anyio.run(main, Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
