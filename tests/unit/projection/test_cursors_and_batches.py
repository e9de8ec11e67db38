"""Decisions of the projection, without a node: cursors, batches, pace, room."""

import msgspec
import pytest

from ctxd.backends.stored_version import Version
from ctxd.backends.xtdb import documents as xtdb_documents
from ctxd.backends.xtdb.documents import FIXED_VALID_TIME, NEWEST_VALID_TIME, content_id, cursor_id
from ctxd.backends.xtdb.messages import Match, PutDoc
from ctxd.errors import CtxdError
from ctxd.projection import node_transactions as transactions
from ctxd.projection import progress
from ctxd.projection.node_transactions import Bounds
from ctxd.projection.progress import Cursor, Halt, Resume
from ctxd.projection.projected_rows import ProjectedRow, documents, wanted

WIDE = Bounds(rows=100, versions=100, bytes=10_000)
AT = Cursor(3, "run-a", 7, "c7")


def piece(seq: int, *ids: str, size: int = 10, fault: str = "", content: bytes | None = None) -> ProjectedRow:
    versions = tuple(Version(id, seq, seq, seq, b"\x90", content) for id in ids)
    return ProjectedRow(seq, f"c{seq}", "s1", versions, size, fault)


class TestBatches:
    def test_a_batch_keeps_several_versions_of_an_entity_but_not_of_one_valid_time(self) -> None:
        rows = [piece(1, "a", "b"), piece(2, "c"), piece(3, "b"), piece(4, "b")]
        assert transactions.take(rows, WIDE) == 4
        again = msgspec.structs.replace(rows[3], versions=rows[2].versions)
        assert transactions.take([*rows[:3], again], WIDE) == 3

    def test_a_batch_keeps_to_every_bound_but_holds_one_row_at_least(self) -> None:
        rows = [piece(n, f"a{n}", f"b{n}", size=100) for n in range(1, 6)]
        assert transactions.take(rows, Bounds(rows=3, versions=100, bytes=10_000)) == 3
        assert transactions.take(rows, Bounds(rows=100, versions=5, bytes=10_000)) == 2
        assert transactions.take(rows, Bounds(rows=100, versions=100, bytes=250)) == 2
        assert transactions.take(rows, Bounds(rows=100, versions=1, bytes=1)) == 1
        assert transactions.take([], WIDE) == 0

    def test_an_unprojectable_row_gets_its_own_transaction(self) -> None:
        rows = [piece(1, "a"), piece(2, "b", fault="damaged"), piece(3, "c")]
        assert transactions.take(rows, WIDE) == 1
        assert transactions.take(rows[1:], WIDE) == 1

    def test_a_transaction_matches_the_cursor_before_it_puts_and_moves_it(self) -> None:
        after = progress.advance(AT, 8, "c8")
        put = PutDoc({"xt/id": "a", "type": "t"}, 8)
        ops = transactions.transaction(AT, after, [put], "w")
        assert ops == [
            Match(cursor_id("w"), progress.cursor_doc(AT, "w"), NEWEST_VALID_TIME),
            put,
            PutDoc(progress.cursor_doc(after, "w"), progress.cursor_valid_time(after)),
        ]
        assert isinstance(transactions.transaction(None, after, [], "w")[0], Match)
        assert transactions.transaction(None, after, [], "w")[0].doc is None

    def test_a_text_is_put_once_and_before_its_referrers(self) -> None:
        rows = [piece(1, "a", content=b"\1" * 32), piece(2, "b", content=b"\1" * 32), piece(3, "c", content=b"\2" * 32)]
        assert wanted(rows, {b"\2" * 32}) == [b"\1" * 32]
        ops = documents(rows, {b"\1" * 32: "text"}, "w")
        assert [op.doc["xt/id"] for op in ops] == [content_id(b"\1" * 32), "a", "b", "c"]
        assert [op.valid_time for op in ops] == [FIXED_VALID_TIME, 1, 2, 3]

    def test_possibly_evicted_documents_are_never_put_again_unchanged(self) -> None:
        texts = {b"\1" * 32: "text", b"\2" * 32: "x" * 1_100_000}
        puts = [documents([piece(1, "a")], texts, "w", put=put) for put in ("", "w.run.1", "w.run.2")]
        said = [str(op.doc) for ops in puts for op in ops if op.doc["type"] == "content"]
        assert len(said) == len(set(said)) == 3 * 4
        (once,), (anew,) = (documents([piece(1, "a")], {}, "w", put="w.run.1", again=again) for again in (False, True))
        assert once.doc != anew.doc and xtdb_documents.from_doc(once.doc, 1) == xtdb_documents.from_doc(anew.doc, 1)
        assert (
            xtdb_documents.put_after(xtdb_documents.evictions_doc("w.run.1")) == "w.run.1"
            and xtdb_documents.put_after(None) == ""
        )


