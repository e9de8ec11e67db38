"""The client and its session handle: the daemon's methods as coroutines, and shorthands. Runs on asyncio and trio."""

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from ctxd_client import context_tools
from ctxd_client.change_notices import Notices
from ctxd_client.connection import running
from ctxd_client.errors import CallFailed, Conflict
from ctxd_client.methods import ClientMethods, SessionMethods
from ctxd_client.reconnecting_connection import ReconnectingConnection
from ctxd_client.retry import Retry
from ctxd_client.session_values import (
    ToolError,
    ToolRecorded,
    as_mounts,
    require_same,
    split_content,
    tool_outcome,
    toolcall_id,
)
from ctxd_client.socket_lookup import find_socket
from ctxd_client.wire import EMPTY, Call
from ctxd_protocol.methods.chat import SessionAppendResult
from ctxd_protocol.methods.commits import StartContext
from ctxd_protocol.methods.daemon import HelloResult
from ctxd_protocol.methods.files import FileIndexResult
from ctxd_protocol.methods.objects import ObjectListItem
from ctxd_protocol.object_types import Receipt, ToolcallStatus
from ctxd_protocol.secret_types import SecretPolicy
from ctxd_protocol.session_types import CheckpointPolicy, Collapse, ComponentName, ComponentOptions, Message, Mount

R = TypeVar("R")


@asynccontextmanager
async def connect(
    socket: str | Path | None = None,
    *,
    deadline_s: float | None = 30.0,
    wait_s: float = 0.0,
    client: str = "ctxd_client",
    version: str = "",
    on_retry: Callable[[CallFailed, float], None] | None = None,
) -> AsyncIterator["Client"]:
    """A client of the daemon at ``socket``, or at the first socket found.

    ``deadline_s`` bounds each call in seconds, repeats included; None for no bound. ``wait_s``: seconds to wait for the
    daemon to become available. ``client`` and ``version`` identify the caller to the daemon. ``on_retry``: called each
    time before a failed call is repeated, with the failure and the seconds since the call began, to report why it
    takes long; it must return soon, and its exception ends the call.

    Raises: ``ConnectFailed``, which names the path and the remedy. Cancel: safe.

    Example::

        async with connect() as client:
            s = await client.session(agent="demo", mounts={"/workspace": "."})
            await s.user("fix the bug")
            print((await s.assemble()).text)
    """
    async with running() as runner:
        transport = ReconnectingConnection(find_socket(socket), runner, (client, version))
        try:
            retry = Retry(deadline_s, on_retry=on_retry)
            await transport.greet(retry, wait_s)
            yield Client(transport, retry)
        finally:
            transport.close()


