"""A sieve never denies what it holds, and soon denies nearly all that it does not."""

from hypothesis import given, settings
from hypothesis import strategies as st

from ctxd.store.idempotency import BloomFilter


@given(texts=st.lists(st.text(max_size=20), max_size=50))
@settings(max_examples=20, deadline=None)
def test_what_was_added_is_never_denied(texts):
    sieve = BloomFilter()
    sieve.add(texts)
    sieve.whole = True
    assert not any(sieve.lacks(text) for text in texts)


def test_a_sieve_that_is_not_whole_denies_nothing():
    assert not BloomFilter().lacks("anything")


def test_few_of_those_that_were_never_added_are_left_open():
    sieve = BloomFilter()
    sieve.add(f"here {n}" for n in range(100_000))
    sieve.whole = True
    assert sum(not sieve.lacks(f"gone {n}") for n in range(100_000)) < 50
