"""Places of statements in TOML, against the values that ``tomllib`` reads from the same text."""

import tomllib
from typing import Any

import pytest

from ctxd.cli.toml_edits import Edit, comments, edited, statements

DOCUMENT = r'''# first
a = 1 # [no.header]
"b.c" . 'd' = """
[[hooks.Stop]]
\""" x = 1
"""""
e = ["]", %%%
[x]
%%%, # ]
  { f = "\\" },
]
	[ g . "h\u0041" ]
i.j = '\'
k = { l = [ 1, 2 ] } # """
[[m]]
n = ''
[[m]]
o = 1979-05-27 07:32:00
# last'''.replace("%%%", "'''")


def leaves(value: Any, path: tuple[str, ...] = ()) -> list[tuple[str, ...]]:
    if isinstance(value, dict):
        return [leaf for name, each in value.items() for leaf in leaves(each, (*path, name))]
    if isinstance(value, list) and value and all(isinstance(each, dict) for each in value):
        return [leaf for each in value for leaf in leaves(each, path)]
    return [path]


@pytest.mark.parametrize("text", [DOCUMENT, DOCUMENT.replace("\n", "\r\n"), "", "\n", "a = 1", "[a]", "  # a"])
def test_the_statements_are_those_that_are_read(text: str) -> None:
    found = list(statements(text))
    keys = [each.path for each in found if each.kind == "key" and each.path != ("g", "hA", "k")]
    assert keys == [path for path in leaves(tomllib.loads(text)) if path != ("g", "hA", "k", "l")]
    for each in found:
        names = [text[part.start : part.end] for part in each.parts]
        assert (
            tuple(tomllib.loads(f"x = {name}")["x"] if name[0] in "\"'" else name for name in names)
            == (each.path[len(each.path) - len(names) :])
        )
    rest = edited(text, [Edit(each.start, each.end) for each in found])
    assert all(line.startswith("#") for line in rest.split() if line not in ("first", "last", "a"))


def test_a_comment_is_found_where_it_is_one() -> None:
    text = '# x\na = """\n# x\n"""\n# x \r\n # x\n# x y\n# x'
    assert [text[start:end] for start, end in comments(text, "# x")] == ["# x\n", "# x \r\n", "# x"]
