"""Structure: modules that a program runs, and that are large enough to be worth opening."""

import ast
import re
from collections import defaultdict
from functools import cache
from pathlib import Path
from typing import NamedTuple

from tests.tidy.product import PRODUCT, ROOT, trees

PROGRAMS = (
    "ctxd.__main__",
    "ctxd.cli.entry_point",
    "ctxd_client",
    "ctxd_client.adapters.agent_sdk",
    "ctxd_client.adapters.langgraph",
    "ctxd.examples.demo",
    "ctxd.examples.agent_loop",
    "ctxd.examples.anthropic_agent",
)
MODULE_LINES_MIN = 60
FOLDERS_PER_NAME_MAX = 4


def module_of(path: Path) -> str:
    parts = list(path.relative_to(ROOT).with_suffix("").parts)
    parts = parts[1:] if parts[0] == "protocol" else parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


@cache
def modules() -> dict[str, Path]:
    return {module_of(path): path for path in PRODUCT if path.name != "generate.py"}


class Facts(NamedTuple):
    """``commands``: the modules that a module loads when a command is used, which it names as ``module:attribute``."""

    imports: set[str]
    commands: set[str]
    docstring: str
    lines: int


@cache
def facts() -> dict[str, Facts]:
    found = {}
    known = {path: module for module, path in modules().items()}
    for path, tree in trees():
        if (module := known.get(path)) is not None:
            lines = len(path.read_text().splitlines())
            docstring = ast.get_docstring(tree) or ""
            found[module] = Facts(imports_of(tree) - {module}, commands_of(tree), docstring, lines)
    return found


def imports_of(tree: ast.Module) -> set[str]:
    found: set[str] = set()
    for node in ast.walk(tree):
        match node:
            case ast.Import(names=names):
                found |= {name.name for name in names}
            case ast.ImportFrom(module=str(source), names=names):
                found |= {source, *(f"{source}.{name.name}" for name in names)}
    return found & modules().keys()


def commands_of(tree: ast.Module) -> set[str]:
    texts = [node.value for node in ast.walk(tree) if isinstance(node, ast.Constant)]
    named = {text.partition(":")[0] for text in texts if isinstance(text, str) and re.fullmatch(r"[a-z_.]+:\w+", text)}
    return named & modules().keys()


def test_every_module_is_run_by_a_program() -> None:
    reached: set[str] = set()
    waiting = list(PROGRAMS)
    while waiting:
        module = waiting.pop()
        if module not in reached and module in facts():
            reached.add(module)
            waiting += [*facts()[module].imports, *facts()[module].commands, module.rpartition(".")[0]]
    assert sorted(modules().keys() - reached) == []


def test_a_short_module_that_one_other_imports_gives_its_reason() -> None:
    importers: defaultdict[str, set[str]] = defaultdict(set)
    for module, each in facts().items():
        for imported in each.imports:
            importers[imported].add(module)
    alone = {*PROGRAMS, *(command for each in facts().values() for command in each.commands)}
    short = [
        module
        for module, each in facts().items()
        if modules()[module].name != "__init__.py"
        and module not in alone
        # Each family of methods has its own module of handlers, imported by the daemon alone.
        and not module.startswith("ctxd.rpc.handlers.")
        and each.lines < MODULE_LINES_MIN
        and len(importers[module]) <= 1
        and "Separate" not in each.docstring
    ]
    assert short == [], "merge it, or begin a sentence of its docstring with 'Separate'"


def test_a_file_name_is_not_in_many_folders() -> None:
    folders: defaultdict[str, set[Path]] = defaultdict(set)
    for path in modules().values():
        if path.name != "__init__.py":
            folders[path.stem].add(path.parent)
    assert {name: len(found) for name, found in folders.items() if len(found) > FOLDERS_PER_NAME_MAX} == {}
