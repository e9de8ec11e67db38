"""VER: every change is a version, and every version can be read again by either time."""

from pathlib import Path
from typing import Any

import anyio
import pytest

from ctxd_client import SyncClient, SyncSession, connect, connect_sync
from ctxd_protocol.methods.files import FileIndexResult
from ctxd_protocol.object_types import Receipt
from ctxd_protocol.session_types import Message
from tests.client.running import Running
from tests.spec.refusal import refused

TEXTS = ("one\n", "two\n", "three\n", "one\n")
"""What a file held one after the other; the last is the first again."""


def written(s: SyncSession, path: str = "a.py") -> tuple[str, list[Receipt]]:
    """The object of a file that held each of ``TEXTS``, and the receipts of its versions."""
    results: list[FileIndexResult] = [s.edited(path, content=text) for text in TEXTS]
    assert [result.outcome for result in results] == ["created", "updated", "updated", "updated"]
    return results[0].object, [result.receipt for result in results if result.receipt is not None]


def content(client: SyncClient, id: str, **basis: Any) -> str | None:
    return client.object_get(id, **basis).object.payload["content"]


@pytest.mark.requirement("VER-1")
def test_every_change_makes_a_version_and_earlier_ones_stay_readable(
    s: SyncSession, client: SyncClient, tree: Path
) -> None:
    id, receipts = written(s)
    assert client.file_index(s.id, "a.py", cause="check").outcome == "deleted"
    rows = client.object_history(id).versions
    assert [(row.tx, row.valid_time) for row in rows[:-1]] == [(receipt.seq, receipt.vt) for receipt in receipts]
    assert [row.state for row in rows] == ["present"] * 4 + ["deleted"]
    assert [content(client, id, tx=row.tx) for row in rows] == [*TEXTS, None]
    assert [content(client, id, valid_time=row.valid_time) for row in rows] == [*TEXTS, None]
    assert [row.content_hash for row in rows] == [client.object_get(id, tx=row.tx).object.content_hash for row in rows]


@pytest.mark.requirement("VER-1")
def test_earlier_versions_stay_readable_over_a_kill(tmp_path: Path) -> None:
    with Running(tmp_path, keep_state=True) as daemon:
        with connect_sync(daemon.socket) as client:
            s = client.session(agent="spec", workdir=str(tmp_path))
            id, receipts = written(s)
            s.user("one")
            before = [client.object_get(id, tx=receipt.seq) for receipt in receipts]
            scaffolding = [client.object_get(f"{kind}:{s.id}") for kind in ("chat", "session", "system_prompt")]
        daemon.kill()
        daemon.start()
        with connect_sync(daemon.socket) as client:
            assert [client.object_get(id, tx=receipt.seq) for receipt in receipts] == before
            assert [client.object_get(version.object.id) for version in scaffolding] == scaffolding
            assert client.file_index(s.id, "a.py", content="five\n").outcome == "updated"
            assert [content(client, id, tx=receipt.seq) for receipt in receipts] == list(TEXTS)


@pytest.mark.requirement("VER-1")
def test_every_message_and_every_move_is_a_version_of_chat_and_session(s: SyncSession, client: SyncClient) -> None:
    call = s.record(f"call-{s.id}", "bash", "ok\n").receipt
    said = [s.user("one").receipt, s.assistant("two").receipt]
    off = s.deactivate(f"call-{s.id}").receipt
    assert call and off and all(said)
    chat = [row.tx for row in client.object_history(f"chat:{s.id}").versions]
    session = [row.tx for row in client.object_history(f"session:{s.id}").versions]
    seqs = [receipt.seq for receipt in said if receipt]
    assert chat[1:] == seqs
    assert session[1:] == [call.seq, *seqs, off.seq]
    active = [client.object_get(f"session:{s.id}", tx=tx).object.payload["active_set"] for tx in session]
    assert active == [[], [f"call-{s.id}"], [f"call-{s.id}"], [f"call-{s.id}"], []]


