"""A model provider on the loopback interface that answers by a script: the streams of Anthropic Messages, OpenAI
Responses and OpenAI Chat Completions, as far as coding harnesses read them.

It keeps no state: the number of tool results since the newest prompt that begins a script is the step of the script.
"""

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any, NamedTuple, Self
from uuid import uuid4

PROMPT = "Follow the script."
"""Text of the prompt that begins the script."""

ANSWER = "The script is done."
COMMANDS = ("echo first-output", "echo second-output")
"""The commands of the steps before the answer."""

SAID = ("I begin.", "I go on.")
"""Texts with which the model calls them."""

FULL = "Fill the window."
"""Text of a prompt after which the window is full."""

SUMMARY = "The summary of the script."
"""The answer to a harness that asks for a summary of the conversation."""

FIRST_CALL = "the id of the first call"
"""Argument in whose place the model gives that id."""

_SPOKEN = ("user", "assistant", "call", "tool")
_REMINDER = re.compile(r"\s*<system-reminder>.*?</system-reminder>\s*", re.S)
_COMPACTION = re.compile(
    r"CONTEXT CHECKPOINT COMPACTION|create a detailed summary|summarize the conversation|context summarization|"
    r"structured context checkpoint|anchored summary|detailed prompt for continuing|<summary></summary> tags|"
    r"Do NOT continue the conversation",
    re.I,
)

Event = tuple[str | None, dict[str, Any]]


class Step(NamedTuple):
    """One answer of the model: its text, and the calls of tools with their arguments. A name with a slash is of a
    namespace of tools. ``tokens``: what the provider bills for the request."""

    text: str = ""
    calls: tuple[tuple[str, dict[str, Any]], ...] = ()
    tokens: int = 10


class Answer(NamedTuple):
    """What the provider sends: a text, calls with their ids, and the tokens of the request."""

    text: str
    calls: list[dict[str, Any]]
    tokens: int


class ScriptedModel:
    """The provider. ``tool``: the name of the harness's shell and its argument; ``on_step`` is called with the number
    of results since the newest prompt before each step. ``commands``: those that the model calls, one a step.
    ``scripts``: the steps that follow a prompt with the text, those of ``PROMPT`` in the place of ``commands``."""

    def __init__(
        self,
        tool: tuple[str, str],
        on_step: Callable[[int], None] = lambda step: None,
        commands: tuple[str, ...] = COMMANDS,
        scripts: Mapping[str, Sequence[Step]] | None = None,
    ) -> None:
        name, argument = tool
        called = [Step(text, ((name, {argument: command}),)) for text, command in zip(SAID, commands, strict=True)]
        full = [Step("", ((name, {argument: f"seq 1 {size}"}),), 195_000) for size in (300, 400)]
        self.scripts: dict[str, Sequence[Step]] = {
            PROMPT: (*called, Step(ANSWER)), FULL: (*full, Step("It is full.")), **(scripts or {})
        }  # fmt: skip
        self.on_step = on_step
        self.calls: list[str] = []
        self.requests: list[dict[str, Any]] = []
        model = self

        class Handler(BaseHTTPRequestHandler):
            def log_message(self, *_: object) -> None:
                pass

            def do_HEAD(self) -> None:
                self._send("application/json", b"")

            def do_GET(self) -> None:
                self._send("application/json", b'{"object": "list", "data": [], "models": []}')

            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers.get("content-length") or 0)) or b"{}")
                path = self.path.partition("?")[0]
                if path.endswith("/count_tokens"):
                    self._send("application/json", b'{"input_tokens": 10}')
                    return
                stream = {"/messages": _messages, "/responses": _responses, "/completions": _completions}
                make = next((make for end, make in stream.items() if path.endswith(end)), None)
                if make is None:
                    self._send("application/json", b"{}")
                    return
                events = make(model.answer(body), str(body.get("model")))
                lines = [
                    f"event: {name}\n" * (name is not None) + f"data: {json.dumps(data)}\n\n" for name, data in events
                ]
                self._send(
                    "text/event-stream", ("".join(lines) + "data: [DONE]\n\n" * path.endswith("s/completions")).encode()
                )

            def _send(self, kind: str, body: bytes) -> None:
                self.send_response(200)
                self.send_header("content-type", kind)
                self.send_header("content-length", str(len(body)))
                self.end_headers()
                if self.command != "HEAD":
                    self.wfile.write(body)

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    def __enter__(self) -> Self:
        Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *error: object) -> None:
        self._server.shutdown()
        self._server.server_close()

    def answer(self, body: dict[str, Any]) -> Answer:
        """The answer to a request."""
        self.requests.append(body)
        turns = list(turns_of(body))
        if any(role == "user" and _COMPACTION.search(text) for role, text in turns[-1:]):
            return Answer(SUMMARY, [], 10)
        places = [
            (at, name)
            for at, (role, text) in enumerate(turns)
            for name in self.scripts
            if role == "user" and name in text
        ]
        if not places or not body.get("tools"):
            return Answer("A title.", [], 10)
        at, name = places[-1]
        if any(SUMMARY in text for _, text in turns[at + 1 :]):
            return Answer(self.scripts[name][-1].text, [], 10)
        results = sum(role == "tool" for role, _ in turns[at:])
        self.on_step(results)
        step = Step("The script has no such step.")
        for step in self.scripts[name]:
            if results <= 0:
                break
            results -= len(step.calls)
        return Answer(step.text, [self._call(tool, given) for tool, given in step.calls], step.tokens)

    def _call(self, tool: str, given: dict[str, Any]) -> dict[str, Any]:
        self.calls.append(f"call_{id(self):x}_{len(self.calls)}")
        args = {name: self.calls[0] if value == FIRST_CALL else value for name, value in given.items()}
        return {"id": self.calls[-1], "name": tool, "args": args}

    def conversation(self) -> list[tuple[str, str]]:
        """The parts of the newest request that is of a conversation, without what the harness adds of itself."""
        body = next(body for body in reversed(self.requests) if body.get("tools"))
        turns = ((role, _REMINDER.sub("", text)) for role, text in turns_of(body) if role in _SPOKEN)
        return [(role, text) for role, text in turns if text and not text.startswith(("<", "# "))]


