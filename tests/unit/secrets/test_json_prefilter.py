"""Lines of JSON that need not be decoded: none of them holds a secret, however the JSON was written."""

import json

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from ctxd.secrets.built_in_rules import BUILT_IN, Rule
from ctxd.secrets.redaction import Capture, Guard
from ctxd.secrets.scanner import Scanner
from tests.suites.secret_corpus import FAMILIES, made_up, samples

SCANNER = Scanner()
GUARD = Guard(SCANNER, bytes(32))
PLAIN = {"type": "user", "tokens": 123_456, "text": 'one\ntwo "three" four_token = get(x)'}
NAMES = ["token", "my_api_key", "DB_PASSWORD", "authorization", "aws_secret_key", "AWS-SECRET", "text"]


def is_found(record: object) -> bool:
    capture = Capture(GUARD, "flag")
    capture.value(record)
    return capture.secrets is not None


def written(record: object) -> list[str]:
    """The same JSON in several spellings."""
    plain = json.dumps(record, ensure_ascii=False)
    return [
        plain,
        json.dumps(record, separators=(",", ":")),
        json.dumps(record, separators=(" ,     ", "     :      ")),
        plain.replace("/", "\\/"),
        "".join(f"\\u{ord(each):04x}" if each in "kAs_-" else each for each in plain),
    ]


def searched(record: object) -> set[bool]:
    return {list(SCANNER.lines_to_search(f"{{}}\n{each}\n{{}}".encode()))[:1] == [1] for each in written(record)}


@pytest.mark.requirement("IMP-5")
def test_plain_lines_are_not_searched():
    line = json.dumps(PLAIN)
    assert not list(SCANNER.lines_to_search("\n".join([line] * 100).encode()))
    secret = json.dumps({"text": made_up("github-token")})
    assert list(SCANNER.lines_to_search(f"{line}\n{secret}\n\n{line}\n{secret}{secret}\n{secret}".encode())) == [
        1,
        4,
        5,
    ]


@pytest.mark.requirement("IMP-5")
def test_no_secret_of_the_corpus_is_skipped():
    seen = 0
    for sample in samples(seed=5, each=1):
        for text in (sample.text, f"first\n{sample.text}\n", json.dumps({"inner": sample.text})):
            for record in ({"stdout": text}, {"lines": text.split("\n")}):
                if is_found(record):
                    seen += 1
                    assert searched(record) == {True}, record
    assert seen > 200


@pytest.mark.requirement("IMP-5")
@settings(max_examples=200, deadline=None)
@given(
    st.text(max_size=8),
    st.text(max_size=8),
    st.sampled_from(NAMES),
    st.sampled_from(
        ["{}", "'{}'", '"{}"', '\\"{}\\"', "\\\\\\'{}", "`{}`", "\n{}", "\\n{}", "  {}", "\x1b[1m{}", "é{}"]
    ),
    st.sampled_from([": ", "=", " => ", "  :=  ", ":\n\t", " "]),
    st.sampled_from(sorted(FAMILIES)),
    st.integers(0, 1_000),
)
@example("", "", "token", "{}", ": ", "private-key", 1)
def test_secrets_in_a_decoded_line_pass_the_prefilter(
    before: str, after: str, name: str, quoted: str, between: str, family: str, seed: int
):
    secret = quoted.format(made_up(family, seed))
    for record in (
        {"text": f"{before}{name}{between}{secret}{after}"},
        {f"{before}{name}": secret},
        {name: [before, secret]},
        {name: [[secret, after]]},
        {"lines": [f"{before}{name}{between}", *secret.split("\n"), after]},
    ):
        if is_found(record):
            assert searched(record) == {True}, record


@pytest.mark.parametrize("rule", [Rule(name="mine", pattern="x[0-9]", custom=True)])
def test_with_rules_of_a_file_every_line_is_searched(rule: Rule):
    assert list(Scanner((*BUILT_IN, rule)).lines_to_search(b"{}\n{}\n")) == [0, 1, 2]
