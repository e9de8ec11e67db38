"""The MCP server of ``ctx mcp``: tools and resources, each call on a connection of its own to the daemon.

The package ``mcp`` implements both eras of the protocol. If the daemon is unreachable or restarts, a call fails, but
the server continues.

A harness starts one server for each of its sessions. The session of a call is the first of: ``-s``, the session that
captures the harness's own, ``$CTXD_SESSION``, and the default of every other command.
"""

import json
import os
import sys
from base64 import b64decode
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final, TypeVar
from urllib.parse import quote, unquote

import anyio
import mcp_types as types
from mcp.server import Server, ServerRequestContext
from mcp.server.stdio import stdio_server
from mcp.shared.exceptions import MCPError
from mcp.shared.message import SessionMessage
from pydantic import ValidationError

from ctxd import __version__
from ctxd.cli.call_failures import stop_for
from ctxd.cli.common_options import Invocation
from ctxd.cli.exit_codes import FAILURE, NOT_FOUND, USAGE
from ctxd.cli.session_lookup import named_session
from ctxd.click_support import Stop
from ctxd.config import ConfigError
from ctxd.terminal import ReaderGone
from ctxd.transcripts.harness_labels import NATIVE_CHARS_MAX, NATIVE_SESSION
from ctxd.worker_threads import Lane
from ctxd_client.context_tools import MODEL_TOOLS, quoted, to_single_line
from ctxd_client.errors import CallFailed, InvalidCall
from ctxd_client.session_values import ToolError
from ctxd_client.sync import SyncClient, SyncSession
from ctxd_protocol.object_types import ObjectVersion

T = TypeVar("T")
Context = ServerRequestContext[Any]
Contents = types.TextResourceContents | types.BlobResourceContents

OBJECT: Final = "ctx://object/"
COMMIT: Final = "ctx://commit/"

CALLS_MAX: Final = 8
"""Maximum number of concurrent calls of the daemon; others wait."""

REQUESTS_MAX: Final = 64
"""Approximate maximum of requests in flight and unread responses: beyond these no input is read."""

RESOURCE_BYTES_MAX: Final = 256 * 1024
"""Maximum bytes of one resource: a longer object is cut to its beginning, a longer context to its end."""

_NARRATIVE: Final = "narrative-v1"

_META: Final = ("threadId", "sessionId")
"""Members of a call's ``_meta`` in which a harness passes the id of its session."""

_ENVIRONMENT: Final = ("CLAUDE_CODE_SESSION_ID", "CODEX_THREAD_ID", "CODEX_SESSION_ID")


def serve(run: Invocation, session: str | None) -> None:
    """Serve until standard input ends or the reader of standard output is gone. ``session``: the value of ``-s``."""
    handlers = _Handlers(run, session)
    server = Server(
        "ctxd",
        version=__version__,
        on_list_tools=handlers.list_tools,
        on_call_tool=handlers.call_tool,
        on_list_resources=handlers.list_resources,
        on_list_resource_templates=handlers.list_templates,
        on_read_resource=handlers.read_resource,
    )

    async def served() -> None:
        options = server.create_initialization_options()
        async with stdio_server() as (received, sent), anyio.create_task_group() as group:
            requests, taken = anyio.create_memory_object_stream[SessionMessage | Exception](0)
            responses, outgoing = anyio.create_memory_object_stream[SessionMessage](0)

            async def read() -> None:
                async with requests:
                    async for message in received:
                        while handlers.calls + responses.statistics().tasks_waiting_send >= REQUESTS_MAX:
                            await handlers.ended.wait()
                        request = message if isinstance(message, SessionMessage) else _repaired(message)
                        if request is None or _lacks_id(request):
                            await sent.send(_refusal(message))
                        else:
                            await requests.send(request)

            async def write() -> None:
                async with sent:
                    async for message in outgoing:
                        await sent.send(message)
                        handlers.note_end()

            group.start_soon(read)
            group.start_soon(write)
            await server.run(taken, responses, options)

    # Raises if it is closed.
    sys.stdin.fileno()
    try:
        anyio.run(served)
    except* (ReaderGone, BrokenPipeError, ConnectionResetError, anyio.BrokenResourceError):
        pass


def _lacks_id(request: SessionMessage) -> bool:
    """Return True for a request without a valid id, such as a fraction, which counts as a notification when it is read.
    Its client waits for a reply."""
    message = request.message
    return isinstance(message, types.JSONRPCNotification) and not message.method.startswith("notifications/")


