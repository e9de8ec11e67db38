"""What the store keeps in memory stays within its bounds."""

import sys

import msgspec
import pytest

from ctxd.store.cache import Texts


@pytest.mark.parametrize("character", ["a", "\u00e9", "\u4e00", "\U0001f600"])
def test_kept_text_takes_no_more_memory_than_allowed_whatever_its_script(character: str) -> None:
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
