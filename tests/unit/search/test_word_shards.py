"""The shards of the search index: what a purge rewrites and leaves, and the order of what is found."""

import random
from collections.abc import Iterator
from pathlib import Path

import apsw
import pytest

from ctxd import sqlite_file
from ctxd.search import index_database, query_language, ranking, word_shards
from ctxd.search.index_database import Conditions, IndexedText, IndexFile, SessionRow
from ctxd.search.searchable_texts import FoundText

WORDS = [f"word{number:03d}" for number in range(60)]
TEXTS = 400


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[IndexFile]:
    monkeypatch.setattr(word_shards, "SHARD_BYTES", 4_000)
    index = opened(tmp_path)
    yield index
    index.close()


def opened(folder: Path) -> IndexFile:
    return IndexFile.open(folder / "search.db", "journal", fits=lambda seq, chain: True)


def text_of(number: int) -> str:
    """Twenty words, most of them common."""
    return " ".join(random.Random(number).choices(WORDS, weights=[1 / (n + 1) for n in range(len(WORDS))], k=20))


def added(index: IndexFile, *texts: str, first: int = 1) -> None:
    """Index ``texts``, each of an entity of its own, from the number ``first`` on, ten at a time."""
    rows = [
        IndexedText(entity, entity % 5, entity % 7, 0, FoundText(0, "response", text))
        for entity, text in enumerate(texts, first)
    ]
    for at in range(0, len(rows), 10):
        index.apply(rows[at : at + 10], mark=(index.seq + 1, b"chain"))


def tables(folder: Path) -> set[str]:
    """The FTS5 tables in the file, which are those of the shards."""
    with sqlite_file.open_reader(folder / "search.db") as connection:
        query = "SELECT name FROM sqlite_schema WHERE sql LIKE 'CREATE VIRTUAL TABLE%'"
        names = {str(name) for (name,) in connection.execute(query)}
        assert names == {shard.table for shard in word_shards.shards(connection)}
    return names


def found(folder: Path, query: str, *, best: bool = True, skip: int = 0, **conditions: int) -> list[int]:
    """The entities whose texts match, in order."""
    connection = sqlite_file.open_reader(folder / "search.db")
    try:
        with connection:
            wanted = Conditions(**conditions)  # type: ignore[arg-type]
            ranked = ranking.ranked(connection, query_language.parse(query), wanted, best=best, most=10_000)
            docs = list(ranking.docs(connection, ranked, skip, len(ranked.ids)))
    finally:
        connection.close()
    return [doc.entity for doc in docs]


def holding(folder: Path, word: str) -> set[str]:
    return {path.name for path in folder.iterdir() if word.encode() in path.read_bytes()}


def erase(index: IndexFile) -> int:
    """Rewrite what is due. Returns: the number of shards rewritten."""
    rewritten = 0
    while index.rewrite_shard():
        rewritten += 1
    assert index.finish_rewrite() and not index.rewrite_due
    return rewritten


@pytest.mark.requirement("SRC-6")
def test_a_purge_rewrites_only_the_shard_with_its_text(index: IndexFile, tmp_path: Path) -> None:
    texts = [text_of(number) for number in range(TEXTS)]
    texts[150] += " zyzzyva"
    added(index, *texts)
    before = tables(tmp_path)
    assert len(before) > 5 and found(tmp_path, "zyzzyva") == [151] and holding(tmp_path, "zyzzyva")
    everything = found(tmp_path, WORDS[0], best=False)
    index.apply((), replaced=((151, 9),), purged={151})
    assert index.rewrite_due and erase(index) == 1
    assert len(before - tables(tmp_path)) == 1, "the others are the same tables"
    assert not holding(tmp_path, "zyzzyva") and not found(tmp_path, "zyzzyva")
    assert found(tmp_path, WORDS[0], best=False) == [entity for entity in everything if entity != 151]
    added(index, "quokka", first=TEXTS + 1)
    assert found(tmp_path, "quokka") == [TEXTS + 1], "the newest shard takes more texts"


@pytest.mark.requirement("SRC-6")
def test_a_purge_erases_words_of_texts_that_were_replaced_before(index: IndexFile, tmp_path: Path) -> None:
    added(index, "zyzzyva was here", *(text_of(number) for number in range(1, TEXTS)))
    later = IndexedText(1, 1, 1, 0, FoundText(0, "response", "aardvark is here"))
    index.apply([later], replaced=((1, 9),))
    assert not found(tmp_path, "zyzzyva") and holding(tmp_path, "zyzzyva"), "FTS5 keeps the words"
    index.apply((), replaced=((1, 9),), purged={1})
    assert erase(index) == 2
    assert not holding(tmp_path, "zyzzyva") and not holding(tmp_path, "aardvark")


@pytest.mark.requirement("SRC-6")
def test_a_purge_of_an_entity_without_a_text_now_erases_earlier_ones(index: IndexFile, tmp_path: Path) -> None:
    added(index, "zyzzyva was here", "another")
    index.apply((), replaced=((1, 9),))
    index.apply((), purged={1, 77})
    assert erase(index) == 1 and not holding(tmp_path, "zyzzyva") and found(tmp_path, "another") == [2]
    index.apply((), purged={1, 77})
    assert not index.rewrite_due, "nothing of it was left"


@pytest.mark.requirement("SRC-6")
def test_a_rewrite_that_was_interrupted_is_finished_after_the_next_start(index: IndexFile, tmp_path: Path) -> None:
    added(index, "zyzzyva one", *(text_of(number) for number in range(TEXTS)), "zyzzyva two")
    index.apply((), replaced=((1, 9), (TEXTS + 2, 9)), purged={1, TEXTS + 2})
    assert index.rewrite_shard()
    index.close()
    again = opened(tmp_path)
    try:
        assert again.rewrite_due and again.seq == index.seq
        assert erase(again) == 1 and not holding(tmp_path, "zyzzyva")
    finally:
        again.close()


