"""Transcript lines with the texts of the model just before a tool call, and the earlier calls of the same answer.

Loaded only for the events of a call.
"""

import os
from time import CLOCK_MONOTONIC, clock_gettime, sleep

TYPE_CHECKING = False  # The module ``typing`` takes long to load.
if TYPE_CHECKING:
    from collections.abc import Callable

    Before = tuple[list[bytes], list[str]]
    """Lines with texts, and ids of calls, before a call in the same answer."""

TAIL_BYTES_MAX = 256 * 1024
SEARCH_BYTES_MAX = 16 * 1024 * 1024
"""Bytes at the end of a transcript that are searched for the text before a tool call: at first, and at most. Inputs and
outputs of other calls in the same answer may follow the text."""

CREATED_S = 0.5
"""Seconds from the start of its first call within which a harness creates the transcript, if it keeps one."""

CALLS_MAX = 64
"""Maximum number of earlier calls that are delivered."""

_PAUSE_S = 0.01
_PAUSE_S_MAX = 0.05
"""Seconds between two checks of the transcript: at first, and at most."""

_LINE_START = 4_096
"""Bytes by which searches overlap: the last line may have been incomplete. A call's id is among its first bytes."""

_BEFORE_ANSWER = (
    b'"type":"tool_result"', b'"type":"user"', b'"type":"attachment"', b'"type":"system"', b'"role":"user"',
    b'_call_output"',
)  # fmt: skip
_TEXT = (b'"type":"text"', b'"type":"output_text"')
_ID_NAMES = (b'"id":', b'"call_id":', b'"id": ', b'"call_id": ')
"""Markers in lines of Claude Code and codex. They cannot occur in texts, whose quotation marks are escaped, but in the
input of a call of Claude Code, which is JSON."""

_CALLS = ((b'"type":"tool_use"', b'"id":"'), (b'_call"', b'"call_id":"'))
"""Markers of a call, each with the one before its id."""

_COMMAND, _EXIT_CODE = b'"type":"CommandExecution","id":"', b'"exit_code":'
"""Markers in a line of codex with the end of a command."""

_UNHOOKED = (b'"name":"update_plan"',)
"""Markers of calls for which no hook runs: later calls must not wait for theirs."""


def parts_before(path: str, call: str, written_s: float, detach: "Callable[[], None] | None") -> "Before | None":
    """The texts and the calls before ``call`` in the same answer; None if the transcript lacks the call.

    If the harness has not written the call yet, the hooks of its start and of its end wait for the line, for
    ``written_s`` at most: texts that are recorded later would follow the call. ``detach`` lets the hook of the start
    wait in a detached process; None for that of the end. Raises: OSError.
    """
    transcript = CallTranscript(path, call)
    found = transcript.parts_before(SEARCH_BYTES_MAX if detach is None else TAIL_BYTES_MAX)
    if found is None:
        if detach is not None:
            detach()
        found = _late_parts(transcript, written_s, 0.0 if detach is None else CREATED_S)
    return found


def exit_code_after(path: str, call: str) -> str:
    """The exit code of the command ``call`` of codex, whose hook does not get it, as JSON; empty without one.

    codex writes the end of a command before it runs the hook of its end. Raises: OSError.
    """
    file = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        size = os.fstat(file).st_size
        tail = os.pread(file, TAIL_BYTES_MAX, max(0, size - TAIL_BYTES_MAX))
    finally:
        os.close(file)
    at = tail.rfind(_COMMAND + call.encode("utf-8", "replace") + b'"')
    line = tail[at:].partition(b"\n")[0] if at >= 0 else b""
    begin = line.rfind(_EXIT_CODE) + len(_EXIT_CODE)
    code = line[begin : begin + 12].partition(b",")[0].decode("ascii", "replace") if begin >= len(_EXIT_CODE) else ""
    return code if code.removeprefix("-").isdigit() else ""


