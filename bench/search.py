"""Search over 1,000,000 messages: a query over a bare FTS5 query for the same rows, the size of the index, and the time
until new text is found, by a quiet daemon and beside 500 writes a second.

Expected order of growth: that of FTS5, linear in the texts that have all words of the query; the rest of a query is
the same for any store. Messages are passages of the standard library's own sources, which have words, names, numbers
and indentation as tool output has.

The bare query is what a program with its own FTS5 table would do: the table keeps the texts, and the query returns the
best twenty rows with their snippets, in this process. That of the daemon comes by its socket: it reads each text from
the store, and leaves out what was purged or removed. Both run in turn, over the same queries: words, pairs of words,
phrases and beginnings of words from random messages.
"""

import random
import statistics
import sys
import sysconfig
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import apsw

from bench.daemon_start import generate
from bench.figures import Figure
from bench.running import daemon, folder, quick
from ctxd.objects.document import Document
from ctxd.objects.hashing import identity_hash
from ctxd.sessions.session_settings import SessionSettings
from ctxd.sessions.stored_session import AppendChat, SessionHead, head_document, segment_document
from ctxd_client import connect_sync
from ctxd_protocol.event_types import PromptEvent, ResponseEvent

MESSAGES = 1_000_000
MESSAGES_QUICK = 20_000
MESSAGES_OF_A_SESSION = 500
CHARS = (20, 1_200)
"""Characters of a message, least and most."""

QUERIES = 300
ROUNDS = 3
NEW_TEXTS = 20
BUSY_WRITES_S = 500
BUSY_PAUSE_S = 0.5
"""Seconds between two new texts, so that a lag has time to grow."""

LIMIT = 20
SEED = 15
LEVEL_S_MAX = 3_600.0


class Corpus:
    """Messages by number, each the same whenever it is asked for."""

    def __init__(self) -> None:
        folder = Path(sysconfig.get_paths()["stdlib"])
        files = sorted(path for path in folder.glob("*/*.py") if path.parent.name != "site-packages")
        self._text = "".join(path.read_text(errors="replace") for path in [*sorted(folder.glob("*.py")), *files])

    def message(self, number: int) -> str:
        chosen = random.Random(number)
        at = chosen.randrange(len(self._text) - CHARS[1])
        return self._text[at : at + chosen.randrange(*CHARS)]

    def document(self, seq: int) -> Document:
        """The document of journal row ``seq``: the head of a session, then a segment for each of its messages."""
        session, nth = divmod(seq - 1, MESSAGES_OF_A_SESSION + 1)
        name = f"session-{session:06d}"
        if not nth:
            settings = SessionSettings(
                agent="bench", principal="host", created_at=1, ordinal=session + 1, filesystem_id="f" * 64
            )
            return head_document(name, SessionHead(settings=settings))
        kind = PromptEvent if nth % 10 == 1 else ResponseEvent
        event = kind(text=self.message(session * MESSAGES_OF_A_SESSION + nth - 1))
        id = f"segment:{name}#{nth - 1:010d}"
        assert identity_hash("segment", None, id)
        return segment_document(id, (AppendChat((event,)),))

    def query(self, chosen: random.Random, messages: int) -> tuple[str, str]:
        """A query for the daemon, and the same for FTS5."""
        while True:
            words = [word for word in self.message(chosen.randrange(messages)).split()[1:-1] if word.isalnum()]
            if len(words) >= 8 and all(word.isascii() for word in words):
                break
        at = chosen.randrange(len(words) - 2)
        kind = chosen.randrange(4)
        if kind == 0:
            return words[at], f'"{words[at]}"'
        if kind == 1:
            one, other = chosen.sample(words, 2)
            return f"{one} {other}", f'"{one}" AND "{other}"'
        if kind == 2:
            return f'"{words[at]} {words[at + 1]}"', f'"{words[at]} {words[at + 1]}"'
        beginning = max(words, key=len)[:4]
        return f"{beginning}*", f'"{beginning}" *'


def bare_table(path: Path, corpus: Corpus, messages: int) -> apsw.Connection:
    """A table of all messages with their texts, filled in batches."""
    connection = apsw.Connection(str(path))
    connection.execute("PRAGMA journal_mode=WAL; PRAGMA synchronous=NORMAL; PRAGMA cache_size=-32768").fetchall()
    connection.execute("CREATE VIRTUAL TABLE bare USING fts5(text)").fetchall()
    for first in range(0, messages, 10_000):
        with connection:
            rows = ((n, corpus.message(n)) for n in range(first, min(first + 10_000, messages)))
            connection.executemany("INSERT INTO bare(rowid, text) VALUES (?,?)", rows)
    return connection


