"""Flags, redaction, tags and keyed hashes."""

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ctxd.secrets.policy import stricter
from ctxd.secrets.redaction import Capture, Guard
from ctxd.secrets.scanner import Scanner
from ctxd_protocol.secret_types import Secrets
from tests.suites.secret_corpus import FAMILIES, made_up

SCANNER = Scanner()
GUARD = Guard(SCANNER, bytes(range(32)))
TOKEN = made_up("github-token")
OTHER = made_up("github-token", seed=2)


def _redacted(text: str) -> str:
    return GUARD.redacted(text)


def test_flagging_keeps_the_text_and_records_rule_tag_and_count():
    capture = Capture(GUARD, "flag")
    text = f"one {TOKEN}, two {TOKEN}, three {OTHER}"
    assert capture.text(text) == text
    assert capture.secrets is not None and not capture.redacted
    assert [(found.rule, found.count) for found in capture.secrets.found] == [("github-token", 2), ("github-token", 1)]
    assert TOKEN.encode() not in msgspec.json.encode(capture.secrets)


def test_redaction_puts_rule_and_tag_in_the_place_of_the_secret_alone():
    tag = GUARD.tag(TOKEN.encode())
    assert _redacted(f"ä {TOKEN} ö") == f"ä [REDACTED:github-token:{tag}] ö"


def test_text_without_secrets_is_the_same_text_under_every_policy():
    for policy, told in (("flag", None), ("redact", Secrets(policy="redact"))):
        capture = Capture(GUARD, policy)
        assert capture.text("nothing to see") == "nothing to see"
        assert capture.secrets == told and not capture.redacted


@pytest.mark.parametrize("policy", ["flag", "redact"])
def test_texts_checked_together_hold_exactly_the_secrets_of_each(policy):
    assert Capture(GUARD, policy).finds_nothing({"command": "ls"}, "plain", "text")
    assert not Capture(GUARD, policy).finds_nothing({"command": f"login {TOKEN}"}, "plain")
    assert not Capture(GUARD, policy).finds_nothing({}, "plain", f"a line with {TOKEN} in it")
    # Half of one in a text and half in the next is no secret.
    assert Capture(GUARD, policy).finds_nothing({}, TOKEN[:20], TOKEN[20:])
    assert Capture(GUARD, "off").finds_nothing({}, TOKEN)


def test_with_the_policy_off_nothing_is_scanned_and_this_is_recorded():
    capture = Capture(GUARD, "off")
    assert capture.text(TOKEN) == TOKEN
    assert capture.secrets == Secrets(policy="off")


def test_equal_secrets_have_equal_tags_and_another_key_gives_others():
    other = Guard(SCANNER, bytes(32))
    assert GUARD.tag(b"x") == GUARD.tag(b"x") != other.tag(b"x")
    assert GUARD.tag(b"x") != GUARD.tag(b"y")


def test_a_keyed_hash_depends_on_hash_and_key():
    other = Guard(SCANNER, bytes(32))
    plain = "ab" * 32
    assert len(GUARD.keyed_hash(plain)) == 64
    assert len({plain, GUARD.keyed_hash(plain), GUARD.keyed_hash("cd" * 32), other.keyed_hash(plain)}) == 4


def test_values_are_redacted_at_any_depth_and_a_telling_name_counts():
    password = made_up("assigned-password")
    value = {"command": f"login {TOKEN}", "env": [{"DB_PASSWORD": password}], "n": 3, "ok": None}
    capture = Capture(GUARD, "redact")
    kept = capture.value(value)
    assert TOKEN not in str(kept) and password not in str(kept)
    assert kept["n"] == 3 and kept["ok"] is None
    assert capture.secrets is not None and len(capture.secrets.found) == 2
    assert value["env"][0]["DB_PASSWORD"] == password, "what the caller holds is not touched"


@pytest.mark.parametrize("family", FAMILIES)
def test_redaction_is_idempotent(family: str):
    once = _redacted(f'password = "{made_up(family)}"; token: {made_up(family)}\nhttps://a:{TOKEN}@b')
    assert _redacted(once) == once


@settings(max_examples=300, deadline=None)
@given(st.text(), st.text(), st.sampled_from(sorted(FAMILIES)), st.integers(0, 1000))
def test_text_around_a_secret_is_kept_for_any_surroundings(before: str, after: str, family: str, seed: int):
    secret = made_up(family, seed)
    text = f"{before} {secret} {after}"
    kept = _redacted(text)
    plain = Guard(Scanner([]), bytes(32)).redacted(text)
    assert plain == text
    if kept != text:
        first, last = kept.index("[REDACTED:"), kept.rindex("]") + 1
        assert text.startswith(kept[:first]) and text.endswith(kept[last:])


