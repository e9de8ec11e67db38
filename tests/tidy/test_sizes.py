"""Style that matters is a test: sizes, names, and what may not stand in a file."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PRODUCT = [*sorted((ROOT / "ctxd").rglob("*.py")), *sorted((ROOT / "ctxd_client").rglob("*.py"))]
PRODUCT += sorted((ROOT / "protocol").rglob("*.py"))
BESIDE_IT = [*sorted((ROOT / "tests").rglob("*.py")), *sorted((ROOT / "bench").rglob("*.py"))]
MODULE_LINES_MAX = 600
FUNCTION_LINES_MAX = 60
BANNED_NAMES = {"utils", "util", "helpers", "common", "misc", "base", "core", "manager", "managers", "impl"}

Function = ast.FunctionDef | ast.AsyncFunctionDef


def name_of(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def functions(path: Path) -> Iterator[Function]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            yield node


def lines_without_docstring(node: Function) -> int:
    assert node.end_lineno is not None
    total = node.end_lineno - node.lineno + 1
    first = node.body[0]
    if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant) and isinstance(first.value.value, str):
        assert first.end_lineno is not None
        total -= first.end_lineno - first.lineno + 1
    return total


@pytest.mark.parametrize("path", [*PRODUCT, *BESIDE_IT], ids=name_of)
def test_a_module_fits_in_one_reading(path: Path) -> None:
    assert len(path.read_text().splitlines()) <= MODULE_LINES_MAX


@pytest.mark.parametrize("path", PRODUCT, ids=name_of)
def test_functions_are_short(path: Path) -> None:
    assert [(f.name, n) for f in functions(path) if (n := lines_without_docstring(f)) > FUNCTION_LINES_MAX] == []


def test_no_module_is_named_for_a_kind_of_code() -> None:
    assert [name_of(path) for path in PRODUCT if path.stem in BANNED_NAMES or path.parent.name in BANNED_NAMES] == []


@pytest.mark.parametrize("path", PRODUCT, ids=name_of)
def test_a_public_module_says_what_it_owns(path: Path) -> None:
    assert ast.get_docstring(ast.parse(path.read_text()))


@pytest.mark.parametrize("path", [p for p in PRODUCT if p.name == "__init__.py"], ids=name_of)
def test_a_package_holds_a_sentence_and_no_code(path: Path) -> None:
    if name_of(path) in {"ctxd_client/__init__.py", "ctxd/__init__.py", "protocol/ctxd_protocol/methods/__init__.py"}:
        return
    assert len(ast.parse(path.read_text()).body) == 1


def yields_in_groups(node: Function) -> Iterator[int]:
    contexts = [n for n in ast.walk(node) if isinstance(n, (ast.With, ast.AsyncWith))]
    for block in contexts:
        if any("task_group" in ast.unparse(item.context_expr) for item in block.items):
            yield from (inner.lineno for inner in ast.walk(block) if isinstance(inner, ast.Yield))


@pytest.mark.parametrize("path", PRODUCT, ids=name_of)
def test_only_context_managers_yield_inside_a_task_group(path: Path) -> None:
    for function in functions(path):
        if not any("contextmanager" in ast.unparse(decorator) for decorator in function.decorator_list):
            assert list(yields_in_groups(function)) == [], function.name


def tracked() -> list[Path]:
    skipped = {
        ".git",
        ".venv",
        ".mypy_cache",
        ".ruff_cache",
        ".pytest_cache",
        ".hypothesis",
        "__pycache__",
        "dist",
        "data",
    }
    return [
        p for p in ROOT.rglob("*") if p.is_file() and not skipped & set(p.parts) and p.suffix not in {".pyc", ".so"}
    ]


def test_no_file_names_a_package_registry() -> None:
    registries = re.compile(rb"pypi\.org|pythonhosted|registry\.npmjs|repo1?\.maven|deb\.debian|crates\.io|index-url=")
    mine = Path(__file__).resolve()
    assert [name_of(p) for p in tracked() if p.resolve() != mine and registries.search(p.read_bytes())] == []
