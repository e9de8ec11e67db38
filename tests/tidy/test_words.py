"""Wording that a program can check: docstrings begin with a noun or a verb, programs do not talk, Python says None."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from tests.tidy.product import name_of, trees

CLAUSE = re.compile(r"(What|Who|Whose|Whom|Which|Where|How|Have|Whether|That)\b")
SPEECH = re.compile(r"(?i:\b(?:tell|tells|told|telling|say|says|said|saying|hear|hears|heard)\b)")
PRONOUN = re.compile(r"\b(?:[Ww]hoever|[Ww]homever|[Nn]obody|[Ss]omebody|that which|is none)\b")

Documented = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


def docstrings(tree: ast.Module) -> Iterator[tuple[int, str]]:
    for node in ast.walk(tree):
        if isinstance(node, Documented) and (text := ast.get_docstring(node)):
            yield getattr(node, "lineno", 1), text


def prose(path: Path, tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Docstrings, attribute docstrings and comments, line by line."""
    lines = path.read_text().split("\n")
    documented: set[int] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            documented.update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    for number, line in enumerate(lines, 1):
        if number in documented:
            yield number, line
        elif "# " in line:
            yield number, line[line.index("# ") :]


def test_docstrings_begin_with_the_thing_or_a_verb() -> None:
    found = [(name_of(path), line, text.split("\n")[0]) for path, tree in trees() for line, text in docstrings(tree)]
    assert [each for each in found if CLAUSE.match(each[2])] == []


def test_programs_do_not_talk_and_python_has_no_null() -> None:
    # JSON has a null.
    pattern = re.compile(f"{SPEECH.pattern}|{PRONOUN.pattern}|(?<!JSON )\\bnull\\b")
    found = [(name_of(path), number, text.strip()) for path, tree in trees() for number, text in prose(path, tree)]
    assert [each for each in found if pattern.search(each[2])] == []
