"""Precision and recall of discovery on commands that agents really ran, labelled by hand (tests/data/discovery).

Twice: of what the parser is certain of from the text alone, and of what a real daemon makes objects of that has the
files to ask. For the latter every file and directory of the whole corpus is made real below one directory, which a
mount makes the agent's ``/``: what a case must not name is there because another case names it.
"""

import json
import re
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from posixpath import join, normpath
from typing import Any

from bench.figures import Figure
from bench.running import Caller, daemon, folder
from ctxd.indexing.shell.file_candidates import candidates

CORPUS = Path(__file__).parent.parent / "tests" / "data" / "discovery"
PRECISION_GOAL = 0.97
RECALL_GOAL = 0.90
OBJECTS_PRECISION_GOAL = 0.98
OBJECTS_RECALL_GOAL = 0.93
SANDBOX = "5a" * 32


@dataclass(frozen=True)
class Case:
    id: str
    family: str
    harness: str
    repository: str
    command: str
    cwd: str
    output: str
    files: frozenset[str]
    dirs: frozenset[str]

    @property
    def held_out(self) -> bool:
        """Half of the cases, by their id. The parsers were written on the others."""
        return sha256(self.id.encode()).digest()[0] < 128


@dataclass
class Score:
    """``directories``: wrong answers that are directories, which a stat would drop; they count as wrong here."""

    right: int = 0
    wrong: int = 0
    missed: int = 0
    directories: int = 0
    misses: list[tuple[str, str, str]] = field(default_factory=list)

    @property
    def precision(self) -> float:
        return self.right / (self.right + self.wrong) if self.right + self.wrong else 1.0

    @property
    def recall(self) -> float:
        return self.right / (self.right + self.missed) if self.right + self.missed else 1.0

    def add(self, case: Case, found: set[str]) -> None:
        self.right += len(found & case.files)
        self.wrong += len(found - case.files)
        self.missed += len(case.files - found)
        self.directories += len(found & case.dirs)
        self.misses += [(case.id, "wrong", path) for path in sorted(found - case.files)]
        self.misses += [(case.id, "missed", path) for path in sorted(case.files - found)]


def cases() -> Iterator[Case]:
    for file in sorted(CORPUS.glob("*.jsonl")):
        for line in file.read_text(encoding="utf-8").splitlines():
            row = json.loads(line)
            row["files"], row["dirs"] = frozenset(row["files"]), frozenset(row["dirs"])
            yield Case(**row)


def parsed(case: Case) -> set[str]:
    """What the text alone makes a careful reader call a file."""
    return {candidate.path for candidate in candidates(case.command, case.output, case.cwd).paths if candidate.certain}


def words(case: Case) -> set[str]:
    """What the parser doubts and is neither file nor directory: an object only where a file has a word's name."""
    named = case.files | case.dirs
    doubtful = {one.path for one in candidates(case.command, case.output, case.cwd).paths if not one.certain}
    return {path for path in doubtful - named if not any(other.startswith(path + "/") for other in named)}


def work_trees(corpus: Iterable[Case]) -> set[str]:
    """The recorded directories that lie in no other one: nearest to the tops of work trees that the corpus tells."""
    recorded = {case.cwd for case in corpus}
    return {cwd for cwd in recorded if not any(other in recorded for other in map(str, Path(cwd).parents))}


def make_real(corpus: Iterable[Case], root: Path) -> None:
    """Every file and directory that a case names, below ``root``."""
    corpus = list(corpus)
    for case in corpus:
        for directory in (case.cwd, *case.dirs):
            Path(f"{root}{directory}").mkdir(parents=True, exist_ok=True)
        for file in case.files:
            place = Path(f"{root}{file}")
            place.parent.mkdir(parents=True, exist_ok=True)
            place.touch()
    for top in work_trees(corpus):
        Path(f"{root}{top}/.git").mkdir(exist_ok=True)


@contextmanager
def observing(corpus: Iterable[Case]) -> Iterator[Callable[[Case], set[str]]]:
    """What a daemon makes objects of, of each command it is told of, where the files of ``corpus`` are real."""
    with folder() as place:
        root = place / "root"
        make_real(corpus, root)
        with daemon(place / "c.sock", place / "state"), Caller(place / "c.sock") as caller:
            mount = {"agent_prefix": "/", "canonical_prefix": str(root)}
            caller.call("session.create", agent="bench", session="s", mounts=[mount], filesystem_id=SANDBOX)

            def objects(case: Case) -> set[str]:
                told = {"command": case.command, "output": case.output, "cwd": case.cwd}
                rows: Any = caller.call("tool.observe", session="s", **told)["objects"]
                return {row["path"] for row in rows if row.get("object")}

            yield objects


