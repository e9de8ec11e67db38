"""Artifacts: bytes of any size by their address, tags, collection, and what a check and a purge leave."""

import hashlib
import random
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from blake3 import blake3

from ctxd_client import CallFailed, Conflict, NotFound, connect_sync
from ctxd_client.sync import SyncClient
from tests.client.running import Running
from tests.spec.test_purge import searched

LARGE = random.Random(13).randbytes(3_000_000)


@pytest.fixture
def host(kept: Running) -> Iterator[SyncClient]:
    """A client of a daemon that can be restarted."""
    with connect_sync(kept.socket) as connected:
        yield connected


def address(data: bytes) -> str:
    return blake3(data).hexdigest()


def read(client: SyncClient, artifact: str, limit: int = 1_000_000) -> bytes:
    parts, offset = [], 0
    while True:
        part = client.artifact_get(artifact, offset=offset, limit=limit)
        parts.append(part.data)
        if part.next_offset is None:
            return b"".join(parts)
        offset = part.next_offset


def upload(client: SyncClient, name: str, data: bytes, step: int = 1_000_000) -> None:
    """Send what is missing of the upload ``name``."""
    at = client.artifact_upload(name).offset
    while at < len(data):
        at = client.artifact_upload(name, offset=at, data=data[at : at + step]).offset


@pytest.mark.requirement("ART-1")
@pytest.mark.parametrize("data", [b"", b"\0\xff bytes", LARGE[:700_000]])
def test_an_artifact_is_read_by_its_address_whole_and_in_part(kept: Running, host: SyncClient, data: bytes) -> None:
    put = host.artifact_put(data=data, media_type="text/x")
    assert (put.artifact, put.size, put.policy) == (address(data), len(data), "default") and put.receipt is not None
    assert host.artifact_put(data=data).receipt is None, "it is there"
    kept.kill()
    kept.start()
    with connect_sync(kept.socket) as client:
        assert read(client, put.artifact) == data == read(client, f"art-{put.artifact[:12]}", limit=99_999)
        assert client.artifact_get(put.artifact, offset=3, limit=4).data == data[3:7]
        past = client.artifact_get(put.artifact, offset=10**9)
        assert (past.data, past.next_offset) == (b"", None)
        found = client.artifact_stat(put.artifact)
        assert (found.size, found.policy, found.media_type, found.tags) == (len(data), "default", "text/x", ())
        (row,) = client.artifact_list().artifacts
        assert (row.artifact, row.size) == (put.artifact, len(data))


@pytest.mark.requirement("ART-6")
def test_an_upload_continues_after_a_restart_and_is_stored_whole(
    kept: Running, host: SyncClient, tmp_path: Path
) -> None:
    first = host.artifact_upload("u", offset=0, data=LARGE[:1_500_000])
    assert first.offset == 1_500_000
    with pytest.raises(Conflict, match="gap") as gap:
        host.artifact_upload("u", offset=2_000_000, data=b"x")
    assert gap.value.code == "upload_offset_mismatch"
    assert re.fullmatch(r"the upload has \d+ bytes, so offset \d+ would leave a gap", gap.value.message)
    kept.kill()
    kept.start()
    with connect_sync(kept.socket) as client:
        assert client.artifact_upload("u").offset == 1_500_000
        client.artifact_upload("u", offset=1_000_000, data=LARGE[1_000_000:2_000_000])
        upload(client, "u", LARGE)
        with pytest.raises(Conflict) as other:
            client.artifact_put(upload="u", blake3="0" * 64)
        assert other.value.code == "artifact_mismatch"
        put = client.artifact_put(upload="u", blake3=address(LARGE), op_id="once")
        assert client.artifact_put(upload="u", blake3=address(LARGE), op_id="once") == put
        upload(client, "u", LARGE)
        assert client.artifact_put(upload="u", blake3=address(LARGE), op_id="once") == put, "its bytes sent once more"
        assert read(client, put.artifact) == LARGE
        assert client.artifact_upload("u").offset == 0 and not list((tmp_path / "state").rglob("*.upload"))
        with pytest.raises(Conflict, match="no upload"):
            client.artifact_put(upload="u")


