"""Mutation test of the product: ``python -m tests.mutation [--sample 200] [--seed N] [--share 0.9] [--jobs 2]``.

A random sample of mutations is applied one at a time to a copy of the tree, so that the tree itself never changes.
First all tests of the folders ``FOLDERS`` run once, and ``tests.entered`` records which functions each enters;
``--record FOLDER`` keeps that record, and reads it if it is there. For each mutation, tests run that enter its function
(for code outside functions, one of its module), the cheapest first, for as many seconds as ``SELECTED_S`` allows.

It is killed if a test fails that passes without it or does not end, and survives if all pass. One that no test enters
is untested, which counts as survived. Those in ``tests/data/equivalent_mutations.txt`` change nothing that anybody
could notice, for the reason given there: they are counted apart. The exit code is 1 if fewer than ``--share`` are
killed. The seed is printed, and repeats a run.
"""

import argparse
import ast
import difflib
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from queue import SimpleQueue
from typing import Final, Literal, NamedTuple

from tests import entered
from tests.entered import Test

ROOT: Final = Path(__file__).parents[1]
PRODUCT: Final = ("ctxd", "ctxd_client", "protocol/ctxd_protocol")
COPIED: Final = ("ctxd", "ctxd_client", "protocol", "tests", "bench", "systemd", "pyproject.toml", "Makefile")
GENERATED: Final = ("ctxd_client/_sync", "ctxd_client/sync.py", "ctxd_client/methods.py")
"""Not mutated: these change only with what they are made from."""

FOLDERS: Final = ("unit", "client", "spec", "e2e", "xtdb")
RECORD_S_MAX: Final = 600.0
"""Seconds for one test file while its functions are recorded."""

SELECTED_S: Final = 40.0
SELECTED_MAX: Final = 800
"""Tests of one mutation: their seconds, as recorded, and their number."""

TESTS_S_MAX: Final = 180.0
"""Seconds for the tests of one mutation; more is a hang."""

EQUIVALENT: Final = ROOT / "tests/data/equivalent_mutations.txt"

DURATIONS: Final = ("_S", "_MS")
"""Ends of the names of constants that are times: no test asserts one, since benchmarks measure them."""

OPPOSITES: Final[dict[type[ast.AST], type[ast.AST]]] = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In,
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.FloorDiv, ast.FloorDiv: ast.Mult, ast.Div: ast.Mult,
    ast.And: ast.Or, ast.Or: ast.And,
}  # fmt: skip

Outcome = Literal["killed", "survived", "timeout", "untested", "equivalent"]


class Mutation(NamedTuple):
    """A replacement of one expression: offsets are bytes of the file."""

    path: str
    line: int
    start: int
    end: int
    text: str

    def applied(self, source: bytes) -> bytes:
        """The file's content with the replacement."""
        return source[: self.start] + self.text.encode() + source[self.end :]


def mutations(path: str, source: bytes) -> Iterator[Mutation]:
    """Every mutation of one module."""
    starts = [0]
    for line in source.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    tree = ast.parse(source)
    skipped = {id(inner) for node in _not_run(tree) for inner in ast.walk(node)}
    for node in ast.walk(tree):
        if id(node) in skipped or not isinstance(node, ast.expr | ast.Return):
            continue
        for target, text in _replacements(node):
            assert target.end_lineno is not None and target.end_col_offset is not None, "parsed from a file"
            start = starts[target.lineno - 1] + target.col_offset
            end = starts[target.end_lineno - 1] + target.end_col_offset
            if source[start:end].decode() != text:
                yield Mutation(path, target.lineno, start, end, text)


def _not_run(tree: ast.AST) -> Iterator[ast.AST]:
    """Annotations, decorators, documentation, times, and f-strings, whose parts have no place of their own."""
    for node in ast.walk(tree):
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                yield from (each for each in (node.returns, *node.decorator_list) if each is not None)
            case ast.arg(annotation=ast.expr() as annotation):
                yield annotation
            case ast.AnnAssign(target=target, annotation=annotation, value=value):
                yield annotation
                if isinstance(target, ast.Name) and target.id.endswith(DURATIONS) and value is not None:
                    yield value
            case ast.ClassDef(decorator_list=decorators, keywords=keywords):
                yield from decorators
                yield from keywords
            case ast.Call(func=ast.Name(id="zip"), keywords=keywords):
                # That they are as long is asserted, not relied upon.
                yield from keywords
            case ast.JoinedStr() | ast.Assert() | ast.Expr(value=ast.Constant()):
                yield node
            case ast.If(test=ast.Name(id="TYPE_CHECKING")):
                yield node


