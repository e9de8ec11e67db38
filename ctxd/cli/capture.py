"""``ctx capture``: runs an agent, passes its output through, and keeps what it learns as context commits."""

import os
import signal
import subprocess
import sys
from base64 import b64encode
from collections.abc import Iterable, Sequence
from contextlib import suppress
from math import inf
from select import select
from typing import TYPE_CHECKING, Final
from uuid import uuid4

import anyio
import click
import msgspec
from anyio.abc import TaskStatus

from ctxd.capture.checkpoints import DEFAULT_POLICY, TRIGGERS, Checkpoint, CheckpointTracker, Trigger
from ctxd.capture.stream_json import StreamParser
from ctxd.cli.common_options import Invocation, common
from ctxd.cli.exit_codes import USAGE
from ctxd.clock import SystemClock
from ctxd.command_line import Command, Stop
from ctxd.formatting import count
from ctxd.offload import in_thread

if TYPE_CHECKING:
    from ctxd_client import Client

_READ_BYTES: Final = 256 * 1024

_WAITING_MAX: Final = 64
"""Checkpoints that wait for the daemon; beyond them the agent waits too, once its pipe is full."""

_NOT_FOUND: Final = 127
_NOT_EXECUTABLE: Final = 126
_BY_SIGNAL: Final = 128


@click.command(
    cls=Command,
    examples="ctx capture -- claude -p --output-format stream-json --verbose 'fix the tests'\n"
    "claude -p --output-format stream-json --verbose 'fix the tests' | ctx capture --stdin\n"
    "ctx capture --parent ctx-1a2b3c4d --checkpoint tool_call -- claude -p --output-format stream-json --verbose …",
)
@click.argument("command", nargs=-1, type=click.UNPROCESSED)
@click.option("--stdin", "from_stdin", is_flag=True, help="Read the agent's output from standard input.")
@click.option("--parent", metavar="COMMIT", help="Continue the chain of this commit; by default a new one begins.")
@click.option("--session", "-s", metavar="SESSION", help="The session that the commits are of.")
@click.option("--template", default="", metavar="NAME", help="The kind of agent.")
@click.option("--ticket", default="", metavar="ID", help="The ticket that the agent works on.")
@click.option("--thread", default="", metavar="ID", help="The thread that the agent works in.")
@click.option(
    "--checkpoint", "policy", multiple=True, type=click.Choice(TRIGGERS),
    help="Commit at this moment; may be repeated. By default turn_boundary, compaction and session_end.",
)  # fmt: skip
@click.option("--every", type=click.IntRange(min=1), default=1, metavar="N", help="Commit at each Nth turn boundary.")
@click.option(
    "--wait", type=click.FloatRange(min=0), default=30.0, metavar="S",
    help="Seconds to wait for the daemon after the agent has ended.",
)  # fmt: skip
@common
def capture(
    run: Invocation,
    command: tuple[str, ...],
    from_stdin: bool,
    parent: str | None,
    session: str | None,
    template: str,
    ticket: str,
    thread: str,
    policy: tuple[Trigger, ...],
    every: int,
    wait: float,
) -> None:
    """Run COMMAND, an agent that prints stream-json, and keep its conversation as a chain of context commits.

    The output passes through unchanged, and COMMAND's exit code is returned. SIGUSR1 commits at once. While the daemon
    is away the agent works on, and the commits follow once it is back; the agent waits only if 64 of them do.
    """
    if bool(command) == from_stdin:
        raise Stop(USAGE, "give either a command after -- or --stdin", symbol="invalid_params")
    tracker = CheckpointTracker(frozenset(policy) or DEFAULT_POLICY, every=every)

    async def captured() -> tuple[CommitChain, int]:
        chain = CommitChain(run, parent, session, template, ticket, thread)
        return chain, await _run(chain, tracker, command, wait)

    chain, code = anyio.run(captured)
    chain.report()
    raise SystemExit(code)


class CommitChain:
    """Commits of one agent, each the child of the one before; each is sent until the daemon has it."""

    def __init__(
        self, run: Invocation, parent: str | None, session: str | None, template: str, ticket: str, thread: str
    ) -> None:
        self._run = run
        self._newest = parent
        self.session = session
        self._template, self._ticket, self._thread = template, ticket, thread
        self._id = uuid4().hex
        self._made = self._unsent = 0
        self._failure = ""
        self._waiting, self._due = anyio.create_memory_object_stream[Checkpoint](_WAITING_MAX)
        self.ended = anyio.Event()

    async def put(self, checkpoints: Iterable[Checkpoint]) -> None:
        """Queue checkpoints. Waits while many of them wait for the daemon."""
        for checkpoint in checkpoints:
            self._unsent += 1
            await self._waiting.send(checkpoint)

    def end(self) -> None:
        """Declare that no checkpoint follows."""
        self._waiting.close()

    async def send_all(self) -> None:
        """Commit each queued checkpoint in turn until the end. After a refusal they are only counted."""
        from ctxd_client import CallFailed, connect

        socket = self._run.socket_path()
        try:
            async with connect(socket, deadline_s=None, wait_s=inf, client="ctx capture") as client:
                async for checkpoint in self._due:
                    await self._commit(client, checkpoint)
        except CallFailed as error:
            self._failure = f"{error.message}; {error.hint}" if error.hint else error.message
            async for _ in self._due:
                pass
        self.ended.set()

    async def _commit(self, client: "Client", found: Checkpoint) -> None:
        result = await client.commit_checkpoint(
            "events-v1",
            delta_base64=b64encode(found.delta).decode(),
            session=self.session,
            parent=self._newest,
            commit_type="compaction" if found.is_compaction else "delta",
            checkpoint=found.trigger,
            template=self._template,
            ticket_id=self._ticket,
            thread_id=self._thread,
            summary=found.summary,
            message_count=found.messages,
            token_count=found.tokens,
            op_id=f"capture-{self._id}-{self._made}",
        )
        self._newest = result.commit.commit
        self._made += 1
        self._unsent -= 1

    def report(self) -> None:
        """Write the outcome to standard error: standard output is the agent's."""
        note = self._run.screen.note
        if self._run.screen.as_json:
            note(msgspec.json.encode(self._outcome()).decode())
            return
        if self._made:
            note(f"ctx capture: {count(self._made, 'commit')}, the newest is {self._newest}")
        if self._unsent:
            note(f"ctx capture: {count(self._unsent, 'commit')} could not be kept: {self._reason()}")

    def _outcome(self) -> dict[str, object]:
        return {
            "commits": self._made,
            "newest": self._newest,
            "not_kept": self._unsent,
            "reason": self._reason() if self._unsent else None,
        }

    def _reason(self) -> str:
        return self._failure or "the daemon did not answer in time; raise --wait, and run ctx doctor"


