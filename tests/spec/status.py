"""Proofs of the requirements by tests, and the behaviour part of SSOT.md generated from them.

``python -m tests.spec.status`` rewrites that part; with ``--check`` it fails when the file is not up to date.
"""

import ast
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

from tests.spec.requirements import REQUIREMENTS, SECTIONS

ROOT = Path(__file__).resolve().parents[2]
START, END = "<!-- behaviour: generated -->", "<!-- behaviour: end -->"


def cited(tree: ast.AST) -> Iterator[tuple[str, str]]:
    """Each ``(requirement id, test name)`` that the decorators of one test module cite."""
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            for decorator in node.decorator_list:
                if isinstance(decorator, ast.Call) and getattr(decorator.func, "attr", "") == "requirement":
                    yield from ((str(arg.value), node.name) for arg in decorator.args if isinstance(arg, ast.Constant))


def proofs(tests: Path = ROOT / "tests") -> dict[str, list[str]]:
    """Requirement id to the tests that prove it, as ``folder/file.py::test``."""
    found: dict[str, list[str]] = defaultdict(list)
    for path in sorted({*tests.rglob("test_*.py"), *tests.glob("suites/*.py")}):
        for requirement, name in cited(ast.parse(path.read_text())):
            found[requirement].append(f"{path.relative_to(tests).as_posix()}::{name}")
    return found


def behaviour(found: dict[str, list[str]]) -> str:
    """The behaviour part of SSOT.md: a table a section, with the number of tests that prove each sentence."""
    lines: list[str] = []
    for key, title in SECTIONS.items():
        lines += ["", f"### {title}", "", "| id | behaviour | source | proven by |", "|---|---|---|---|"]
        for row in REQUIREMENTS:
            if row.id.startswith(f"{key}-"):
                tests = found.get(row.id, [])
                files = sorted({test.split("::")[0] for test in tests})
                proof = f"{len(tests)} in {', '.join(f'`{f}`' for f in files)}" if tests else "**nothing yet**"
                sentence = row.sentence.replace("|", r"\|")
                lines.append(f"| {row.id} | {sentence} | {row.source} | {proof} |")
    proven = sum(1 for row in REQUIREMENTS if found.get(row.id))
    return "\n".join([f"{proven} of {len(REQUIREMENTS)} requirements are covered by a test.", *lines, ""])


def main() -> int:
    """Rewrite SSOT.md, or check it with ``--check``. Exit code 1: it was not up to date."""
    path = ROOT / "SSOT.md"
    text = path.read_text()
    head, _, rest = text.partition(START)
    _, _, tail = rest.partition(END)
    new = f"{head}{START}\n{behaviour(proofs())}{END}{tail}"
    if new == text:
        return 0
    if "--check" in sys.argv:
        print("SSOT.md is not up to date: run `python -m tests.spec.status`", file=sys.stderr)
        return 1
    path.write_text(new)
    return 0


if __name__ == "__main__":
    sys.exit(main())