def _repaired(error: Exception) -> SessionMessage | None:
    """Return the message that could not be read because it has half a surrogate pair, as JavaScript writes it for a cut
    text, with a replacement character; None for other errors."""
    try:
        message = json.dumps(json.loads(_unread(error, str)), ensure_ascii=False)
        text = message.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
        return SessionMessage(types.jsonrpc_message_adapter.validate_json(text, by_name=False))
    except (ValueError, RecursionError):
        return None


def _refusal(error: object) -> SessionMessage:
    """Return the reply to a message that is not a request."""
    is_json = not _unread(error, str)
    id = _unread(error, dict).get("id")
    code, message = (types.INVALID_REQUEST, "not a JSON-RPC request") if is_json else (types.PARSE_ERROR, "not JSON")
    found = types.ErrorData(code=code, message=message)
    return SessionMessage(types.JSONRPCError(jsonrpc="2.0", id=id if type(id) in (int, str) else None, error=found))


def _unread(error: object, kind: type[T]) -> T:
    """Return the unreadable part: the line if it is not JSON, else the object; empty if it is the other one."""
    for each in error.errors(include_url=False) if isinstance(error, ValidationError) else ():
        if isinstance(each["input"], kind) and each["type"] in ("json_invalid", "missing", "model_type"):
            return each["input"]
    return kind()


class _Handlers:
    """Handlers of the server's requests."""

    def __init__(self, run: Invocation, session: str | None) -> None:
        self._run = run
        self._session = session
        self._lane = Lane("mcp", CALLS_MAX)
        self.calls = 0
        """The number of calls of the daemon that are in flight or waiting."""
        self.ended = anyio.Event()

    def note_end(self) -> None:
        """Wake the reader of requests: a call has ended, or the client has read a response."""
        self.ended.set()
        self.ended = anyio.Event()

    async def _called(self, call: Callable[[], T]) -> T:
        self.calls += 1
        try:
            return await self._lane.run(call, abandon=True)
        finally:
            self.calls -= 1
            self.note_end()

    async def list_tools(self, _: Context, params: types.PaginatedRequestParams | None) -> types.ListToolsResult:
        """Declare the tools that ``Session.handle`` runs."""
        tools = [
            types.Tool(name=each.name, description=each.description, input_schema=each.input_schema)
            for each in MODEL_TOOLS.values()
        ]
        return types.ListToolsResult(tools=tools)

    async def call_tool(self, context: Context, params: types.CallToolRequestParams) -> types.CallToolResult:
        """Run a tool; a failure is returned as a text for the model, with the remedy."""

        def call() -> types.CallToolResult:
            with self._opened(context, searches=params.name == "context_search") as session:
                text = session.handle(params.name, params.arguments or {})
            if params.name == "context_activate" and not isinstance(text, ToolError):
                # A harness that makes its own requests gets the content only if the model reads the resource.
                id = str((params.arguments or {}).get("id"))
                text = f"{quoted(id)} is active. Its content: {OBJECT}{quote(id, safe='')}"
            return _tool_result(text, isinstance(text, ToolError))

        try:
            return await self._called(call)
        except Stop as stop:
            return _tool_result(f"Error: {_line(stop)}", True)

    async def list_templates(
        self, _: Context, params: types.PaginatedRequestParams | None
    ) -> types.ListResourceTemplatesResult:
        """Declare both kinds of resources."""
        templates = [
            types.ResourceTemplate(name=name, uri_template=prefix + "{id}", description=description)
            for name, prefix, description in (
                ("object", OBJECT, "Content of a file or tool call"),
                ("commit", COMMIT, "Context of a commit, to read"),
            )
        ]
        return types.ListResourceTemplatesResult(resource_templates=templates)

    async def list_resources(
        self, context: Context, params: types.PaginatedRequestParams | None
    ) -> types.ListResourcesResult:
        """List the objects of the session, by pages."""

        def call() -> types.ListResourcesResult:
            with self._opened(context) as session:
                page = session.client.object_list(session=session.id, cursor=params.cursor if params else None)
            found = [
                types.Resource(
                    name=to_single_line(each.label), uri=OBJECT + quote(each.object, safe=""), description=each.type
                )
                for each in page.objects
            ]
            return types.ListResourcesResult(resources=found, next_cursor=page.next_cursor)

        return await self._resource(call)

    async def read_resource(
        self, context: Context, params: types.ReadResourceRequestParams
    ) -> types.ReadResourceResult:
        """Return the newest known content of an object, or the context of a commit as text."""
        uri = params.uri

        def call() -> Contents:
            for prefix, read in ((OBJECT, _object), (COMMIT, _commit)):
                if uri.startswith(prefix) and (id := unquote(uri[len(prefix) :])):
                    with self._opened(context) as session:
                        return read(session, uri, id)
            raise MCPError(types.INVALID_PARAMS, f"no resource {to_single_line(uri)}: write {OBJECT}ID or {COMMIT}ID")

        return types.ReadResourceResult(contents=[await self._resource(call)])

    async def _resource(self, call: Callable[[], T]) -> T:
        try:
            return await self._called(call)
        except Stop as stop:
            raise MCPError(types.INVALID_PARAMS, _line(stop)) from None

    @contextmanager
    def _opened(self, context: Context, *, searches: bool = False) -> Iterator[SyncSession]:
        """Connect for one call, and find its session; a search covers all sessions and needs none. Raises: Stop for
        every failure of a call."""
        meta: Mapping[str, Any] = {**(context.meta or {})}
        try:
            with self._run.client() as client:
                yield SyncSession(client, "" if searches else session_of_call(client, self._session, meta, os.environ))
        except CallFailed as failure:
            raise stop_for(failure) from None
        except ConfigError as error:
            raise Stop(FAILURE, str(error)) from None