def _replacements(node: ast.expr | ast.Return) -> Iterator[tuple[ast.expr, str]]:
    """Yield each part of ``node`` that is replaced, with the text that replaces it."""
    match node:
        case ast.Compare(left=left, ops=[op], comparators=[right]) if type(op) in OPPOSITES:
            yield node, ast.unparse(ast.Compare(left, [OPPOSITES[type(op)]()], [right]))  # type: ignore[list-item]
        case ast.BinOp(left=left, op=op, right=right) if type(op) in OPPOSITES:
            yield node, f"({ast.unparse(ast.BinOp(left, OPPOSITES[type(op)](), right))})"  # type: ignore[arg-type]
        case ast.BoolOp(op=op, values=values):
            yield node, f"({ast.unparse(ast.BoolOp(OPPOSITES[type(op)](), values))})"  # type: ignore[arg-type]
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            yield node, f"({ast.unparse(operand)})"
        case ast.Constant(value=bool(value)):
            yield node, str(not value)
        case ast.Constant(value=int(value)):
            yield node, str(value + 1)
        case ast.Constant(value=float(value)):
            yield node, repr(value * 2 + 1)
        case ast.Return(value=ast.expr() as value) if not (isinstance(value, ast.Constant) and value.value is None):
            yield value, "None"
        case _:
            pass


def record(tree: Path, folder: Path, jobs: int) -> list[Test]:
    """Run all tests of ``FOLDERS`` in ``tree``, and return those that pass, with the functions that each enters.

    The record of each file stays in ``folder``; one that is there already is not made again.
    """
    folder.mkdir(parents=True, exist_ok=True)
    files = [
        str(file.relative_to(tree)) for name in FOLDERS for file in sorted((tree / "tests" / name).rglob("test_*.py"))
    ]

    def run(file: str) -> list[Test]:
        place = folder / file.replace("/", "-")
        if not (place / "tests").is_file():
            shutil.rmtree(place, ignore_errors=True)
            entered.prepare(place)
            env = {
                entered.FOLDER: str(place),
                entered.TREE: str(tree),
                "PYTHONPATH": f"{place}:{tree}:{tree / 'protocol'}",
            }
            with suppress(subprocess.TimeoutExpired):
                _run(["-p", "tests.entered", file], tree, env, RECORD_S_MAX)
        return entered.read(place)

    with ThreadPoolExecutor(jobs) as pool:
        return [test for tests in pool.map(run, files) for test in tests]


class Selection:
    """The tests of each mutation."""

    def __init__(self, tests: list[Test]) -> None:
        self._by_function: dict[tuple[str, str], list[Test]] = {}
        self._by_module: dict[str, list[Test]] = {}
        self._files = {test.node.partition("::")[0]: "" for test in tests}
        for file in self._files:
            self._files[file] = (ROOT / file).read_text()
        for test in tests:
            for function in test.entered:
                self._by_function.setdefault(function, []).append(test)
            for path in {path for path, _ in test.entered}:
                self._by_module.setdefault(path, []).append(test)
        self._tests = tests

    def of(self, mutation: Mutation) -> list[str]:
        """The tests that run for ``mutation``, the most promising first."""
        found: list[Test] = []
        functions = _functions_around(mutation)
        for function in functions:
            found = found or self._by_function.get((mutation.path, function), [])
        named = _names(mutation.path)
        if not found:
            # Outside functions, or in one that only an import calls.
            functions = []
            importers = [_names(each) for each in _modules() if named.search((ROOT / each).read_text())]
            importing = {
                file for file, text in self._files.items() if any(each.search(text) for each in (named, *importers))
            }
            found = [test for test in self._tests if test.node.partition("::")[0] in importing]
            found += [test for test in self._by_module.get(mutation.path, []) if test not in found]

        def rank(test: Test) -> tuple[bool, bool, float]:
            # Code outside functions runs in a test only if that starts a process which imports the module.
            runs = bool(functions) or (mutation.path, "<module>") in test.entered
            return not named.search(self._files[test.node.partition("::")[0]]), not runs, test.seconds

        # First all of the module's own tests; of others, one case of each before the second of any.
        cases: dict[str, int] = {}
        order = []
        for test in sorted(found, key=rank):
            case = cases[test.node.partition("[")[0]] = cases.get(test.node.partition("[")[0], -1) + 1
            others = rank(test)[0]
            order.append((others, case if others else 0, *rank(test)[1:], len(test.entered), test.node, test))
        chosen, seconds = list[str](), 0.0
        for *_, test in sorted(order, key=lambda each: each[:-1]):
            seconds += test.seconds
            if chosen and (seconds > SELECTED_S or len(chosen) == SELECTED_MAX):
                break
            chosen.append(test.node)
        return chosen


