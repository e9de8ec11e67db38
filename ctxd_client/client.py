"""The client: one typed coroutine for each method of the table, and a handle for work in one session.

Owns nothing but names: each method is made from the function in ``calls/`` that has its signature and documentation,
and the ``Link`` does the work. Runs on any loop that anyio does.
"""

from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Concatenate, Literal, ParamSpec, TypeVar

import anyio

from ctxd_client.calls import context, daemon, handle, membership, objects, recording, sandboxes, sessions
from ctxd_client.calls.handle import ToolRecorded
from ctxd_client.errors import CallFailed, Conflict
from ctxd_client.follow import Notices
from ctxd_client.link import Link
from ctxd_client.paths import find_socket
from ctxd_client.retry import Retry
from ctxd_client.signatures import shown_as
from ctxd_client.wire import EMPTY, Call
from ctxd_protocol.methods import HelloResult
from ctxd_protocol.objects import Receipt
from ctxd_protocol.secrets import SecretPolicy
from ctxd_protocol.sessions import Collapse, Mount

P = ParamSpec("P")
R = TypeVar("R")


@asynccontextmanager
async def connect(
    socket: str | Path | None = None,
    *,
    deadline_s: float | None = 30.0,
    wait_s: float = 0.0,
    client: str = "ctxd_client",
    version: str = "",
) -> AsyncIterator["Client"]:
    """A client of the daemon at ``socket``, or at the first place where one is found.

    ``deadline_s`` bounds each call, repeats included; null means for ever. ``wait_s`` is how long to wait for a
    daemon that does not answer yet. ``client`` and ``version`` tell the daemon who calls.

    Raises: ``ConnectFailed``, which names the path and the remedy. Cancel: safe.

    Example::

        async with connect() as client:
            s = await client.session(agent="demo", mounts={"/workspace": "."})
            await s.user("fix the bug")
            print((await s.assemble()).text)
    """
    failure: BaseException | None = None
    async with anyio.create_task_group() as group:
        retry = Retry(deadline_s)
        link = Link(find_socket(socket), group, retry, (client, version))
        try:
            await link.greet(wait_s)
            yield Client(link, retry)
        except anyio.get_cancelled_exc_class():
            raise
        except BaseException as error:  # noqa: BLE001 - kept out of the task group, which would wrap it
            failure = error
        finally:
            link.close()
            group.cancel_scope.cancel()
    if failure is not None:
        raise failure


def _awaited(make: Callable[P, Call[R]]) -> "Callable[Concatenate[Client, P], Coroutine[Any, Any, R]]":
    @shown_as(make)
    async def method(self: "Client", /, *args: P.args, **kwargs: P.kwargs) -> R:
        return await self.call(make(*args, **kwargs))

    return method


def _of_session(
    make: Callable[Concatenate[str, P], Call[R]],
) -> "Callable[Concatenate[Session, P], Coroutine[Any, Any, R]]":
    @shown_as(make, bound=1)
    async def method(self: "Session", /, *args: P.args, **kwargs: P.kwargs) -> R:
        return await self.client.call(make(self.id, *args, **kwargs))

    return method


