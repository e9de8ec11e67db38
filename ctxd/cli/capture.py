"""``ctx capture``: runs an agent, passes its output through, and stores its conversation as context commits."""

import os
import signal
import stat
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from select import select
from typing import Final

import anyio
import click
from anyio.abc import TaskStatus

from ctxd.capture.stream_checkpoints import DEFAULT_POLICY, TRIGGERS, CheckpointTracker, Trigger
from ctxd.capture.stream_json import StreamParser
from ctxd.cli.capture_from_file import import_transcript
from ctxd.cli.commit_delivery import Chain, CommitDelivery
from ctxd.cli.commit_lookup import located_commit
from ctxd.cli.common_options import Invocation, Seconds, common
from ctxd.cli.exit_codes import FAILURE, NOT_FOUND, USAGE
from ctxd.cli.session_lookup import named_session
from ctxd.cli.undelivered_commits import NEWEST
from ctxd.click_support import Command, ExclusiveOptions, Stop
from ctxd.clock import SystemClock
from ctxd.file_writes import write_all
from ctxd.terminal import OutputFailed
from ctxd.worker_threads import in_thread
from ctxd_client.errors import ConnectFailed, ConnectionLost, TimedOut
from ctxd_protocol.ids import is_context_id

_READ_BYTES: Final = 256 * 1024

_NOT_FOUND: Final = 127
_NOT_EXECUTABLE: Final = 126
_BY_SIGNAL: Final = 128


@click.command(
    cls=Command,
    examples="ctx capture -- claude -p --output-format stream-json --verbose 'fix the tests'\n"
    "claude -p --output-format stream-json --verbose 'fix it' | ctx capture --stdin\n"
    "ctx capture --from ~/.claude/projects/-srv-app/0b1c….jsonl --session app\n"
    "ctx capture --from rollout-….jsonl --parent ctx-1a2b3c4d",
)
@click.argument("command", nargs=-1, type=click.UNPROCESSED)
@click.option("--stdin", "from_stdin", is_flag=True, help="Read the agent's output from standard input.")
@click.option(
    "--from", "transcript", type=click.Path(path_type=Path), metavar="FILE",
    help="Commit one transcript, FILE of Claude Code, codex, pi or opencode; `ctx import` commits all of a harness.",
)  # fmt: skip
@click.option("--parent", metavar="COMMIT", help="Continue the chain of this commit.")
@click.option(
    "--session", "-s", metavar="SESSION",
    help="Session of the commits; its newest commit is continued by default. Without it, they belong to no session.",
)  # fmt: skip
@click.option("--new", "is_new", is_flag=True, help="Begin a new chain even if the session has commits.")
@click.option("--template", default="", metavar="NAME", help="Template of the agent.")
@click.option("--ticket", default="", metavar="ID", help="The ticket that the agent works on.")
@click.option("--thread", default="", metavar="ID", help="The thread that the agent works in.")
@click.option(
    "--checkpoint", "policy", multiple=True, type=click.Choice(TRIGGERS),
    help="Commit at this moment; may be repeated. By default turn_boundary, compaction and session_end.",
)  # fmt: skip
@click.option("--every", type=click.IntRange(min=1), default=1, metavar="N", help="Commit at each Nth turn boundary.")
@click.option(
    "--wait", type=Seconds(min=0), default=30.0, show_default=True, metavar="S",
    help="Seconds to wait for the daemon after the agent has ended.",
)  # fmt: skip
@common
def capture(
    run: Invocation,
    command: tuple[str, ...],
    from_stdin: bool,
    transcript: Path | None,
    parent: str | None,
    session: str | None,
    is_new: bool,
    template: str,
    ticket: str,
    thread: str,
    policy: tuple[Trigger, ...],
    every: int,
    wait: float,
) -> None:
    """Run an agent, and keep its conversation as commits.

    COMMAND is an agent that prints stream-json; its conversation becomes a chain of context commits. The output passes
    through unchanged, and COMMAND's exit code is returned. SIGUSR1 commits at once. COMMAND keeps running while the
    daemon is unavailable; its commits are delivered when the daemon responds again. Commits not delivered within --wait
    seconds after COMMAND ends are stored in a file, and the next `ctx capture` delivers them.

    With --from, one transcript becomes a chain of commits, and each sub-agent a chain that begins at the commit that
    spawned it. A repeated import creates no duplicate commits. `ctx session import FILE` instead stores a
    transcript as the chat of a session.
    """
    if (bool(command), from_stdin, transcript is not None).count(True) != 1:
        raise Stop(USAGE, "give exactly one of: a command after --, --stdin, --from")
    if is_new and parent is not None:
        raise ExclusiveOptions("--parent", "--new")
    if session is not None:
        session = _session_named(run, session)
    if parent is not None and not is_context_id(parent):
        # An id needs no daemon; any other name is looked up before the agent starts.
        with run.client() as client:
            parent = located_commit(client, parent, session).commit
    moments = frozenset(policy) or DEFAULT_POLICY
    if transcript is not None:
        chain = Chain(parent=parent, session=session, template=template, ticket=ticket, thread=thread)
        import_transcript(run, transcript, chain, moments, every)
        return
    tracker = CheckpointTracker(moments, every=every)
    first = parent or (NEWEST if session is not None and not is_new else None)
    chain = Chain(parent=first, session=session, template=template, ticket=ticket, thread=thread)

    async def captured() -> int:
        is_file = from_stdin and stat.S_ISREG(os.fstat(sys.stdin.fileno()).st_mode)
        agent = _started(command, session) if command else None
        delivery = CommitDelivery(run, chain, holds_input=is_file)
        try:
            return await _run(delivery, tracker, agent, wait)
        finally:
            await delivery.store_rest()
            delivery.report()

    raise SystemExit(anyio.run(captured))


