"""Mutation test of the product: ``python -m tests.mutation [--sample 200] [--seed N] [--share 0.9]``.

A random sample of mutations is applied one at a time to a copy of the tree, so that the tree itself never changes. For
each, the test files run that name its module or one that imports it: those that name it most often first, unit tests
before those of the specification, up to ``FILES_MAX``. It is killed if a test fails that passes without it, survives if
all pass, and counts as killed if they do not end. One without such a test file is untested, which counts as survived.
The exit code is 1 if fewer than ``--share`` are killed. The seed is printed, and repeats a run.
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
from contextlib import suppress
from pathlib import Path
from typing import Final, Literal, NamedTuple

ROOT: Final = Path(__file__).parents[1]
PRODUCT: Final = ("ctxd", "ctxd_client", "protocol/ctxd_protocol")
COPIED: Final = ("ctxd", "ctxd_client", "protocol", "tests", "bench", "systemd", "pyproject.toml", "Makefile")
GENERATED: Final = ("ctxd_client/_sync", "ctxd_client/sync.py")
"""Not mutated: these change only with what they are made from."""

FILES_MAX: Final = 12
TESTS_S_MAX: Final = 240.0
"""Seconds for the test files of one mutation; more is a hang."""

OPPOSITES: Final[dict[type[ast.AST], type[ast.AST]]] = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In,
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.FloorDiv, ast.FloorDiv: ast.Mult, ast.Div: ast.Mult,
    ast.And: ast.Or, ast.Or: ast.And,
}  # fmt: skip

Outcome = Literal["killed", "survived", "timeout", "untested"]


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
    """Annotations and decorators, strings of documentation, and f-strings, whose parts have no place of their own."""
    for node in ast.walk(tree):
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                yield from (each for each in (node.returns, *node.decorator_list) if each is not None)
            case ast.arg(annotation=ast.expr() as annotation) | ast.AnnAssign(annotation=annotation):
                yield annotation
            case ast.ClassDef(decorator_list=decorators, keywords=keywords):
                yield from decorators
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


def tests_of(path: str) -> list[str]:
    """The test files that name the module at ``path`` or one that imports it, in the order in which they run."""
    found: list[tuple[int, int, int, str]] = []
    named = _names(path)
    importers = [_names(each) for each in _modules() if each != path and named.search((ROOT / each).read_text())]
    for place, folder in enumerate(("unit", "spec", "client")):
        for file in sorted((ROOT / "tests" / folder).rglob("test_*.py")):
            text = file.read_text()
            count = len(named.findall(text))
            if count or any(each.search(text) for each in importers):
                found.append((not count, place, -count, str(file.relative_to(ROOT))))
    return [file for *_, file in sorted(found)[:FILES_MAX]]


def _names(path: str) -> re.Pattern[str]:
    """A pattern of the texts that import the module at ``path`` or name it in full."""
    module = path.removeprefix("protocol/").removesuffix(".py").removesuffix("/__init__").replace("/", ".")
    package, _, name = module.rpartition(".")
    return re.compile(rf"\b{re.escape(module)}\b|\bfrom {re.escape(package)} import [^\n]*\b{name}\b")


def _modules() -> list[str]:
    """The paths of the product's modules."""
    found = (str(file.relative_to(ROOT)) for folder in PRODUCT for file in sorted((ROOT / folder).rglob("*.py")))
    return [path for path in found if not path.startswith(GENERATED)]


def outcome_of(mutation: Mutation, tree: Path, sound: dict[str, bool]) -> Outcome:
    """Run the tests of ``mutation``, applied in ``tree``. ``sound``: whether a test file passes without it."""
    files = tests_of(mutation.path)
    if not files:
        return "untested"
    place = tree / mutation.path
    source = place.read_bytes()
    place.write_bytes(mutation.applied(source))
    try:
        failed = failing(files, tree)
    except subprocess.TimeoutExpired:
        return "timeout"
    finally:
        place.write_bytes(source)
    if failed and failed not in sound:
        sound[failed] = failing([failed], tree) is None
    return "survived" if failed is None else "killed" if sound.get(failed, True) else "untested"