@settings(max_examples=300, deadline=None)
@given(st.text(alphabet=st.characters(codec="utf-8"), max_size=300))
def test_no_text_makes_a_scan_fail(text: str):
    data = text.encode()
    hits = SCANNER.hits(data)
    assert all(0 <= hit.start < hit.end <= len(data) for hit in hits)
    assert all(first.end <= second.start for first, second in zip(hits, hits[1:], strict=False))


@pytest.mark.parametrize("family", FAMILIES)
def test_a_secret_at_the_start_of_a_line_within_a_value_is_seen(family):
    secret = made_up(family, seed=5)
    if family.startswith("assigned") or family in ("azure-storage-key", "aws-secret-key", "authorization-header"):
        pytest.skip("it is told by what stands before it")
    if "url" in family or "webhook" in family:
        pytest.skip("it is told by its URL")
    kept = Capture(GUARD, "redact").value({"script": f"set -e\n{secret}\n", "n": [1, None]})
    assert secret not in kept["script"] and kept["n"] == [1, None]


def test_a_quoted_assignment_inside_a_value_is_redacted():
    password = made_up("assigned-password")
    kept = Capture(GUARD, "redact").value({"command": f'export DB_PASSWORD="{password}"'})
    assert password not in kept["command"]


def test_names_within_a_value_are_redacted_too():
    kept = Capture(GUARD, "redact").value({"calls": {TOKEN: 1, "other": 2}})
    assert TOKEN not in str(kept) and kept["calls"]["other"] == 2


def test_lines_of_a_list_are_one_text():
    lines = ["first", *made_up("private-key").splitlines(), "last"]
    kept = Capture(GUARD, "redact").value({"lines": lines})["lines"]
    assert (kept[0], kept[-1], len(kept)) == ("first", "last", 3) and kept[1].startswith("[REDACTED:private-key:")
    assert Capture(GUARD, "flag").value({"lines": lines}) == {"lines": lines}


def test_texts_that_stand_in_a_list_beside_other_values_are_redacted():
    for value in ([TOKEN, 5], [[f"login {TOKEN}", None]], {"": [TOKEN, 5]}, {"argv": [["login", TOKEN, {}]]}):
        capture = Capture(GUARD, "redact")
        assert not capture.finds_nothing(value)
        assert TOKEN not in str(capture.value(value))


def test_a_text_is_scanned_with_its_name_up_to_1024_characters():
    secret = made_up("assigned-secret")
    name = "api_key"
    longest = {name: secret + " " + "x" * (1023 - len(secret))}
    beyond = {name: longest[name] + "x"}
    assert not Capture(GUARD, "redact").finds_nothing(longest)
    assert secret not in str(Capture(GUARD, "redact").value(longest))
    assert Capture(GUARD, "redact").finds_nothing(beyond)
    assert Capture(GUARD, "redact").value(beyond) == beyond


def test_a_value_may_be_as_deep_as_json_may_be():
    value: object = TOKEN
    for _ in range(5_000):
        value = [value]
    assert not Capture(GUARD, "flag").finds_nothing(value)


@pytest.mark.parametrize(
    ("one", "other", "found"),
    [("off", "flag", "flag"), ("flag", "redact", "redact"), ("off", "redact", "redact"), ("flag", "flag", "flag")],
)
def test_the_stricter_of_two_policies_applies(one, other, found):
    assert stricter(one, other) == stricter(other, one) == found


@pytest.mark.parametrize("policy", ["flag", "redact"])
def test_json_is_searched_in_members_that_a_later_one_of_the_same_name_hides(policy):
    capture = Capture(GUARD, policy)
    text = f'{{"a": {{"b": "{TOKEN}", "b": "x"}}, "n": 1.10}}'
    kept = capture.json(text)
    assert capture.secrets is not None and capture.secrets.found[0].count == 1
    assert kept == (text if policy == "flag" else '{"a":{"b":"x"},"n":1.1}')
    assert Capture(GUARD, policy).json('{"a": 1, "a": 2}') == '{"a": 1, "a": 2}'
    with pytest.raises(ValueError):
        capture.json("no JSON")


def test_half_of_a_surrogate_pair_beside_a_secret_stays_an_escape():
    kept = Capture(GUARD, "redact").json(f'{{"\\ud83d": "ä {TOKEN} \\ud800"}}')
    assert TOKEN not in kept and kept.startswith('{"\\ud83d":"\\u00e4 [REDACTED:') and kept.endswith(' \\ud800"}')
    assert kept.isascii()