class TestCursors:
    def test_a_cursor_round_trips_through_its_document(self) -> None:
        left = progress.advance(AT, 8, "c8", leaving_out=True)
        assert progress.cursor_from_doc(progress.cursor_doc(left, "w")) == left == Cursor(3, "run-a", 8, "c8", (8,))
        assert progress.requeued(left, 8) == Cursor(4, "run-a", 8, "c8")
        assert progress.cursor_from_doc(None) is None

    def test_each_move_of_a_cursor_is_later_in_valid_time_than_the_one_before(self) -> None:
        moves = [AT, progress.advance(AT, 8, "c8", leaving_out=True)]
        moves.append(progress.requeued(moves[-1], 8))
        moves.append(progress.fence(moves[-1], None, run="b", genesis="g"))
        # An older copy of the node, after a later incarnation was seen.
        moves.append(progress.fence(moves[1], moves[-1], run="b", genesis="g"))
        times = [progress.cursor_valid_time(move) for move in moves]
        assert times[:4] == sorted(set(times[:4])) and times[4] > times[1]
        assert FIXED_VALID_TIME < times[0] < times[4] < NEWEST_VALID_TIME

    def test_a_cursor_of_another_format_is_rejected(self) -> None:
        doc = progress.cursor_doc(AT, "w")
        doc["payload"]["added"] = 1
        with pytest.raises(ValueError):
            progress.cursor_from_doc(doc)

    def test_a_takeover_has_a_higher_incarnation_than_all_before(self) -> None:
        assert progress.fence(AT, None, run="b", genesis="g") == Cursor(4, "b", 7, "c7")
        assert progress.fence(AT, Cursor(9, "b", 9, "c9"), run="b", genesis="g") == Cursor(10, "b", 7, "c7")
        assert progress.fence(None, None, run="b", genesis="g") == Cursor(1, "b", 0, "g")

    def test_a_cursor_on_the_journals_chain_is_continued(self) -> None:
        assert progress.check_cursor(AT, None, run="b", chain="c7", head_seq=9) == Resume()
        assert progress.check_cursor(None, None, run="b", chain=None, head_seq=9) == Resume()

    def test_a_node_that_lost_rows_is_noticed(self) -> None:
        known = Cursor(5, "b", 9, "c9")
        assert progress.check_cursor(AT, known, run="b", chain="c7", head_seq=9) == Resume(lost=2)
        assert progress.check_cursor(None, known, run="b", chain=None, head_seq=9) == Resume(lost=9)

    def test_a_cursor_beyond_or_off_the_journal_stops_everything(self) -> None:
        beyond = progress.check_cursor(AT, None, run="b", chain=None, head_seq=5)
        off = progress.check_cursor(AT, None, run="b", chain="other", head_seq=9)
        assert isinstance(beyond, Halt) and isinstance(off, Halt)
        # Without --force, the command would refuse for the same reason.
        assert "rebuild-xtdb --force" in beyond.message and "rebuild-xtdb --force" in off.message

    def test_a_takeover_by_another_daemon_halts_the_projection(self) -> None:
        verdict = progress.check_cursor(AT, Cursor(2, "b", 7, "c7"), run="b", chain="c7", head_seq=9)
        assert isinstance(verdict, Halt) and verdict.final

    def test_an_older_copy_of_the_node_is_not_mistaken_for_another_daemon(self) -> None:
        assert progress.check_cursor(AT, Cursor(8, "b", 9, "c9"), run="b", chain="c7", head_seq=9) == Resume(lost=2)

    def test_an_abort_is_explained_by_a_cursor_that_moved(self) -> None:
        assert not progress.has_moved(AT, AT)
        assert progress.has_moved(progress.advance(AT, 8, "c8"), AT)
        assert progress.has_moved(None, AT)