def failing(files: list[str], tree: Path) -> str | None:
    """The first test file that fails in ``tree``, None if all pass; empty if none can run.

    Raises: TimeoutExpired after ``TESTS_S_MAX``.
    """
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-rfE", "-p", "no:cacheprovider"]
    env = {**os.environ, "PYTHONPATH": f"{tree}:{tree / 'protocol'}", "PYTHONDONTWRITEBYTECODE": "1"}
    with tempfile.TemporaryFile() as output:
        process = subprocess.Popen(
            [*command, "-m", "not slow and not nightly", *files], cwd=tree, env=env, stdin=subprocess.DEVNULL,
            stdout=output, stderr=subprocess.STDOUT, start_new_session=True,
        )  # fmt: skip
        try:
            if process.wait(TESTS_S_MAX) == 0:
                return None
        finally:
            # What these tests started, their guard ends.
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        output.seek(0)
        found = re.search(rb"^(?:FAILED|ERROR) (tests/[\w/]+\.py)", output.read(), re.MULTILINE)
        return found[1].decode() if found else ""


def difference(mutation: Mutation) -> str:
    """A mutation as a diff."""
    source = (ROOT / mutation.path).read_bytes()
    before, after = source.decode().splitlines(), mutation.applied(source).decode().splitlines()
    return "\n".join(difflib.unified_diff(before, after, mutation.path, mutation.path, lineterm="", n=1))


def every_mutation() -> list[Mutation]:
    """All that can be made in the product."""
    return [each for path in _modules() for each in mutations(path, (ROOT / path).read_bytes())]


def run(sample: int, seed: int, share: float) -> bool:
    """Try ``sample`` mutations, print what became of them, and return whether enough were killed."""
    possible = every_mutation()
    chosen = random.Random(seed).sample(possible, min(sample, len(possible)))
    print(f"{len(chosen)} of {len(possible)} mutations, seed {seed}", flush=True)
    outcomes: list[tuple[Mutation, Outcome]] = []
    sound: dict[str, bool] = {}
    with tempfile.TemporaryDirectory(prefix="ctxd-mutation-") as made:
        tree = Path(made)
        for name in COPIED:
            if (ROOT / name).is_dir():
                shutil.copytree(ROOT / name, tree / name, ignore=shutil.ignore_patterns("__pycache__"))
            else:
                shutil.copy2(ROOT / name, tree / name)
        for number, mutation in enumerate(chosen, 1):
            outcome = outcome_of(mutation, tree, sound)
            outcomes.append((mutation, outcome))
            print(f"{number:>4} {outcome:<9} {mutation.path}:{mutation.line}", flush=True)
    kept = [mutation for mutation, outcome in outcomes if outcome in ("survived", "untested")]
    for mutation in kept:
        print(f"\n{mutation.path}:{mutation.line}\n{difference(mutation)}")
    names: tuple[Outcome, ...] = ("killed", "survived", "timeout", "untested")
    counts = {name: sum(outcome == name for _, outcome in outcomes) for name in names}
    reached = 1 - len(kept) / len(outcomes)
    told = ", ".join(f"{count} {name}" for name, count in counts.items())
    print(f"\n{told}: {reached:.3f} killed, {share} wanted")
    return reached >= share


def main() -> int:
    """Parse the command line and run."""
    parser = argparse.ArgumentParser(description="Mutation test of the product.")
    parser.add_argument("--sample", type=int, default=200)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(10**6))
    parser.add_argument("--share", type=float, default=0.9)
    given = parser.parse_args()
    return 0 if run(given.sample, given.seed, given.share) else 1


if __name__ == "__main__":
    sys.exit(main())
