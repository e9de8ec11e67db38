"""Mutation test of the product: ``python -m tests.mutation [--sample 200] [--seed N] [--seconds S] [--json FILE] …``.

A random sample of mutations (with ``--at PATH:LINE`` every mutation of that line) is applied, one at a time, to a copy
of the tree, so that the tree itself never changes. First the tests of the folders ``FOLDERS`` run once, and
``tests.entered_functions`` records which functions each enters. For each mutation, tests run that enter its function
(for code outside functions, one of its module), the most promising first, in rounds of ``SELECTED_S`` seconds until one
fails.

It is killed if a test fails that passes without it or does not end, and survives if all pass. One that no test enters
is untested, which counts as survived. Those in ``tests/data/equivalent_mutations.txt`` change nothing that anybody
could notice, for the reason given there: they are counted apart. The exit code is 1 if fewer than ``--share`` are
killed. The seed is printed, and repeats a run.

A run may be interrupted at any time: the folder ``--state`` keeps the record of each test file and the outcome of each
mutation, and the next run goes on from there. After ``--seconds`` nothing more is begun, and the exit code is 2 if
something is left to do. A record holds until its test file changes, an outcome until the mutated module does; a killed
mutation is tried again if the file of the test that killed it changes, any other if a test file does.
"""

import argparse
import ast
import difflib
import hashlib
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from queue import SimpleQueue
from typing import Final, Literal, NamedTuple

from tests import entered_functions
from tests.entered_functions import Test

ROOT: Final = Path(__file__).parents[1]
PRODUCT: Final = ("ctxd", "ctxd_client", "protocol/ctxd_protocol")
COPIED: Final = (
    "ctxd",
    "ctxd_client",
    "protocol",
    "tests",
    "bench",
    "systemd",
    "pyproject.toml",
    "Makefile",
    "README.md",
    "SSOT.md",
    "CHANGELOG.md",
)
GENERATED: Final = ("ctxd_client/_sync", "ctxd_client/sync.py", "ctxd_client/methods.py")
"""Not mutated: these change only with what they are made from."""

FOLDERS: Final = ("unit", "client", "spec", "e2e", "xtdb")
RECORD_S_MAX: Final = 240.0
"""Seconds for one test file while its functions are recorded: of those that take longer only the first tests count."""

SELECTED_S: Final = 30.0
SELECTED_MAX: Final = 500
ROUNDS_MAX: Final = 4
"""Tests of one round: their seconds, as recorded, and their number; and the rounds of one mutation."""

TESTS_S_MAX: Final = 150.0
"""Seconds for the tests of one round, once: more is a hang."""

RUNS_MAX: Final = 3
"""Runs of the tests of one round: a test that fails also without it is left out, and the others run again."""

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
        case ast.Return(value=ast.Constant(value=None | False)):
            # To its caller None is as false as False.
            pass
        case ast.Return(value=ast.expr() as value):
            yield value, "None"
        case _:
            pass


class OutOfTimeError(Exception):
    """The run's seconds are over; what was done is kept."""


class Deadline(NamedTuple):
    """The end of a run on the monotonic clock."""

    at: float

    def require(self) -> None:
        """Raises: OutOfTimeError once it is over."""
        if time.monotonic() > self.at:
            raise OutOfTimeError


def digest(content: bytes) -> str:
    """A short name of ``content``."""
    return hashlib.sha256(content).hexdigest()[:16]


def record(tree: Path, folder: Path, jobs: int, deadline: Deadline) -> list[Test]:
    """Run all tests of ``FOLDERS`` in ``tree``, and return those that pass, with the functions that each enters.

    The record of each file stays in ``folder``, and is made again only once the file has changed.
    Raises: OutOfTimeError.
    """
    folder.mkdir(parents=True, exist_ok=True)
    files = [
        str(file.relative_to(tree)) for name in FOLDERS for file in sorted((tree / "tests" / name).rglob("test_*.py"))
    ]
    left = len(files)

    def run(file: str) -> list[Test]:
        nonlocal left
        place = folder / file.replace("/", "-")
        done, content = place / "digest", digest((tree / file).read_bytes())
        if not done.is_file() or done.read_text() != content:
            deadline.require()
            shutil.rmtree(place, ignore_errors=True)
            entered_functions.prepare(place)
            env = {
                entered_functions.FOLDER: str(place),
                entered_functions.TREE: str(tree),
                "PYTHONPATH": f"{place}:{tree}:{tree / 'protocol'}",
            }
            with suppress(subprocess.TimeoutExpired):
                _run(["-p", "tests.entered_functions", file], tree, env, RECORD_S_MAX)
            done.write_text(content)
            print(f"recorded   {file}", flush=True)
        left -= 1
        return entered_functions.read(place)

    with ThreadPoolExecutor(jobs) as pool:
        runs = [pool.submit(run, file) for file in files]
    if left:
        print(f"{left} of {len(files)} test files are still to be recorded")
    return [test for done in runs for test in done.result()]


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

    def of(self, mutation: Mutation) -> list[list[str]]:
        """The tests that run for ``mutation``, the most promising first, in rounds."""
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
        rounds, seconds = list[list[str]](), float("inf")
        for *_, test in sorted(order, key=lambda each: each[:-1]):
            if seconds + test.seconds > SELECTED_S or len(rounds[-1]) == SELECTED_MAX:
                if len(rounds) == ROUNDS_MAX:
                    break
                rounds.append([])
                seconds = 0.0
            rounds[-1].append(test.node)
            seconds += test.seconds
        return rounds


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


