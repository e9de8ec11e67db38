"""The order of the texts that match a query, best or newest first, merged from all shards of the index.

FTS5 ranks by BM25 with the statistics of one table: a word that is common in its shard, but rare elsewhere, would have
a low score there. So each shard's scores are multiplied by the ratio of the inverse document frequencies of the whole
index and of the shard. For one term, that is the score that a single table would give, except for the average length of
texts; for several, it is close to it. Source: Robertson and Zaragoza, "The Probabilistic Relevance Framework: BM25 and
Beyond", 2009; the formula is that of FTS5's ``bm25()``.

A search of one session uses no such statistics: a sandbox would find words of other sessions by how much they lower the
score of its own texts. There the score of a text depends on the text and the query alone.
"""

import json
from array import array
from collections.abc import Iterator, Sequence
from heapq import merge
from itertools import islice
from math import log
from pathlib import Path
from typing import Any, Final, NamedTuple, Protocol

from ctxd import sqlite_file
from ctxd.search.index_database import KINDS, Conditions, Doc
from ctxd.search.query_language import Query
from ctxd.search.word_shards import Shard, shards

_FREQUENCY_MIN: Final = 1e-6
"""The inverse document frequency of a word that is in more than half of the texts, as in FTS5."""

_REPEATED: Final = 1.2
_LONG: Final = 0.75
"""How much repeated words and the length of a text count: the constants ``k1`` and ``b`` of BM25, as in FTS5."""

_USUAL_WORDS: Final = 100
"""Length of a text, in words, at which its length does not change its score in a search of one session."""

_DOC: Final = """SELECT d.id, d.entity, d.nth, d.session, d.at, d.turn, d.kind, t.name
    FROM doc AS d LEFT JOIN tool AS t ON t.n=d.tool WHERE d.id=?"""


class Ranking(NamedTuple):
    """The first texts that match a query, in order: ids, and scores, of which higher is better. ``is_whole``: there are
    no further ones. Memory: 16 bytes for each."""

    ids: "array[int]"
    scores: "array[float]"
    is_whole: bool

    def extended(self, later: "Ranking") -> "Ranking":
        """Return this ranking with those texts of ``later`` that it lacks, the last one of the same query."""
        known = set(self.ids)
        more = [place for place, id in enumerate(later.ids) if id not in known]
        ids = self.ids + array("q", (later.ids[place] for place in more))
        return Ranking(ids, self.scores + array("d", (later.scores[place] for place in more)), is_whole=True)


class _Match(NamedTuple):
    """A text that matches. ``order``: the least comes first; ``score``: that of FTS5, less is better."""

    order: tuple[float, ...]
    id: int
    score: float


class _Matches(NamedTuple):
    """The matches of one shard in order, as rows of id, score there and time; and how many of its texts match each
    term."""

    shard: Shard
    counts: Sequence[int]
    rows: Sequence[tuple[Any, ...]]


class _FoundText(Protocol):
    """The part of ``apsw.FTS5ExtensionApi`` that ``_own_score`` uses."""

    @property
    def inst_count(self) -> int: ...

    def column_size(self, column: int = ...) -> int: ...


def open_index(path: Path) -> sqlite_file.Connection:
    """Open the index at ``path`` for ``ranked``. Raises: SQLite's errors."""
    connection = sqlite_file.open_reader(path)
    connection.register_fts5_function("own_score", _own_score)
    return connection


def _own_score(text: _FoundText, *_: object) -> float:
    """Return the score of one text, of which less is better: BM25 without the statistics of other texts."""
    length = 1 - _LONG + _LONG * text.column_size() / _USUAL_WORDS
    return -text.inst_count * (_REPEATED + 1) / (text.inst_count + _REPEATED * length)


def ranked(connection: sqlite_file.Connection, query: Query, wanted: Conditions, *, best: bool, most: int) -> Ranking:
    """Return the first ``most`` texts that match ``query`` and ``wanted``, best or newest first.

    ``connection``, of ``open_index``, has to be in a transaction, so that all shards are of one state. Memory: the
    matches of one shard, and those that are returned from each. Raises: SQLite's errors.
    """
    is_own = wanted.sessions is not None and len(wanted.sessions) == 1
    of_shard = _own_of_shard if is_own else _of_shard
    every = [shard for shard in shards(connection) if wanted.last is None or shard.first <= wanted.last]
    found = [
        each
        for shard in every
        if (each := of_shard(connection, shard, query, wanted, best=best, most=most)) is not None
    ]
    total = sum(shard.texts for shard in every)
    counts = [sum(each.counts[term] for each in found) for term in range(len(query.terms))]
    whole = _frequency(total, counts)
    of_shards = (
        _scored(each, 1.0 if is_own else whole / _frequency(each.shard.texts, each.counts), best) for each in found
    )
    ids, scores = array("q"), array("d")
    for match in islice(merge(*of_shards), most):
        ids.append(match.id)
        scores.append(-match.score)
    return Ranking(ids, scores, is_whole=len(ids) < most)


