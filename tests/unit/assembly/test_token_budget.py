"""Sizes and the stable prefix: exact for every text, in bounded memory, and without a text kept."""

import gc
import tracemalloc
import weakref
from collections.abc import Callable, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ctxd.assembly.spec_rendering import SEPARATOR
from ctxd.assembly.token_budget import Piece, estimate_tokens, plan, sha256, size_bytes, stable_prefix
from tests.unit.assembly.test_composition import equal_bytes


class Text(str):
    """A text that a weak reference can follow."""


def piece(text: str) -> Piece:
    return Piece(
        key="k", section="chat", text=text, size=len(text.encode()), tokens=1, reason="chat", object="chat:s", drop=None
    )


def pieces(texts: Sequence[str]) -> list[Piece]:
    return [piece(text) for text in texts]


@pytest.mark.parametrize(
    "measured",
    [
        size_bytes,
        estimate_tokens,
        sha256,
        lambda text: stable_prefix([piece(text)], [piece(text + "x")]),
        lambda text: plan([piece(text)], 0, estimate_tokens),
    ],
    ids=["size", "tokens", "hash", "prefix", "plan"],
)
def test_a_measured_text_is_not_kept(measured: Callable[[str], object]) -> None:
    text = Text("geheim é " * 100)
    kept = weakref.ref(text)
    measured(text)
    del text
    gc.collect()
    assert kept() is None


near = st.lists(st.sampled_from(("a", "é", "è", "\n\n", "", "a\n\n", "\n\na", "x" * 5000)), max_size=4).map("".join)


@given(st.lists(near, max_size=4), st.lists(near, max_size=4))
def test_the_stable_prefix_counts_the_equal_bytes_of_the_whole_contexts(old: list[str], new: list[str]) -> None:
    expected = equal_bytes(SEPARATOR.join(old), SEPARATOR.join(new))
    assert stable_prefix(pieces(old), pieces(new)) == expected


def test_the_stable_prefix_does_not_join_pieces_after_the_first_difference() -> None:
    rest = pieces(["x" * 10_000] * 500)
    tracemalloc.start()
    try:
        assert stable_prefix([piece("a"), *rest], [piece("b"), *rest]) == 0
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 100_000
