"""Valid times never go back and keep versions of one entity apart, whatever the host's clock does."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ctxd.clock import ValidTimes

writes = st.lists(
    st.tuples(st.integers(0, 60), st.integers(0, 70), st.lists(st.sampled_from("abcde"), min_size=1, max_size=3))
)


@given(newest=st.integers(0, 40), writes=writes)
@pytest.mark.requirement("VER-4")
def test_times_never_decrease_respect_the_floor_and_keep_an_entity_s_versions_apart(newest, writes):
    clock = ValidTimes(newest)
    last, of_entity = newest, {}
    for wall, floor, ids in writes:
        time = clock.next(wall, floor, ids)
        assert time >= last and time >= floor and time >= wall
        assert all(time > of_entity.get(id, newest) for id in ids)
        of_entity |= dict.fromkeys(ids, time)
        last = time


@given(writes=writes)
def test_a_time_is_never_further_ahead_than_its_causes_need(writes):
    clock = ValidTimes(0)
    highest = 0
    for count, (wall, floor, ids) in enumerate(writes, start=1):
        highest = max(highest, wall, floor)
        assert clock.next(wall, floor, ids) <= highest + count


def test_writes_of_different_entities_may_share_a_millisecond():
    clock = ValidTimes(0)
    assert [clock.next(5, 0, [id]) for id in "abca"] == [5, 5, 5, 6]


@pytest.mark.requirement("VER-4")
def test_a_clock_set_back_holds_valid_time_without_reversing_it():
    clock = ValidTimes(0)
    assert [clock.next(wall, 0, ["a"]) for wall in (1_000, 10, 11, 2_000)] == [1_000, 1_001, 1_002, 2_000]
    assert clock.lead_ms(1_500) == 500
