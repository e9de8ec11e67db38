"""Findings of ``ctx doctor`` and ``ctxd doctor``: one look, and remedies that begin with what to do."""

import ast
from pathlib import Path

import pytest

from ctxd.doctor_findings import fail, lines, ok, warn
from ctxd.terminal import Screen

ROOT = Path(__file__).parents[2]
CHECKS = (
    "ctxd/backends/xtdb/node/node_checks.py",
    "ctxd/cli/doctor.py",
    "ctxd/cli/daemon_checks.py",
    "ctxd/cli/host_checks.py",
)
VERBS = frozenset(
    "add allow choose close correct free install join mount move name put raise read register report restart restrict"
    " run set start unset wait".split()
)


def remedies(path: Path) -> list[str]:
    """The remedies written in the calls of ``warn`` and ``fail``; those from elsewhere are left out."""
    found = []
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in ("warn", "fail"):
            fix = node.args[2]
            parts = fix.values if isinstance(fix, ast.JoinedStr) else [fix]
            if isinstance(parts[0], ast.Constant):
                found.append(str(parts[0].value))
    return found


@pytest.mark.requirement("CLI-9")
@pytest.mark.parametrize("path", CHECKS)
def test_a_remedy_of_a_check_begins_with_a_verb(path: str) -> None:
    written = remedies(ROOT / path)
    assert written
    assert [each for each in written if each.split(" ")[0].rstrip(";:,") not in VERBS] == []


@pytest.mark.requirement("CLI-9")
def test_findings_of_every_check_look_the_same() -> None:
    found = [ok("one", "well"), warn("two", "soon", "Run: x."), fail("three", "PATH is wrong", "Set PATH in the unit.")]
    assert list(lines(found, Screen())) == [
        f"✓ {'one':<28} well",
        f"! {'two':<28} soon",
        f"  {'':<28} fix: run: x",
        f"✗ {'three':<28} PATH is wrong",
        f"  {'':<28} fix: set PATH in the unit",
    ]