class Client:
    """Calls to one daemon. Comes from ``connect``; may be used by any number of tasks at once.

    Every method raises ``CallFailed`` as one of its kinds. A write is applied once, however often it had to be sent.
    Cancel: safe in every method; the daemon is asked to give up, and a write may have been applied.
    """

    def __init__(self, link: Link, retry: Retry) -> None:
        self._link = link
        self._retry = retry

    @property
    def socket(self) -> str:
        """The path of the daemon's socket."""
        return self._link.place.path

    @property
    def server(self) -> HelloResult | None:
        """What the daemon said of itself when it was last connected to; null if it knows no ``hello``."""
        return self._link.hello

    @property
    def last_receipt(self) -> Receipt | None:
        """The newest receipt seen: a later daemon must know it."""
        return self._link.last_receipt

    def within(self, deadline_s: float | None) -> "Client":
        """The same client with another deadline for each call, in seconds.

        Example: ``await client.within(2).daemon_status()``
        """
        return Client(self._link, replace(self._retry, deadline_s=deadline_s))

    async def call(self, call: Call[R]) -> R:
        """Make a call that one of the functions in ``calls/`` built; every other method ends here."""
        return await self._link.call(call, self._retry)

    def follow(self, session: str, *, after: int | None = None) -> Notices:
        """The notices to ``session`` above journal sequence ``after`` (null: from now on), across reconnects.

        Example::

            async with client.follow("s1") as notices:
                async for notice in notices:
                    print(notice.path, notice.change)
        """
        return Notices(self._link, session, after)

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
    ) -> "Session":
        """A handle on one session: the one named, or with ``agent`` a new one. With both, it is made unless it is
        there.

        ``mounts`` may be a mapping from the agent's folders to this host's. What none covers lies on ``filesystem_id``,
        null meaning the host's; ``detect_filesystems`` has an agent on the host tell them apart by device.
        Raises: ``NotFound`` if a session is named, is not there, and no ``agent`` says how to make it.

        Example: ``s = await client.session(agent="demo", mounts={"/workspace": "."})``
        """
        if agent is not None:
            try:
                made = await self.session_create(
                    agent,
                    session=session,
                    system_prompt=system_prompt,
                    workdir=workdir,
                    filesystem_id=filesystem_id,
                    detect_filesystems=detect_filesystems,
                    mounts=handle.as_mounts(mounts),
                    collapse=collapse,
                    budget_tokens=budget_tokens,
                    labels=labels,
                    secrets=secrets,
                )
            except Conflict as error:
                if session is None or error.code != "session_exists":
                    raise
            else:
                return Session(self, made.session.session)
        if session is None:
            raise TypeError("name a session, or an agent to make one for")
        return Session(self, (await self.session_get(session)).session.session)

    hello = _awaited(daemon.hello)
    rpc_discover = _awaited(daemon.rpc_discover)
    daemon_status = _awaited(daemon.daemon_status)
    session_create = _awaited(sessions.session_create)
    session_configure = _awaited(sessions.session_configure)
    session_list = _awaited(sessions.session_list)
    session_get = _awaited(sessions.session_get)
    session_owner = _awaited(sessions.session_owner)
    session_pause = _awaited(sessions.session_pause)
    session_resume = _awaited(sessions.session_resume)
    session_close = _awaited(sessions.session_close)
    session_append = _awaited(sessions.session_append)
    session_set_system_prompt = _awaited(sessions.session_set_system_prompt)
    session_chat = _awaited(sessions.session_chat)
    session_export = _awaited(sessions.session_export)
    session_activate = _awaited(membership.session_activate)
    session_deactivate = _awaited(membership.session_deactivate)
    session_pin = _awaited(membership.session_pin)
    session_unpin = _awaited(membership.session_unpin)
    session_pool_add = _awaited(membership.session_pool_add)
    session_pool_remove = _awaited(membership.session_pool_remove)
    session_notices = _awaited(sessions.session_notices)
    toolcall_record = _awaited(recording.toolcall_record)
    tool_observe = _awaited(recording.tool_observe)
    file_index = _awaited(recording.file_index)
    file_discover = _awaited(recording.file_discover)
    file_resolve = _awaited(recording.file_resolve)
    mount_detect = _awaited(recording.mount_detect)
    object_get = _awaited(objects.object_get)
    object_bulk = _awaited(objects.object_bulk)
    object_history = _awaited(objects.object_history)
    object_list = _awaited(objects.object_list)
    object_sessions = _awaited(objects.object_sessions)
    object_purge = _awaited(objects.object_purge)
    object_scan = _awaited(objects.object_scan)
    context_current = _awaited(context.context_current)
    context_assemble = _awaited(context.context_assemble)
    context_plan = _awaited(context.context_plan)
    context_show = _awaited(context.context_show)
    context_list = _awaited(context.context_list)
    events_subscribe = _awaited(daemon.events_subscribe)
    events_unsubscribe = _awaited(daemon.events_unsubscribe)
    sandbox_register = _awaited(sandboxes.sandbox_register)
    sandbox_renew = _awaited(sandboxes.sandbox_renew)
    sandbox_release = _awaited(sandboxes.sandbox_release)
    sandbox_list = _awaited(sandboxes.sandbox_list)
    tracker_list = _awaited(daemon.tracker_list)


class Session:
    """One session's handle: the calls that concern it, without its id. Comes from ``Client.session``."""

    def __init__(self, client: Client, id: str) -> None:
        self.client = client
        self.id = id

    user = _of_session(handle.user)
    assistant = _of_session(handle.assistant)
    append = _of_session(sessions.session_append)
    set_system_prompt = _of_session(sessions.session_set_system_prompt)
    chat = _of_session(sessions.session_chat)
    record = _of_session(recording.toolcall_record)
    observe = _of_session(recording.tool_observe)
    read = _of_session(handle.read)
    edited = _of_session(handle.edited)
    discover = _of_session(recording.file_discover)
    resolve = _of_session(recording.file_resolve)
    activate = _of_session(membership.session_activate)
    deactivate = _of_session(membership.session_deactivate)
    pin = _of_session(membership.session_pin)
    unpin = _of_session(membership.session_unpin)
    pool_add = _of_session(membership.session_pool_add)
    pool_remove = _of_session(membership.session_pool_remove)
    assemble = _of_session(context.context_assemble)
    plan = _of_session(context.context_plan)
    show = _of_session(context.context_show)
    assemblies = _of_session(context.context_list)
    current = _of_session(handle.current)
    notices = _of_session(sessions.session_notices)
    view = _of_session(sessions.session_get)
    configure = _of_session(sessions.session_configure)
    pause = _of_session(sessions.session_pause)
    resume = _of_session(sessions.session_resume)
    close = _of_session(sessions.session_close)

    async def tool(
        self,
        tool: str,
        args: Mapping[str, Any] = EMPTY,
        *,
        output: str,
        id: str | None = None,
        status: Literal["ok", "fail"] = "ok",
        args_display: str | None = None,
        file_refs: Sequence[str] | None = None,
        command: str | None = None,
        cwd: str | None = None,
    ) -> ToolRecorded:
        """Keep a tool call and its output; with ``command``, a shell command line, also find the files it speaks of.

        ``id`` null: the harness has no id for the call, and gets one. The chat refers to the call once a message of
        role ``toolcall`` is appended. A failed search for files is ``failure`` of the result, for the record is
        kept by then. Cancel: the record may be kept without its files.

        Example: ``await s.tool("bash", {"command": "ls"}, output="a.py\\n", command="ls", cwd="/workspace")``
        """
        id = id or handle.toolcall_id()
        record = await self.record(
            id, tool, output, args=args, args_display=args_display, status=status, file_refs=file_refs
        )
        try:
            observed = await self.observe(command, output, cwd=cwd) if command is not None else None
        except CallFailed as failure:
            return ToolRecorded(record, None, failure)
        return ToolRecorded(record, observed)
