"""Discovery on commands that agents really ran, labelled by hand: it stays as good as it is."""

import pytest

from bench.discovery import Case, Score, cases, family, naive, observing, parsed, score, split, words


@pytest.fixture(scope="module")
def scores() -> dict[str, Score]:
    return score(parsed, split, cases())


@pytest.mark.parametrize(
    ("part", "precision", "recall"),
    [("all", 0.99, 0.98), ("dev", 0.99, 0.98), ("held-out", 0.99, 0.98), ("fresh", 0.97, 0.95)],
)
@pytest.mark.requirement("DIS-1")
@pytest.mark.requirement("DIS-3")
def test_precision_and_recall_stay_above_their_floors(
    scores: dict[str, Score], part: str, precision: float, recall: float
):
    assert scores[part].precision >= precision, scores[part].misses
    assert scores[part].recall >= recall, scores[part].misses


IMPERFECT = {"gh-01", "uv-02", "fresh-other-01", "git-commit-06"}
"""Cases that the parser does not read as their label says; any other is read exactly."""

DOUBTED = {
    "cp-01",
    "cp-02",
    "cp-03",
    "find-08",
    "fresh-cp-01",
    "fresh-go-01",
    "fresh-ls-01",
    "git-log-01",
    "go-01",
    "go-02",
    "grep-13",
    "rg-14",
    "source-01",
}
"""Cases in which the parser doubts a word that names nothing."""


@pytest.mark.parametrize("case", list(cases()), ids=lambda case: case.id)
@pytest.mark.requirement("DIS-1")
@pytest.mark.requirement("DIS-3")
def test_a_real_command_names_the_files_of_its_label_and_no_others(case: Case):
    assert (parsed(case) == case.files) is (case.id not in IMPERFECT)
    assert bool(words(case)) is (case.id in DOUBTED)


@pytest.mark.requirement("DIS-3")
def test_discovered_objects_stay_above_the_precision_and_recall_floors():
    corpus = list(cases())
    with observing(corpus) as objects:
        found = score(objects, split, corpus)
    assert found["all"].precision >= 0.995, found["all"].misses
    assert found["all"].recall >= 0.99, found["all"].misses
    assert found["fresh"].recall >= 0.97, found["fresh"].misses


def test_hardly_any_word_is_a_possible_file_name():
    assert sum(len(words(case)) for case in cases()) <= 15


def test_directories_are_hardly_ever_mistaken_for_files(scores: dict[str, Score]):
    assert scores["all"].directories <= 2


@pytest.mark.parametrize(
    ("name", "precision", "recall"),
    [("ls", 0.98, 0.97), ("find", 0.98, 0.97), ("grep", 0.98, 0.97), ("rg", 0.98, 0.97), ("git", 0.98, 0.95)],
)
def test_every_family_with_a_parser_of_its_own_stays_above_its_floor(name: str, precision: float, recall: float):
    by_family = score(parsed, family, cases())
    assert by_family[name].precision >= precision
    assert by_family[name].recall >= recall


def test_splitting_on_blanks_is_far_worse(scores: dict[str, Score]):
    plain = score(naive, split, cases())["all"]
    assert plain.precision < 0.25 < 0.9 < scores["all"].precision
    assert plain.recall < scores["all"].recall


def test_every_corpus_case_has_a_source_and_is_unique():
    corpus = list(cases())
    assert len(corpus) >= 250
    assert len({case.id for case in corpus}) == len(corpus)
    assert {case.harness for case in corpus} == {"claude-code", "codex", "opencode", "pi"}
    for case in corpus:
        assert case.repository.count("/") == 1
        assert not case.files & case.dirs
        assert all(path.startswith("/") for path in case.files | case.dirs)
        assert case.output.count("\n") <= 60
