"""The source files that the tests of style read, their names and their syntax trees."""

import ast
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PRODUCT = [path for folder in ("ctxd", "ctxd_client", "protocol") for path in sorted((ROOT / folder).rglob("*.py"))]
BESIDE_IT = [path for folder in ("tests", "bench") for path in sorted((ROOT / folder).rglob("*.py"))]


def name_of(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def trees() -> Iterator[tuple[Path, ast.Module]]:
    """The syntax trees of the product, one at a time: with all of them in memory, each collection of garbage in this
    process takes half a second."""
    for path in PRODUCT:
        yield path, ast.parse(path.read_text())
