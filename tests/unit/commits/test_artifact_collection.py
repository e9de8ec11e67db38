"""A collection of artifacts removes none that was put again, and uploads leave nothing behind."""

import os
from pathlib import Path
from typing import Any

import anyio
import pytest
from blake3 import blake3

from ctxd.artifacts.uploads import KEPT_MS, Uploads
from ctxd.commits.artifact_operations import Artifacts
from ctxd.errors import CtxdError
from ctxd.objects.document import Artifact, Document
from ctxd.rpc.caller import Caller, viewer_of
from ctxd.sessions.live_session import WriteRequest
from ctxd.sessions.registry import Sessions
from ctxd.store.version_store import VersionStore
from ctxd.store.write_types import Write
from ctxd.worker_threads import in_thread
from ctxd_protocol.methods import artifacts as wire
from tests.unit.store.running import SteppingClock, running
from tests.waiting import until

pytestmark = pytest.mark.anyio

CALLER = Caller("uid:1", "host", None, 1, lambda method, params: True)
HOUR = 3_600_000


async def put(artifacts: Artifacts, data: bytes, policy: Any = None) -> str:
    params = wire.ArtifactPutParams(data=data, policy=policy)
    accepted = await artifacts.put(viewer_of(CALLER), params, WriteRequest("artifact.put", "p"))
    if accepted.pending is not None:
        await accepted.pending.wait()
    return blake3(data).hexdigest()


async def collected(artifacts: Artifacts) -> list[str]:
    return [*(await artifacts.collection.collect(CALLER.principal, wire.ArtifactGcParams(grace_ms=HOUR))).removed]


@pytest.mark.requirement("ART-8")
async def test_an_artifact_that_was_put_again_is_as_young_as_a_new_one(tmp_path: Path) -> None:
    clock = SteppingClock(10 * HOUR)
    async with running(tmp_path, clock) as store:
        artifacts = Artifacts(Sessions(store, clock, host_filesystem_id="a" * 64), clock, policy="flag")
        again, old = await put(artifacts, b"put again"), await put(artifacts, b"old")
        clock.wall += 2 * HOUR
        await put(artifacts, b"put again")
        assert await collected(artifacts) == [old]
        clock.wall += 2 * HOUR
        assert await collected(artifacts) == [again]


@pytest.mark.requirement("RPC-4")
@pytest.mark.parametrize("method", ["artifact.put", "artifact.tag"])
async def test_an_operation_id_that_another_call_used_meanwhile_is_looked_up_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    """While the first of two equal calls writes its bytes, the second one ends, and so do many others."""
    monkeypatch.setattr("ctxd.limits.OPS_CACHED_MAX", 1)
    clock = SteppingClock(10 * HOUR)
    async with running(tmp_path, clock) as store:
        artifacts = Artifacts(Sessions(store, clock, host_filesystem_id="a" * 64), clock, policy="flag")
        ref = await put(artifacts, b"tagged")
        request = WriteRequest(method, "p", op_id="op", request=b"q")

        first = []

        async def call() -> None:
            if method == "artifact.put":
                params = wire.ArtifactPutParams(data=b"bytes")
                first.append(await artifacts.put(viewer_of(CALLER), params, request))
            else:
                first.append(await artifacts.tag(wire.ArtifactTagParams(tag="t", artifact=ref), request))

        async with anyio.create_task_group() as group, artifacts.collection.removing:
            group.start_soon(call)
            await until(lambda: artifacts.collection.removing.statistics().tasks_waiting)
            kept = b'{"artifact":"a","size":5,"policy":"default","tag":"t","previous":null,"receipt":null}'
            write = Write(kind=method, principal="p", op_id="op", request=b"q", result=kept)
            await store.submit(write).wait()
            await store.submit(Write(kind=method, principal="p", op_id="more")).wait()
        assert first[0].pending is None and store.status().rows == 3


