"""What single rules take and leave, and the file of rules."""

from pathlib import Path

import pytest

from ctxd.errors import StateDirError
from ctxd.secrets.built_in_rules import BUILT_IN
from ctxd.secrets.custom_rules import RulesRefused, scanner_of
from ctxd.secrets.keyfile import KEY_FILE, load_key
from ctxd.secrets.redaction import Guard
from ctxd.secrets.scanner import Scanner
from tests.suites.secret_corpus import FAMILIES, made_up

SCANNER = Scanner()


def _found(text: str, scanner: Scanner = SCANNER) -> list[tuple[str, str]]:
    data = text.encode()
    return [(hit.rule, data[hit.start : hit.end].decode()) for hit in scanner.hits(data)]


def test_every_family_of_the_corpus_is_a_rule():
    assert set(FAMILIES) <= {rule.name for rule in BUILT_IN}


@pytest.mark.parametrize("family", ["github-token", "npm-token", "age-key"])
def test_a_token_with_a_wrong_checksum_is_not_a_secret(family: str):
    token = made_up(family)
    last = "A" if token[-1] != "A" else "C"
    assert _found(f"x {token} y") == [(family, token)]
    assert _found(f"x {token[:-1]}{last} y") == []


def test_a_match_of_a_loose_rule_is_attributed_to_the_distinctive_rule_within():
    token = made_up("github-token")
    assert _found(f'API_TOKEN = "{token}"') == [("github-token", token)]
    assert _found(f"https://{token}:x-oauth-basic@github.com/a/b") == [("github-token", token)]


def test_a_secret_starting_inside_a_false_match_is_found():
    key = made_up("private-key")
    assert _found(f'token = password = "{key}"') == [("private-key", key)]


def test_a_private_key_is_found_escaped_indented_and_cut_off():
    key = made_up("private-key")
    escaped = key.replace("\n", "\\n")
    assert _found(f'{{"key": "{escaped}"}}') == [("private-key", escaped)]
    indented = key.replace("\n", "\n    ")
    assert _found(f"key: |\n    {indented}\nnext: 1") == [("private-key", indented)]
    head = "\n".join(key.splitlines()[:3])
    ((rule, span),) = _found(f"$ head -3 key.pem\n{head}\n$ ls -l\n")
    assert rule == "private-key" and all(line in span for line in head.splitlines())
    assert "ls -l" not in span


def test_many_secrets_in_one_line_are_all_found():
    tokens = [made_up("github-token", seed) for seed in range(50)]
    assert [secret for _, secret in _found(",".join(tokens))] == tokens


@pytest.mark.requirement("SEC-5")
def test_text_that_begins_a_secret_over_and_over_is_scanned_in_time():
    # Each of these begins a rule over and over: a scan that looked far ahead each time would not end within the test.
    for start in (
        "-----BEGIN PRIVATE KEY-----",
        "eyJa",
        "password = ",
        "https://a:b",
        "sk-",
        "token: aaaaaaaaaaaaaaaaaa ",
    ):
        assert _found(start * (300_000 // len(start))) == []


def test_a_scan_is_linear_in_the_length_of_the_text(monkeypatch):
    # What begins like a token that has no end, and a secret behind it, again and again.
    piece = f"eyJ-{made_up('aws-access-key')}-".encode()
    searched: list[int] = []
    search = SCANNER.combined.search

    class Counted:
        def search(self, data, at=0, end=None):
            end = len(data) if end is None else end
            searched.append(end - at)
            return search(data, at, end)

    monkeypatch.setattr(SCANNER, "combined", Counted())

    def bytes_searched(count: int) -> int:
        searched.clear()
        assert len(SCANNER.hits(piece * count)) == count
        return sum(searched)

    assert bytes_searched(8_000) / bytes_searched(1_000) < 12, "eight times the text, not 64 times the work"


def test_a_secret_is_found_whole_however_far_behind_another_it_ends():
    token, jwt = made_up("github-token"), made_up("jwt")
    for between in (0, 1, 4_000, 4_090, 40_000):
        data = f"{token} {'x ' * between}{jwt}{'A' * 9_000} end".encode()
        first, second = SCANNER.hits(data)
        assert (first.rule, second.rule, second.end) == ("github-token", "jwt", len(data) - 4)


def test_a_key_of_many_lines_is_one_hit_for_any_body():
    for seed in range(5, 300):
        assert [rule for rule, _ in _found(made_up("private-key", seed))] == ["private-key"], seed


def test_a_file_of_rules_adds_disables_and_allows(tmp_path: Path):
    allowed = made_up("github-token")
    file = tmp_path / "rules.toml"
    file.write_text(
        f'disable = ["mailgun-key"]\nallow = ["{allowed}"]\n'
        "[[rule]]\nname = 'acme-token'\npattern = 'acme:(?P<s>[0-9a-f]{8})'\nentropy = 1.5\n"
    )
    scanner = scanner_of(file)
    assert _found("acme:12ab34cd acme:11111111", scanner) == [("acme-token", "12ab34cd")]
    assert _found(made_up("mailgun-key"), scanner) == []
    assert _found(allowed, scanner) == []
    assert _found(made_up("github-token", 2), scanner) != []


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[[rule]]\nname = 'a-b'\npattern = '(?=x)y'\n", "rule a-b: RE2 refuses the pattern"),
        ("[[rule]]\nname = 'a-b'\npattern = '(a)\\1'\n", "rule a-b: RE2 refuses the pattern"),
        ("[[rule]]\nname = 'a-b'\npattern = '\\Qabc'\n", "rule a-b: RE2 refuses the pattern"),
        ("[[rule]]\nname = 'a-b'\npattern = 'x*'\n", "rule a-b: the pattern matches the empty text"),
        ("[[rule]]\nname = 'a-b'\npattern = '\\b'\n", "rule a-b: the pattern matches the empty text"),
        ("[[rule]]\nname = 'a-b'\npattern = '\\B'\n", "rule a-b: the pattern matches the empty text"),
        ("[[rule]]\nname = 'a-b'\npattern = 'a)|(?:b'\n", "rule a-b: RE2 refuses the pattern"),
        ("[[rule]]\nname = 'a-b'\npattern = 'x'\nentropy = nan\n", "entropy"),
        ("[[rule]]\nname = 'jwt'\npattern = 'x'\n", "rule jwt: there is a rule of that name"),
        ("[[rule]]\nname = 'Big'\npattern = 'x'\n", "name"),
        ("[[rule]]\nname = 'a-b'\npatern = 'x'\n", "patern"),
        ("disable = ['jvt']\n", "jvt"),
        ("disable = [\n", "rules.toml"),
    ],
)
def test_an_invalid_rules_file_is_reported_with_place_and_reason(tmp_path: Path, text: str, said: str):
    file = tmp_path / "rules.toml"
    file.write_text(text)
    with pytest.raises(RulesRefused, match="rules.toml") as refused:
        scanner_of(file)
    assert said in str(refused.value)