class AgentOutput:
    """Output of an agent, from a pipe or a file, in pieces as they come."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._is_ended = False
        self._waiting = anyio.CancelScope()

    def end(self) -> None:
        """Let ``read`` return what is there already, and then nothing: the writer is gone."""
        self._is_ended = True
        self._waiting.cancel()

    async def read(self) -> bytes:
        """Return the next piece; nothing at the end."""
        while True:
            with anyio.CancelScope() as self._waiting:
                # A file is always readable, and none that an event loop can wait for.
                with suppress(PermissionError):
                    if not self._is_ended:
                        await anyio.wait_readable(self._fd)
            if self._is_ended and not select([self._fd], [], [], 0)[0]:
                return b""
            return os.read(self._fd, _READ_BYTES)


class CaptureRun:
    """One run: the agent's output to standard output, to events, and to the commits of a chain."""

    def __init__(self, output: AgentOutput, tracker: CheckpointTracker, chain: CommitChain) -> None:
        self._output = output
        self._tracker = tracker
        self._chain = chain
        self._parser = StreamParser()
        self._clock = SystemClock()
        self._in_order = anyio.Lock()
        self._line: list[bytes] = []

    async def follow(self) -> None:
        """Pass on and capture until the output ends, or its reader is gone."""
        while piece := await self._output.read():
            try:
                await in_thread(_write, piece)
            except BrokenPipeError:
                break
            head, *lines = piece.split(b"\n")
            for line in lines:
                await self._take(b"".join([*self._line, head]))
                self._line, head = [], line
            self._line.append(head)
        await self._take(b"".join(self._line))
        async with self._in_order:
            await self._chain.put([*self._tracker.add(self._parser.end()), *self._tracker.cut("session_end")])
        self._chain.end()

    async def cut(self) -> None:
        """Commit what there is."""
        async with self._in_order:
            await self._chain.put(self._tracker.cut("explicit"))

    async def _take(self, line: bytes) -> None:
        events = self._parser.events(line, self._clock.wall_ms())
        async with self._in_order:
            await self._chain.put(self._tracker.add(events))


async def _run(chain: CommitChain, tracker: CheckpointTracker, command: Sequence[str], wait_s: float) -> int:
    """Run ``command``, or read standard input without one, until its end. Returns the exit code."""
    agent = _started(command, chain.session) if command else None
    output = AgentOutput(sys.stdin.fileno() if agent is None else _pipe_of(agent))
    capture = CaptureRun(output, tracker, chain)
    async with anyio.create_task_group() as group:
        await group.start(_obey_signals, capture, output, agent)
        group.start_soon(chain.send_all)
        if agent is not None:
            group.start_soon(_end_with, agent, output)
        await capture.follow()
        if agent is not None and agent.stdout is not None:
            agent.stdout.close()
        code = 0 if agent is None else await in_thread(agent.wait)
        with anyio.move_on_after(wait_s):
            await chain.ended.wait()
        group.cancel_scope.cancel()
    return code if code >= 0 else _BY_SIGNAL - code


async def _end_with(agent: "subprocess.Popen[bytes]", output: AgentOutput) -> None:
    """End the output with the agent: a process that it left behind may hold the pipe open for ever."""
    await in_thread(agent.wait)
    output.end()


async def _obey_signals(
    capture: CaptureRun,
    output: AgentOutput,
    agent: "subprocess.Popen[bytes] | None",
    *,
    task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED,
) -> None:
    with anyio.open_signal_receiver(signal.SIGUSR1, signal.SIGINT, signal.SIGTERM, signal.SIGHUP) as signals:
        task_status.started()
        async for each in signals:
            if each == signal.SIGUSR1:
                await capture.cut()
            elif agent is None:
                output.end()
            elif each != signal.SIGINT:
                # A terminal sends SIGINT to the agent itself.
                agent.send_signal(each)


def _started(command: Sequence[str], session: str | None) -> "subprocess.Popen[bytes]":
    """Start the agent; its tools know the session. Raises: Stop with the exit codes of a shell."""
    env = os.environ if session is None else {**os.environ, "CTXD_SESSION": session}
    try:
        return subprocess.Popen(command, stdout=subprocess.PIPE, env=env)
    except FileNotFoundError:
        raise Stop(_NOT_FOUND, f"{command[0]}: command not found", symbol="unreadable") from None
    except OSError as error:
        raise Stop(_NOT_EXECUTABLE, f"{command[0]}: {error.strerror}", symbol="unreadable") from None


def _pipe_of(agent: "subprocess.Popen[bytes]") -> int:
    assert agent.stdout is not None
    return agent.stdout.fileno()


def _write(piece: bytes) -> None:
    view = memoryview(piece)
    while view:
        view = view[os.write(sys.stdout.fileno(), view) :]