@pytest.mark.requirement("ART-8")
async def test_an_artifact_put_again_during_a_collection_is_kept(tmp_path: Path, monkeypatch: Any) -> None:
    clock = SteppingClock(10 * HOUR)
    async with running(tmp_path, clock) as store:
        artifacts = Artifacts(Sessions(store, clock, host_filesystem_id="a" * 64), clock, policy="flag")
        again, old = await put(artifacts, b"put again"), await put(artifacts, b"old")
        clock.wall += 2 * HOUR
        referring = store.referring

        async def late(ref: str) -> Any:
            found = await referring(ref)
            if ref == again:
                await put(artifacts, b"put again")
            return found

        monkeypatch.setattr(store, "referring", late)
        assert await collected(artifacts) == [old]
        assert await store.read_artifacts(lambda kept: kept.read(again)) == b"put again"


@pytest.mark.requirement("ART-8")
async def test_an_artifact_tagged_during_a_collection_is_kept(tmp_path: Path, monkeypatch: Any) -> None:
    clock = SteppingClock(10 * HOUR)
    async with running(tmp_path, clock) as store:
        artifacts = Artifacts(Sessions(store, clock, host_filesystem_id="a" * 64), clock, policy="flag")
        old = await put(artifacts, b"old")
        clock.wall += 2 * HOUR
        tagged, collection = artifacts._tagged, anyio.Event()

        async def collecting() -> None:
            await collected(artifacts)
            collection.set()

        async def late(name: str) -> Any:
            group.start_soon(collecting)
            with anyio.move_on_after(0.2):
                await collection.wait()
            return await tagged(name)

        async with anyio.create_task_group() as group:
            monkeypatch.setattr(artifacts, "_tagged", late)
            params = wire.ArtifactTagParams(tag="release", artifact=old)
            accepted = await artifacts.tag(params, WriteRequest("artifact.tag", "p"))
            monkeypatch.undo()
            assert accepted.pending is not None
            await accepted.pending.wait()
        found = await artifacts.get(viewer_of(CALLER), wire.ArtifactGetParams(artifact="tag:release"))
        assert found.data == b"old"