def _session_named(run: Invocation, given: str) -> str:
    """Return the session named by ``given``, an id or a unique prefix; without a daemon, ``given``.

    Raises: ``Stop`` if the daemon has no such session, before an agent is started.
    """
    with suppress(ConnectFailed, ConnectionLost, TimedOut), run.client() as client:
        try:
            return named_session(client, given)
        except Stop as stop:
            if stop.code == NOT_FOUND:
                stop.hint = f"create it: ctx session new AGENT --id {given}; or leave --session out"
            raise
    return given


class AgentOutput:
    """Output of an agent, read from a pipe or a file as it arrives."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._is_ended = False
        self._waiting = anyio.CancelScope()

    def end(self) -> None:
        """Make ``read`` end after the data that is available now: the writer is gone."""
        self._is_ended = True
        self._waiting.cancel()

    async def read(self) -> bytes:
        """Return the next piece; empty at the end."""
        while True:
            with anyio.CancelScope() as self._waiting:
                # A regular file is always readable, and an event loop cannot wait for it.
                with suppress(PermissionError):
                    if not self._is_ended:
                        await anyio.wait_readable(self._fd)
            if self._is_ended and not select([self._fd], [], [], 0)[0]:
                return b""
            return os.read(self._fd, _READ_BYTES)


class CaptureRun:
    """One run: copies the agent's output to standard output, and turns it into events and the commits of a chain."""

    def __init__(self, output: AgentOutput, tracker: CheckpointTracker, delivery: CommitDelivery) -> None:
        self._output = output
        self._tracker = tracker
        self._delivery = delivery
        self._parser = StreamParser()
        self._clock = SystemClock()
        self._in_order = anyio.Lock()
        self._line: list[bytes] = []
        self.is_over = False
        """True once the agent has ended, and only commits are awaited."""
        self.has_output = True
        """False once standard output could not be written. Nothing more is written to it then."""

    async def follow(self) -> None:
        """Pass the output on and capture it until it ends, or its reader is gone."""
        has_reader = True
        while has_reader and (piece := await self._output.read()):
            has_reader = await self._pass_on(piece)  # The agent has printed this piece in any case.
            head, *lines = piece.split(b"\n")
            for line in lines:
                await self._process_line(b"".join([*self._line, head]))
                self._line, head = [], line
            self._line.append(head)
        await self._process_line(b"".join(self._line))
        async with self._in_order:
            await self._delivery.put([*self._tracker.add(self._parser.end()), *self._tracker.cut("session_end")])
        self._delivery.end()

    async def _pass_on(self, piece: bytes) -> bool:
        """Write ``piece`` to standard output. A full disk must neither stop the agent nor lose its conversation.

        Returns: False if the reader is gone.
        """
        try:
            if self.has_output:
                await in_thread(write_all, sys.stdout.fileno(), piece)
        except BrokenPipeError:
            return False
        except OSError as error:
            self.has_output = False
            self._delivery.note(f"{OutputFailed(error)}; the rest of the output is only in the commits")
        return True

    async def cut(self) -> None:
        """Commit the events so far."""
        async with self._in_order:
            await self._delivery.put(self._tracker.cut("explicit"))

    async def _process_line(self, line: bytes) -> None:
        events = self._parser.events(line, self._clock.wall_ms())
        self._delivery.native = self._parser.native
        async with self._in_order:
            await self._delivery.put(self._tracker.add(events))