class Client(ClientMethods):
    """Calls to one daemon. Comes from ``connect``; any number of tasks may share it.

    Every method raises a subclass of ``CallFailed``. A write is applied once, however often it is sent.
    Cancel: safe in every method; a cancel request is sent, and a write may have been applied.
    """

    def __init__(self, transport: ReconnectingConnection, retry: Retry) -> None:
        self._transport = transport
        self._retry = retry

    @property
    def socket(self) -> str:
        """The path of the daemon's socket."""
        return self._transport.place.path

    @property
    def server(self) -> HelloResult | None:
        """The daemon's reply to the last ``hello``; None if it does not know that method."""
        return self._transport.hello

    @property
    def last_receipt(self) -> Receipt | None:
        """The newest receipt seen; on reconnecting, a daemon that lacks this write has lost data."""
        return self._transport.last_receipt

    def within(self, deadline_s: float | None) -> "Client":
        """A client on the same connection with another deadline for each call, in seconds.

        Example: ``await client.within(2).daemon_status()``
        """
        return Client(self._transport, replace(self._retry, deadline_s=deadline_s))

    async def call(self, call: Call[R]) -> R:
        """Make ``call`` and return its result; every other method uses this one."""
        return await self._transport.call(call, self._retry)

    def follow(self, session: str, *, after: int | None = None) -> Notices:
        """The notices to ``session`` after journal sequence ``after`` (default: from now on), across reconnects.

        Example::

            async with client.follow("s1") as notices:
                async for notice in notices:
                    print(notice.path, notice.change)
        """
        return Notices(self._transport, self._retry, session, after)

    async def session(
        self,
        session: str | None = None,
        *,
        agent: str | None = None,
        system_prompt: str = "",
        workdir: str = "/",
        filesystem_id: str | None = None,
        detect_filesystems: bool = False,
        mounts: Mapping[str, str] | Sequence[Mount] = (),
        collapse: Collapse | None = None,
        budget_tokens: int | None = None,
        labels: Mapping[str, str] = EMPTY,
        secrets: SecretPolicy | None = None,
        components: Sequence[ComponentName] = (),
        component_options: ComponentOptions | None = None,
        checkpoint: CheckpointPolicy = "none",
        context: StartContext | None = None,
    ) -> "Session":
        """A handle on one session: an existing one by its id, or with ``agent`` or ``context`` a new one.

        If an id is given too, the session is created unless it exists. ``mounts`` may be a mapping from the agent's
        folders to folders of this host. The other parameters are those of ``session_create``.

        Raises: ``NotFound`` if the session does not exist and neither is given; ``Conflict`` if it exists but is
        closed, in the trash, or was created with other arguments. System prompt and context are not compared.

        Example: ``s = await client.session(agent="demo", mounts={"/workspace": "."})``
        """
        if agent is not None or context is not None:
            try:
                made = await self.session_create(
                    agent,
                    session=session,
                    system_prompt=system_prompt,
                    workdir=workdir,
                    filesystem_id=filesystem_id,
                    detect_filesystems=detect_filesystems,
                    mounts=as_mounts(mounts),
                    collapse=collapse,
                    budget_tokens=budget_tokens,
                    labels=labels,
                    secrets=secrets,
                    components=components,
                    component_options=component_options, checkpoint=checkpoint, context=context,
                )  # fmt: skip
                return Session(self, made.session.session)
            except Conflict as error:
                if session is None or error.code != "session_exists":
                    raise
        if session is None:
            raise TypeError("session() needs the id of a session, or an agent to create one for")
        found = (await self.session_get(session)).session
        if agent is not None or context is not None:
            require_same(
                found,
                agent=agent,
                workdir=workdir,
                filesystem_id=filesystem_id,
                detect_filesystems=detect_filesystems,
                mounts=as_mounts(mounts),
                collapse=collapse,
                budget_tokens=budget_tokens,
                labels=dict(labels),
                secrets=secrets,
                components=tuple(components),
                component_options=component_options,
                checkpoint="" if checkpoint == "none" else checkpoint,
            )
        return Session(self, found.session)