@pytest.mark.requirement("ART-8")
async def test_an_artifact_tagged_after_a_collection_has_read_the_tags_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor does the transaction that removes the others read any tag: every write waits for it."""
    clock = SteppingClock(10 * HOUR)
    async with running(tmp_path, clock) as store:
        artifacts = Artifacts(Sessions(store, clock, host_filesystem_id="a" * 64), clock, policy="flag")
        kept, old = await put(artifacts, b"kept"), await put(artifacts, b"old")
        clock.wall += 2 * HOUR
        referring = store.referring

        async def late(ref: str) -> Any:
            if ref == kept:
                accepted = await artifacts.tag(wire.ArtifactTagParams(tag="t", artifact=ref), call)
                assert accepted.pending is not None
                await accepted.pending.wait()
                await artifacts.tag(wire.ArtifactTagParams(tag="u", artifact=ref), call)
            return await referring(ref)

        call = WriteRequest("artifact.tag", "p")
        monkeypatch.setattr(store, "referring", late)
        monkeypatch.setattr(store._journal_writer._versions, "scan", None)
        assert await collected(artifacts) == [old]
        assert await collected(artifacts) == []


@pytest.mark.requirement("ART-6")
async def test_abandoned_uploads_are_removed_after_a_start(tmp_path: Path) -> None:
    clock = SteppingClock(10 * KEPT_MS)
    async with running(tmp_path, clock) as store:
        uploads = Uploads(store.root / "artifacts" / "uploads")
        for name, age_ms in (("old", KEPT_MS + HOUR), ("young", KEPT_MS - HOUR)):
            uploads.write(name, 0, b"bytes")
            at_s = (clock.wall - age_ms) / 1000
            os.utime(store.root / "artifacts" / "uploads" / f"{name}.upload", (at_s, at_s))
        artifacts = Artifacts(Sessions(store, clock, host_filesystem_id="a" * 64), clock, policy="flag")
        assert uploads.size("old") == 5, "overwriting a large one takes seconds, in which no call would be served"
        async with anyio.create_task_group() as group:
            await group.start(artifacts.collection.run)
            await until(lambda: uploads.size("old") == 0)
            group.cancel_scope.cancel()
        assert uploads.size("young") == 5


@pytest.mark.requirement("ART-6")
def test_an_upload_restarted_from_its_beginning_has_the_length_of_the_last_data(tmp_path: Path) -> None:
    uploads = Uploads(tmp_path)
    assert (uploads.write("u", 0, b"a" * 1000), uploads.write("u", 0, b"b" * 500)) == (1000, 500)
    assert uploads.write("u", 400, b"c" * 50) == 500
    assert b"".join(uploads.pieces("u")) == b"b" * 400 + b"c" * 50 + b"b" * 50


@pytest.mark.requirement("ART-13")
async def test_a_size_bound_removes_the_least_recently_used_artifacts_even_across_a_restart(
    tmp_path: Path, monkeypatch: Any
) -> None:
    clock, size = SteppingClock(10 * HOUR), 1_000
    datas = {name: name.encode() * (size // len(name)) for name in "abcdefgh"}

    def artifacts_of(store: VersionStore) -> Artifacts:
        sessions = Sessions(store, clock, host_filesystem_id="a" * 64)
        return Artifacts(sessions, clock, policy="flag", bytes_max=5 * size)

    async def left(store: VersionStore) -> str:
        names = await store.read_artifacts(lambda artifacts: set(artifacts.names()))
        return "".join(name for name, data in datas.items() if address(data) in names)

    async with running(tmp_path, clock) as store:
        artifacts = artifacts_of(store)
        for name in "abcdef":
            policy: Any = {"b": "pin", "f": "ephemeral"}.get(name)
            await put(artifacts, datas[name], policy)
            clock.wall += HOUR
        await artifacts.get(viewer_of(CALLER), wire.ArtifactGetParams(artifact=address(datas["a"])))
        held = await store.hold_artifact(address(datas["c"]))
        await store.submit(Write(kind="k", principal="p", puts=(referring(held),))).wait()
        await artifacts.collection.upkeep()
        assert await left(store) == "abcde", "ephemeral first"
        await artifacts.collection.upkeep()
        assert await left(store) == "abcde", "what is within the bound stays"
    async with running(tmp_path, clock) as store:
        artifacts = artifacts_of(store)
        await put(artifacts, datas["g"])
        await artifacts.collection.upkeep()
        assert await left(store) == "abceg", "d is the oldest that was not used, pinned or reached"
        await put(artifacts, datas["h"])
        await artifacts.collection.upkeep()
        assert await left(store) == "abcgh", "then e"
        await put(artifacts, b"larger than all others" * size, "pin")
        collected_at, scan = [], store.scan

        async def noted(*args: Any, **named: Any) -> Any:
            collected_at.append(clock.wall)
            return await scan(*args, **named)

        monkeypatch.setattr(store, "scan", noted)
        for _ in range(25):
            await artifacts.collection.upkeep()
            clock.wall += 60_000
        assert await left(store) == "bc" and len(set(collected_at)) == 3, "what is reached is not looked at each time"


def address(data: bytes) -> str:
    return blake3(data).hexdigest()


def referring(held: Artifact) -> Document:
    return Document(id="other", type="other", identity_hash="0" * 64, content_hash="0" * 64, payload={}, artifact=held)


@pytest.mark.requirement("ART-14")
async def test_an_upload_that_changes_between_its_search_and_its_put_is_not_put(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    caller = Caller("sandbox:1", "session", None, 1, lambda method, params: True, sessions=frozenset())
    secret, plain = b"AKIA" + b"7QYV3M5N2X4PLRWD", Uploads.pieces
    clock = SteppingClock(10 * HOUR)
    async with running(tmp_path, clock) as store:
        artifacts = Artifacts(Sessions(store, clock, host_filesystem_id="a" * 64), clock, policy="redact")
        try:
            await artifacts.upload(viewer_of(caller), wire.ArtifactUploadParams(upload="u", offset=0, data=b"x" * 40))

            def changed(uploads: Uploads, name: str) -> Any:
                uploads.write(name, 0, secret)
                return plain(uploads, name)

            monkeypatch.setattr(Uploads, "pieces", changed)
            with pytest.raises(CtxdError) as failed:
                params = wire.ArtifactPutParams(upload="u")
                await artifacts.put(viewer_of(caller), params, WriteRequest("artifact.put", "p"))
            assert failed.value.code == "artifact_mismatch"
            assert await store.heads([f"artifact:{blake3(secret).hexdigest()}"]) == {
                f"artifact:{blake3(secret).hexdigest()}": None
            }
        finally:
            await in_thread(artifacts.close)
