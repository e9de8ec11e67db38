"""Unified diffs: right at every place, and cheap where long texts differ in few lines."""

import random
from difflib import SequenceMatcher

import pytest

from ctxd.cli.unified_diff import unified


def applied(before: str, diff: list[str]) -> str:
    """``before`` after the change ``diff``, each line of which is checked."""
    old = before.splitlines(keepends=True)
    new, at = [], 0
    body = [*diff[2:]]
    for number, row in enumerate(body):
        if row.startswith("@@"):
            start, _, length = row.split()[1].removeprefix("-").partition(",")
            begin = int(start) - (length != "0")
            new += old[at:begin]
            at = begin
        elif not row.startswith("\\"):
            text = row[1:].removesuffix("\n") if body[number + 1 : number + 2][:1] == [NO_END] else row[1:]
            if row[0] in " -":
                assert old[at] == text
                at += 1
            if row[0] in " +":
                new.append(text)
    return "".join(new + old[at:])


NO_END = "\\ No newline at end of file\n"


@pytest.mark.parametrize("seed", range(4))
def test_a_diff_changes_one_text_into_the_other(seed):
    rng = random.Random(seed)
    for _ in range(100):
        compare_at_random(rng)


def compare_at_random(rng: random.Random) -> None:
    before = [rng.choice("abcd") for _ in range(rng.randrange(30))]
    after = [*before]
    for _ in range(rng.randrange(4)):
        at = rng.randrange(len(after) + 1)
        after[at : at + rng.randrange(3)] = [rng.choice("abcde") for _ in range(rng.randrange(3))]
    texts = ["\n".join(lines) + "\n" * (bool(lines) and rng.random() < 0.7) for lines in (before, after)]
    diff = unified(*texts, "one", "two")
    assert applied(texts[0], diff) == texts[1]
    assert (diff == []) == (texts[0] == texts[1])
    if diff:
        assert diff[:2] == ["--- one\n", "+++ two\n"]


def test_the_matcher_gets_only_the_lines_that_may_differ(monkeypatch):
    """It takes quadratic time over lines that are repeated."""
    sizes = []

    def matcher(junk, one, other):
        sizes.append((len(one), len(other)))
        return SequenceMatcher(junk, one, other)

    monkeypatch.setattr("difflib.SequenceMatcher", matcher)
    lines = ["same\n"] * 50_000
    diff = unified("".join(lines), "".join([*lines[:20_000], "new\n", *lines[20_000:]]), "one", "two")
    assert sizes == [(6, 7)]
    assert diff[2:] == ["@@ -19998,6 +19998,7 @@\n", *[" same\n"] * 3, "+new\n", *[" same\n"] * 3]
