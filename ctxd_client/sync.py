"""The client without a loop: the same methods, results, errors and repeats as ``Client``, over a blocking socket.

Owns one connection, used by one thread at a time: calls of other threads wait their turn under their own deadline.
"""

from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from ctxd_client._sync.methods import SyncClientMethods, SyncSessionMethods
from ctxd_client.blocking import BlockingLink
from ctxd_client.channel import Channel
from ctxd_client.cursor import Cursor
from ctxd_client.errors import CallFailed, Conflict, ConnectionLost
from ctxd_client.paths import find_socket
from ctxd_client.retry import Retry
from ctxd_client.values import ToolRecorded, as_mounts, require_same, split_content, toolcall_id
from ctxd_client.wire import EMPTY, Call
from ctxd_protocol.limits import PAGE_ITEMS_MAX
from ctxd_protocol.methods.daemon import HelloResult
from ctxd_protocol.methods.files import FileIndexResult
from ctxd_protocol.methods.sessions import SessionAppendResult
from ctxd_protocol.objects import Receipt, ToolcallStatus
from ctxd_protocol.secrets import SecretPolicy
from ctxd_protocol.sessions import Collapse, Message, Mount, Notice

R = TypeVar("R")


@contextmanager
def connect_sync(
    socket: str | Path | None = None,
    *,
    deadline_s: float | None = 30.0,
    wait_s: float = 0.0,
    client: str = "ctxd_client",
    version: str = "",
) -> Iterator["SyncClient"]:
    """A client of the daemon at ``socket``, or at the first place where one is found; see ``connect``.

    Raises: ``ConnectFailed``, which names the path and the remedy.

    Example::

        with connect_sync() as client:
            print(client.daemon_status().sessions_live)
    """
    link = BlockingLink(find_socket(socket), (client, version))
    try:
        retry = Retry(deadline_s)
        link.greet(retry, wait_s)
        yield SyncClient(link, retry)
    finally:
        link.close()


class SyncClient(SyncClientMethods):
    """Calls to one daemon. Comes from ``connect_sync``; threads may share it, and take turns.

    Every method raises ``CallFailed`` as one of its kinds. A write is applied once, however often it had to be sent.
    """

    def __init__(self, link: BlockingLink, retry: Retry) -> None:
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

    def within(self, deadline_s: float | None) -> "SyncClient":
        """The same client with another deadline for each call, in seconds.

        Example: ``client.within(2).daemon_status()``
        """
        return SyncClient(self._link, replace(self._retry, deadline_s=deadline_s))

    def call(self, call: Call[R]) -> R:
        """Make ``call`` and return its result; every other method ends here."""
        return self._link.call(call, self._retry)

    def follow(self, session: str, *, after: int | None = None) -> Generator[Notice, None, None]:
        """The notices to ``session`` above journal sequence ``after`` (null: from now on), across reconnects.

        Blocks between notices, on a connection of its own. Close the generator to stop.

        Example: ``for notice in client.follow("s1"): print(notice.path, notice.change)``
        """
        link = BlockingLink(self._link.place, self._link.client)
        own = SyncClient(link, self._retry)
        cursor = None if after is None else Cursor(after)
        try:
            while True:
                started = own.events_subscribe(session)
                if cursor is None or started.after < cursor.after:
                    # Behind what was seen: it is another journal, and what is in it is all new.
                    cursor = Cursor(started.after)
                try:
                    yield from _follow(own, link.open(None), session, cursor)
                except ConnectionLost:
                    link.close()
                    link = BlockingLink(self._link.place, self._link.client)
                    own = SyncClient(link, self._retry)
        finally:
            link.close()

    def session(
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
    ) -> "SyncSession":
        """A handle on one session: the one named, or with ``agent`` a new one. With both, it is made unless it is
        there.

        ``mounts`` may be a mapping from the agent's folders to this host's. What none covers lies on ``filesystem_id``,
        null meaning the host's; ``detect_filesystems`` has an agent on the host tell them apart by device.
        Raises: ``NotFound`` if a session is named, is not there, and no ``agent`` says how to make it; ``Conflict`` if
        it exists but is closed, or was made with other arguments. The system prompt is not compared.

        Example: ``s = client.session(agent="demo", mounts={"/workspace": "."})``
        """
        if agent is not None:
            try:
                made = self.session_create(
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
                )
            except Conflict as error:
                if session is None or error.code != "session_exists":
                    raise
            else:
                return SyncSession(self, made.session.session)
        if session is None:
            raise TypeError("name a session, or an agent to make one for")
        found = self.session_get(session).session
        if agent is not None:
            require_same(
                found,
                agent=agent,
                workdir=workdir,
                filesystem_id=filesystem_id,
                detect_filesystems=detect_filesystems,
                mounts=tuple(as_mounts(mounts)),
                collapse=collapse,
                budget_tokens=budget_tokens,
                labels=dict(labels),
                secrets=secrets,
            )
        return SyncSession(self, found.session)


