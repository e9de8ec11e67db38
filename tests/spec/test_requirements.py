"""The specification and the tests cover each other."""

from tests.spec.requirements import REQUIREMENTS, SECTIONS
from tests.spec.status import proofs


def test_every_requirement_is_proven_by_a_test() -> None:
    found = proofs()
    assert [row.id for row in REQUIREMENTS if row.id not in found] == []


def test_every_cited_requirement_exists() -> None:
    assert sorted(set(proofs()) - {row.id for row in REQUIREMENTS}) == []


def test_ids_are_unique_and_in_a_section() -> None:
    ids = [row.id for row in REQUIREMENTS]
    assert len(ids) == len(set(ids))
    assert {id.rsplit("-", 1)[0] for id in ids} == set(SECTIONS)