def naive(case: Case) -> set[str]:
    """What one writes first: split on blanks, keep what has a slash or a dot."""
    words = (word.strip("'\"") for word in re.split(r"\s+", case.command + "\n" + case.output))
    return {normpath(join(case.cwd, word)) for word in words if "/" in word or "." in word}


def family(case: Case) -> str:
    name = case.family.removeprefix("fresh-").split("-")[0]
    known = (
        "ls",
        "find",
        "grep",
        "rg",
        "git",
        "sed",
        "cat",
        "go",
        "npx",
        "python",
        "head",
        "wc",
        "cp",
        "rm",
        "nl",
        "gofmt",
    )
    return name if name in known else "other"


def score(finder: Callable[[Case], set[str]], group: Callable[[Case], str], chosen: Iterable[Case]) -> dict[str, Score]:
    scores: dict[str, Score] = defaultdict(Score)
    for case in chosen:
        found = finder(case)
        scores[group(case)].add(case, found)
        scores["all"].add(case, found)
    return scores


def split(case: Case) -> str:
    """``fresh``: drawn and labelled after the parsers were written, so that the first look at them was blind."""
    if case.id.startswith("fresh-"):
        return "fresh"
    return "held-out" if case.held_out else "dev"


def megabytes_a_second() -> float:
    """Speed on a long `grep -rn`, the commonest long output."""
    line = "src/some/package/module_{}.py:{}:    value = compute(other, {})\n"
    output = "".join(line.format(n // 20, n, n) for n in range(160_000))
    start = time.perf_counter()
    candidates("grep -rn value src", output, "/w")
    return len(output) / 1e6 / (time.perf_counter() - start)


def run() -> Iterator[Figure]:
    corpus = list(cases())
    by_split = score(parsed, split, corpus)
    by_family = score(parsed, family, corpus)
    plain = score(naive, split, corpus)["all"]
    everything = by_split["all"]
    detail = "; ".join(f"{name} {s.precision:.3f}/{s.recall:.3f}" for name, s in sorted((by_split | by_family).items()))
    yield Figure(
        name="discovery_precision",
        value=round(everything.precision, 4),
        goal=PRECISION_GOAL,
        better="higher",
        detail=f"{len(corpus)} real commands, precision/recall: {detail}; "
        f"splitting on blanks: {plain.precision:.3f}/{plain.recall:.3f}",
    )
    yield Figure(
        name="discovery_recall",
        value=round(everything.recall, 4),
        goal=RECALL_GOAL,
        better="higher",
        detail=f"of {everything.right + everything.missed} files; "
        f"{everything.directories} directories among the wrong answers",
    )
    yield from run_objects(corpus)
    speed = megabytes_a_second()
    yield Figure(
        name="discovery_mb_per_s", value=round(speed, 1), goal=10.0, better="higher", detail="one core, grep -rn output"
    )


def run_objects(corpus: list[Case]) -> Iterator[Figure]:
    with observing(corpus) as objects:
        by_split = score(objects, split, corpus)
    everything = by_split["all"]
    taken = sum(len(words(case)) for case in corpus)
    detail = "; ".join(f"{name} {s.precision:.3f}/{s.recall:.3f}" for name, s in sorted(by_split.items()))
    yield Figure(
        name="discovery_objects_precision",
        value=round(everything.precision, 4),
        goal=OBJECTS_PRECISION_GOAL,
        better="higher",
        detail=f"objects a real daemon makes, the corpus's files and directories being real: {detail}; were every "
        f"doubtful word a file: {everything.right / (everything.right + everything.wrong + taken):.3f}",
    )
    yield Figure(
        name="discovery_objects_recall",
        value=round(everything.recall, 4),
        goal=OBJECTS_RECALL_GOAL,
        better="higher",
        detail=f"of {everything.right + everything.missed} files",
    )


def main() -> None:
    corpus = list(cases())
    with observing(corpus) as objects:
        report(corpus, (("parser", parsed), ("objects", objects), ("naive", naive)))


def report(corpus: list[Case], finders: Iterable[tuple[str, Callable[[Case], set[str]]]]) -> None:
    for title, finder in finders:
        print(f"{title:8} {'':12} {'precision':>9} {'recall':>7} {'files':>6} {'dirs':>5}")
        for group in (split, family, lambda case: "harness " + case.harness):
            for name, s in sorted(score(finder, group, corpus).items()):
                if name != "all" or group is split:
                    print(
                        f"{'':8} {name:20} {s.precision:9.3f} {s.recall:7.3f} {s.right + s.missed:6} {s.directories:5}"
                    )


if __name__ == "__main__":
    main()
