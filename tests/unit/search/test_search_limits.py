"""Limits of a search: its time, its locks, the texts of a document, and long texts."""

import errno
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import apsw
import pytest

from ctxd import sqlite_file
from ctxd.errors import CtxdError
from ctxd.objects.document import Stored
from ctxd.search import journal_texts, query_language, search_queries
from ctxd.search.index_database import Conditions, IndexedText, IndexFile
from ctxd.search.journal_texts import JournalTexts
from ctxd.search.search_queries import SearchQueries
from ctxd.search.searchable_texts import FoundText
from ctxd.search.snippets import Snippets
from ctxd.sessions.stored_session import AppendChat, segment_document
from ctxd_protocol.event_types import ResponseEvent


def test_the_time_limit_includes_work_outside_sqlite() -> None:
    now = [0.0]
    clock: Any = SimpleNamespace(monotonic=lambda: now[0])
    queries = SearchQueries(SimpleNamespace(on_end=[]), SimpleNamespace(store=None), clock)  # type: ignore[arg-type]
    searcher: Any = SimpleNamespace(file=sqlite_file.in_memory())

    def work(_: object, deadline: Any) -> str:
        now[0] += search_queries.SECONDS_MAX / 2
        deadline.check()
        return "in time"

    assert queries._with_deadline(searcher, work) == "in time"
    with pytest.raises(CtxdError, match="took more than 10 s") as late:
        queries._with_deadline(searcher, lambda *given: [work(*given) for _ in range(3)])
    assert late.value.code == "timeout"


def test_a_query_without_a_free_descriptor_is_refused_and_leaves_none_open(monkeypatch: pytest.MonkeyPatch) -> None:
    fault = sqlite_file.DiskFull("Too many open files", errno.EMFILE)
    opened: list[Any] = [sqlite_file.in_memory()]
    index = opened[0]

    def opens(path: Path, **_: Any) -> Any:
        if not opened:
            raise fault
        return opened.pop()

    monkeypatch.setattr(sqlite_file, "open_reader", opens)
    where = SimpleNamespace(directory=SimpleNamespace(database=Path("db"), artifacts=Path("artifacts")))
    shelf: Any = SimpleNamespace(on_end=[], generation=1, path=Path("search.db"))
    queries = SearchQueries(shelf, SimpleNamespace(store=where), SimpleNamespace(monotonic=lambda: 0.0))  # type: ignore[arg-type]
    with pytest.raises(CtxdError, match="Too many open files") as refused:
        queries._with_searcher(lambda searcher, deadline: None)
    assert refused.value.code == "disk_full"
    with pytest.raises(apsw.ConnectionClosedError):
        index.execute("SELECT 1")
    with pytest.raises(CtxdError, match="Too many open files") as refused:
        queries._with_searcher(lambda searcher, deadline: None)
    assert refused.value.code == "store_unavailable"


def test_each_text_of_a_page_is_checked_against_the_time_limit() -> None:
    checked: list[int] = []

    def check() -> None:
        checked.append(1)
        if len(checked) == 2:
            raise TimeoutError

    with pytest.raises(TimeoutError):
        Snippets().of([("a", "")] * 5, '"a"', check)


@pytest.mark.requirement("SRC-6")
def test_the_texts_of_a_page_are_read_without_a_lock_on_the_index(tmp_path: Path) -> None:
    index = IndexFile.open(tmp_path / "search.db", "journal", fits=lambda seq, chain: True)
    index.apply([IndexedText(n, 0, n, 0, FoundText(0, "response", f"word {n}")) for n in range(1, 50)])
    searcher: Any = SimpleNamespace(file=sqlite_file.open_reader(tmp_path / "search.db"))
    found = search_queries._rank(searcher, query_language.parse("word"), Conditions(), 20, best=True)
    assert len(found.ids) == 20 and not found.is_whole
    assert index.finish_rewrite(), "the log can be emptied, as a purge requires"
    searcher.file.close()
    index.close()


def test_the_first_texts_of_a_document_are_searchable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journal_texts, "TEXTS_MAX", 3)
    events = tuple(ResponseEvent(text=f"text {number}") for number in range(5))
    stored = Stored(
        document=segment_document("segment:s#0", (AppendChat(events),)), content_ref=None, valid_time=1, tx=1, tx_time=1
    )
    found = JournalTexts(SimpleNamespace(connection=None)).texts(stored)  # type: ignore[arg-type]
    assert [each.text for each in found] == ["text 0", "text 1", "text 2"]


@pytest.mark.requirement("SRC-2")
@pytest.mark.parametrize(
    ("query", "word"), [("cafe", "caf\u00e9"), ("\ue000", "\ue000"), ("cat", "cat"), ("ca*", "cat")]
)
def test_a_long_text_has_a_snippet_at_any_position_of_its_word(query: str, word: str) -> None:
    filler = "concatenate " * 3_000
    (found,) = Snippets().of([(f"{filler}{word} {filler}", "")], query_language.parse(query).any_of)
    assert found is not None and word in found.text
