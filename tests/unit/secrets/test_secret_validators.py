"""The checks at their limits: the least mixed value that is a secret, and the most mixed one that is not."""

import base64

import pytest

from ctxd.secrets import secret_validators
from tests.suites.secret_corpus import made_up

KEY = b"MIIEvQIBADANBgkqhkiG9w0BAQEFAASCBKcwggSjAgEAAoIBAQ"


@pytest.mark.parametrize(
    ("value", "bits"), [(b"", 0.0), (b"aaaa", 0.0), (b"abab", 1.0), (b"abcd", 2.0), (bytes(range(64)), 6.0)]
)
def test_entropy_is_in_bits_a_byte(value: bytes, bits: float) -> None:
    assert secret_validators.entropy(value) == bits


@pytest.mark.parametrize(
    ("value", "count"),
    [
        (b"", 0),
        (b"az", 1),
        (b"AZ", 1),
        (b"09", 1),
        (b"-", 1),
        (b"aZ", 2),
        (b"a0", 2),
        (b"Z9", 2),
        (b"aZ0", 3),
        (b"a{Z@0", 4),
    ]
    + [(bytes([byte]), 1) for byte in b"`{@[/:"],
)
def test_classes_are_lower_case_upper_case_digits_and_signs(value: bytes, count: int) -> None:
    assert secret_validators.classes(value) == count


@pytest.mark.parametrize(
    ("value", "placeholder"),
    [
        (b"AKIAIOSFODNN7EXAMPLE", True),
        (b"my-Example-key", True),
        (b"${TOKEN}", True),
        (b"abababqzabababqz", False),
        (b"qzqzqzqzqzqzqzqz", True),
        (b"qzx" * 8, True),
        (b"qzxwvk" * 8, True),
        (b"qzxwvkr" * 8, False),
        (b"13579bdfhjlnprtv", True),
        (b"acegikmo1x9w", False),
        (b"acegikmoqx9w", True),
    ],
)
def test_placeholders_are_words_of_manuals_few_characters_and_even_steps(value: bytes, placeholder: bool) -> None:
    assert secret_validators.is_placeholder(value) is placeholder


@pytest.mark.parametrize(
    ("value", "random"), [(b"ab1cz2eq", True), (b"ab1cz2ee", False), (b"qmzbtxkw", False), (b"ab1cexample2eq", False)]
)
def test_a_random_value_has_two_kinds_of_characters_and_three_bits_a_byte(value: bytes, random: bool) -> None:
    assert secret_validators.is_random(value) is random


@pytest.mark.parametrize(
    ("value", "secret"),
    [
        (b"ab1cz2ef3gh", True),  # six changes between letters and digits
        (b"abq1cdz2ef9", False),  # five
        (b"abqzcdzwefg9", True),  # a part of twelve characters
        (b"abqzcdzwef9", False),  # of eleven
        (b"abqzcd-zwefg9", False),
        (b"abqzcd_zwefg9", False),
        (b"abqzcd.zwefg9", False),
        (b"abqzcd:zwefg9", True),
        (b"a1b2c3d4", True),  # eight characters make three bits
        (b"a1b2c3d3", False),
        (b"0q1w2e3r", True),
        (b"9q8w7e6r", True),
        (b"qmzbtxkwhvgp", False),  # no digit
        (b"QmzBtxKwhVgp", False),
        (b"k3q9x7m/2w4v6/8z", True),  # an eighth of it are slashes
        (b"k3q9x7m/2w4v6/8", False),
        (b"k3q9x7m2w4v6==", True),
        (b"k3q9x7==m2w4v6", False),
        (b"k3q9x7::m2w4v6", False),
        (b"k3q9x7://m2w4v6zyk", False),
        (b"/k3q9x7m2w4v6", False),
        (b"-k3q9x7m2w4v6", False),
        (b"k3q9x7mtest2w4v6", False),
        (b"k3q9x7mexample2w4v6", False),
        (b"31428576901", False),  # one kind of character
    ],
)
def test_a_word_of_code_or_prose_is_not_a_secret(value: bytes, secret: bool) -> None:
    assert secret_validators.is_unlikely_word(value) is secret


@pytest.mark.parametrize(
    ("value", "password"),
    [
        (b"Xk9-fqW2", True),
        (b"Xk9fqWzp", True),
        (b"xk9fqwzp", False),
        (b"Xk9XXk9k", False),  # little entropy
        (b"-Xk9fqW2", False),
        (b"/Xk9fqW2", False),
        (b"Xk9(fqW2", False),
        (b"Xk9://fqW2", False),
        (b"Xk9fqWexample", False),
        (b"Xk9fqWnone", False),
    ],
)
def test_a_password_has_three_kinds_of_characters_and_is_not_code(value: bytes, password: bool) -> None:
    assert secret_validators.is_password(value) is password


