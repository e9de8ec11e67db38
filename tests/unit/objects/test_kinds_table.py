"""The table of entity kinds is what every rule about a kind is derived from."""

from typing import get_args

import pytest

from ctxd.objects import generated_ids
from ctxd.objects.kinds import KINDS, OBJECT_TYPES, type_of
from ctxd_protocol.object_types import ObjectType


def test_the_visible_kinds_are_the_types_of_the_protocol() -> None:
    assert frozenset(get_args(ObjectType)) == OBJECT_TYPES


def test_no_two_kinds_share_a_name_or_a_prefix() -> None:
    prefixes = [kind.prefix for kind in KINDS if kind.prefix]
    assert len({kind.name for kind in KINDS}) == len(KINDS) and len(set(prefixes)) == len(prefixes)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_every_rule_follows_the_row(kind) -> None:
    id = f"{kind.prefix}s1#0000000001"
    if kind.prefix:
        assert generated_ids.is_reserved(id)
        assert id.startswith(generated_ids.INNER_PREFIXES) is not kind.visible
        assert id.startswith(generated_ids.UNCACHED_PREFIXES) is not kind.cached
        assert (generated_ids.session_of(id) == "s1") is (kind.of_session and kind.stored)
        assert (type_of(id) == kind.name) is (kind.visible and kind.of_session)
    assert id.startswith(generated_ids.UNPURGEABLE_PREFIXES) is (kind.purge != "erase")
