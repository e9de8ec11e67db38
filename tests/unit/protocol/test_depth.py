"""Depth of a frame: counted eight brackets at a time, with the result that counting each of them has."""

import random

import pytest

from ctxd_protocol import jsonrpc
from ctxd_protocol.jsonrpc import BatchRequest, Failure, Request, read_frame
from ctxd_protocol.limits import DEPTH_MAX


def nested(rng: random.Random, brackets: int, most: int) -> bytes:
    """A request whose params nest up to ``most`` levels, in an object."""
    out, closing = [], []
    for _ in range(brackets):
        if not closing or (len(closing) < most and rng.random() < 0.6):
            if out and out[-1] in "]}":
                out.append(",")
            out.append("[")
            closing.append("]")
        else:
            out.append(closing.pop())
    return "".join((*out, *reversed(closing))).encode()


def levels(text: bytes) -> int:
    depth = deepest = 0
    for byte in text:
        depth += (byte in b"[{") - (byte in b"]}")
        deepest = max(deepest, depth)
    return deepest


@pytest.mark.parametrize("seed", range(60))
@pytest.mark.requirement("RPC-8")
def test_a_frame_is_refused_exactly_if_it_nests_too_deep(seed: int) -> None:
    rng = random.Random(seed)
    most = rng.choice([DEPTH_MAX - 3, DEPTH_MAX - 2, DEPTH_MAX - 1, DEPTH_MAX, DEPTH_MAX + 1, 200])
    frame = b'{"jsonrpc":"2.0","id":1,"method":"m","params":[%b]}' % nested(rng, rng.choice([150, 700, 5000]), most)
    refused = isinstance(read_frame(frame), Failure)
    assert refused == (levels(frame) > DEPTH_MAX)


def test_the_members_of_a_batch_are_searched_for_depth_and_encoding_with_their_frame(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    searched: list[bytes] = []
    for name in ("_is_too_deep", "_is_utf8"):
        search = getattr(jsonrpc, name)
        monkeypatch.setattr(jsonrpc, name, lambda text, search=search: (searched.append(text), search(text))[1])
    member = b'{"jsonrpc":"2.0","id":1,"method":"m","params":["\xc3\xa4",%b]}' % b",".join([b"[]"] * 2 * DEPTH_MAX)
    frame = b"[%b]" % b",".join([member] * 3)
    read = read_frame(frame)
    assert isinstance(read, BatchRequest) and all(isinstance(each, Request) for each in read.members)
    assert searched == [frame, frame]
