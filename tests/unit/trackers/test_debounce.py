"""When a changing file is looked at: soon, seldom, and after the last change always."""

from hypothesis import given
from hypothesis import strategies as st

from ctxd.trackers.tracked_files import GAP_MAX_S, GONE_S, QUIET_S, TOUCHED_S, WRITTEN_S, Debouncer, Hint

NEVER = 1e9


def looks(changes: list[tuple[float, Hint]]) -> list[float]:
    """When one file with these ``changes``, in order of time, is looked at."""
    coalescer = Debouncer()
    found: list[float] = []
    for at, hint in [*changes, (NEVER, None)]:
        while (due := coalescer.next_at()) is not None and due < at:
            assert coalescer.take(due, 10) == ["f"]
            found.append(due)
        if hint is not None:
            coalescer.note("f", hint, at)
    assert len(coalescer) == 0
    return found


def test_a_closed_file_is_looked_at_almost_immediately() -> None:
    assert looks([(5.0, "written")]) == [5.0 + WRITTEN_S]
    assert looks([(5.0, "written"), (5.004, "written")]) == [5.0 + WRITTEN_S]


def test_a_writer_is_given_time_to_close_the_file() -> None:
    assert looks([(5.0, "touched"), (5.001, "touched"), (5.002, "written")]) == [5.002 + WRITTEN_S]
    assert looks([(5.0, "touched"), (5.01, "touched")]) == [5.0 + TOUCHED_S]


def test_a_removed_file_gets_time_to_be_replaced() -> None:
    assert looks([(5.0, "gone"), (5.01, "touched"), (5.012, "written")]) == [5.012 + WRITTEN_S]
    assert looks([(5.0, "gone")]) == [5.0 + GONE_S]
    assert looks([(5.0, "touched"), (5.001, "gone")]) == [5.001 + GONE_S], "nobody looks into the gap"


def test_a_thousand_writes_in_a_second_are_a_handful_of_looks_with_one_after_the_last() -> None:
    writes: list[tuple[float, Hint]] = [(number / 1000, "written") for number in range(1000)]
    found = looks(writes)
    assert len(found) <= 10
    assert found[-1] >= writes[-1][0]


def test_a_file_that_was_quiet_is_looked_at_at_once_again() -> None:
    busy: list[tuple[float, Hint]] = [(number / 100, "written") for number in range(100)]
    assert looks([*busy, (10.0, "written")])[-1] == 10.0 + WRITTEN_S
    assert looks([(0.0, "written"), (2 * QUIET_S, "written")]) == [WRITTEN_S, 2 * QUIET_S + WRITTEN_S]


def test_a_forgotten_file_is_not_looked_at() -> None:
    coalescer = Debouncer()
    coalescer.note("f", "written", 0.0)
    coalescer.note("g", "written", 0.0)
    coalescer.forget("f")
    assert coalescer.take(NEVER, 10) == ["g"]


def test_at_most_the_requested_number_is_taken_longest_due_first() -> None:
    coalescer = Debouncer()
    for number in range(5):
        coalescer.note(str(number), "written", float(number))
    assert coalescer.take(9.0, 2) == ["0", "1"]
    assert coalescer.take(2.5, 9) == ["2"]


@given(
    st.lists(
        st.tuples(st.floats(0, 5, allow_nan=False), st.sampled_from(["written", "touched", "gone"])),
        min_size=1,
        max_size=200,
    )
)
def test_the_last_change_is_followed_by_a_look_within_bounds(
    changes: list[tuple[float, Hint]],
) -> None:
    ordered = sorted(changes, key=lambda change: change[0])
    found = looks(ordered)
    last = ordered[-1][0]
    assert last <= found[-1] <= last + GAP_MAX_S + GONE_S
    assert len(found) <= 2 + 5 / 0.02