BARE = f"""SELECT rowid, rank, snippet(bare, 0, '[', ']', '…', 24) FROM bare WHERE bare MATCH ?
    ORDER BY rank LIMIT {LIMIT}"""


def run() -> Iterator[Figure]:
    messages = MESSAGES_QUICK if quick() else MESSAGES
    corpus = Corpus()
    size = sum(len(corpus.message(n).encode()) for n in range(messages))
    with folder() as place:
        state, path = place / "state", place / "ctxd.sock"
        generate(state, messages + messages // MESSAGES_OF_A_SESSION, corpus.document)
        bare = bare_table(place / "bare.db", corpus, messages)
        with daemon(path, state), connect_sync(str(path), deadline_s=60) as client:
            began = time.monotonic()
            while client.daemon_status().search.lag_rows:
                if time.monotonic() - began > LEVEL_S_MAX:
                    raise RuntimeError(f"the index is behind: {client.daemon_status().search}")
                time.sleep(0.5)
            built_s = time.monotonic() - began
            chosen = random.Random(SEED)
            queries = [corpus.query(chosen, messages) for _ in range(QUERIES)]
            ours_s, bare_s, different = [], [], 0
            for turn in range(ROUNDS + 1):
                for ours, plain in queries:
                    started = time.perf_counter()
                    found = client.search_query(ours, limit=LIMIT)
                    between = time.perf_counter()
                    rows = bare.execute(BARE, (plain,)).fetchall()
                    ended = time.perf_counter()
                    different += len(found.hits) != len(rows)
                    if turn:  # The first round fills the caches.
                        ours_s.append(between - started)
                        bare_s.append(ended - between)
            ours_p99, bare_p99 = (statistics.quantiles(times, n=100)[98] for times in (ours_s, bare_s))
            medians = f"{statistics.median(ours_s) * 1e3:.2f} over {statistics.median(bare_s) * 1e3:.2f} ms"
            yield Figure(
                name="search_p99",
                value=ours_p99 / bare_p99,
                goal=1.5,
                better="lower",
                detail=f"{ours_p99 * 1e3:.1f} over {bare_p99 * 1e3:.1f} ms (medians {medians}), {messages:,} messages, "
                f"{len(ours_s)} queries, {different} with another number of rows",
            )
            bytes = client.daemon_status().search.bytes
            yield Figure(
                name="search_index_bytes",
                value=bytes / size,
                goal=0.5,
                better="lower",
                detail=f"{bytes / 1e6:,.0f} over {size / 1e6:,.0f} MB of text; built in {built_s:.0f} s",
            )
            waits = [found_s(client, number) for number in range(NEW_TEXTS)]
            yield Figure(
                name="search_new_text_s",
                value=max(waits),
                goal=1.0,
                better="lower",
                detail=f"longest of {NEW_TEXTS}, median {statistics.median(waits):.2f} s, from the acknowledgement on",
            )
            with writes(path, corpus) as rate:
                waits, reached = (
                    [found_s(client, NEW_TEXTS + n, after_s=BUSY_PAUSE_S) for n in range(NEW_TEXTS)],
                    rate(),
                )
            yield Figure(
                name="search_new_text_busy_s",
                value=max(waits),
                goal=1.0,
                better="lower",
                detail=f"the same beside {reached:.0f} writes a second, median {statistics.median(waits):.2f} s",
            )
        bare.close()


@contextmanager
def writes(path: Path, corpus: Corpus) -> Iterator[Callable[[], float]]:
    """Messages, ``BUSY_WRITES_S`` a second, while the block runs. Yields a function for the rate that was reached."""
    ended, written, began = threading.Event(), 0, time.monotonic()

    def write() -> None:
        nonlocal written
        with connect_sync(str(path), deadline_s=60) as client:
            session = client.session("busy", agent="bench")
            while not ended.wait(max(0.0, began + written / BUSY_WRITES_S - time.monotonic())):
                session.user(corpus.message(written))
                written += 1

    thread = threading.Thread(target=write)
    thread.start()
    try:
        yield lambda: written / (time.monotonic() - began)
    finally:
        ended.set()
        thread.join()


def found_s(client: object, number: int, after_s: float = 0.0) -> float:
    """Seconds from the acknowledgement of a message, which is written after ``after_s``, until a search finds it."""
    time.sleep(after_s)
    word = f"newword{number}x{random.Random(number).randrange(10**9)}"
    session = client.session(f"new-{number % 3}", agent="bench")
    session.user(f"a message with {word} in it")
    began = time.perf_counter()
    while not client.search_query(word).hits:
        if time.perf_counter() - began > 60:
            raise RuntimeError(f"{word} is not found: {client.daemon_status().search}")
        time.sleep(0.02)
    return time.perf_counter() - began


if __name__ == "__main__":
    for figure in run():
        print(figure, file=sys.stderr)