def outcome_of(
    mutation: Mutation, rounds: list[list[str]], tree: Path, sound: dict[str, bool]
) -> tuple[Outcome, str | None]:
    """Run ``rounds`` of tests with ``mutation`` applied in ``tree`` until a test fails, and return the outcome with
    that test.

    ``sound``: whether a test passes without a mutation.
    """
    found: Outcome = "untested"
    for tests in rounds:
        outcome, by = _outcome_in(mutation, tests, tree, sound)
        if outcome in ("killed", "timeout"):
            return outcome, by
        if outcome == "survived":
            found = outcome
    return found, None


def _outcome_in(mutation: Mutation, tests: list[str], tree: Path, sound: dict[str, bool]) -> tuple[Outcome, str | None]:
    place = tree / mutation.path
    source, times = place.read_bytes(), place.stat()
    for _ in range(RUNS_MAX):
        if not tests:
            return "untested", None
        place.write_bytes(mutation.applied(source))
        # Compiled modules are known by the second of their source.
        os.utime(place, (times.st_atime, times.st_mtime + random.randrange(10, 10**6)))
        try:
            failed = failing(tests, tree)
        except subprocess.TimeoutExpired:
            return "timeout", None
        finally:
            place.write_bytes(source)
            os.utime(place, (times.st_atime, times.st_mtime))
        if failed is None:
            return "survived", None
        if failed not in tests:
            # No test can even be collected.
            return "killed", None
        if failed not in sound:
            with suppress(subprocess.TimeoutExpired):
                sound[failed] = failing([failed], tree) is None
        if sound.get(failed):
            return "killed", failed
        tests = [each for each in tests if each != failed]
    return "untested", None


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


class Outcomes:
    """The outcomes of mutations, in a file of JSON lines that grows by one line for each."""

    def __init__(self, place: Path, tests: list[Test]) -> None:
        self._place = place
        files = {test.node.partition("::")[0] for test in tests}
        self._files = {file: digest((ROOT / file).read_bytes()) for file in files}
        self._tests = digest("".join(sorted(self._files.values())).encode())
        self._known: dict[str, list[str]] = {}
        with suppress(FileNotFoundError):
            for line in place.read_text().splitlines():
                key, *outcome = json.loads(line)
                self._known[key] = outcome

    def of(self, mutation: Mutation) -> Outcome | None:
        """The outcome from an earlier run, None if there is none that still holds."""
        outcome, by, tests = self._known.get(_key(mutation), ("", "", ""))
        if not outcome or tests != self._files.get(by, self._tests):
            return None
        return outcome  # type: ignore[return-value]

    def keep(self, mutation: Mutation, outcome: Outcome, by: str | None) -> None:
        """Keep ``outcome``; ``by`` is the test that killed the mutation."""
        file = (by or "").partition("::")[0]
        line = [_key(mutation), outcome, file, self._files.get(file, self._tests)]
        with self._place.open("a") as out:
            out.write(json.dumps(line) + "\n")


def _key(mutation: Mutation) -> str:
    module = digest((ROOT / mutation.path).read_bytes())
    return f"{mutation.path} {module} {mutation.start} {mutation.end} {mutation.text}"


class Summary(NamedTuple):
    """The result of a run: ``score`` is the share of mutations, equivalent ones left out, that did not survive."""

    seed: int
    sample: int
    possible: int
    counts: dict[str, int]
    score: float
    survivors: list[dict[str, str | int]]