async def _run(
    delivery: CommitDelivery, tracker: CheckpointTracker, agent: "subprocess.Popen[bytes] | None", wait_s: float
) -> int:
    """Capture the output of ``agent``, or standard input without one, until its end. Returns the exit code."""
    output = AgentOutput(sys.stdin.fileno() if agent is None else _pipe_of(agent))
    capture = CaptureRun(output, tracker, delivery)
    waiting = anyio.CancelScope()
    async with anyio.create_task_group() as group:
        await group.start(_obey_signals, capture, output, agent, waiting)
        group.start_soon(delivery.send_all)
        group.start_soon(delivery.store_when_silent)
        if agent is not None:
            group.start_soon(_end_with, agent, output)
        try:
            await capture.follow()
        finally:
            # An agent would wait forever for a reader of its pipe.
            if agent is not None and agent.stdout is not None:
                agent.stdout.close()
        code = 0 if agent is None else await in_thread(agent.wait)
        capture.is_over = True
        with waiting:
            waiting.deadline = anyio.current_time() + wait_s
            if await in_thread(delivery.has_work):
                await delivery.ended.wait()
        group.cancel_scope.cancel()
    code = code if code >= 0 else _BY_SIGNAL - code
    return code if capture.has_output else code or FAILURE


async def _end_with(agent: "subprocess.Popen[bytes]", output: AgentOutput) -> None:
    """End the output when the agent ends: a process that it left behind may hold the pipe open for ever."""
    await in_thread(agent.wait)
    output.end()


async def _obey_signals(
    capture: CaptureRun,
    output: AgentOutput,
    agent: "subprocess.Popen[bytes] | None",
    waiting: anyio.CancelScope,
    *,
    task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED,
) -> None:
    with anyio.open_signal_receiver(signal.SIGUSR1, signal.SIGINT, signal.SIGTERM, signal.SIGHUP) as signals:
        task_status.started()
        async for each in signals:
            if each == signal.SIGUSR1:
                await capture.cut()
            elif capture.is_over:
                waiting.cancel()
            elif agent is None:
                output.end()
            elif each != signal.SIGINT:
                # A terminal sends SIGINT to the agent itself.
                agent.send_signal(each)


def _started(command: Sequence[str], session: str | None) -> "subprocess.Popen[bytes]":
    """Start the agent with $CTXD_SESSION in its environment. Raises: Stop with the exit codes of a shell."""
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