def _functions_around(mutation: Mutation) -> list[str]:
    """The qualified names of the functions that contain the mutation, the innermost first."""
    found: list[str] = []

    def visit(node: ast.AST, prefix: str) -> None:
        for each in ast.iter_child_nodes(node):
            name = prefix
            if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef):
                name = f"{prefix}{each.name}.<locals>."
                # Defaults are evaluated outside.
                if each.body[0].lineno <= mutation.line <= (each.end_lineno or 0):
                    found.append(f"{prefix}{each.name}")
            elif isinstance(each, ast.ClassDef):
                name = f"{prefix}{each.name}."
            visit(each, name)

    visit(ast.parse((ROOT / mutation.path).read_bytes()), "")
    return found[::-1]


def _names(path: str) -> re.Pattern[str]:
    """A pattern of the texts that import the module at ``path`` or name it in full."""
    module = path.removeprefix("protocol/").removesuffix(".py").removesuffix("/__init__").replace("/", ".")
    package, _, name = module.rpartition(".")
    return re.compile(rf"\b{re.escape(module)}\b|\bfrom {re.escape(package)} import [^\n]*\b{name}\b")


def _modules() -> list[str]:
    """The paths of the product's modules."""
    found = (str(file.relative_to(ROOT)) for folder in PRODUCT for file in sorted((ROOT / folder).rglob("*.py")))
    return [path for path in found if not path.startswith(GENERATED)]


def outcome_of(mutation: Mutation, tests: list[str], tree: Path, sound: dict[str, bool]) -> Outcome:
    """Run ``tests`` with ``mutation`` applied in ``tree``. ``sound``: whether a test passes without a mutation."""
    place = tree / mutation.path
    source, times = place.read_bytes(), place.stat()
    while tests:
        place.write_bytes(mutation.applied(source))
        # Compiled modules are known by the second of their source.
        os.utime(place, (times.st_atime, times.st_mtime + random.randrange(10, 10**6)))
        try:
            failed = failing(tests, tree)
        except subprocess.TimeoutExpired:
            return "timeout"
        finally:
            place.write_bytes(source)
            os.utime(place, (times.st_atime, times.st_mtime))
        if failed is None:
            return "survived"
        if failed not in tests:
            # No test can even be collected.
            return "killed"
        if failed not in sound:
            sound[failed] = failing([failed], tree) is None
        if sound[failed]:
            return "killed"
        tests = [each for each in tests if each != failed]
    return "untested"


def failing(tests: list[str], tree: Path) -> str | None:
    """The first of ``tests`` that fails in ``tree``, None if all pass; empty if none can run.

    Raises: TimeoutExpired after ``TESTS_S_MAX``.
    """
    env = {"PYTHONPATH": f"{tree}:{tree / 'protocol'}"}
    code, output = _run(["-x", "-rfE", "--timeout=60", *tests], tree, env, TESTS_S_MAX)
    if code == 0:
        return None
    found = re.search(r"^(?:FAILED|ERROR) (tests/\S+\.py::.*?)(?: - .*)?$", output, re.MULTILINE)
    return found[1] if found else ""


