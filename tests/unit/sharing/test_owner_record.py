"""A session never has two owners: every step is matched, so late, doubled and outdated steps fail."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ctxd.backends.xtdb.messages import Match, Op, PutDoc
from ctxd.projection import owner_record
from ctxd.projection.owner_record import Owner

SESSION = "s1"
HOSTS = ("a", "b", "c")


class Log:
    """A node's handling of matched transactions on one entity."""

    def __init__(self) -> None:
        self.doc = None
        self.projected: list[tuple[str, int]] = []

    def take(self, ops: list[Op], rows_of: str | None) -> bool:
        for op in ops:
            if isinstance(op, Match) and op.doc != self.doc:
                return False
        for op in ops:
            if isinstance(op, PutDoc):
                self.doc = op.doc
        if rows_of is not None:
            self.projected.append((rows_of, owner_record.from_doc(self.doc).token))
        return True


def project(view: Owner | None, host: str, *, rest: bool) -> list[Op] | None:
    """The owner's part of a batch that has rows of the session."""
    match owner_record.standing(view, host):
        case "free":
            after = owner_record.first(host)
        case "mine":
            after = owner_record.adopted(view)
        case "resting":
            after = owner_record.resumed(view)
        case _:
            return None
    return owner_record.change(SESSION, view, owner_record.released(after) if rest else after)


STEPS = st.lists(
    st.tuples(st.sampled_from(["look", "project", "rest", "claim", "deliver", "deliver late"]), st.sampled_from(HOSTS)),
    max_size=60,
)


@pytest.mark.requirement("HST-2")
@settings(max_examples=300, deadline=None)
@given(STEPS)
def test_two_hosts_never_both_write_a_session(steps):
    log = Log()
    views: dict[str, Owner | None] = dict.fromkeys(HOSTS)
    sent: dict[str, list[tuple[list[Op], str | None]]] = {host: [] for host in HOSTS}
    for step, host in steps:
        view = views[host]
        if step == "look":
            views[host] = owner_record.from_doc(log.doc)
        elif step in ("project", "rest"):
            ops = project(view, host, rest=step == "rest")
            if ops is not None:
                sent[host].append((ops, host))
        elif step == "claim" and view is not None:
            # A host may take any owner for dead: that its clock is wrong must not matter either.
            sent[host].append((owner_record.change(SESSION, view, owner_record.claimed(view, host)), None))
        elif sent[host]:
            ops, rows_of = sent[host].pop(0 if step == "deliver" else -1)
            log.take(ops, rows_of)
    tokens = [token for _, token in log.projected]
    assert tokens == sorted(tokens)
    holders: dict[int, set[str]] = {}
    for writer, token in log.projected:
        holders.setdefault(token, set()).add(writer)
    assert all(len(writers) == 1 for writers in holders.values())


def test_only_one_of_two_concurrent_claims_succeeds():
    log = Log()
    resting = owner_record.released(owner_record.first("a"))
    log.take(owner_record.change(SESSION, None, owner_record.first("a")), "a")
    log.take(owner_record.change(SESSION, owner_record.first("a"), resting), "a")
    assert log.take(owner_record.change(SESSION, resting, owner_record.claimed(resting, "b")), None)
    assert not log.take(owner_record.change(SESSION, resting, owner_record.claimed(resting, "c")), None)
    assert not log.take(owner_record.change(SESSION, resting, owner_record.resumed(resting)), "a")


def test_an_owner_s_late_rows_fail_even_if_it_comes_to_own_the_session_again():
    old = owner_record.first("a")
    late = owner_record.change(SESSION, old, old)
    log = Log()
    log.take(owner_record.change(SESSION, None, old), "a")
    by_b = owner_record.claimed(old, "b")
    again = owner_record.claimed(by_b, "a")
    log.take(owner_record.change(SESSION, old, by_b), None)
    log.take(owner_record.change(SESSION, by_b, again), None)
    assert not log.take(late, "a")


def test_a_host_that_dies_while_importing_a_session_is_not_its_source():
    old = owner_record.first("a")
    half = owner_record.claimed(old, "b")
    assert (old.token, half.token, owner_record.claimed(half, "c").token) == (1, 2, 3)
    assert owner_record.claimed(half, "c").whole == "a"
    assert owner_record.claimed(owner_record.adopted(half), "c").whole == "b"


def test_only_a_released_an_own_or_an_expired_session_may_be_claimed():
    mine = owner_record.first("a")
    assert not owner_record.may_claim(mine, "b", expired=False)
    assert owner_record.may_claim(mine, "b", expired=True)
    assert owner_record.may_claim(mine, "a", expired=False)
    assert owner_record.may_claim(owner_record.released(mine), "b", expired=False)


@given(
    st.builds(
        Owner, writer=st.text(), token=st.integers(1, 2**40), released=st.booleans(), source=st.none() | st.text()
    )
)
def test_an_owner_round_trips_through_its_document(owner):
    assert owner_record.from_doc(owner_record.to_doc(SESSION, owner)) == owner
