"""Frames: one JSON text per line, UTF-8, ended by a line feed. No I/O.

At most ``limit`` bytes of an unfinished frame are held, whatever the peer sends.
"""

from typing import Final

from ctxd_protocol.error_codes import ErrorCode

_FOREIGN: Final = b"content-length:"


class FrameFault(Exception):
    """Base of framing errors: the byte stream can no longer be split, and the connection must end.

    ``code`` is the symbolic error code to answer, ``hint`` the remedy for the peer.
    """

    code: ErrorCode = "invalid_request"
    hint = ""


class FrameTooLarge(FrameFault):
    """A line that is longer than the limit."""

    code: ErrorCode = "frame_too_large"
    hint = "Send larger text as several calls."

    def __init__(self, limit: int) -> None:
        super().__init__(f"a frame is longer than {limit} bytes")
        self.limit = limit


class WrongFraming(FrameFault):
    """Framing by headers, as language servers do."""

    hint = "Send one JSON text per line, ended by a line feed, without headers."

    def __init__(self) -> None:
        super().__init__("frames with a Content-Length header are not supported")


class FrameDecoder:
    """Splitter of received bytes into frames.

    ``fault`` is set once the stream cannot be split any more; frames before the fault are still returned.
    """

    __slots__ = ("_limit", "_tail", "fault")

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._tail: bytearray | None = None
        self.fault: FrameFault | None = None

    @property
    def pending(self) -> int:
        """Number of bytes held of an incomplete frame."""
        return 0 if self._tail is None else len(self._tail)

    def feed(self, data: bytes) -> list[bytes]:
        """Add ``data`` and return the frames it completes, without line ends and without blank lines.

        Raises: the fault, once no frame precedes it.
        """
        frames = self.split(self.take(data))
        if self.fault is not None and not frames:
            raise self.fault
        return frames

    def take(self, data: bytes) -> bytes:
        """Add ``data`` and return all complete lines in one piece, line ends included. May set ``fault``."""
        if self.fault is not None:
            return b""
        end = data.rfind(b"\n") + 1
        tail = self._tail
        if end == len(data) and tail is None:
            return data
        block = b""
        if end:
            block, data = data[:end], data[end:]
            if tail is not None:
                block, tail = bytes(tail) + block, None
        self._tail = self._hold(tail, data)
        return block

    def split(self, block: bytes) -> list[bytes]:
        """Split a result of ``take`` into frames, without line ends and blank lines. May set ``fault``."""
        frames: list[bytes] = []
        limit = self._limit
        for line in block.split(b"\n"):
            frame = line.strip(b" \t\r")
            if not frame:
                continue
            if len(line) > limit and len(line) - line.endswith(b"\r") > limit:
                self.fault = FrameTooLarge(limit)
                return frames
            if _is_foreign(frame):
                self.fault = WrongFraming()
                return frames
            frames.append(frame)
        return frames

    def _hold(self, tail: bytearray | None, data: bytes) -> bytearray | None:
        held = len(data) if tail is None else len(tail) + len(data)
        if held > self._limit and not (held == self._limit + 1 and data.endswith(b"\r")):
            self.fault = FrameTooLarge(self._limit)
            return None
        if not data:
            return tail
        if tail is None:
            return bytearray(data)
        tail += data
        return tail


def _is_foreign(frame: bytes) -> bool:
    return frame[:1] in b"Cc" and frame[: len(_FOREIGN)].lower() == _FOREIGN
