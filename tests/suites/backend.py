"""What every backend of versions must do: subclass ``BackendSuite`` and give it a ``fresh`` fixture.

A backend that blocks subclasses ``EmbeddedSuite`` and gives it a ``fresh_embedded`` fixture.
"""

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager, asynccontextmanager
from itertools import product
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ctxd.backends.sqlite import SqliteBackend
from ctxd.backends.stored_version import Version
from ctxd.objects.document import NOW, AsOf, Page
from tests.fakes.backend import MemoryBackend

ENTITIES = ("a", "ab", "b\u00e9", "session:\U0001f600")

change = st.builds(
    lambda id, start, body: (id, start, body, None if body is None else body * 2),
    id=st.sampled_from(ENTITIES),
    start=st.integers(0, 8),
    body=st.none() | st.sampled_from((b"x", b"y", b"z")),
)
transactions = st.lists(st.lists(change, min_size=1, max_size=3, unique_by=lambda row: row[:2]), max_size=8)


Row = tuple[str, int, bytes | None, bytes | None]


def put(id: str, start: int, body: bytes | None) -> Row:
    return (id, start, body, None)


def apply(backend: SqliteBackend | MemoryBackend, tx: int, tx_time: int, rows: Sequence[Row]) -> None:
    backend.append([Version(id, start, tx, tx_time, body, content) for id, start, body, content in rows])


def times(versions: list[Version]) -> list[tuple[int, int]]:
    return [(version.valid_time, version.tx) for version in versions]


def bodies(versions: list[Version]) -> list[bytes | None]:
    return [version.body for version in versions]


class Awaited:
    """A backend that blocks, as one that is awaited."""

    def __init__(self, backend: SqliteBackend) -> None:
        self._backend = backend

    async def apply(self, tx: int, tx_time: int, rows: Sequence[Row]) -> None:
        apply(self._backend, tx, tx_time, rows)

    async def as_of(self, ids: Sequence[str], *read: Any) -> list[Version]:
        return self._backend.as_of(ids, *read)

    async def history(self, id: str, *read: Any, **options: Any) -> list[Version]:
        return self._backend.history(id, *read, **options)

    async def scan(self, prefix: str, *read: Any, **options: Any) -> list[Version]:
        return self._backend.scan(prefix, *read, **options)

    async def everything(self, damaged: Callable[..., None]) -> AsyncIterator[Version]:
        for version in self._backend.everything(damaged):
            yield version


async def everything(backend: Awaited) -> list[Version]:
    return [version async for version in backend.everything(pytest.fail)]


async def differences(backend: Awaited, reference: MemoryBackend, *, txs: range, times: range) -> list[str]:
    """Where the two answer differently: every history and every state at the given times."""
    found = []

    def compare(what: str, said: Any, expected: Any) -> None:
        if said != expected:
            found.append(f"{what}: {said} instead of {expected}")

    for id, corrections, ascending in product(ENTITIES, (False, True), (False, True)):
        for at in (NOW, AsOf(valid_time=4), AsOf(tx=3), AsOf(5, 2)):
            read = (id, at, Page(ascending=ascending))
            said = await backend.history(*read, corrections=corrections)
            expected = reference.history(*read, corrections=corrections)
            compare(f"history of {read} with corrections {corrections}", said, expected)
    for valid_time, tx in product(times, txs):
        at = AsOf(valid_time, tx)
        compare(f"scan at {at}", await backend.scan("", at), reference.scan("", at))
        said = sorted(await backend.as_of(ENTITIES, at), key=lambda version: version.id)
        expected = sorted(reference.as_of(ENTITIES, at), key=lambda version: version.id)
        compare(f"as of {at}", said, expected)
    return found