class SyncSession(SyncSessionMethods):
    """One session's handle: the calls that concern it, without its id. Comes from ``SyncClient.session``."""

    def __init__(self, client: SyncClient, id: str) -> None:
        super().__init__(client, id)
        self.client = client

    def user(self, text: str, *, meta: dict[str, Any] | None = None, op_id: str | None = None) -> SessionAppendResult:
        """Add a user message, which starts a turn.

        Example: ``s.user("fix the bug")``
        """
        return self.append([Message(role="user", content=text, meta=meta)], op_id=op_id)

    def assistant(
        self, text: str, *, meta: dict[str, Any] | None = None, op_id: str | None = None
    ) -> SessionAppendResult:
        """Add a reply of the model; ``meta`` keeps model, usage and the like.

        Example: ``s.assistant("Fixed.", meta={"model": "m-1"})``
        """
        return self.append([Message(role="assistant", content=text, meta=meta)], op_id=op_id)

    def read(self, path: str, *, content: str | bytes | None = None, op_id: str | None = None) -> FileIndexResult:
        """Record that the agent read the file at ``path``, as it names it. Without content the daemon reads the file.

        Example: ``s.read("/workspace/a.py")``
        """
        text, encoded = split_content(content)
        return self.client.file_index(self.id, path, content=text, content_base64=encoded, cause="read", op_id=op_id)

    def edited(self, path: str, *, content: str | bytes | None = None, op_id: str | None = None) -> FileIndexResult:
        """Record that the agent wrote the file at ``path``. Without content the daemon reads the file.

        Example: ``s.edited("/workspace/a.py")``
        """
        text, encoded = split_content(content)
        return self.client.file_index(self.id, path, content=text, content_base64=encoded, cause="edit", op_id=op_id)

    def tool(
        self,
        tool: str,
        args: Mapping[str, Any] = EMPTY,
        *,
        output: str,
        id: str | None = None,
        status: ToolcallStatus = "ok",
        args_display: str | None = None,
        file_refs: Sequence[str] | None = None,
        command: str | None = None,
        cwd: str | None = None,
    ) -> ToolRecorded:
        """Keep a tool call and its output; with ``command``, a shell command line, also find the files it speaks of.

        ``id`` null: the harness has no id for the call, and gets one. The chat refers to the call once a message of
        role ``toolcall`` is appended. A failed search for files is ``failure`` of the result, for the record is
        kept by then.

        Example: ``s.tool("bash", {"command": "ls"}, output="a.py\\n", command="ls", cwd="/workspace")``
        """
        id = id or toolcall_id()
        record = self.record(id, tool, output, args=args, args_display=args_display, status=status, file_refs=file_refs)
        try:
            observed = self.observe(command, output, cwd=cwd) if command is not None else None
        except CallFailed as failure:
            return ToolRecorded(record, None, failure)
        return ToolRecorded(record, observed)


def _follow(client: SyncClient, channel: Channel, session: str, cursor: Cursor) -> Generator[Notice, None, None]:
    """What ``follow`` yields while ``channel`` lasts. Raises: ``ConnectionLost`` when it ends."""
    while True:
        channel.gap = False
        more = True
        while more:
            page = client.session_notices(session, after=cursor.reread_from, limit=PAGE_ITEMS_MAX)
            more = cursor.more_behind(page, PAGE_ITEMS_MAX)
            yield from filter(cursor.fresh, page.notices)
        while not channel.gap:
            event = channel.event()
            channel.gap = channel.gap or event.missed
            if not event.missed and cursor.fresh(event.notice):
                yield event.notice
