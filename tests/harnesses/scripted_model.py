"""A model provider on the loopback interface that answers by a script: the streams of Anthropic Messages, OpenAI
Responses and OpenAI Chat Completions, as far as coding harnesses read them.

It keeps no state: the number of tool results since the newest prompt is the step of the script.
"""

import json
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any, Self

PROMPT = "Follow the script."
"""Text of the prompt that begins the script."""

ANSWER = "The script is done."
COMMANDS = ("echo first-output", "echo second-output")
"""The commands of the steps before the answer."""

Event = tuple[str | None, dict[str, Any]]


class ScriptedModel:
    """The provider. ``tool``: the name of the harness's shell and its argument; ``on_step`` is called with the number
    of each step before it is answered. ``commands``: those that the model calls, one a step."""

    def __init__(
        self,
        tool: tuple[str, str],
        on_step: Callable[[int], None] = lambda step: None,
        commands: tuple[str, ...] = COMMANDS,
    ) -> None:
        self.tool = tool
        self.commands = commands
        self.on_step = on_step
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
                events = make(*model.answer(body), str(body.get("model")))
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

    def answer(self, body: dict[str, Any]) -> tuple[str, dict[str, Any] | None]:
        """The text and the tool call that answer a request: the call's id, name and arguments."""
        self.requests.append(body)
        results = _results(body.get("messages", body.get("input", [])))
        if results is None or not body.get("tools"):
            return "A title.", None
        self.on_step(results)
        if results >= len(self.commands):
            return ANSWER, None
        name, argument = self.tool
        given = {argument: self.commands[results]}
        return "", {"id": f"call_{id(self):x}_{len(self.requests)}", "name": name, "args": given}


def _results(turns: Any) -> int | None:
    """The tool results since the newest prompt of the script; None without one."""
    count: int | None = None
    for turn in turns if isinstance(turns, list) else ():
        content = turn.get("content")
        blocks = content if isinstance(content, list) else [{"type": "text", "text": content or ""}]
        texts = [block.get("text") or "" for block in blocks if isinstance(block, dict)]
        if turn.get("role") == "user" and any(PROMPT in text for text in texts):
            count = 0
        elif count is not None:
            count += turn.get("role") == "tool" or str(turn.get("type", "")).endswith("_output")
            count += sum(isinstance(block, dict) and block.get("type") == "tool_result" for block in blocks)
    return count


def _messages(text: str, call: dict[str, Any] | None, model: str) -> Iterator[Event]:
    usage = {"input_tokens": 10, "output_tokens": 5}
    message = {"id": "msg_1", "type": "message", "role": "assistant", "model": model, "content": [], "usage": usage}
    yield "message_start", {"type": "message_start", "message": {**message, "stop_reason": None, "stop_sequence": None}}
    block: dict[str, Any] = {"type": "text", "text": ""}
    delta: dict[str, Any] = {"type": "text_delta", "text": text}
    if call is not None:
        block = {"type": "tool_use", "id": call["id"], "name": call["name"], "input": {}}
        delta = {"type": "input_json_delta", "partial_json": json.dumps(call["args"])}
    yield "content_block_start", {"type": "content_block_start", "index": 0, "content_block": block}
    yield "content_block_delta", {"type": "content_block_delta", "index": 0, "delta": delta}
    yield "content_block_stop", {"type": "content_block_stop", "index": 0}
    stop = {"stop_reason": "end_turn" if call is None else "tool_use", "stop_sequence": None}
    yield "message_delta", {"type": "message_delta", "delta": stop, "usage": usage}
    yield "message_stop", {"type": "message_stop"}


def _responses(text: str, call: dict[str, Any] | None, model: str) -> Iterator[Event]:
    response = {"id": "resp_1", "object": "response", "model": model, "output": []}
    yield "response.created", {"type": "response.created", "response": {**response, "status": "in_progress"}}
    item: dict[str, Any] = {"type": "message", "id": "msg_1", "role": "assistant", "status": "completed"}
    item["content"] = [{"type": "output_text", "text": text, "annotations": []}]
    if call is not None:
        item = {"type": "function_call", "id": "fc_1", "call_id": call["id"], "status": "completed"}
        item |= {"name": call["name"], "arguments": json.dumps(call["args"])}
    yield "response.output_item.added", {"type": "response.output_item.added", "output_index": 0, "item": item}
    yield "response.output_item.done", {"type": "response.output_item.done", "output_index": 0, "item": item}
    usage = {"input_tokens": 10, "output_tokens": 5, "total_tokens": 15}
    done = {**response, "status": "completed", "output": [item], "usage": usage}
    yield "response.completed", {"type": "response.completed", "response": done}


def _completions(text: str, call: dict[str, Any] | None, model: str) -> Iterator[Event]:
    chunk = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "model": model}

    def choice(delta: dict[str, Any], finish: str | None = None) -> Event:
        return None, {**chunk, "choices": [{"index": 0, "delta": delta, "finish_reason": finish}]}

    yield choice({"role": "assistant", "content": text})
    if call is not None:
        function = {"name": call["name"], "arguments": json.dumps(call["args"])}
        yield choice({"tool_calls": [{"index": 0, "id": call["id"], "type": "function", "function": function}]})
    yield choice({}, "stop" if call is None else "tool_calls")
    usage = {"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15}
    yield None, {**chunk, "choices": [], "usage": usage}
