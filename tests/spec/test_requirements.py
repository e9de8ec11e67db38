"""The specification and the tests cover each other."""

import re

from tests.spec.requirements import REQUIREMENTS, SECTIONS
from tests.spec.status import ROOT, proofs


def test_every_requirement_is_proven_by_a_test() -> None:
    found = proofs()
    assert [row.id for row in REQUIREMENTS if row.id not in found] == []


def test_every_cited_requirement_exists() -> None:
    assert sorted(set(proofs()) - {row.id for row in REQUIREMENTS}) == []


def test_ids_are_unique_and_in_a_section() -> None:
    ids = [row.id for row in REQUIREMENTS]
    assert len(ids) == len(set(ids))
    assert {id.rsplit("-", 1)[0] for id in ids} == set(SECTIONS)


def test_the_glossary_names_existing_modules() -> None:
    text = (ROOT / "SSOT.md").read_text()
    rows = text[text.index("## Words") : text.index("## Formats")].strip().splitlines()[4:]
    named = {row.split(" | ")[0]: re.findall(r"`([\w/]+\.py)`", row) for row in rows}
    assert [term for term, modules in named.items() if not modules] == []
    assert [module for modules in named.values() for module in modules if not (ROOT / module).is_file()] == []