class Session(SessionMethods):
    """Handle on one session: its calls, without the session's id. Comes from ``Client.session``."""

    def __init__(self, client: Client, id: str) -> None:
        super().__init__(client, id)
        self.client = client

    async def user(
        self, text: str, *, meta: dict[str, Any] | None = None, op_id: str | None = None
    ) -> SessionAppendResult:
        """Add a user message, which starts a turn.

        Example: ``await s.user("fix the bug")``
        """
        return await self.append([Message(role="user", content=text, meta=meta)], op_id=op_id)

    async def assistant(
        self, text: str, *, meta: dict[str, Any] | None = None, op_id: str | None = None
    ) -> SessionAppendResult:
        """Add a reply of the model; ``meta`` keeps model, usage and the like.

        Example: ``await s.assistant("Fixed.", meta={"model": "m-1"})``
        """
        return await self.append([Message(role="assistant", content=text, meta=meta)], op_id=op_id)

    async def read(self, path: str, *, content: str | bytes | None = None, op_id: str | None = None) -> FileIndexResult:
        """Record that the agent read the file that it knows as ``path``. Without content, the daemon reads the file.

        Example: ``await s.read("/workspace/a.py")``
        """
        text, encoded = split_content(content)
        return await self.client.file_index(
            self.id, path, content=text, content_base64=encoded, cause="read", op_id=op_id
        )

    async def edited(
        self, path: str, *, content: str | bytes | None = None, op_id: str | None = None
    ) -> FileIndexResult:
        """Record that the agent wrote the file that it knows as ``path``. Without content, the daemon reads the file.

        Example: ``await s.edited("/workspace/a.py")``
        """
        text, encoded = split_content(content)
        return await self.client.file_index(
            self.id, path, content=text, content_base64=encoded, cause="edit", op_id=op_id
        )

    async def tool(
        self,
        tool: str,
        args: Mapping[str, Any] = EMPTY,
        *,
        output: str | Exception,
        id: str | None = None,
        status: ToolcallStatus | None = None,
        args_display: str | None = None,
        file_refs: Sequence[str] | None = None,
        command: str | None = None,
        cwd: str | None = None,
        in_chat: bool = False,
        op_id: str | None = None,
    ) -> ToolRecorded:
        """Record a tool call and its output, and add both to the chat, in one write: the next request has the pair.

        Without ``id`` the call gets a fresh one; recording a call again under its id adds nothing. ``output`` may be
        the exception that the tool raised; it is recorded as a failure unless ``status`` is given, and so is a
        ``ToolError`` of ``handle``.
        ``in_chat``: the chat already has the call, as an event of the model's reply, so only the result is added. With
        ``command``, a shell command line, a second call finds the files named in the output; if it fails, the call is
        recorded all the same, and ``failure`` of the result has the reason. Cancel: the call may be recorded.

        Example: ``await s.tool("bash", {"command": "ls"}, output="a.py\\n", command="ls", cwd="/workspace")``
        """
        text, outcome = tool_outcome(output)
        record = await self.record(
            id or toolcall_id(),
            tool,
            text,
            args=args,
            args_display=args_display,
            status=status or outcome,
            file_refs=file_refs,
            op_id=op_id,
            chat="result" if in_chat else "call_and_result",
        )
        try:
            observed = await self.observe(command, text, cwd=cwd) if command is not None else None
        except CallFailed as failure:
            return ToolRecorded(record, None, failure)
        return ToolRecorded(record, observed)

    async def handle(self, name: str, arguments: Mapping[str, Any] | str) -> str:
        """Run a model's call of one of ``MODEL_TOOLS``, and return the text of its result.

        ``arguments``: a mapping, or its JSON text. For any invalid input of the model the result is a ``ToolError``: a
        text that begins with ``Error:`` and names the remedy, which ``tool`` records as a failure. Raises:
        ``CallFailed`` for failures that the model cannot fix, such as a closed session.
        Cancel: the change may have been made.

        Example: ``await s.handle("context_pin", {"id": "call_1"})``
        """
        asked = context_tools.read_arguments(name, arguments)
        if isinstance(asked, ToolError):
            return asked
        try:
            match asked:
                case context_tools.PinArguments():
                    change = self.pin if asked.pinned else self.unpin
                    return context_tools.describe_change(name, await change(asked.id))
                case context_tools.ObjectArguments():
                    change = self.activate if name == "context_activate" else self.deactivate
                    return context_tools.describe_change(name, await change(asked.id))
                case context_tools.ListArguments():
                    return await self._listed(asked)
                case context_tools.SearchArguments():
                    page = await self.client.search_query(asked.query, limit=context_tools.HITS_MAX)
                    return context_tools.found(page.hits, asked, more=page.next_cursor is not None)
                case context_tools.CheckpointArguments():
                    commit = (await self.client.context_current(session=self.id)).context_id
                    if commit is not None and asked.summary:
                        await self.client.commit_annotate(commit, asked.summary)
                    return context_tools.committed(commit)
        except CallFailed as failure:
            text = context_tools.refused(failure, asked)
            if text is None:
                raise
            return text

    async def _listed(self, asked: context_tools.ListArguments) -> str:
        """The text of a list: one page, or with ``contains`` the matches on the first page that has any."""
        rows: list[ObjectListItem] = []
        cursor, searched = asked.after or None, 0
        limit = 500 if asked.contains else context_tools.ROWS_MAX
        while not rows and searched < context_tools.SEARCHED_MAX:
            page = await self.client.object_list(session=self.id, limit=limit, cursor=cursor)
            rows = [row for row in page.objects if asked.contains in row.label]
            cursor, searched = page.next_cursor, searched + limit
            if cursor is None:
                break
        return context_tools.format_list(rows[: context_tools.ROWS_MAX], asked, cursor, found=len(rows))
