"""Rules of the providers' APIs for a request: the types of their packages, and what their documentation adds."""

from collections.abc import Iterable, Iterator
from functools import cache
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pydantic import TypeAdapter

FORMATS = ("anthropic-messages", "openai-responses", "openai-chat")


@cache
def _adapter(format: str) -> "TypeAdapter[Any]":
    # Every process of a test run imports this module; the packages of the providers take it two seconds.
    from anthropic.types.message_create_params import MessageCreateParamsNonStreaming
    from openai.types.chat.completion_create_params import CompletionCreateParamsNonStreaming
    from openai.types.responses.response_create_params import ResponseCreateParamsNonStreaming
    from pydantic import TypeAdapter

    types = {
        "anthropic-messages": MessageCreateParamsNonStreaming,
        "openai-responses": ResponseCreateParamsNonStreaming,
        "openai-chat": CompletionCreateParamsNonStreaming,
    }
    return TypeAdapter(types[format])


def check_request(format: str, body: dict[str, Any]) -> None:
    """Raises: AssertionError or pydantic's ValidationError if the API would refuse ``body``."""
    _consume(_adapter(format).validate_python(body))
    {"anthropic-messages": _check_messages, "openai-responses": _check_responses, "openai-chat": _check_chat}[format](
        body
    )


def _consume(value: object) -> None:
    """Validate what pydantic validates when it is iterated over."""
    if isinstance(value, dict):
        for each in value.values():
            _consume(each)
    elif isinstance(value, Iterable) and not isinstance(value, str | bytes):
        for each in value:
            _consume(each)


def _check_messages(body: dict[str, Any]) -> None:
    messages = body["messages"]
    roles = [message["role"] for message in messages]
    assert roles[0] == "user" and roles[-1] in ("user", "system"), roles
    follows = {"user": ("assistant", "system"), "assistant": ("user",), "system": ("assistant",)}
    assert all(b in follows[a] for a, b in zip(roles, roles[1:], strict=False)), roles
    seen: set[str] = set()
    asked: list[str] = []
    for message in messages:
        blocks = message["content"]
        assert blocks, "no message is empty"
        if message["role"] == "system":
            assert all(block["type"] == "text" and block["text"].strip() for block in blocks)
            assert not asked, "the call has its output"
            continue
        results = [block["tool_use_id"] for block in blocks if block["type"] == "tool_result"]
        assert sorted(results) == sorted(asked), "each call has one output, in the next message"
        assert [b["type"] for b in blocks[: len(results)]] == ["tool_result"] * len(results), "outputs come first"
        asked = [block["id"] for block in blocks if block["type"] == "tool_use"]
        assert len(set(asked)) == len(asked) and not seen.intersection(asked), "ids of calls are unique"
        seen.update(asked)
        assert blocks[-1]["type"] not in ("thinking", "redacted_thinking"), "reasoning is followed by a reply"
        for block in blocks:
            if block["type"] == "text":
                assert block["text"].strip(), "no text is blank"
            if block["type"] == "tool_use":
                assert isinstance(block["input"], dict)
            if block["type"] == "tool_result":
                assert all(part["type"] != "text" or part["text"].strip() for part in block["content"])
                if block.get("is_error"):
                    kinds = [part["type"] for part in block["content"]]
                    assert kinds and set(kinds) == {"text"}, "an error has a text, and nothing else"
    assert not asked, "the last call has its output"
    assert all(part["text"].strip() for part in body.get("system", ()))
    assert body["tools"], "calls need declarations"
    assert len({tool["name"] for tool in body["tools"]}) == len(body["tools"]), "names of tools are unique"
    assert sum("cache_control" in part for part in _parts(body)) <= 4, "at most four cache markers"


def _parts(value: object) -> Iterator[dict[str, Any]]:
    if isinstance(value, dict):
        yield value
        for each in value.values():
            yield from _parts(each)
    elif isinstance(value, list):
        for each in value:
            yield from _parts(each)


def _check_responses(body: dict[str, Any]) -> None:
    items = body["input"]
    assert items and items[-1].get("role") != "assistant"
    calls = [item["call_id"] for item in items if item["type"] == "function_call"]
    outputs = [item["call_id"] for item in items if item["type"] == "function_call_output"]
    assert len(set(calls)) == len(calls) and sorted(calls) == sorted(outputs), "each call has one output"
    for at, item in enumerate(items):
        if item["type"] == "function_call_output":
            assert item["call_id"] in {before.get("call_id") for before in items[:at]}, "an output follows its call"
        if item["type"] == "reasoning":
            after = next(each for each in items[at + 1 :] if each["type"] != "reasoning")
            assert after["type"] == "function_call" or after.get("role") == "assistant"


def _check_chat(body: dict[str, Any]) -> None:
    messages = body["messages"]
    # A system message can stand anywhere in the list.
    assert messages[-1]["role"] in ("user", "tool", "system")
    at, seen = 0, set()
    while at < len(messages):
        message = messages[at]
        assert message["role"] != "tool", "an output follows its call at once"
        calls = [call["id"] for call in message.get("tool_calls", ())]
        assert not seen.intersection(calls) and all(len(call) <= 40 for call in calls)
        seen.update(calls)
        answers = [each.get("tool_call_id") for each in messages[at + 1 : at + 1 + len(calls)]]
        assert sorted(calls) == sorted(answers), "each call has one output, at once"
        assert message["role"] != "assistant" or message.get("content") or calls
        at += 1 + len(calls)
