"""An import fetches texts in few batches, held only while they are needed; few of its rows wait for the disk."""

from collections.abc import Iterable
from pathlib import Path

import pytest

from ctxd.sharing import prefetched_texts, session_import
from ctxd.sharing.prefetched_texts import PrefetchedTexts
from tests.unit.sessions.world import say
from tests.unit.sharing.test_session_import import two

pytestmark = pytest.mark.anyio

REFS = [f"r{number}" for number in range(5_000)]


class Origin:
    """Texts of ``size`` characters; each call is one round trip."""

    def __init__(self, size: int = 1) -> None:
        self.size = size
        self.calls: list[int] = []

    async def contents(self, refs: Iterable[str]) -> dict[str, str]:
        found = {ref: ref.ljust(self.size) for ref in refs if ref != "purged"}
        self.calls.append(len(found))
        return found


@pytest.mark.requirement("HST-11")
async def test_a_text_out_of_order_costs_one_round_trip() -> None:
    origin = Origin()
    texts = PrefetchedTexts(origin.contents, dict.fromkeys(REFS, 1))
    for number, ref in enumerate(REFS):
        if number in (10, 20, 1_000):
            assert [*await texts.of([ref, "not in the order", REFS[0]])] == [ref, "not in the order", REFS[0]]
        assert await texts.of([ref]) == {ref: ref}
    assert len(origin.calls) == 5 + 2, "64, 256, 1,024, 2,000 and the rest"


@pytest.mark.requirement("HST-11")
async def test_texts_that_were_used_or_passed_over_are_not_held() -> None:
    origin = Origin(size=prefetched_texts.TEXTS_HELD_CHARS // prefetched_texts.TEXTS_AHEAD + 1)
    texts = PrefetchedTexts(origin.contents, dict.fromkeys(REFS, 1))
    for number, ref in enumerate(REFS[:500]):
        if number % 3:
            await texts.of([ref, f"large {number}"])
            assert len(texts._have) <= prefetched_texts.TEXTS_AHEAD + 3
    assert max(origin.calls) <= prefetched_texts.TEXTS_AHEAD + 1, "each batch is large"


@pytest.mark.requirement("HST-11")
async def test_a_batch_has_few_characters_also_if_large_texts_follow_small_ones() -> None:
    chars = dict.fromkeys(REFS[:1_500], 1) | dict.fromkeys(REFS[1_500:], 200_000)
    fetched: list[int] = []

    async def contents(refs: Iterable[str]) -> dict[str, str]:
        found = {ref: ref.ljust(chars[ref]) for ref in refs}
        fetched.append(sum(map(len, found.values())))
        return found

    texts = PrefetchedTexts(contents, chars)
    for ref in REFS[:1_600]:
        await texts.of([ref])
    assert max(fetched) <= prefetched_texts.TEXTS_HELD_CHARS + len(REFS) * 5


@pytest.mark.requirement("HST-11")
async def test_a_purged_text_is_fetched_once() -> None:
    origin = Origin()
    texts = PrefetchedTexts(origin.contents, {"a": 1, "purged": 1, "b": 1})
    assert await texts.of(["a", "purged"]) == {"a": "a"}
    assert await texts.of(["purged", "b"]) == {"b": "b"}
    assert origin.calls == [2]


@pytest.mark.requirement("HST-11")
async def test_few_rows_wait_for_the_disk_even_if_most_have_a_record(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(session_import, "WAITING_MAX", 8)
    waiting: list[int] = []

    class Counted(session_import._Import):
        def _submit(self, *row, **settings):
            pending = super()._submit(*row, **settings)
            waiting.append(len(self._waiting))
            return pending

    monkeypatch.setattr(session_import, "_Import", Counted)
    async with two(tmp_path) as (a, b):
        await a.w.call("session.create", agent="a", session="s1")
        for n in range(20):
            await say(a.w, "s1", ("user", f"q{n}"))
            await a.assemble()
        await b.take(a)
        assert len(waiting) > 20 and max(waiting) <= 8 + 1, "a record and the row before it are submitted together"