@pytest.mark.requirement("VER-2")
def test_a_version_is_read_as_of_a_valid_time_a_transaction_or_both(s: SyncSession, client: SyncClient) -> None:
    id, receipts = written(s)
    for number, receipt in enumerate(receipts):
        assert content(client, id, valid_time=receipt.vt) == TEXTS[number]
        assert content(client, id, tx=receipt.seq) == TEXTS[number]
        for other, basis in enumerate(receipts):
            assert content(client, id, valid_time=receipt.vt, tx=basis.seq) == TEXTS[min(number, other)]
    between = s.user("another write").receipt
    assert between
    assert content(client, id, tx=between.seq, valid_time=between.vt) == TEXTS[-1]


@pytest.mark.requirement("VER-2")
def test_a_valid_time_between_two_versions_shows_the_earlier_one(s: SyncSession, client: SyncClient) -> None:
    id, receipts = written(s)
    for number, receipt in enumerate(receipts[1:], start=1):
        shown = client.object_get(id, valid_time=receipt.vt - 1).object
        assert shown.valid_time <= receipt.vt - 1
        assert shown.payload["content"] == TEXTS[number - 1]
        assert content(client, id, tx=receipt.seq - 1) == TEXTS[number - 1]


@pytest.mark.requirement("VER-2")
def test_before_its_first_version_an_object_is_not_there(s: SyncSession, client: SyncClient) -> None:
    id, receipts = written(s)
    for basis in ({"valid_time": receipts[0].vt - 1}, {"tx": receipts[0].seq - 1}, {"valid_time": 0}, {"tx": 0}):
        with refused("object_not_found"):
            client.object_get(id, **basis)
        with refused("object_not_found"):
            client.object_history(id, **basis)
        assert client.object_bulk([id], **basis).missing == (id,)


@pytest.mark.requirement("VER-2")
def test_bulk_reads_and_histories_accept_both_times(s: SyncSession, client: SyncClient) -> None:
    id, receipts = written(s)
    call = s.record(f"call-{s.id}", "bash", "ok\n").object
    second = receipts[1]
    for basis in ({"tx": second.seq}, {"valid_time": second.vt}, {"tx": second.seq, "valid_time": receipts[3].vt}):
        found = client.object_bulk([call, id], content=True, **basis)
        assert [version.payload["content"] for version in found.objects] == [TEXTS[1]]
        assert found.missing == (call,)
        rows = client.object_history(id, **basis).versions
        assert [row.tx for row in rows] == [receipt.seq for receipt in receipts[:2]]


@pytest.mark.requirement("VER-3")
@pytest.mark.parametrize("corrections", [False, True])
@pytest.mark.parametrize("limit", [1, 3, 4, 100])
def test_history_is_listed_in_either_order_page_by_page(
    s: SyncSession, client: SyncClient, limit: int, corrections: bool
) -> None:
    id, receipts = written(s)
    listed: dict[str, list[int]] = {"asc": [], "desc": []}
    for order, seen in listed.items():
        cursor = None
        while True:
            page = client.object_history(id, order=order, corrections=corrections, limit=limit, cursor=cursor)
            assert len(page.versions) <= limit
            seen += [row.tx for row in page.versions]
            cursor = page.next_cursor
            if cursor is None:
                break
    expected = [receipt.seq for receipt in receipts]
    assert listed == {"asc": expected, "desc": expected[::-1]}


@pytest.mark.requirement("VER-3")
@pytest.mark.parametrize("kind", ["chat", "session", "system_prompt"])
def test_the_history_of_scaffolding_is_listed_in_either_order_too(
    s: SyncSession, client: SyncClient, kind: str
) -> None:
    for text in ("one", "two", "three"):
        s.user(text)
        s.set_system_prompt(text)
    rising = client.object_history(f"{kind}:{s.id}").versions
    falling = client.object_history(f"{kind}:{s.id}", order="desc").versions
    assert len(rising) >= 4
    assert [row.tx for row in rising] == sorted(row.tx for row in rising)
    assert falling == rising[::-1]
    first = client.object_history(f"{kind}:{s.id}", order="desc", limit=2)
    rest = client.object_history(f"{kind}:{s.id}", order="desc", cursor=first.next_cursor)
    assert first.versions + rest.versions == falling


