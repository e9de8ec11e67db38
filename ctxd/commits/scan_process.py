"""A child process that counts large deltas, and searches them and uploaded artifacts for secrets.

Decoding a large delta and searching its texts would hold the interpreter lock for seconds, and delay all other calls.
So the daemon passes the delta as an in-memory file, and needs no copy of its own. The process starts with the first
large delta. It ends when it is idle, when the daemon ends, or when a delta needs more than ``MEMORY_BYTES_MAX``.
"""

import mmap
import os
import pickle
import resource
import select
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Iterable, Iterator
from contextlib import asynccontextmanager
from functools import partial
from typing import Final

import anyio
import msgspec
from blake3 import blake3

from ctxd.commits.delta_scan import count_delta, delta_captured
from ctxd.errors import CtxdError
from ctxd.file_writes import write_all
from ctxd.formats.delta_formats import Counts
from ctxd.objects.document import decode_content, encode_content
from ctxd.secrets.redaction import Capture
from ctxd.secrets.scanner import Hit
from ctxd.worker_threads import Lane, OwnTurns, ThreadPool
from ctxd_protocol.error_codes import ErrorCode
from ctxd_protocol.secret_types import Secrets

DELTA_BYTES_MIN: Final = 256 * 1024
"""Bytes of the smallest delta passed to the process: a thread handles smaller ones quickly enough."""

MEMORY_BYTES_MAX: Final = 2 * 1024**3
"""Limit on the process's address space in bytes, for one delta and its decoded form."""

IDLE_S: Final = 60
"""Seconds without a delta after which the process ends."""

_SANDBOX_PROCESSES: Final = 3
"""Processes of all sandboxes: while two of them have large files searched, a third one need not wait."""

_ATTEMPTS: Final = 2
_LENGTH_BYTES: Final = 8
_WRITTEN_BYTES: Final = 1024 * 1024
_SEARCHED_BYTES: Final = 4 * 1024 * 1024
_END_S: Final = 1.0
"""Seconds for the process to exit once the connection is closed."""

_THREADS: Final = ThreadPool()


class _Refusal(msgspec.Struct, frozen=True):
    """The error for a delta that cannot be kept."""

    code: ErrorCode
    message: str
    hint: str


class _Reply(msgspec.Struct, frozen=True):
    """Result for one delta: its counts, the secrets found, and whether a redacted form was written. For other bytes:
    their address and the first secret."""

    counts: Counts | None = None
    address: str = ""
    first: Hit | None = None
    secrets: Secrets | None = None
    redacted: bool = False
    refused: _Refusal | None = None


class _Lost(Exception):
    """The process ended before it replied."""


