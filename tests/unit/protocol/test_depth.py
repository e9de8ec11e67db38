"""Depth of a frame: counted eight brackets at a time, with the result that counting each of them has."""

import random

import pytest

from ctxd_protocol.jsonrpc import Failure, read_frame
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