def run(sample: int, seed: int, lines: list[str], jobs: int, state: Path, deadline: Deadline) -> Summary:
    """Try ``sample`` mutations, or all of ``lines``, and print the outcome of each. Raises: OutOfTimeError."""
    possible = [each for each in every_mutation() if not lines or _stands_at(each, lines)]
    chosen = possible if lines else random.Random(seed).sample(possible, min(sample, len(possible)))
    print(f"{len(chosen)} of {len(possible)} mutations, seed {seed}", flush=True)
    known = equivalents()
    with tempfile.TemporaryDirectory(prefix="ctxd-mutation-") as made:
        trees: SimpleQueue[Path] = SimpleQueue()
        for number in range(jobs):
            trees.put(_copied(Path(made, str(number))))
        tests = record(Path(made, "0"), state / "record", jobs, deadline)
        selection, kept = Selection(tests), Outcomes(state / "outcomes.jsonl", tests)
        sound: dict[str, bool] = {}

        def tried(mutation: Mutation) -> Outcome | None:
            if (mutation.path, *changed_line(mutation)) in known:
                return "equivalent"
            if (outcome := kept.of(mutation)) is not None:
                return outcome
            if time.monotonic() > deadline.at:
                return None
            tree = trees.get()
            try:
                outcome, by = outcome_of(mutation, selection.of(mutation), tree, sound)
            finally:
                trees.put(tree)
            kept.keep(mutation, outcome, by)
            print(f"{outcome:<10} {mutation.path}:{mutation.line}", flush=True)
            return outcome

        with ThreadPoolExecutor(jobs) as pool:
            outcomes = list(zip(chosen, pool.map(tried, chosen), strict=True))
    if left := sum(outcome is None for _, outcome in outcomes):
        print(f"{left} of {len(chosen)} mutations are still to be tried")
        raise OutOfTimeError
    return _summary(seed, len(possible), [(mutation, outcome) for mutation, outcome in outcomes if outcome])


def _stands_at(mutation: Mutation, lines: list[str]) -> bool:
    """True if one of ``lines``, each ``path:line`` or ``path:first-last``, contains ``mutation``."""
    for each in lines:
        path, _, numbers = each.partition(":")
        first, _, last = numbers.partition("-")
        if path == mutation.path and int(first) <= mutation.line <= int(last or first):
            return True
    return False


def _summary(seed: int, possible: int, outcomes: list[tuple[Mutation, Outcome]]) -> Summary:
    survivors: list[dict[str, str | int]] = [
        {"path": mutation.path, "line": mutation.line, "outcome": outcome, "diff": difference(mutation)}
        for mutation, outcome in outcomes
        if outcome in ("survived", "untested")
    ]
    names: tuple[Outcome, ...] = ("killed", "survived", "timeout", "untested", "equivalent")
    counts: dict[str, int] = {name: sum(outcome == name for _, outcome in outcomes) for name in names}
    score = 1 - len(survivors) / max(1, len(outcomes) - counts["equivalent"])
    return Summary(seed, len(outcomes), possible, counts, round(score, 4), survivors)


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
    parser.add_argument("--sample", type=int, default=200, help="number of mutations")
    parser.add_argument("--seed", type=int, default=None, help="seed of the sample; random if it is not given")
    parser.add_argument(
        "--at", action="append", default=[], help="all mutations of PATH:LINE or PATH:FIRST-LAST instead"
    )
    parser.add_argument("--share", type=float, default=0.9, help="share of the mutations that has to be killed")
    parser.add_argument("--jobs", type=int, default=2, help="mutations tried at once")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="seconds after which nothing more begins")
    parser.add_argument("--state", type=Path, default=ROOT / ".mutation", help="folder of what interrupted runs keep")
    parser.add_argument("--json", type=Path, default=None, help="file for the summary")
    given = parser.parse_args()
    seed = random.SystemRandom().randrange(10**6) if given.seed is None else given.seed
    deadline = Deadline(time.monotonic() + given.seconds)
    try:
        found = run(given.sample, seed, given.at, given.jobs, given.state.resolve(), deadline)
    except OutOfTimeError:
        print(f"the time is over; go on with: --sample {given.sample} --seed {seed}")
        return 2
    for each in found.survivors:
        print(f"\n{each['path']}:{each['line']}\n{each['diff']}")
    counts = ", ".join(f"{count} {name}" for name, count in found.counts.items())
    print(f"\n{counts}: {found.score:.3f} killed, {given.share} wanted")
    if given.json is not None:
        given.json.write_text(json.dumps(found._asdict(), indent=1) + "\n")
    return 0 if found.score >= given.share else 1


if __name__ == "__main__":
    sys.exit(main())
