"""A sieve never denies what it holds, and soon denies nearly all that it does not."""

import anyio
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ctxd import limits
from ctxd.artifacts.artifact_store import ArtifactStore
from ctxd.clock import SystemClock
from ctxd.store import head_cache
from ctxd.store.bloom_filter import BloomFilter
from ctxd.store.head_cache import fill_bloom
from ctxd.store.version_reads import Reader
from tests.unit.store.documents import document, write
from tests.unit.store.running import running


@given(texts=st.lists(st.text(max_size=20), max_size=50))
@settings(max_examples=20, deadline=None)
def test_added_texts_are_never_denied(texts):
    sieve = BloomFilter()
    sieve.add(texts)
    sieve.whole = True
    assert not any(sieve.lacks(text) for text in texts)


def test_a_sieve_that_is_not_whole_denies_nothing():
    assert not BloomFilter().lacks("anything")


@pytest.mark.parametrize("added", [100_000, 250_000])
def test_few_unadded_texts_are_possible_members(added: int):
    sieve = BloomFilter()
    sieve.whole = True
    sieve.add(f"here {n}" for n in range(added))
    assert not any(sieve.lacks(f"here {n}") for n in range(0, added, 7))
    assert sum(not sieve.lacks(f"gone {n}") for n in range(100_000)) < 100


class StandingClock(SystemClock):
    """A clock on which a sleep ends when a test lets it."""

    def __init__(self):
        self.slept = []
        self.goes_on = anyio.Event()

    async def sleep(self, seconds):
        self.slept.append(seconds)
        await self.goes_on.wait()


@pytest.mark.anyio
@pytest.mark.parametrize("is_large", [True, False])
async def test_the_filter_of_a_large_store_is_filled_after_the_first_calls(tmp_path, monkeypatch, is_large):
    monkeypatch.setattr(head_cache, "_KEYS_READ", 0 if is_large else 1)
    async with running(tmp_path) as store:
        await store.submit(write(document("here", "text"))).wait()
    reader, sieve, clock = (
        Reader(tmp_path / "state.db", ArtifactStore(tmp_path / "artifacts")),
        BloomFilter(),
        StandingClock(),
    )
    async with anyio.create_task_group() as group:
        group.start_soon(fill_bloom, sieve, reader, pytest.fail, clock)
        if is_large:
            while not clock.slept:
                await anyio.sleep(0.001)
            assert not sieve.lacks("gone")
            monkeypatch.setattr(head_cache, "_KEYS_READ", 1)
            clock.goes_on.set()
    assert clock.slept == ([limits.BLOOM_DELAY_S] if is_large else [])
    assert (sieve.lacks("here"), sieve.lacks("gone")) == (False, True)
    reader.close()
