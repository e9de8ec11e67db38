"""The parts that a hand-over leaves out, as a person reads them."""

import pytest

from ctxd.formats.losses import content_loss


@pytest.mark.requirement("HND-2")
@pytest.mark.parametrize(
    ("part", "name"),
    [
        ("tool_result.is_error", "mark of a failed call"),
        ("thinking", "thinking"),
        ("tool_call", "tool call"),
        ("tool_call.args", "args of a tool call"),
        ("sidechain response", "response of a sub-agent"),
        ("sidechain tool_result.is_error", "mark of a failed call of a sub-agent"),
        ("output of an interrupted call", "output of an interrupted call"),
        ("delta of format x.v1", "delta of format x.v1"),
    ],
)
def test_a_part_of_the_conversation_is_named(part: str, name: str) -> None:
    assert content_loss(part) == name


@pytest.mark.requirement("HND-2")
@pytest.mark.parametrize(
    "part",
    ["system", "atis-latch", "event_msg.token_count", "sidechain system", "tool_call.meta", "prompt as system"],
)
def test_a_record_of_the_harness_is_not_named(part: str) -> None:
    assert content_loss(part) == ""
