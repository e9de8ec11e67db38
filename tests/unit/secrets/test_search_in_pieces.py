"""A search of bytes that come in pieces finds what a search of all of them does."""

import random

import pytest

from ctxd.secrets import redaction
from ctxd.secrets.redaction import Capture, Guard
from ctxd.secrets.scanner import Scanner

pytestmark = pytest.mark.requirement("ART-14")

TOKEN = b"AKIA" + b"7QYV3M5N2X4PLRWD"
ASSIGNED = b'password = "kX9!vQ2#mZ7pL4wR"'
GUARD = Guard(Scanner(), bytes(32))


@pytest.mark.parametrize("seed", range(20))
def test_secrets_are_found_wherever_pieces_end(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(redaction, "_AGAIN", 200)
    chance = random.Random(seed)
    data = b"\xff\x00 binary \n"
    for _ in range(30):
        data += b"plain words " * chance.randrange(40) + b"\n" + chance.choice((TOKEN, ASSIGNED, b"nothing")) + b"\n"
    hits = GUARD.scanner.hits(data)
    assert hits
    whole = Capture(GUARD, "flag")
    first = whole.search((data,))
    assert first == hits[0] and sum(one.count for one in (whole.secrets and whole.secrets.found) or ()) == len(hits)
    ends = sorted({0, len(data), *(chance.randrange(len(data)) for _ in range(chance.choice((3, 40))))})
    cut = Capture(GUARD, "flag")
    assert cut.search([data[a:b] for a, b in zip(ends, ends[1:], strict=False)]) == first
    assert cut.secrets == whole.secrets
    assert Capture(GUARD, "flag").search(()) is None