class FileInMemory:
    """An anonymous in-memory file (memfd), which counts towards no process's memory. Close it."""

    def __init__(self, pieces: Iterable[bytes] = ()) -> None:
        self.descriptor = os.memfd_create("ctxd-delta", os.MFD_CLOEXEC)
        try:
            for piece in pieces:
                write_all(self.descriptor, piece)
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> "FileInMemory":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the file; the memory is freed once no other process has it open."""
        os.close(self.descriptor)

    @property
    def size(self) -> int:
        """Size of the file in bytes."""
        return os.fstat(self.descriptor).st_size

    def pieces(self) -> Iterator[bytes]:
        """Yield the bytes in pieces."""
        at = 0
        while piece := os.pread(self.descriptor, _WRITTEN_BYTES, at):
            at += len(piece)
            yield piece


class ScanProcess:
    """The process for one class of callers, started on demand. It handles one delta at a time."""

    def __init__(self) -> None:
        self._turn = Lane("delta", 1)
        self._process: subprocess.Popen[bytes] | None = None
        self._socket: socket.socket | None = None

    async def captured(self, capture: Capture, format: str, given: FileInMemory) -> tuple[Counts, FileInMemory | None]:
        """Count the delta ``given``, and add the secrets in it to the findings of ``capture``.

        Returns: its counts, and the redacted delta, which the caller closes; None if nothing was redacted. Raises:
        CtxdError ``invalid_params``, ``unsupported``; ``too_large`` if memory does not suffice; ``internal_error`` if
        the process ended twice. Cancel: waits for the process.
        """
        kept = FileInMemory()
        try:
            reply = await self._turn.run(self._call, capture, format, given.descriptor, kept)
            if reply.refused is not None:
                refused = reply.refused
                raise CtxdError(refused.code, refused.message, hint=refused.hint, outcome="not_applied")
            assert reply.counts is not None, "an accepted delta has counts"
        except BaseException:
            kept.close()
            raise
        capture.add(reply.secrets)
        if reply.redacted:
            return reply.counts, kept
        kept.close()
        return reply.counts, None

    async def searched(self, capture: Capture, given: int) -> tuple[str, Hit | None]:
        """Search the file with the descriptor ``given``, of any size, and add its secrets to the findings of
        ``capture``. Returns: the BLAKE3 of the file in hex, and the first secret.

        Raises and cancel: as ``captured``.
        """
        with FileInMemory() as unused:
            reply = await self._turn.run(self._call, capture, None, given, unused)
        capture.add(reply.secrets)
        return reply.address, reply.first

    def close(self) -> None:
        """End the process. Blocks until it has ended."""
        if self._socket is not None:
            self._socket.close()
        if self._process is not None:
            try:
                self._process.wait(_END_S)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
        self._socket = self._process = None

    def _call(self, capture: Capture, format: str | None, given: int, kept: FileInMemory) -> _Reply:
        """``format``: that of the delta; None for other bytes."""
        request = pickle.dumps((capture.guard, capture.policy, format))
        for _ in range(_ATTEMPTS):
            try:
                # Discard the output of a process that has ended.
                os.truncate(kept.descriptor, 0)
                connection = self._socket or self._start()
                socket.send_fds(connection, [len(request).to_bytes(_LENGTH_BYTES)], [given, kept.descriptor])
                connection.sendall(request)
                return msgspec.msgpack.decode(_received(connection), type=_Reply)
            except (OSError, _Lost):
                process = self._process
                self.close()
        code = "it could not be started" if process is None else f"exit code {process.returncode}"
        message = f"the process that searches large deltas for secrets ended {_ATTEMPTS} times ({code})"
        hint = "Nothing was stored. Send it again, or in smaller parts; the daemon's log may name the cause."
        raise CtxdError("internal_error", message, hint=hint, outcome="not_applied")

    def _start(self) -> socket.socket:
        self.close()
        ours, theirs = socket.socketpair()
        with theirs:
            # Do not pass on the daemon's working directory, environment and terminal.
            self._process = subprocess.Popen(
                [sys.executable, "-IB", "-m", __name__],
                stdin=theirs.fileno(),
                stdout=subprocess.DEVNULL,
                start_new_session=True,
            )
        # Reap it when it exits by itself.
        _THREADS.start(self._process.wait, lambda: None)
        self._socket = ours
        return ours


class SandboxProcesses:
    """The processes for all sandboxes. A sandbox uses one of them at a time: its further calls wait for its own."""

    def __init__(self) -> None:
        self._all = tuple(ScanProcess() for _ in range(_SANDBOX_PROCESSES))
        self._free = list(self._all)
        self._room = anyio.Semaphore(_SANDBOX_PROCESSES, fast_acquire=True)
        self._own = OwnTurns()

    @asynccontextmanager
    async def of(self, sandbox: str) -> AsyncIterator[ScanProcess]:
        """A free process for ``sandbox``; the one that was used last, so that the others end. Cancel: safe."""
        async with self._own.of(sandbox), self._room:
            process = self._free.pop()
            try:
                yield process
            finally:
                self._free.append(process)

    def close(self) -> None:
        """End the processes. Blocks until they have ended."""
        for process in self._all:
            process.close()


def _received(connection: socket.socket) -> bytes:
    """Return the next message. Raises: _Lost at the end of the connection."""
    return _exactly(connection, int.from_bytes(_exactly(connection, _LENGTH_BYTES)))


def _exactly(connection: socket.socket, size: int) -> bytes:
    found = bytearray()
    while len(found) < size:
        if not (piece := connection.recv(size - len(found))):
            raise _Lost
        found += piece
    return bytes(found)


# --- in the process ---


def main() -> None:
    """Handle deltas received over standard input, a socket, until it closes or is idle."""
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES_MAX, MEMORY_BYTES_MAX))
    connection = socket.socket(fileno=0)
    _THREADS.start(partial(_end_with_daemon, connection), lambda: None)
    while select.select([connection], [], [], IDLE_S)[0]:
        length, descriptors, _, _ = socket.recv_fds(connection, _LENGTH_BYTES, 2)
        if not length:
            break
        length += _exactly(connection, _LENGTH_BYTES - len(length))
        guard, policy, format = pickle.loads(_exactly(connection, int.from_bytes(length)))
        given, kept = descriptors
        try:
            capture = Capture(guard, policy)
            found = _searched(capture, given) if format is None else _captured(capture, format, given, kept)
            reply = msgspec.msgpack.encode(found)
        finally:
            os.close(given)
            os.close(kept)
        connection.sendall(len(reply).to_bytes(_LENGTH_BYTES) + reply)


def _searched(capture: Capture, given: int) -> _Reply:
    hasher = blake3()

    def pieces() -> Iterator[bytes]:
        at = 0
        while piece := os.pread(given, _SEARCHED_BYTES, at):
            at += len(piece)
            hasher.update(piece)
            yield piece

    first = capture.search(pieces())
    return _Reply(address=hasher.hexdigest(), first=first, secrets=capture.secrets)


def _captured(capture: Capture, format: str, given: int, kept: int) -> _Reply:
    try:
        with mmap.mmap(given, 0, access=mmap.ACCESS_READ) as mapped:
            content = decode_content(mapped[:])
        counts = count_delta(format, content)
        found = delta_captured(capture, format, content)
        if capture.redacted:
            del content
            write_all(kept, encode_content(found))
        return _Reply(counts, secrets=capture.secrets, redacted=capture.redacted)
    except CtxdError as error:
        return _Reply(refused=_Refusal(error.code, error.message, error.hint))
    except MemoryError:
        message = f"the delta takes more than {MEMORY_BYTES_MAX >> 20:,} MiB of memory to be searched for secrets"
        return _Reply(refused=_Refusal("too_large", message, "Commit it in several parts."))


def _end_with_daemon(connection: socket.socket) -> None:
    """Exit when the daemon has ended, even in the middle of a delta."""
    poll = select.poll()
    poll.register(connection, 0)
    poll.poll()
    os._exit(0)


if __name__ == "__main__":
    main()