@pytest.mark.anyio
class BackendSuite:
    @pytest.fixture
    def anyio_backend(self) -> str:
        return "asyncio"

    @pytest.fixture
    def fresh(self) -> Callable[[], AbstractAsyncContextManager[Awaited]]:
        raise NotImplementedError

    @pytest.fixture
    async def backend(self, fresh: Any) -> Any:
        async with fresh() as backend:
            yield backend

    async def test_a_version_holds_from_its_start_on(self, backend: Awaited) -> None:
        await backend.apply(1, 100, [put("a", 10, b"x")])
        assert await backend.as_of(["a"], AsOf(valid_time=9)) == []
        assert await backend.as_of(["a"], AsOf(valid_time=10)) == [Version("a", 10, 1, 100, b"x")]
        assert await backend.as_of(["a"]) == [Version("a", 10, 1, 100, b"x")]

    async def test_a_read_as_of_a_transaction_does_not_see_a_later_one(self, backend: Awaited) -> None:
        await backend.apply(1, 0, [put("a", 10, b"x")])
        await backend.apply(2, 0, [put("a", 10, b"y")])
        assert bodies(await backend.as_of(["a"], AsOf(tx=1))) == [b"x"]
        assert bodies(await backend.as_of(["a"], AsOf(tx=2))) == [b"y"]
        assert await backend.as_of(["a"], AsOf(tx=0)) == []

    async def test_a_put_in_the_past_shows_until_the_next_version(self, backend: Awaited) -> None:
        await backend.apply(1, 0, [put("a", 10, b"x"), put("a", 20, b"y")])
        await backend.apply(2, 0, [put("a", 5, b"w")])
        assert [bodies(await backend.as_of(["a"], AsOf(valid_time=at))) for at in (5, 9, 10, 20)] == [
            [b"w"],
            [b"w"],
            [b"x"],
            [b"y"],
        ]

    async def test_a_deleted_entity_is_not_there_but_has_a_history(self, backend: Awaited) -> None:
        await backend.apply(1, 0, [put("a", 10, b"x")])
        await backend.apply(2, 0, [put("a", 20, None)])
        assert await backend.as_of(["a"]) == []
        assert await backend.scan("") == []
        assert bodies(await backend.history("a")) == [b"x", None]

    @pytest.mark.requirement("VER-3")
    async def test_corrections_are_listed_only_on_request(self, backend: Awaited) -> None:
        await backend.apply(1, 0, [put("a", 10, b"x")])
        await backend.apply(2, 0, [put("a", 10, b"y")])
        assert times(await backend.history("a")) == [(10, 2)]
        assert times(await backend.history("a", corrections=True)) == [(10, 1), (10, 2)]
        assert times(await backend.history("a", page=Page(ascending=False), corrections=True)) == [(10, 2), (10, 1)]

    async def test_history_continues_after_the_last_row_in_either_order(self, backend: Awaited) -> None:
        for tx in range(1, 6):
            await backend.apply(tx, 0, [put("a", tx * 10, b"%d" % tx)])
        assert times(await backend.history("a", page=Page(limit=2))) == [(10, 1), (20, 2)]
        assert times(await backend.history("a", page=Page(after=(20, 2), limit=2))) == [(30, 3), (40, 4)]
        assert times(await backend.history("a", page=Page(after=(30, 3), ascending=False))) == [(20, 2), (10, 1)]

    async def test_history_ends_at_both_times_inclusive(self, backend: Awaited) -> None:
        for tx in range(1, 6):
            await backend.apply(tx, 0, [put("a", tx * 10, b"x")])
        assert times(await backend.history("a", AsOf(valid_time=30))) == [(10, 1), (20, 2), (30, 3)]
        assert times(await backend.history("a", AsOf(tx=2))) == [(10, 1), (20, 2)]

    async def test_scan_lists_ids_of_a_prefix_in_order_both_ways(self, backend: Awaited) -> None:
        ids = ["segment:s#1", "segment:s#2", "segment:s#3", "segment:s!", "segment:t#1", "z", "s\ud7ff"]
        await backend.apply(1, 0, [put(id, 1, b"x") for id in ids])
        found = [version.id for version in await backend.scan("segment:s#")]
        assert found == ["segment:s#1", "segment:s#2", "segment:s#3"]
        assert [
            version.id for version in await backend.scan("segment:s#", page=Page(after="segment:s#1", limit=1))
        ] == ["segment:s#2"]
        down = await backend.scan("segment:s#", page=Page(after="segment:s#3", ascending=False))
        assert [version.id for version in down] == ["segment:s#2", "segment:s#1"]
        assert [version.id for version in await backend.scan("s\ud7ff")] == ["s\ud7ff"]
        assert len(await backend.scan("")) == len(ids)

    async def test_scan_from_beside_the_prefix_lists_all_of_it_or_nothing(self, backend: Awaited) -> None:
        ids = ["segment:r#1", "segment:s#1", "segment:s#2", "segment:t#1"]
        await backend.apply(1, 0, [put(id, 1, b"x") for id in ids])
        both = ["segment:s#1", "segment:s#2"]
        for after, up, down in (("segment:r#1", both, []), ("segment:t#1", [], both[::-1]), ("segment:s#", both, [])):
            assert [version.id for version in await backend.scan("segment:s#", page=Page(after=after))] == up
            assert [
                version.id for version in await backend.scan("segment:s#", page=Page(after=after, ascending=False))
            ] == down

    async def test_everything_is_every_row_deletions_and_corrections_too(self, backend: Awaited) -> None:
        await backend.apply(1, 0, [put("a", 10, b"x"), put("b", 10, b"x")])
        await backend.apply(2, 0, [put("a", 10, b"y"), put("b", 20, None)])
        rows = sorted((row.id, row.valid_time, row.tx, row.body) for row in await everything(backend))
        assert rows == [("a", 10, 1, b"x"), ("a", 10, 2, b"y"), ("b", 10, 1, b"x"), ("b", 20, 2, None)]

    async def test_bulk_answers_each_known_entity_once(self, backend: Awaited) -> None:
        await backend.apply(1, 0, [put(f"e{n}", 1, b"x") for n in range(1_000)])
        wanted = [f"e{n}" for n in range(1_200)] + ["e5", "e5"]
        assert sorted(version.id for version in await backend.as_of(wanted)) == sorted(f"e{n}" for n in range(1_000))

    @given(writes=transactions)
    @settings(
        max_examples=120,
        deadline=None,
        suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.differing_executors],
    )
    @pytest.mark.requirement("VER-2")
    @pytest.mark.requirement("VER-3")
    async def test_the_backend_agrees_with_the_reference_algebra(self, fresh: Any, writes: list[list[Row]]) -> None:
        reference = MemoryBackend()
        async with fresh() as backend:
            for tx, changes in enumerate(writes, start=1):
                await backend.apply(tx, tx * 100, changes)
                apply(reference, tx, tx * 100, changes)
            times = {"txs": range(len(writes) + 1), "times": range(0, 14, 2)}
            assert await differences(backend, reference, **times) == []