def _rules(tmp_path: Path, pattern: str, entropy: float = 0) -> Scanner:
    file = tmp_path / "rules.toml"
    file.write_text(f"[[rule]]\nname = 'acme-token'\npattern = '{pattern}'\nentropy = {entropy}\n")
    return scanner_of(file)


@pytest.mark.parametrize(
    ("pattern", "text", "secret"),
    [
        (r"\b/(?P<s>[0-9a-f]{4})", "x/12ab", "12ab"),
        (r"\B-k[0-9]{4}", " -k1234", "-k1234"),
        (r"k[0-9]{4}-\b", "k1234-x", "k1234-"),
        (r"k[0-9]{4}\B", "k1234x", "k1234"),
    ],
)
def test_a_rule_may_depend_on_the_characters_beside_the_secret(tmp_path: Path, pattern: str, text: str, secret: str):
    assert _found(text, _rules(tmp_path, pattern)) == [("acme-token", secret)]


def test_a_rule_whose_secret_is_empty_finds_nothing_there(tmp_path: Path):
    scanner = _rules(tmp_path, "token=(?P<s>[0-9a-f]*)")
    assert _found("token= token=12ab token=", scanner) == [("acme-token", "12ab")]
    guard = Guard(scanner, bytes(32))
    assert guard.redacted(guard.redacted("token= token=12ab")) == guard.redacted("token= token=12ab")


def test_a_match_of_a_file_that_fails_its_check_hides_no_secret_that_begins_there(tmp_path: Path):
    key = made_up("anthropic-key")
    assert _found(f"x {key} y", _rules(tmp_path, "sk-[a-z]+-", 5)) == [("anthropic-key", key)]


def test_a_file_of_rules_that_is_not_there_is_an_error(tmp_path: Path):
    with pytest.raises(RulesRefused, match=r"gone\.toml"):
        scanner_of(tmp_path / "gone.toml")


def test_the_key_is_made_once_for_its_owner_alone(tmp_path: Path):
    key = load_key(tmp_path)
    assert len(key) == 32 and load_key(tmp_path) == key
    assert (tmp_path / KEY_FILE).stat().st_mode & 0o777 == 0o600
    assert [path.name for path in tmp_path.iterdir()] == [KEY_FILE]


def test_a_key_that_others_may_read_or_that_is_cut_is_refused(tmp_path: Path):
    load_key(tmp_path)
    path = tmp_path / KEY_FILE
    path.chmod(0o640)
    with pytest.raises(StateDirError, match="chmod 600"):
        load_key(tmp_path)
    path.chmod(0o600)
    path.write_bytes(b"short")
    with pytest.raises(StateDirError, match="not a key"):
        load_key(tmp_path)