def _run(arguments: list[str], tree: Path, env: dict[str, str], seconds: float) -> tuple[int, str]:
    """Run pytest in ``tree`` and return its exit code and output. Raises: TimeoutExpired."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", "not slow and not nightly"]
    with tempfile.TemporaryDirectory(prefix="mut-") as temporary, tempfile.TemporaryFile() as output:
        process = subprocess.Popen(
            [*command, *arguments], cwd=tree, env={**os.environ, "PYTEST_DEBUG_TEMPROOT": temporary, **env},
            stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT, start_new_session=True,
        )  # fmt: skip
        try:
            process.wait(seconds)
        finally:
            # What these tests started, their guard ends.
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        output.seek(0)
        return process.returncode, output.read().decode(errors="replace")


def equivalents() -> dict[tuple[str, str, str], str]:
    """The reason why a mutation changes nothing, by its module and the line before and after it."""
    found = {}
    for line in EQUIVALENT.read_text().splitlines():
        if line and not line.startswith("#"):
            path, before, after, reason = line.split(" | ")
            found[path, before, after] = reason
    return found


def changed_line(mutation: Mutation) -> tuple[str, str]:
    """The first line that a mutation changes, before and after it."""
    removed, added = "", ""
    for line in reversed(difference(mutation).splitlines()[2:]):
        if line.startswith("-"):
            removed = line[1:].strip()
        elif line.startswith("+"):
            added = line[1:].strip()
    return removed, added


def difference(mutation: Mutation) -> str:
    """A mutation as a diff."""
    source = (ROOT / mutation.path).read_bytes()
    before, after = source.decode().splitlines(), mutation.applied(source).decode().splitlines()
    return "\n".join(difflib.unified_diff(before, after, mutation.path, mutation.path, lineterm="", n=1))


def every_mutation() -> list[Mutation]:
    """All that can be made in the product."""
    return [each for path in _modules() for each in mutations(path, (ROOT / path).read_bytes())]


def run(sample: int, seed: int, share: float, jobs: int, kept: Path | None) -> bool:
    """Try ``sample`` mutations, print what became of them, and return whether enough were killed."""
    possible = every_mutation()
    chosen = random.Random(seed).sample(possible, min(sample, len(possible)))
    print(f"{len(chosen)} of {len(possible)} mutations, seed {seed}", flush=True)
    known = equivalents()
    with tempfile.TemporaryDirectory(prefix="ctxd-mutation-") as made:
        trees: SimpleQueue[Path] = SimpleQueue()
        for number in range(jobs):
            trees.put(_copied(Path(made, str(number))))
        selection = Selection(record(Path(made, "0"), kept or Path(made, "record"), jobs))
        sound: dict[str, bool] = {}

        def tried(mutation: Mutation) -> Outcome:
            if (mutation.path, *changed_line(mutation)) in known:
                outcome: Outcome = "equivalent"
            else:
                tree = trees.get()
                try:
                    outcome = outcome_of(mutation, selection.of(mutation), tree, sound)
                finally:
                    trees.put(tree)
            print(f"{outcome:<10} {mutation.path}:{mutation.line}", flush=True)
            return outcome

        with ThreadPoolExecutor(jobs) as pool:
            outcomes = list(zip(chosen, pool.map(tried, chosen), strict=True))
    left = [mutation for mutation, outcome in outcomes if outcome in ("survived", "untested")]
    for mutation in left:
        print(f"\n{mutation.path}:{mutation.line}\n{difference(mutation)}")
    names: tuple[Outcome, ...] = ("killed", "survived", "timeout", "untested", "equivalent")
    counts = {name: sum(outcome == name for _, outcome in outcomes) for name in names}
    reached = 1 - len(left) / max(1, len(outcomes) - counts["equivalent"])
    told = ", ".join(f"{count} {name}" for name, count in counts.items())
    print(f"\n{told}: {reached:.3f} killed, {share} wanted")
    return reached >= share


def _copied(tree: Path) -> Path:
    """Copy the tree to ``tree``."""
    tree.mkdir()
    for name in COPIED:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, tree / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy2(ROOT / name, tree / name)
    return tree


def main() -> int:
    """Parse the command line and run."""
    parser = argparse.ArgumentParser(description="Mutation test of the product.")
    parser.add_argument("--sample", type=int, default=200)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(10**6))
    parser.add_argument("--share", type=float, default=0.9)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--record", type=Path, default=None)
    given = parser.parse_args()
    return 0 if run(given.sample, given.seed, given.share, given.jobs, given.record) else 1


if __name__ == "__main__":
    sys.exit(main())
