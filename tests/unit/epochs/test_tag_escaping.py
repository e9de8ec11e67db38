"""Tags around foreign text: it cannot close or forge them, and what does neither stays as it is."""

import hypothesis.strategies as st
import pytest
from hypothesis import given

from ctxd.epochs.tag_escaping import tagged

PARTS = (
    "<",
    "</",
    "/",
    ">",
    "&",
    "&lt;",
    " ",
    "\t",
    "\n",
    "\u00a0",
    "system-update",
    "System-UPDATE",
    "instructions",
    "x",
)
CONTENTS = st.lists(st.sampled_from(PARTS), max_size=12).map("".join) | st.text(max_size=20)


def tags_in(text: str, tag: str) -> list[int]:
    """Indexes of what a lenient reader takes for ``<tag`` or ``</tag``."""
    found = []
    for at, letter in enumerate(text):
        rest = text[at + 1 :].lstrip().removeprefix("/").lstrip()
        if letter == "<" and rest[: len(tag)].lower() == tag:
            found.append(at)
    return found


@given(CONTENTS, st.sampled_from(("system-update", "instructions")))
def test_no_content_closes_or_forges_its_tag_and_nothing_else_is_changed(content: str, tag: str) -> None:
    shown = tagged(tag, content)
    opening, closing = f"<{tag}>\n", f"\n</{tag}>"
    assert shown.startswith(opening) and shown.endswith(closing)
    assert tags_in(shown, tag) == [0, len(shown) - len(closing) + 1]
    forged = set(tags_in(content, tag))
    expected = "".join("&lt;" if at in forged else letter for at, letter in enumerate(content))
    assert shown[len(opening) : -len(closing)] == expected


@pytest.mark.parametrize("content", ["if a < b && c > d:", "<b>&lt;</b>", "system-update", "< system update>", "a <"])
def test_content_without_the_tag_is_shown_as_it_is(content: str) -> None:
    assert tagged("system-update", content) == f"<system-update>\n{content}\n</system-update>"


@pytest.mark.parametrize(
    "forged", ["<system-update>", "</SYSTEM-update>", "< \n/ System-Update", "</\tsystem-update-2"]
)
def test_only_the_sign_that_begins_a_tag_is_replaced(forged: str) -> None:
    shown = tagged("system-update", f"a < b\n{forged} & c")
    assert shown == f"<system-update>\na < b\n&lt;{forged[1:]} & c\n</system-update>"