@pytest.mark.requirement("VER-3")
def test_a_row_has_its_content_hash_and_that_of_a_chat_or_session_is_read_with_the_version(
    s: SyncSession, client: SyncClient
) -> None:
    s.user("one")
    s.set_system_prompt("Be brief.")
    s.record(f"call-{s.id}", "bash", "ok\n")
    for kind in ("chat", "session", "system_prompt"):
        rows = client.object_history(f"{kind}:{s.id}").versions
        read = [client.object_get(f"{kind}:{s.id}", tx=row.tx).object for row in rows]
        assert [(version.valid_time, version.tx) for version in read] == [(row.valid_time, row.tx) for row in rows]
        hashes = [version.content_hash if kind == "system_prompt" else None for version in read]
        assert [row.content_hash for row in rows] == hashes
        assert len({version.content_hash for version in read}) >= 2


@pytest.mark.requirement("VER-4")
def test_versions_of_one_object_are_a_millisecond_apart_however_fast_they_come(start, client: SyncClient) -> None:
    sessions = [start() for _ in range(2)]
    receipts = []
    for number in range(60):
        result = sessions[number % 2].edited("burst.py", content=f"{number}\n")
        assert result.receipt
        receipts.append(result.receipt)
    rows = client.object_history(result.object).versions
    times = [row.valid_time for row in rows]
    assert len(rows) == 60
    assert all(later - earlier >= 1 for earlier, later in zip(times, times[1:], strict=False))
    assert [(row.tx, row.valid_time) for row in rows] == [(receipt.seq, receipt.vt) for receipt in receipts]


@pytest.mark.requirement("VER-4")
def test_valid_times_of_all_writes_rise_with_their_transactions(start) -> None:
    sessions = [start() for _ in range(3)]
    receipts = []
    for number in range(30):
        s = sessions[number % 3]
        receipts.append(s.user(str(number)).receipt)
        receipts.append(s.record(f"{s.id}-{number}", "bash", "").receipt)
    seqs = [receipt.seq for receipt in receipts if receipt]
    times = [receipt.vt for receipt in receipts if receipt]
    assert seqs == list(range(seqs[0], seqs[0] + 60))
    assert times == sorted(times)


@pytest.mark.anyio
@pytest.mark.requirement("VER-4")
async def test_the_last_chat_version_at_one_time_wins(daemon: Running, s: SyncSession) -> None:
    async with connect(daemon.socket) as client:
        async with anyio.create_task_group() as group:
            for number in range(100):
                group.start_soon(client.session_append, s.id, [Message(role="assistant", content=str(number))])
        rows = (await client.object_history(f"chat:{s.id}", limit=1000)).versions
        assert [(row.valid_time, row.tx) for row in rows] == sorted((row.valid_time, row.tx) for row in rows)
        last = {row.valid_time: row.tx for row in rows}
        for valid_time, tx in last.items():
            at = (await client.object_get(f"chat:{s.id}", valid_time=valid_time)).object
            assert at.tx == tx
            assert at.payload == (await client.object_get(f"chat:{s.id}", tx=tx)).object.payload


@pytest.mark.requirement("VER-5")
def test_a_bulk_read_returns_objects_and_lists_missing_ids(start, client: SyncClient) -> None:
    s, other = start(system_prompt="Be brief."), start()
    id, _ = written(s)
    theirs = other.record(f"call-{other.id}", "bash", "ok\n").object
    prompt, chat, nothing = f"system_prompt:{s.id}", f"chat:{s.id}", ["f" * 64, "no-such-call", "chat:no-such-session"]
    found = client.object_bulk([nothing[0], theirs, chat, nothing[1], id, prompt, theirs, nothing[2]], content=True)
    assert [version.id for version in found.objects] == [theirs, chat, id, prompt]
    assert found.missing == tuple(nothing)
    assert found.objects == tuple(client.object_get(one).object for one in (theirs, chat, id, prompt))
    before = client.object_bulk([id, theirs], valid_time=1)
    assert (before.objects, before.missing) == ((), (id, theirs)), "neither had a version then"


@pytest.mark.requirement("VER-5")
def test_a_bulk_read_omits_content_unless_requested(s: SyncSession, client: SyncClient) -> None:
    ids = [s.edited(f"{number}.py", content=f"{number}\n").object for number in range(300)]
    bare = client.object_bulk(ids)
    assert [version.id for version in bare.objects] == ids
    assert bare.missing == ()
    assert not any("content" in version.payload for version in bare.objects)
    whole = client.object_bulk(ids, content=True)
    assert [version.payload["content"] for version in whole.objects] == [f"{number}\n" for number in range(300)]
