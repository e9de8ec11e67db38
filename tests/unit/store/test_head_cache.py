"""What the store keeps in memory stays within its bounds."""

import sys

import msgspec
import pytest

from ctxd.objects.document import Document, Stored
from ctxd.store.head_cache import Heads, Texts
from ctxd.store.write_types import NOT_CACHED


@pytest.mark.parametrize("character", ["a", "\u00e9", "\u4e00", "\U0001f600"])
def test_cached_text_stays_within_its_memory_limit_in_every_script(character: str) -> None:
    limit = 1_000_000
    texts = Texts(limit)
    kept = {f"{n:064x}": character * 10_000 + str(n) for n in range(200)}
    for ref, text in kept.items():
        texts.put(ref, text)
    found = [text for ref in kept if (text := texts.get(ref)) is not None]
    # Full, within one text, and not beyond.
    one = sys.getsizeof(kept["0" * 64])
    assert limit - 2 * one < sum(map(sys.getsizeof, found)) <= limit
    assert found == list(kept.values())[-len(found) :]


def test_a_text_that_would_push_out_most_others_is_not_kept() -> None:
    texts = Texts(1_000)
    texts.put("a", "\U0001f600" * 50)
    assert texts.get("a") is None


def test_the_count_is_right_after_texts_were_encoded() -> None:
    texts = Texts(1_000_000)
    for n in range(1_000):
        texts.put(str(n), "\u4e00" * 10_000 + str(n))
        if (text := texts.get(str(n))) is not None:
            msgspec.json.encode(text)
    assert sum(texts.get(str(n)) is not None for n in range(1_000)) == 49


def head(id: str, tx: int, arguments: int) -> Stored:
    """The head of a tool call with so many bytes of arguments."""
    document = Document(
        id=id, type="toolcall", identity_hash="i", content_hash="c", payload={"args": {"x": "y" * arguments}}
    )
    return Stored(document=document, content_ref=None, valid_time=tx, tx=tx, tx_time=tx)


def perhaps(id: str) -> bool:
    """No id is certainly new."""
    return False


def test_large_heads_take_no_more_memory_than_allowed_and_leave_small_ones() -> None:
    heads = Heads(1_000, perhaps, large_limit=1_000_000)
    heads.durable = 100
    given = {f"{tx}": head(f"{tx}", tx, 100_000 if tx % 2 else 10) for tx in range(1, 101)}
    for id, one in given.items():
        heads.put(id, one)
    kept = heads.known(given)
    assert [id for id in kept if int(id) % 2] == [f"{tx}" for tx in range(83, 101, 2)]
    assert sum(int(id) % 2 == 0 for id in kept) == 50


def test_a_large_head_stays_until_it_is_durable_and_is_counted_once() -> None:
    heads = Heads(1_000, perhaps, large_limit=250_000)
    for tx in range(1, 6):
        heads.put("same", head("same", tx, 100_000))
    assert not heads.trim_due
    for tx in range(6, 9):
        heads.put(f"{tx}", head(f"{tx}", tx, 100_000))
    assert len(heads) == 4
    assert heads.trim_due
    heads.durable = 8
    heads.trim()
    assert list(heads.known(["same", "6", "7", "8"])) == ["7", "8"]
    assert heads.peek("same") is NOT_CACHED
    heads.forget(["7", "8"])
    heads.put("9", head("9", 9, 200_000))
    assert len(heads) == 1


class Counting(int):
    """A sequence that counts its comparisons."""

    compared = 0

    def __gt__(self, other: int) -> bool:
        Counting.compared += 1
        return int(self) > other


def test_a_put_into_a_full_cache_does_not_walk_pending_entries() -> None:
    heads = Heads(10, perhaps)
    for number in range(1_000):
        heads.delete((f"deleted{number}",), Counting(number + 1))
    assert Counting.compared <= 2_000
    heads.durable = 1_000
    heads.trim()
    assert len(heads) == 10


def test_the_head_that_is_not_cached_is_printed_under_its_name() -> None:
    assert repr(NOT_CACHED) == "NOT_CACHED"
