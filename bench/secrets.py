"""Looking for secrets: how fast, beside one bare RE2 pattern over the same text, and how well.

The text is the standard library's source and what looks like secrets and is none. The bare scan is the same combined
pattern searched for without asking any rule; ratios are the median of interleaved rounds.
"""

import os
import statistics
import sysconfig
import time
from collections.abc import Iterator
from pathlib import Path

from bench.figures import Figure
from ctxd.secrets.redaction import Guard
from ctxd.secrets.scanner import Scanner
from tests.suites.secret_corpus import negatives, samples

QUICK = bool(os.environ.get("CTXD_BENCH_QUICK"))
ROUNDS = 5 if QUICK else 15


def texts() -> list[bytes]:
    sources = sorted(Path(sysconfig.get_paths()["stdlib"]).glob("*.py"))
    return [path.read_bytes() for path in sources[: 40 if QUICK else 200]] + [
        text.encode() for text in negatives().values()
    ]


def run() -> Iterator[Figure]:
    scanner = Scanner()
    corpus = texts()
    size = sum(map(len, corpus)) / 1e6
    ratios: list[float] = []
    rates: list[float] = []
    hits = 0
    for _ in range(ROUNDS + 1):
        began = time.perf_counter()
        for text in corpus:
            sum(1 for _ in scanner.combined.finditer(text))
        bare = time.perf_counter() - began
        began = time.perf_counter()
        hits = sum(len(scanner.hits(text)) for text in corpus)
        ours = time.perf_counter() - began
        ratios.append(bare / ours)
        rates.append(size / ours)
    # The first round makes the automaton.
    yield Figure(
        name="secrets.scan_over_bare_re2",
        value=statistics.median(ratios[1:]),
        goal=0.7,
        better="higher",
        detail=f"{statistics.median(rates[1:]):.0f} MB/s over {size:.1f} MB without secrets",
    )
    yield Figure(name="secrets.false_hits_per_mb", value=hits / size, goal=0.5, better="lower", detail=f"{hits} hits")
    guard = Guard(scanner, bytes(32))
    # Another seed than the tests', which the rules were made beside.
    labelled = list(samples(seed=19, each=10))
    missed = sum(sample.secret in guard.redacted(sample.text) for sample in labelled)
    yield Figure(
        name="secrets.recall",
        value=1 - missed / len(labelled),
        goal=0.97,
        better="higher",
        detail=f"{missed} of {len(labelled)} made-up secrets missed",
    )