@pytest.mark.parametrize(
    ("value", "password"),
    [
        (b"wqzx", True),
        (b"wqzq", False),
        (b"$wqzx", False),
        (b"Postgres", False),
        (b"(wqzx", False),
        (b"wqzxample", True),
    ],
)
def test_a_password_in_a_url_is_neither_a_variable_nor_a_placeholder(value: bytes, password: bool) -> None:
    assert secret_validators.is_url_password(value) is password


def jwt(head: bytes) -> bytes:
    return head + b".eyJzdWIiOiIxIn0.c2lnbmF0dXJlLW9mLWl0"


def test_a_json_web_token_needs_an_algorithm_and_is_not_the_tutorial_token() -> None:
    assert secret_validators.is_jwt(jwt(b"eyJhbGciOiJIUzI1NiJ9"))
    assert not secret_validators.is_jwt(jwt(b"eyJ0eXAiOiJKV1QifQ"))
    assert not secret_validators.is_jwt(jwt(b"WyJhbGciXQ")), "a list with that word"
    assert not secret_validators.is_jwt(jwt(b"not-base64!"))
    assert not secret_validators.is_jwt(
        b"eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.SflKxwRJSMeKKF2QT4fwpMeJf36POk6yJV_adQssw5c"
    )


def test_checksums_are_recomputed() -> None:
    key, token = made_up("age-key").encode(), made_up("github-token").encode()
    assert secret_validators.is_bech32(key) and secret_validators.has_crc(token)
    for place in range(len(key)):
        other = key[:place] + (b"Q" if key[place : place + 1] != b"Q" else b"P") + key[place + 1 :]
        assert not secret_validators.is_bech32(other), place
    assert not secret_validators.is_bech32(key[:-1] + b"B"), "no character of the alphabet"
    assert not secret_validators.has_crc(token[:-1] + (b"A" if token[-1:] != b"A" else b"B"))


def test_the_number_of_a_bot_is_digits_in_base64() -> None:
    assert secret_validators.is_bot_number(b"MTIzNDU2Nzg5MDEyMzQ1Njc4.Xk9fqW.zpLq")
    assert not secret_validators.is_bot_number(b"YWJjZGVmZ2hpamtsbW5vcHFy.Xk9fqW.zpLq")
    assert not secret_validators.is_bot_number(b"M.Xk9fqW.zpLq"), "not base64"


def pem(body: bytes, end: bytes = b"-----END PRIVATE KEY-----\n") -> tuple[bytes, int]:
    start = b"-----BEGIN PRIVATE KEY-----\n"
    return start + body + end, len(start)


@pytest.mark.parametrize(
    ("body", "whole"),
    [
        (KEY[:48] + b"\n", True),
        (KEY[:47] + b"\n", False),
        (KEY[:40] + b"\n" + KEY[40:48] + b"\n", True),
        (b"Proc-Type: 4,ENCRYPTED\n" + KEY[:48] + b"\n", True),
        (b'"' + KEY[:48] + b'\\n" +\n', True),
        (KEY[:48] + b"\r\n", True),
        (KEY[:48] + b"\\n", True),
        (b"AAAAAB" * 20 + b"\n", False),
        (b"yourprivatekeyYourPrivateKeyplaceholder" + KEY[:20] + b"\n", False),
    ],
)
def test_a_private_key_ends_after_its_last_line(body: bytes, whole: bool) -> None:
    data, start = pem(body)
    assert secret_validators.pem_end(data, start) == (len(data) - 1 if whole else None)


def test_a_private_key_that_was_cut_ends_after_its_base64() -> None:
    data, start = pem(KEY[:48] + b"\n" + KEY[:16] + b"\n", b"and then some prose\n")
    assert secret_validators.pem_end(data, start) == len(data) - len(b"and then some prose\n")
    data, start = pem(KEY[:48] + b"\n" + KEY[:15] + b"\n", b"")
    assert secret_validators.pem_end(data, start) == start + 49, "a short line of a cut key may be a word"
    data, start = pem(KEY[:48] + b"\n", b"-----BEGIN CERTIFICATE-----\n")
    assert secret_validators.pem_end(data, start) == start + 49
    data, start = pem(KEY[:48] + b"\n", b"-----END PRIVATE")
    assert secret_validators.pem_end(data, start) == start + 49, "without its last dashes"


def test_a_header_that_is_nested_too_deeply_is_no_token() -> None:
    header = base64.urlsafe_b64encode(b"[" * 100_000).rstrip(b"=")
    assert not secret_validators.is_jwt(header + b".payload.signature")
