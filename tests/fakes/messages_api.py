"""The Messages API on a local port, with scripted replies: each request is checked as the provider checks it."""

import json
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from tests.unit.assembly.provider_rules import check_request

USAGE = {"input_tokens": 10, "output_tokens": 5, "cache_read_input_tokens": 7, "cache_creation_input_tokens": 3}


class MessagesApi:
    """The server at ``url``. ``seen``: the requests so far."""

    def __init__(self, replies: Iterable[list[dict[str, Any]]]) -> None:
        self.seen: list[dict[str, Any]] = []
        self._replies = iter(replies)
        api = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                status, answer = api.answer(self.path, body)
                data = json.dumps(answer).encode()
                self.send_response(status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def log_message(self, format: str, *args: object) -> None:
                """Requests are in ``seen``."""

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}"

    def answer(self, path: str, body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        """The next reply, or the error for a request that the API would refuse."""
        self.seen.append(body)
        try:
            assert path == "/v1/messages", path
            check_request("anthropic-messages", body)
            content = next(self._replies)
        except (AssertionError, ValueError, StopIteration) as error:
            refusal = {"type": "invalid_request_error", "message": repr(error)}
            return 400, {"type": "error", "error": refusal}
        calls = any(part["type"] == "tool_use" for part in content)
        return 200, {
            "id": f"msg_{len(self.seen)}",
            "type": "message",
            "role": "assistant",
            "model": body["model"],
            "content": content,
            "stop_reason": "tool_use" if calls else "end_turn",
            "stop_sequence": None,
            "usage": USAGE,
        }


@contextmanager
def messages_api(replies: Iterable[list[dict[str, Any]]]) -> Iterator[MessagesApi]:
    """A server that gives ``replies``, each the content of one message, in order."""
    api = MessagesApi(replies)
    thread = threading.Thread(target=api.server.serve_forever, daemon=True)
    thread.start()
    try:
        yield api
    finally:
        api.server.shutdown()
        api.server.server_close()
        thread.join()
