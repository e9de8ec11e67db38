"""Delivery of captured commits: those that cannot be written to the file are kept in memory."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ctxd.capture.stream_checkpoints import Checkpoint
from ctxd.cli.commit_delivery import Chain, CommitDelivery
from ctxd.cli.undelivered_commits import UndeliveredFile, folder_of, left_over

pytestmark = pytest.mark.anyio


async def delivery_of_three(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> CommitDelivery:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    run: Any = SimpleNamespace(socket_path=lambda: "/run/a.sock")
    chain = Chain(parent=None, session=None, template="", ticket="", thread="")
    delivery = CommitDelivery(run, chain, holds_input=False)
    delivery._policy = "flag"
    await delivery.put([Checkpoint("explicit", b"%d" % number, 1, 1) for number in range(3)])
    return delivery


@pytest.mark.requirement("CAP-8")
async def test_a_commit_stays_the_oldest_until_it_is_acknowledged_also_if_it_is_stored_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    delivery = await delivery_of_three(tmp_path, monkeypatch)

    async def oldest() -> bytes:
        queued = await delivery._oldest()
        assert queued is not None
        return queued.delta

    assert (await oldest(), await oldest()) == (b"0", b"0")
    await delivery._acknowledged("ctx-00000001")
    assert await oldest() == b"1"
    await delivery.store_rest()
    file = delivery._file
    assert file is not None
    assert (file.waiting, file.parent, await oldest()) == (2, "ctx-00000001", b"1")
    await delivery._acknowledged("ctx-00000002")
    assert (file.waiting, file.parent, await oldest()) == (1, "ctx-00000002", b"2")
    await delivery._acknowledged("ctx-00000003")
    delivery.end()
    assert await delivery._oldest() is None
    assert not left_over(folder_of("/run/a.sock", {"XDG_STATE_HOME": str(tmp_path)}))


@pytest.mark.requirement("CAP-8")
async def test_commits_that_a_disk_refuses_are_stored_in_order_once_it_takes_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    delivery = await delivery_of_three(tmp_path, monkeypatch)
    append, failing = UndeliveredFile.append, [1]

    def second_fails(file: UndeliveredFile, queued: Any) -> None:
        if queued.delta == b"1" and failing:
            failing.pop()
            raise OSError(5, "Input/output error")
        append(file, queued)

    monkeypatch.setattr(UndeliveredFile, "append", second_fails)
    await delivery.store_rest()
    await delivery.store_rest()
    assert delivery._file is not None
    delivery._file.close()
    (path,) = left_over(folder_of("/run/a.sock", {"XDG_STATE_HOME": str(tmp_path)}))
    with UndeliveredFile(path) as file:
        assert [each.delta for each in file.undelivered()] == [b"0", b"1", b"2"]