@pytest.mark.requirement("ART-7")
def test_the_beginning_of_an_address_names_an_artifact_if_it_is_the_only_one(host: SyncClient) -> None:
    by_prefix: dict[str, bytes] = {}
    for number in range(100_000):
        data = b"%d" % number
        other = by_prefix.setdefault(address(data)[:4], data)
        if other != data:
            break
    refs = sorted(host.artifact_put(data=each).artifact for each in (data, other))
    with pytest.raises(Conflict) as ambiguous:
        host.artifact_get(refs[0][:4])
    assert ambiguous.value.code == "ambiguous_id" and all(ref in (ambiguous.value.hint or "") for ref in refs)
    digits = next(digits for digits in range(4, 65) if refs[0][:digits] != refs[1][:digits])
    assert host.artifact_stat(refs[0][:digits]).artifact == refs[0]
    for unknown in ("0123456789abcdef" * 4, "tag:none"):
        with pytest.raises(NotFound) as missing:
            host.artifact_get(unknown)
        assert missing.value.code == "artifact_not_found"
    with pytest.raises(CallFailed, match="not the address"):
        host.artifact_get("../etc/passwd")


@pytest.mark.requirement("ART-7")
def test_a_tag_moves_only_if_its_expected_value_matches(host: SyncClient) -> None:
    one, two = (host.artifact_put(data=data).artifact for data in (b"one", b"two"))
    made = host.artifact_tag("latest", artifact=one, expected="")
    assert (made.artifact, made.previous) == (one, None) and read(host, "tag:latest") == b"one"
    with pytest.raises(Conflict, match=one) as moved:
        host.artifact_tag("latest", artifact=two, expected="")
    assert moved.value.code == "tag_moved" and read(host, "tag:latest") == b"one"
    assert host.artifact_tag("latest", artifact="tag:latest", expected=one).receipt is None
    assert host.artifact_tag("latest", artifact=two, expected=one).previous == one
    assert host.artifact_stat(two).tags == ("latest",)
    assert host.artifact_tag("latest").artifact is None
    with pytest.raises(NotFound):
        read(host, "tag:latest")
    assert host.artifact_tag("latest", artifact=one, expected="").receipt is not None