class EmbeddedSuite(BackendSuite):
    @pytest.fixture
    def fresh_embedded(self) -> Callable[[], AbstractContextManager[SqliteBackend]]:
        raise NotImplementedError

    @pytest.fixture
    def fresh(self, fresh_embedded: Any) -> Any:
        @asynccontextmanager
        async def make() -> AsyncIterator[Awaited]:
            with fresh_embedded() as backend:
                yield Awaited(backend)

        return make

    @pytest.fixture
    def embedded(self, fresh_embedded: Any) -> Any:
        with fresh_embedded() as backend:
            yield backend

    async def test_a_number_makes_no_version(self, embedded: SqliteBackend) -> None:
        embedded.number(["a", "a"])
        assert (embedded.as_of(["a"]), embedded.history("a")) == ([], [])
        apply(embedded, 1, 0, [put("a", 10, b"x")])
        assert bodies(embedded.scan("")) == [b"x"]

    @pytest.mark.parametrize(("size", "found"), [(1, 1), (5, 1), (6, 2), (10, 2), (11, 3), (99, 3)])
    async def test_a_scan_ends_with_the_version_that_fills_its_size(
        self, embedded: SqliteBackend, size: int, found: int
    ) -> None:
        apply(embedded, 1, 0, [put(id, 10, b"12345") for id in ("a", "b", "c")])
        assert [version.id for version in embedded.scan("", size=size)] == ["a", "b", "c"][:found]
        down = embedded.scan("", page=Page(after="c", ascending=False), size=1)
        assert [version.id for version in down] == ["b"]

    async def test_assigned_numbers_are_stable_and_unique(self, embedded: SqliteBackend) -> None:
        first = embedded.number(["a", "b", "a"])
        assert first.keys() == {"a", "b"} and len(set(first.values())) == 2
        apply(embedded, 1, 0, [put("c", 10, b"x")])
        second = embedded.number(["d", "b", "c", "a"])
        assert {id: second[id] for id in first} == first and len(set(second.values())) == 4
        embedded.rolled_back()
        assert embedded.number(["a", "c", "d"]) == {id: second[id] for id in ("a", "c", "d")}
        assert embedded.number([]) == {}

    async def test_a_cleared_backend_equals_a_new_one(self, embedded: SqliteBackend) -> None:
        apply(embedded, 1, 0, [put("a", 10, b"x"), put("b", 10, b"y")])
        embedded.clear()
        assert (embedded.history("a", corrections=True), embedded.scan("")) == ([], [])
        apply(embedded, 1, 0, [put("b", 10, b"z")])
        assert bodies(embedded.scan("")) == [b"z"]