def turns_of(body: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """The conversation of a request of any provider: the role of each part, ``call`` for a call of a tool and ``tool``
    for a result, and its text."""
    for turn in body.get("messages", body.get("input", [])):
        content, role, kind = turn.get("content"), str(turn.get("role")), str(turn.get("type"))
        if role == "tool" or kind.endswith("_output"):
            yield "tool", _text(turn.get("output", content))
            continue
        if kind.endswith("_call"):
            yield "call", f"{turn.get('name')} {_canonical(turn.get('arguments'))}"
        for block in content if isinstance(content, list) else [{"type": "text", "text": content or ""}]:
            match block:
                case {"type": "tool_result"}:
                    yield "tool", _text(block.get("content"))
                case {"type": "tool_use"}:
                    yield "call", f"{block['name']} {json.dumps(block['input'])}"
                case {"text": str(text)} if text:
                    yield role, text
        for call in turn.get("tool_calls") or ():
            yield "call", f"{call['function']['name']} {_canonical(call['function']['arguments'])}"


def _canonical(arguments: Any) -> str:
    return json.dumps(json.loads(arguments)) if arguments else ""


def _text(content: Any) -> str:
    if isinstance(content, str):
        return content
    return "\n".join(str(block.get("text", "")) for block in content or () if isinstance(block, dict))


def _messages(answer: Answer, model: str) -> Iterator[Event]:
    usage = {"input_tokens": answer.tokens, "output_tokens": 5}
    message = {"id": f"msg_{uuid4().hex}", "type": "message", "role": "assistant", "model": model, "content": []}
    begun = {**message, "usage": usage, "stop_reason": None, "stop_sequence": None}
    yield "message_start", {"type": "message_start", "message": begun}
    blocks: list[tuple[dict[str, Any], dict[str, Any]]] = []
    if answer.text:
        blocks.append(({"type": "text", "text": ""}, {"type": "text_delta", "text": answer.text}))
    for call in answer.calls:
        block = {"type": "tool_use", "id": call["id"], "name": call["name"], "input": {}}
        blocks.append((block, {"type": "input_json_delta", "partial_json": json.dumps(call["args"])}))
    for index, (block, delta) in enumerate(blocks):
        yield "content_block_start", {"type": "content_block_start", "index": index, "content_block": block}
        yield "content_block_delta", {"type": "content_block_delta", "index": index, "delta": delta}
        yield "content_block_stop", {"type": "content_block_stop", "index": index}
    stop = {"stop_reason": "tool_use" if answer.calls else "end_turn", "stop_sequence": None}
    yield "message_delta", {"type": "message_delta", "delta": stop, "usage": usage}
    yield "message_stop", {"type": "message_stop"}


def _responses(answer: Answer, model: str) -> Iterator[Event]:
    response = {"id": f"resp_{uuid4().hex}", "object": "response", "model": model, "output": []}
    yield "response.created", {"type": "response.created", "response": {**response, "status": "in_progress"}}
    items: list[dict[str, Any]] = []
    if answer.text:
        content = [{"type": "output_text", "text": answer.text, "annotations": []}]
        items.append({"type": "message", "id": f"msg_{uuid4().hex}", "role": "assistant", "content": content})
    for call in answer.calls:
        space, _, name = call["name"].rpartition("/")
        item = {"type": "function_call", "id": f"fc_{uuid4().hex}", "call_id": call["id"], "name": name}
        items.append({**item, **({"namespace": space} if space else {}), "arguments": json.dumps(call["args"])})
    items = [{**item, "status": "completed"} for item in items]
    for index, item in enumerate(items):
        yield "response.output_item.added", {"type": "response.output_item.added", "output_index": index, "item": item}
        yield "response.output_item.done", {"type": "response.output_item.done", "output_index": index, "item": item}
    usage = {"input_tokens": answer.tokens, "output_tokens": 5, "total_tokens": answer.tokens + 5}
    done = {**response, "status": "completed", "output": items, "usage": usage}
    yield "response.completed", {"type": "response.completed", "response": done}


def _completions(answer: Answer, model: str) -> Iterator[Event]:
    chunk = {"id": f"chatcmpl-{uuid4().hex}", "object": "chat.completion.chunk", "created": 1, "model": model}

    def choice(delta: dict[str, Any], finish: str | None = None) -> Event:
        return None, {**chunk, "choices": [{"index": 0, "delta": delta, "finish_reason": finish}]}

    yield choice({"role": "assistant", "content": answer.text})
    if answer.calls:
        functions = [{"name": call["name"], "arguments": json.dumps(call["args"])} for call in answer.calls]
        calls = [
            {"index": index, "id": call["id"], "type": "function", "function": function}
            for index, (call, function) in enumerate(zip(answer.calls, functions, strict=True))
        ]
        yield choice({"tool_calls": calls})
    yield choice({}, "tool_calls" if answer.calls else "stop")
    usage = {"prompt_tokens": answer.tokens, "completion_tokens": 5, "total_tokens": answer.tokens + 5}
    yield None, {**chunk, "choices": [], "usage": usage}