@pytest.mark.requirement("ART-7")
def test_only_one_of_concurrent_callers_moves_the_tag(kept: Running, host: SyncClient) -> None:
    refs = [host.artifact_put(data=b"%d" % number).artifact for number in range(8)]
    won: list[str] = []

    def move(ref: str) -> None:
        with connect_sync(kept.socket) as client, suppress(Conflict):
            client.artifact_tag("race", artifact=ref, expected="")
            won.append(ref)

    threads = [threading.Thread(target=move, args=(ref,)) for ref in refs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len(won) == 1 and host.artifact_stat("tag:race").artifact == won[0]


def referenced(host: SyncClient, tree: Path, data: str) -> str:
    """An artifact that is a file's content too."""
    (tree / "large.txt").write_text(data)
    host.session("s", agent="a", workdir=str(tree)).read("large.txt")
    return host.artifact_put(data=data.encode()).artifact


@pytest.mark.requirement("ART-8")
def test_a_collection_removes_only_unreferenced_artifacts(host: SyncClient, tree: Path, tmp_path: Path) -> None:
    text = "a line of a large file\n" * 60_000
    kept = {
        "tagged": host.artifact_put(data=b"tagged").artifact,
        "pinned": host.artifact_put(data=b"pinned", policy="pin").artifact,
        "of a file": referenced(host, tree, text),
    }
    host.artifact_tag("t", artifact=kept["tagged"])
    loose = [host.artifact_put(data=LARGE[:500_000]).artifact, host.artifact_put(data=b"loose").artifact]
    assert host.artifact_gc().removed == (), "they are younger than the grace"
    dry = host.artifact_gc(grace_ms=0, dry_run=True)
    assert set(dry.removed) == set(loose) and read(host, loose[0]) == LARGE[:500_000]
    done = host.artifact_gc(grace_ms=0)
    assert set(done.removed) == set(loose) and not done.more
    assert (done.removed_bytes, done.left_bytes) == (500_005, len(text) + len(b"taggedpinned"))
    for ref in loose:
        with pytest.raises((NotFound, CallFailed)):
            read(host, ref)
    assert [len(read(host, ref)) for ref in kept.values()] == [6, 6, len(text)]
    host.artifact_tag("t")
    assert host.artifact_gc(grace_ms=0).removed == (kept["tagged"],)
    again = host.artifact_put(data=b"loose")
    assert again.receipt is not None and read(host, loose[1]) == b"loose", "what was collected can be put again"


@pytest.mark.requirement("ART-8")
def test_a_bound_collects_ephemeral_artifacts_first_then_those_that_were_not_used_for_longest(host: SyncClient) -> None:
    old, used, newer, ephemeral = (
        host.artifact_put(data=name * 100, policy="ephemeral" if name == b"e" else None).artifact
        for name in (b"o", b"u", b"n", b"e")
    )
    read(host, used)
    assert host.artifact_gc(grace_ms=0, max_bytes=400).removed == ()
    assert host.artifact_gc(grace_ms=0, max_bytes=399).removed == (ephemeral,)
    assert host.artifact_gc(grace_ms=0, max_bytes=250).removed == (old,)
    assert host.artifact_gc(grace_ms=0, max_bytes=100, dry_run=True).removed == (newer,)


@pytest.mark.requirement("ART-12")
def test_content_that_was_not_put_is_read_tagged_and_kept_by_its_address(host: SyncClient) -> None:
    s = host.session("s", agent="a")
    for text in ("a short output\n", "a long output\n" * 100_000):
        made = host.toolcall_record(s.id, f"call-{len(text)}", "bash", text)
        ref = address(text.encode())
        assert read(host, ref) == text.encode() and host.artifact_stat(ref).size == len(text)
        assert host.artifact_stat(ref).references == 1
        assert host.artifact_get(ref, offset=2, limit=3).data == text.encode()[2:5]
        assert host.artifact_tag("output", artifact=ref).artifact == ref and read(host, "tag:output") == text.encode()
        host.object_purge(made.object)
        with pytest.raises(NotFound):
            host.artifact_get(ref)
    unknown = address(b"unknown")
    for call in (host.artifact_get, host.artifact_stat, lambda ref: host.artifact_tag("x", artifact=ref)):
        with pytest.raises(NotFound):
            call(unknown)


@pytest.mark.requirement("ART-4")
def test_a_check_names_the_damaged_artifact_and_a_new_put_heals_it(host: SyncClient, tmp_path: Path) -> None:
    good, bad = (host.artifact_put(data=data).artifact for data in (b"good" * 50, LARGE[:200_000]))
    pages = [host.artifact_fsck(limit=1)]
    while pages[-1].next_cursor is not None:
        pages.append(host.artifact_fsck(limit=1, cursor=pages[-1].next_cursor))
    assert sum(page.checked for page in pages) == 2 and not any(page.damaged or page.faults for page in pages)
    (pack,) = (tmp_path / "state" / "artifacts" / "packs").iterdir()
    data = bytearray(pack.read_bytes())
    data[-70_000] ^= 1
    pack.write_bytes(data)
    found = host.artifact_fsck()
    assert [one.artifact for one in found.damaged] == [bad] and not found.faults
    assert host.artifact_fsck(cursor=found.next_cursor).faults, "the pack comes on a page of its own"
    with pytest.raises(CallFailed) as damaged:
        read(host, bad)
    assert damaged.value.code == "corrupt" and read(host, good) == b"good" * 50
    host.artifact_put(data=LARGE[:200_000])
    assert read(host, bad) == LARGE[:200_000] and not host.artifact_fsck().damaged


GREP = """
import sys
from pathlib import Path
from ctxd.artifacts.packs import zstd
needle = sys.argv[2].encode()
for path in sorted(path for path in Path(sys.argv[1]).rglob("*") if path.is_file()):
    data = path.read_bytes()
    is_found, at = needle in data, data.find(b"\\x28\\xb5\\x2f\\xfd")
    while at >= 0 and not is_found:
        try:
            is_found = needle in zstd.ZstdDecompressor().decompress(data[at:])
        except zstd.ZstdError:
            pass
        at = data.find(b"\\x28\\xb5\\x2f\\xfd", at + 1)
    if is_found:
        print(path.relative_to(sys.argv[1]))
"""
"""A search by another process, in the bytes of all files and in everything in them that zstd can decompress."""


def grep(state: Path, needle: str) -> set[str]:
    """The files below ``state`` that hold ``needle``."""
    done = subprocess.run(
        [sys.executable, "-c", GREP, str(state), needle], check=True, capture_output=True, text=True, timeout=60
    )
    return set(done.stdout.split())


@pytest.mark.requirement("ART-9")
@pytest.mark.parametrize("is_put_first", [True, False])
@pytest.mark.parametrize("lines", [3, 200_000])
def test_after_a_purge_another_process_finds_the_text_in_no_file_of_the_state(
    host: SyncClient, tmp_path: Path, lines: int, is_put_first: bool
) -> None:
    state, needle = tmp_path / "state", "the-needle-of-this-test"
    s, text = host.session("s", agent="a"), f"{needle} in a line\n" * lines
    upload(host, "u", text.encode())
    if is_put_first:
        ref = host.artifact_put(upload="u").artifact
    made = host.toolcall_record(s.id, "call-1", "bash", text)
    if not is_put_first:
        ref = host.artifact_put(upload="u").artifact
    host.artifact_tag("tagged", artifact=ref)
    assert host.artifact_get(ref, limit=100).data == text.encode()[:100]
    assert grep(state, needle), "the search finds what is there"
    assert host.object_purge(made.object).complete
    assert grep(state, needle) == set()
    with pytest.raises(NotFound):
        host.artifact_get(ref)


@pytest.mark.requirement("ART-9")
def test_after_a_purge_or_a_collection_no_pack_holds_a_part_of_the_text(host: SyncClient, tmp_path: Path) -> None:
    state = tmp_path / "state"
    texts = ["".join(hashlib.sha256(b"%d %d" % (n, line)).hexdigest() for line in range(4_000)) for n in range(2)]
    refs = [host.artifact_put(data=text.encode()).artifact for text in texts]
    assert searched(state, *texts) == {"artifacts/packs/00000001.pack"}
    done = host.object_purge(f"artifact:{refs[0]}")
    assert done.complete and searched(state, texts[0]) == set() and read(host, refs[1]) == texts[1].encode()
    assert host.artifact_gc(grace_ms=0).removed == (refs[1],)
    for _ in range(100):
        if not searched(state, *texts):
            break
    assert searched(state, *texts) == set()
    assert [row.artifact for row in host.artifact_list().artifacts] == []


@pytest.mark.requirement("ART-6")
@pytest.mark.slow
def test_an_upload_continues_after_a_kill_in_the_middle_of_a_piece(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Running(tmp_path, keep_state=True) as daemon:
        daemon.kill()
        monkeypatch.setitem(daemon._env, "CTXD_FAILPOINTS", "upload.write=kill@2")
        daemon.start()
        with connect_sync(daemon.socket) as client:
            once = client.within(5)
            assert once.artifact_upload("u", offset=0, data=LARGE[:1_000_000]).offset == 1_000_000
            with pytest.raises(CallFailed):
                once.artifact_upload("u", offset=1_000_000, data=LARGE[1_000_000:2_000_000])
        daemon.kill()
        monkeypatch.delitem(daemon._env, "CTXD_FAILPOINTS")
        daemon.start()
        with connect_sync(daemon.socket) as client:
            assert client.artifact_upload("u").offset >= 1_000_000
            upload(client, "u", LARGE)
            made = client.artifact_put(upload="u", blake3=address(LARGE))
            assert read(client, made.artifact) == LARGE


@pytest.mark.slow
@pytest.mark.requirement("ART-3")
@pytest.mark.parametrize(
    "place",
    "journal.commit purge.rewrite purge.unlink purge.truncate art.write art.fsync art.index art.erase".split(),
)  # fmt: skip
def test_a_kill_in_a_collection_or_a_tag_loses_nothing_that_is_reachable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    def work(nth: int) -> None:
        # What the kill has cut is sent again to the next daemon.
        with connect_sync(daemon.socket) as client:
            for number in range(3):
                client.artifact_put(data=LARGE[: 290_000 + number + 10 * nth])
            moved = client.artifact_put(data=b"moved %d" % nth).artifact
            client.artifact_tag("moved", artifact=moved)
            client.artifact_gc(grace_ms=0)
            client.artifact_put(data=LARGE[: 280_000 + nth])
            client.artifact_gc(grace_ms=0)

    with Running(tmp_path, keep_state=True) as daemon:
        with connect_sync(daemon.socket) as client:
            kept = client.artifact_put(data=LARGE[:300_000]).artifact
            client.artifact_tag("kept", artifact=kept)
        for nth in (1, 2):
            daemon.kill()
            passes = nth + 2 if place.startswith(("journal", "art.i")) else nth
            monkeypatch.setitem(daemon._env, "CTXD_FAILPOINTS", f"{place}=kill@{passes}")
            working = threading.Thread(target=work, args=(nth,))
            with suppress(RuntimeError):
                daemon.start()
                working.start()
            assert daemon.ended() == -signal.SIGKILL, f"{place} was not hit"
            monkeypatch.delitem(daemon._env, "CTXD_FAILPOINTS")
            daemon.start()
            if working.ident is not None:
                working.join(60)
            with connect_sync(daemon.socket) as client:
                assert read(client, "tag:kept") == LARGE[:300_000]
                if working.ident is not None:
                    assert read(client, "tag:moved") == b"moved %d" % nth
                found = [client.artifact_fsck()]
                while (cursor := found[-1].next_cursor) is not None:
                    found.append(client.artifact_fsck(cursor=cursor))
                assert not any(page.damaged or page.faults for page in found)
    assert searched(tmp_path / "state", "no such text") == set(), "the state verifies"
