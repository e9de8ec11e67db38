"""Candidates for the origin of a source, and the groups of sources that one task imports in order."""

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ctxd.imports.import_state import SourceState
from ctxd.imports.origin_candidates import OriginCandidates
from ctxd.transcripts.discovery import Transcript, in_groups

pytestmark = pytest.mark.requirement("IMP-4")


class States:
    """The record of imported sources, with numbers alone."""

    def __init__(self, numbers: dict[str, int]) -> None:
        self.sources = {path: SourceState(0, None, "", "", "", "r", number=n) for path, n in numbers.items()}

    def in_order(self, paths: Any) -> list[str]:
        return sorted(paths, key=lambda path: self.sources[path].number or 10**9)


def source(path: str, **fields: Any) -> Transcript:
    return Transcript(path, Path(path), "claude-code", f"s{path}", path, **fields)


@given(st.lists(st.integers(0, 3), min_size=1, max_size=12), st.data())
def test_a_copy_is_compared_with_earlier_sources_of_its_root_in_the_order_of_their_first_import(
    known: list[int], data: st.DataObject
) -> None:
    # Each source was imported before (not 0) or is new, in an order of paths that is not that of the imports.
    order = data.draw(st.permutations([place for place, number in enumerate(known) if number]))
    states = States({f"p{place}": order.index(place) + 1 if number else 0 for place, number in enumerate(known)})
    candidates = OriginCandidates(states)  # type: ignore[arg-type]
    entered = states.in_order(states.sources)
    for path in entered:
        candidates.enter(path, source(path, root="r"))
    newest = len(order)
    for path in entered:
        expected = entered[: entered.index(path)]
        assert [*candidates.of_copy(source(path, root="r"))] == expected
        if not states.sources[path].number:
            newest += 1
            states.sources[path].number = newest
            candidates.note_imported(path, "r")
            assert [*candidates.of_copy(source(path, root="r"))] == expected


def test_a_source_that_was_renamed_is_found_under_its_new_path_only() -> None:
    states = States({"old": 1, "later": 0})
    candidates = OriginCandidates(states)  # type: ignore[arg-type]
    for path in ("old", "later"):
        candidates.enter(path, source(path, root="r"))
    states.sources["new"] = states.sources.pop("old")
    candidates.enter("new", source("new", root="r"))
    assert [*candidates.of_copy(source("later", root="r"))] == ["new"]


keys = st.one_of(st.none(), st.integers(0, 8))


@given(st.lists(st.tuples(st.integers(0, 8), keys, keys, keys), max_size=12))
def test_sources_that_share_a_session_parent_origin_or_root_are_one_group(links: list[tuple[Any, ...]]) -> None:
    sources = [
        Transcript(
            f"/{place}", Path(f"/{place}"), "claude-code", f"s{session}", "", root="" if root is None else f"r{root}",
            parent="" if parent is None else f"s{parent}", origin="" if origin is None else f"s{origin}",
        )
        for place, (session, parent, origin, root) in enumerate(links)
    ]  # fmt: skip
    names = [{each.session, each.parent, each.origin, each.root} - {""} for each in sources]
    groups: list[set[int]] = []
    for place in range(len(sources)):
        near = [group for group in groups if any(names[place] & names[other] for other in group)]
        groups = [group for group in groups if group not in near] + [{place}.union(*near)]
    # Names that no source shares join groups too: a session that is only somebody's parent.
    expected = sorted([f"/{place}" for place in sorted(group)] for group in groups)
    assert sorted(in_groups(sources)) == expected
    firsts = [sources.index(next(each for each in sources if each.path == group[0])) for group in in_groups(sources)]
    assert firsts == sorted(firsts), "groups are in the order of their first sources"
