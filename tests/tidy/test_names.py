"""Names of the product's types."""

import ast
from collections import defaultdict

from tests.tidy.product import name_of, trees


def test_a_class_name_occurs_in_one_module() -> None:
    modules: defaultdict[str, set[str]] = defaultdict(set)
    for path, tree in trees():
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef):
                modules[node.name].add(name_of(path))
    assert {name: sorted(where) for name, where in modules.items() if len(where) > 1} == {}
