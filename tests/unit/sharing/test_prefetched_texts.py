"""The texts of an import are fetched in few batches, each held only while it is needed."""

from collections.abc import Iterable

import pytest

from ctxd.sharing import prefetched_texts
from ctxd.sharing.prefetched_texts import PrefetchedTexts

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
    texts = PrefetchedTexts(origin.contents, REFS)
    for number, ref in enumerate(REFS):
        if number in (10, 20, 1_000):
            assert [*await texts.of([ref, "not in the order", REFS[0]])] == [ref, "not in the order", REFS[0]]
        assert await texts.of([ref]) == {ref: ref}
    assert len(origin.calls) == 5 + 2, "64, 256, 1,024, 2,000 and the rest"


@pytest.mark.requirement("HST-11")
async def test_texts_that_were_used_or_passed_over_are_not_held() -> None:
    origin = Origin(size=prefetched_texts.TEXTS_HELD_CHARS // prefetched_texts.TEXTS_AHEAD + 1)
    texts = PrefetchedTexts(origin.contents, REFS)
    for number, ref in enumerate(REFS[:500]):
        if number % 3:
            await texts.of([ref, f"large {number}"])
            assert len(texts._have) <= prefetched_texts.TEXTS_AHEAD + 3
    assert max(origin.calls) <= prefetched_texts.TEXTS_AHEAD + 1, "each batch is large"


@pytest.mark.requirement("HST-11")
async def test_a_purged_text_is_asked_for_once() -> None:
    origin = Origin()
    texts = PrefetchedTexts(origin.contents, ["a", "purged", "b"])
    assert await texts.of(["a", "purged"]) == {"a": "a"}
    assert await texts.of(["purged", "b"]) == {"b": "b"}
    assert origin.calls == [2]
