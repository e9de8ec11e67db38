"""Names of the product's types."""

import ast
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_a_class_name_occurs_in_one_module() -> None:
    modules: defaultdict[str, set[str]] = defaultdict(set)
    for folder in ("ctxd", "ctxd_client", "protocol/ctxd_protocol"):
        for path in (ROOT / folder).rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.ClassDef):
                    modules[node.name].add(str(path.relative_to(ROOT)))
    assert {name: sorted(where) for name, where in modules.items() if len(where) > 1} == {}
