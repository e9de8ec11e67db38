"""How much of the labelled corpus is found, and how much else is."""

import json
import os
import sysconfig
from collections import Counter
from itertools import islice
from pathlib import Path

import pytest

from ctxd.secrets.redaction import Guard
from ctxd.secrets.scanner import Scanner
from tests.suites.secret_corpus import negatives, samples

RECALL_LEAST = 0.97
FALSE_HITS_PER_MB_MOST = 0.5
SCANNER = Scanner()


def test_nearly_every_secret_of_each_family_is_found_and_fully_redacted():
    guard = Guard(SCANNER, bytes(32))
    missed: Counter[str] = Counter()
    total: Counter[str] = Counter()
    for sample in samples():
        total[sample.family] += 1
        if sample.secret in guard.redacted(sample.text):
            missed[sample.family] += 1
    recall = 1 - missed.total() / total.total()
    print(f"recall {recall:.4f} of {total.total()}; missed {dict(missed)}")
    assert recall >= RECALL_LEAST, missed
    assert all(missed[family] <= total[family] / 4 for family in total), missed


def test_as_many_secrets_are_found_inside_json():
    guard = Guard(SCANNER, bytes(32))
    missed: list[str] = []
    total = 0
    for sample in samples(seed=3, each=2):
        # As one line of a program's output that is a value in JSON: line feeds and quotes are escaped.
        text = json.dumps({"stdout": f"first\n{sample.text}\n", "code": 0})
        total += 1
        if json.dumps(sample.secret)[1:-1] in guard.redacted(text):
            missed.append(sample.family)
    print(f"recall {1 - len(missed) / total:.4f} of {total} within JSON; missed {missed}")
    assert 1 - len(missed) / total >= RECALL_LEAST, missed


def test_a_distinctive_family_is_reported_under_its_own_name():
    for sample in samples(each=1):
        names = {hit.rule for hit in SCANNER.hits(sample.text.encode())}
        loose = sample.family.startswith("assigned")
        assert loose or not names or sample.family in names, (sample, names)


def test_text_without_secrets_has_no_hits():
    hits = {name: _told(text.encode()) for name, text in negatives().items()}
    assert not {name: found for name, found in hits.items() if found}


def test_real_source_has_few_hits():
    size, hits = 0, []
    for path in islice(sorted(Path(sysconfig.get_paths()["stdlib"]).glob("*.py")), 200):
        data = path.read_bytes()
        size += len(data)
        hits += [(path.name, told) for told in _told(data)]
    print(f"{len(hits)} hits in {size / 1e6:.1f} MB of source: {hits}")
    assert len(hits) <= FALSE_HITS_PER_MB_MOST * size / 1e6, hits


def test_real_transcripts_have_few_hits():
    root = Path(os.environ.get("CTXD_TRANSCRIPTS", "../shared/data/transcripts"))
    if not root.is_dir():
        pytest.skip(f"there are no transcripts in {root}: set CTXD_TRANSCRIPTS")
    size, hits = 0, []
    for path in sorted(path for path in root.rglob("*") if path.suffix in (".json", ".jsonl")):
        data = path.read_bytes()
        size += len(data)
        hits += [(path.name, told) for told in _told(data)]
    print(f"{len(hits)} hits in {size / 1e6:.1f} MB of transcripts: {json.dumps(hits[:20])}")
    assert len(hits) <= FALSE_HITS_PER_MB_MOST * size / 1e6, hits


def _told(data: bytes) -> list[tuple[str, str]]:
    return [(hit.rule, data[hit.start : hit.end].decode(errors="replace")[:60]) for hit in SCANNER.hits(data)]