def test_a_rewrite_that_fails_changes_nothing_and_can_be_repeated(
    index: IndexFile, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    added(index, "zyzzyva", *(text_of(number) for number in range(TEXTS)))
    index.apply((), replaced=((1, 9),), purged={1})
    before = tables(tmp_path)
    monkeypatch.setattr(word_shards, "_PARTS", ("data", "missing"))
    with pytest.raises(sqlite_file.SqlFailed):
        index.rewrite_shard()
    assert tables(tmp_path) == before and index.rewrite_due
    monkeypatch.undo()
    assert erase(index) == 1 and not holding(tmp_path, "zyzzyva")
    added(index, "quokka", first=TEXTS + 2)
    assert found(tmp_path, "quokka") == [TEXTS + 2]


def test_a_batch_that_fails_leaves_the_shards_as_they_were(index: IndexFile, tmp_path: Path) -> None:
    added(index, *(text_of(number) for number in range(TEXTS)))
    before = tables(tmp_path)
    text = IndexedText(9, 9, 1, 0, FoundText(0, "response", "x " * 5_000))
    for _ in range(3):
        with pytest.raises(OverflowError):
            index.apply([text], sessions={9: SessionRow(2**70, 0)})
    assert tables(tmp_path) == before
    added(index, "quokka", first=TEXTS + 1)
    assert found(tmp_path, "quokka") == [TEXTS + 1]


@pytest.mark.requirement("SRC-3")
def test_ranking_is_independent_of_the_shard_boundaries(index: IndexFile, tmp_path: Path) -> None:
    texts = [text_of(number) for number in range(TEXTS)]
    # Words that are rare, but common in one shard.
    for number in range(200, 215):
        texts[number] = " ".join(["tussock", *texts[number].split()[1:]])
    texts[30] = " ".join(["tussock"] * 3 + texts[30].split()[3:])
    texts[TEXTS - 1] = " ".join(["tussock"] * 2 + texts[TEXTS - 1].split()[2:])
    added(index, *texts)
    assert len(tables(tmp_path)) > 5
    one = apsw.Connection(":memory:")
    one.execute("CREATE VIRTUAL TABLE w USING fts5(text, call)").fetchall()
    one.executemany("INSERT INTO w(rowid, text, call) VALUES (?,?,'')", list(enumerate(texts, 1)))
    for query in ("tussock", "tus*", WORDS[0], WORDS[40], f'"{WORDS[1]} {WORDS[0]}"'):
        expression = query_language.parse(query).all_of
        rows = one.execute("SELECT rowid, round(rank, 6) FROM w WHERE w MATCH ? ORDER BY rank, rowid", (expression,))
        scores = dict(rows.fetchall())
        ours = found(tmp_path, query)
        assert set(ours) == set(scores), query
        assert [scores[entity] for entity in ours] == sorted(scores.values()), query
    assert found(tmp_path, "tussock")[:2] == [31, TEXTS], "most often in them; one is alone with the word in its shard"
    pairs = found(tmp_path, f"tussock {WORDS[0]}")
    assert set(pairs) == set(found(tmp_path, "tussock")) & set(found(tmp_path, WORDS[0]))


@pytest.mark.requirement("SRC-3")
@pytest.mark.parametrize("best", [True, False])
def test_pages_over_shards_have_each_text_once(index: IndexFile, tmp_path: Path, best: bool) -> None:
    added(index, *(text_of(number) for number in range(TEXTS)))
    everything = found(tmp_path, WORDS[0], best=best)
    added(index, *([WORDS[0]] * 30), first=TEXTS + 1)
    pages = [found(tmp_path, WORDS[0], best=best, skip=skip, last=TEXTS)[:50] for skip in range(0, len(everything), 50)]
    together = [entity for page in pages for entity in page]
    assert sorted(together) == sorted(everything) and len(together) > 100
    if not best:
        order = [(entity % 7, entity) for entity in together]
        assert order == sorted(order, reverse=True), "newest first"
    of_day = found(tmp_path, WORDS[0], best=best, since=3, until=3)
    assert of_day and set(of_day) == {entity for entity in found(tmp_path, WORDS[0]) if entity % 7 == 3}


def test_many_short_texts_fill_a_shard_too(index: IndexFile, tmp_path: Path) -> None:
    added(index, *("a" for _ in range(200)))
    assert len(tables(tmp_path)) >= 3, "a query keeps the matches of one shard in memory"


def test_few_tables_are_open_at_a_time(index: IndexFile, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(index_database, "_SHARDS_OPEN_MAX", 2)
    for first in range(1, TEXTS, 40):
        added(index, *map(text_of, range(first, first + 40)), first=first)
        assert len(index._words.used) <= 2
    assert len(tables(tmp_path)) > 4
    everything = {number for number in range(1, TEXTS + 1) if WORDS[0] in text_of(number)}
    assert set(found(tmp_path, WORDS[0])) == everything


def test_sessions_are_found_in_every_shard(index: IndexFile, tmp_path: Path) -> None:
    added(index, *(f"{text_of(number)} {'tussock' if number % 100 == 1 else ''}" for number in range(TEXTS)))
    with sqlite_file.open_reader(tmp_path / "search.db") as connection:
        assert ranking.sessions(connection, '"tussock"') == {entity % 5 for entity in (2, 102, 202, 302)}