def _late_parts(transcript: "CallTranscript", written_s: float, created_s: float) -> "Before | None":
    """``CallTranscript.parts_before`` as soon as the harness has written the tool call; None if it does not within
    ``written_s``, or creates no transcript within ``created_s``.

    Many hooks may wait at once: the transcript is read again only when it has grown, and is checked less and less
    often.
    """
    began, pause, seen, found = clock_gettime(CLOCK_MONOTONIC), _PAUSE_S, -1, None
    while True:
        size = _size_of(transcript.path)
        if size is not None and size != seen:
            seen, found = size, transcript.parts_before(SEARCH_BYTES_MAX)
        left = began + (created_s if size is None else written_s) - clock_gettime(CLOCK_MONOTONIC)
        if found is not None or left <= 0:
            return found
        sleep(min(pause, left))
        pause = min(pause * 1.25, _PAUSE_S_MAX)


def _size_of(path: str) -> int | None:
    """Return the size of a file in bytes, None before it exists. Raises: OSError."""
    try:
        return os.stat(path).st_size
    except FileNotFoundError:
        return None


class CallTranscript:
    """The transcript at ``path``, searched from its end for the parts of the answer before the tool call ``call``."""

    def __init__(self, path: str, call: str) -> None:
        self.path = path
        self._call = b'"' + call.encode("utf-8", "replace") + b'"'
        self._searched = 0

    def parts_before(self, most: int) -> "Before | None":
        """The texts and the calls before the call in the same answer; None without a transcript, or if the last
        ``most`` bytes lack the call or, below ``SEARCH_BYTES_MAX``, the start of the answer. Raises: OSError."""
        try:
            file = os.open(self.path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        except FileNotFoundError:
            return None
        try:
            size, length = os.fstat(file).st_size, TAIL_BYTES_MAX
            while True:
                begin = max(0, size - length)
                found, is_whole = self._parts_in(os.pread(file, length, begin), is_all=begin == 0)
                # The call is not in the part that was searched before: the harness only appends lines.
                if is_whole or length >= most or (found is None and begin <= self._searched - _LINE_START):
                    break
                length = min(4 * length, most)
        finally:
            os.close(file)
        if most < SEARCH_BYTES_MAX:
            return found if is_whole else None
        self._searched = size
        return found

    def _parts_in(self, tail: bytes, *, is_all: bool) -> "tuple[Before | None, bool]":
        """The texts and the calls in ``tail`` before the call, None without the call; True if no more can be before
        ``tail``."""
        at = self._call_at(tail)
        if at < 0:
            return None, is_all
        texts: list[bytes] = []
        calls: list[str] = []
        for whole in reversed(tail[:at].split(b"\n")[0 if is_all else 1 : -1]):
            line = _without_input(whole)
            if any(mark in line for mark in _BEFORE_ANSWER):
                is_all = True
                break
            if any(mark in line for mark in _TEXT):
                texts.append(line)
            elif len(calls) < CALLS_MAX and (id := _call_in(line)):
                calls.append(id)
        return (texts[::-1], calls[::-1]), is_all

    def _call_at(self, tail: bytes) -> int:
        """The place of the id in the line of the call; negative without one. Progress lines of the call have it too."""
        at = tail.find(self._call)
        while at >= 0:
            begin = tail.rfind(b"\n", 0, at) + 1
            if tail.endswith(_ID_NAMES, begin, at) and tail.find(b'_call_output"', begin, at) < 0:
                break
            at = tail.find(self._call, at + 1)
        return at


def _without_input(line: bytes) -> bytes:
    """The part of a line before the input of its call; the whole line without one."""
    mark, _ = _CALLS[0]
    at = line.find(mark)
    end = line.find(b'"input":', at) if at >= 0 else -1
    return line[:end] if end >= 0 else line


def _call_in(line: bytes) -> str:
    """The id of the call in a line, if a hook reports it; empty without one."""
    if any(mark in line for mark in _UNHOOKED):
        return ""
    for mark, before in _CALLS:
        if (at := line.find(mark)) >= 0 and (at := line.find(before, at)) >= 0:
            begin = at + len(before)
            return line[begin : line.find(b'"', begin)].decode("utf-8", "replace")
    return ""
