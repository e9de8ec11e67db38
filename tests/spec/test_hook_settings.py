"""Settings of hooks that cannot be used."""

import pytest

from ctxd_protocol.event_types import ToolResultEvent
from tests.spec.test_hooks import Harness, ctx, events, texts


@pytest.mark.requirement("HOK-4")
@pytest.mark.parametrize("seconds", ["2s", "-1", "0", "nan", "inf", "1e300"])
def test_an_invalid_time_limit_is_ignored_and_noted_once(harness: Harness, seconds: str) -> None:
    harness.environ["CTXD_HOOK_SECONDS"] = seconds
    for number in range(2):
        harness.hook("UserPromptSubmit", prompt=f"prompt {number}", prompt_id=f"p{number}")
    assert texts(events(harness)) == ["prompt 0", "prompt 1"]
    (noted,) = harness.home.glob(".local/state/ctx-hook/*/settings")
    assert noted.read_text() == f"CTXD_HOOK_SECONDS={seconds} is not a positive number of seconds\n"
    assert f"a hook ignored CTXD_HOOK_SECONDS={seconds} is" in ctx(harness, "doctor").stdout


@pytest.mark.requirement("HOK-8")
@pytest.mark.parametrize("chars", ["1k", "-5", "199", "²"])
def test_an_invalid_length_of_outputs_is_ignored_and_noted_once(harness: Harness, chars: str) -> None:
    harness.options = ("--shorten", chars)
    harness.tool("toolu_1", "x" * 5_000)
    harness.tool("toolu_2", "x" * 5_000)
    assert len([each for each in events(harness) if isinstance(each, ToolResultEvent)]) == 2
    (noted,) = harness.home.glob(".local/state/ctx-hook/*/settings")
    assert noted.read_text() == f"--shorten {chars} is not a number of at least 200 characters\n"


@pytest.mark.requirement("HOK-8")
def test_a_length_of_outputs_that_is_missing_is_noted(harness: Harness) -> None:
    harness.options = ("--shorten",)
    harness.tool("toolu_1", "x" * 5_000)
    assert len([each for each in events(harness) if isinstance(each, ToolResultEvent)]) == 1
    (noted,) = harness.home.glob(".local/state/ctx-hook/*/settings")
    assert noted.read_text() == "--shorten without a value is not a number of at least 200 characters\n"