def docs(connection: sqlite_file.Connection, ranking: Ranking, first: int, end: int) -> Iterator[Doc]:
    """Yield the places of the texts ``first`` to ``end`` of ``ranking``, without those that are gone by now."""
    for id, score in zip(ranking.ids[first:end], ranking.scores[first:end], strict=True):
        for row in connection.execute(_DOC, (id,)):
            yield _doc(row, score)


def sessions(connection: sqlite_file.Connection, expression: str) -> set[int]:
    """Return the numbers of the sessions with a text that matches the FTS5 ``expression``. Cost: linear in the matches.
    ``connection``: as for ``ranked``."""
    found = set[int]()
    for shard in shards(connection):
        query = f"""SELECT DISTINCT d.session FROM {shard.table} AS w CROSS JOIN doc AS d ON d.id=w.rowid
            WHERE {shard.table} MATCH ?"""
        found.update(session for (session,) in connection.execute(query, (expression,)) if session)
    return found


def _of_shard(
    connection: sqlite_file.Connection, shard: Shard, query: Query, wanted: Conditions, *, best: bool, most: int
) -> _Matches | None:
    """Return the matches of a shard in order; None without one."""
    where, values = _conditions(wanted)
    table, bound = shard.table, "" if wanted.last is None else "AND rowid<=:last"
    at = "d.at" if where or not best else "0"
    of_doc = "CROSS JOIN doc AS d ON d.id=hit.id" if where or not best else ""
    rows: list[tuple[Any, ...]] = connection.execute(
        f"""WITH hit AS MATERIALIZED (
            SELECT rowid AS id, rank AS score FROM {table} WHERE {table} MATCH :query {bound}
        )
        SELECT hit.id, hit.score, {at}, (SELECT count(*) FROM hit) FROM hit {of_doc}
        {"WHERE" if where else ""} {" AND ".join(where)}
        ORDER BY {"hit.score, hit.id" if best else "d.at DESC, hit.id DESC"} LIMIT {most}""",
        {**values, "query": query.all_of, "last": wanted.last},
    ).fetchall()
    if not rows:
        return None
    matches = rows[0][3]
    counts = [matches] if len(query.terms) == 1 else [_count(connection, table, term) for term in query.terms]
    return _Matches(shard, counts, rows)


def _own_of_shard(
    connection: sqlite_file.Connection, shard: Shard, query: Query, wanted: Conditions, *, best: bool, most: int
) -> _Matches | None:
    """As ``_of_shard``, with scores that depend on each text alone. Counts no matches: those of other sessions are
    among them."""
    where, values = _conditions(wanted)
    table, bound = shard.table, "" if wanted.last is None else f"AND {shard.table}.rowid<=:last"
    rows: list[tuple[Any, ...]] = connection.execute(
        f"""SELECT d.id, own_score({table}) AS score, d.at FROM {table} CROSS JOIN doc AS d ON d.id={table}.rowid
        WHERE {table} MATCH :query {bound} AND {" AND ".join(where)}
        ORDER BY {"score, d.id" if best else "d.at DESC, d.id DESC"} LIMIT {most}""",
        {**values, "query": query.all_of, "last": wanted.last},
    ).fetchall()
    return _Matches(shard, [0] * len(query.terms), rows) if rows else None


def _count(connection: sqlite_file.Connection, table: str, term: str) -> int:
    found = connection.execute(f"SELECT count(*) FROM {table} WHERE {table} MATCH ?", (term,)).get
    return found if isinstance(found, int) else 0


def _frequency(texts: int, counts: Sequence[int]) -> float:
    """Return the sum of the terms' inverse document frequencies."""
    return sum(max(_FREQUENCY_MIN, log((max(texts, count) - count + 0.5) / (count + 0.5))) for count in counts)


def _scored(found: _Matches, ratio: float, best: bool) -> Iterator[_Match]:
    for id, score, at, *_ in found.rows:
        yield _Match((score * ratio, id) if best else (-at, -id), id, score * ratio)


def _conditions(wanted: Conditions) -> tuple[list[str], dict[str, Any]]:
    where, values = [], dict[str, Any]()
    conditions = (
        (
            "d.session IN (SELECT value FROM json_each(:sessions))",
            "sessions",
            None if wanted.sessions is None else json.dumps(list(wanted.sessions)),
        ),
        ("d.tool=(SELECT n FROM tool WHERE name=:tool)", "tool", wanted.tool),
        ("d.kind/2=:kind", "kind", None if wanted.kind is None else KINDS.index(wanted.kind)),
        ("d.kind%2=:failed", "failed", 1 if wanted.failed else None),
        ("d.at>=:since", "since", wanted.since),
        ("d.at<=:until", "until", wanted.until),
    )
    for condition, name, value in conditions:
        if value is not None:
            where.append(condition)
            values[name] = value
    return where, values


def _doc(row: Sequence[Any], score: float) -> Doc:
    id, entity, nth, session, at, turn, kind, tool = row
    return Doc(id, entity, nth, session, at, turn, KINDS[kind // 2], bool(kind % 2), tool, score)