class TestPace:
    def test_quick_answers_to_full_batches_make_them_larger_up_to_a_bound(self) -> None:
        now = transactions.Pace()
        for _ in range(20):
            now = transactions.adapted(now, 0.05, now.versions, full=True)
        assert now.versions == transactions.VERSIONS_MAX
        assert transactions.adapted(transactions.Pace(), 0.05, 3, full=False).versions == transactions.Pace().versions

    def test_slow_answers_make_them_smaller_down_to_a_bound(self) -> None:
        now = transactions.Pace()
        for _ in range(20):
            now = transactions.adapted(now, 2.0, now.versions, full=True)
        assert now.versions == transactions.VERSIONS_MIN

    def test_slow_answers_to_those_that_bytes_limit_make_them_smaller_than_they_are(self) -> None:
        assert transactions.adapted(transactions.Pace(1_000), 2.0, 400, full=True).versions == 200
        assert transactions.adapted(transactions.Pace(1_000), 0.01, 400, full=True).versions == 1_000, (
            "more would not fit"
        )

    def test_a_small_batch_during_a_node_stall_does_not_shrink_large_ones(self) -> None:
        assert transactions.adapted(transactions.Pace(), 60.0, 3, full=False).versions == transactions.Pace().versions

    def test_rows_wait_for_company_as_long_as_a_transaction_takes_within_bounds(self) -> None:
        assert transactions.linger_s(transactions.Pace(busy_s=0.0)) == transactions.LINGER_MIN_S
        assert transactions.linger_s(transactions.Pace(busy_s=0.02)) == 0.02
        assert transactions.linger_s(transactions.Pace(busy_s=9.0)) == transactions.LINGER_MAX_S


class TestRoom:
    def test_eight_hours_of_fifty_writes_a_second_fit_into_the_backlog(self) -> None:
        rows = 8 * 3600 * 50
        assert progress.level(progress.fullness(progress.Room(), rows, rows * 2048)) == "warn"

    @pytest.mark.parametrize(
        ("rows", "size", "expected"),
        [(49, 0, "open"), (50, 0, "warn"), (0, 800, "throttle"), (100, 0, "full"), (0, 2_000, "full")],
    )
    def test_the_fuller_of_rows_and_bytes_determines_the_level(self, rows: int, size: int, expected: str) -> None:
        assert progress.level(progress.fullness(progress.Room(rows=100, bytes=1_000), rows, size)) == expected

    def test_the_backlog_is_counted_in_rows_bytes_and_seconds(self) -> None:
        waiting = progress.Waiting()
        waiting.begin(reached=10, head=10, bytes_each=0, now=100.0)
        waiting.add(12, 700, now=101.0)
        waiting.add(13, 300, now=105.0)
        assert (waiting.rows, waiting.bytes, waiting.age_s(107.0)) == (3, 1_000, 6.0)
        waiting.record_progress(12)
        assert (waiting.rows, waiting.bytes, waiting.age_s(107.0)) == (1, 300, 2.0)
        waiting.record_progress(13)
        assert (waiting.rows, waiting.bytes, waiting.age_s(107.0)) == (0, 0, 0.0)

    def test_rows_from_before_the_start_count_with_their_average_size(self) -> None:
        waiting = progress.Waiting()
        waiting.begin(reached=0, head=1_000, bytes_each=50.0, now=0.0)
        waiting.record_progress(400)
        assert (waiting.rows, waiting.bytes) == (600, 30_000)

    def test_rows_lost_by_a_node_are_projected_again_without_counting_as_backlog(self) -> None:
        waiting = progress.Waiting()
        waiting.begin(reached=1_000, head=1_000, bytes_each=50.0, now=0.0)
        waiting.record_progress(3)
        assert (waiting.rows, waiting.bytes) == (0, 0)

    def test_a_long_outage_is_counted_in_little_memory(self) -> None:
        waiting = progress.Waiting()
        for n in range(1, 100_001):
            waiting.add(n, 100, now=n / 1_000)
        assert waiting.bytes == 10_000_000
        assert len(waiting._buckets) <= 101

    def test_throttled_writes_pass_at_the_rate_of_the_drain(self) -> None:
        throttle = progress.Throttle()
        passed = sum(throttle.wait_s(n / 1_000, 100.0) == 0 for n in range(10_000))
        assert 1_000 <= passed <= 1_101

    def test_without_any_drain_a_few_writes_pass_and_the_others_get_a_wait(self) -> None:
        throttle = progress.Throttle()
        waits = [throttle.wait_s(0.0, 0.0) for _ in range(1 + int(progress.DRAIN_LEAST))]
        assert waits[:-1] == [0.0] * int(progress.DRAIN_LEAST) and 0 < waits[-1] <= 1 / progress.DRAIN_LEAST

    def test_a_refusal_has_its_reason_retry_time_and_outcome(self) -> None:
        full = progress.refusal("full", 1.0, "nobody listens", 0.0)
        slow = progress.refusal("throttle", 0.9, "", 0.02)
        assert isinstance(full, CtxdError)
        assert (full.code, full.outcome, full.retry_after_ms) == (
            "store_backlog_full",
            "not_applied",
            progress.RETRY_FULL_MS,
        )
        assert "nobody listens" in full.message and full.hint
        assert (slow.code, slow.outcome, slow.retry_after_ms) == ("rate_limited", "not_applied", 20)