def _tool_result(text: str, failed: bool) -> types.CallToolResult:
    return types.CallToolResult(content=[types.TextContent(text=text)], is_error=failed)


def session_of_call(client: SyncClient, given: str | None, meta: Mapping[str, Any], environ: Mapping[str, str]) -> str:
    """Return the session of a call with ``meta`` as its ``_meta``; ``given`` is the value of ``-s``.

    Raises: ``Stop`` if there is no session, also if none captures the one that the harness has named.
    """
    native = [] if given else list(_native_ids(meta, environ))
    try:
        for id in native:
            found = client.session_list(label=f"{NATIVE_SESSION}={id}").sessions
            if found:
                return min(found, key=lambda each: each.state == "closed").session
    except InvalidCall:
        native = []  # A sandbox may not list sessions; its socket has a current one.
    if native and not environ.get("CTXD_SESSION"):
        hint = "ctx install connects the harness; or name a session: CTXD_SESSION in the server's environment"
        message = f"no session captures the harness's session {native[0]}"
        raise Stop(NOT_FOUND, message, hint=hint, symbol="session_not_found")
    try:
        return named_session(client, given)
    except Stop as stop:
        if stop.code != USAGE:
            raise
        hint = "ask the user to name one in the command of this server: ctx mcp -s SESSION"
        raise Stop(USAGE, stop.message, hint=hint) from None


def _native_ids(meta: Mapping[str, Any], environ: Mapping[str, str]) -> Iterator[str]:
    found = [*(meta.get(name) for name in _META), *(environ.get(name) for name in _ENVIRONMENT)]
    for id in dict.fromkeys(each for each in found if isinstance(each, str)):
        if id:
            yield id[:NATIVE_CHARS_MAX]


def _line(stop: Stop) -> str:
    """Return cause and remedy on one line, made plain: both may quote untrusted names."""
    return to_single_line(stop.message) + (f"; {to_single_line(stop.hint)}" if stop.hint else "")


def _object(session: SyncSession, uri: str, id: str) -> Contents:
    version = session.client.object_get(id, session=session.id).object
    content = version.payload.get("content")
    if version.type in ("chat", "session") or not isinstance(content, str):
        raise Stop(
            FAILURE, f"{id} is {version.type}, {version.state}, without text", hint="context_activate reads a file"
        )
    if version.payload.get("encoding") == "base64":
        if len(content) > RESOURCE_BYTES_MAX:
            raise Stop(FAILURE, f"{id} is too large for a resource", hint="ctx object cat prints it")
        return types.BlobResourceContents(uri=uri, mime_type=version.payload.get("media_type"), blob=content)
    return types.TextResourceContents(uri=uri, mime_type="text/plain", text=_beginning(version, content))


def _beginning(version: ObjectVersion, content: str) -> str:
    if len(content) <= RESOURCE_BYTES_MAX:
        return content
    left = len(content) - RESOURCE_BYTES_MAX
    return f"{content[:RESOURCE_BYTES_MAX]}\n[{left:,} characters follow; ctx object cat {version.id} prints all]"


def _commit(session: SyncSession, uri: str, id: str) -> Contents:
    client = session.client
    size = client.commit_materialize(id, format=_NARRATIVE, content=False).size
    before = max(0, size - RESOURCE_BYTES_MAX)
    made = client.commit_materialize(id, format=_NARRATIVE, offset=before, limit=RESOURCE_BYTES_MAX)
    text = b64decode(made.content_base64 or "").decode("utf-8", "ignore")
    if before:
        text = f"[{before:,} bytes precede; ctx materialize {id} --format {_NARRATIVE} prints all]\n{text}"
    return types.TextResourceContents(uri=uri, mime_type="text/markdown", text=text)
