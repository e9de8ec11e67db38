"""Values of both clients: arguments and results of handles, and the position of a reader of notices."""

import base64
import os
import posixpath
import secrets
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from ctxd_client.errors import CallFailed, Conflict
from ctxd_protocol.methods.files import ToolcallRecordResult, ToolObserveResult
from ctxd_protocol.methods.sessions import NoticesResult
from ctxd_protocol.session_types import Mount, Notice, SessionView


class ToolRecorded(NamedTuple):
    """Result of ``Session.tool``: the record, and the files found in the output.

    ``observed`` is None without ``command``, and when the search failed; ``failure`` is the reason then.
    """

    record: ToolcallRecordResult
    observed: ToolObserveResult | None
    failure: CallFailed | None = None


def toolcall_id() -> str:
    """A fresh id for a tool call of a harness that has none of its own."""
    return f"call-{secrets.token_hex(8)}"


def as_mounts(mounts: Mapping[str, str] | Sequence[Mount]) -> tuple[Mount, ...]:
    """Mounts of the protocol. A mapping is from the agent's prefix to a folder of this host, which is resolved."""
    if isinstance(mounts, Mapping):
        return tuple(
            Mount(agent_prefix=prefix, canonical_prefix=os.path.realpath(folder)) for prefix, folder in mounts.items()
        )
    return tuple(mounts)


def require_same(found: SessionView, **given: object) -> None:
    """Check that an existing session is the one that ``given`` describes; values that are None or empty fit any.

    Raises: ``Conflict`` if the session is closed or differs.
    """
    if found.state == "closed":
        hint = "Choose another id, or leave out agent to read the closed session."
        raise Conflict(f"session {found.session} exists and is closed", code="session_exists", hint=hint)
    workdir = given.pop("workdir", None)
    if isinstance(workdir, str) and workdir != "/":
        given["workdir"] = posixpath.normpath(workdir)
    differing = [name for name, value in given.items() if value and value != getattr(found, name)]
    if differing:
        raise Conflict(
            f"session {found.session} exists with another {', '.join(differing)}",
            code="session_exists",
            hint="Choose another id, or leave out agent to use the session as it is.",
        )


def split_content(content: str | bytes | None) -> tuple[str | None, str | None]:
    """``content`` as ``file.index`` takes it: text, or bytes in base64."""
    if isinstance(content, bytes):
        return None, base64.b64encode(content).decode()
    return content, None


class NoticeCursor:
    """Position of a reader of notices: the newest sequence seen, and the notices seen at it. Pure.

    Several notices may share one journal sequence, since one write can change several files. Those seen at the newest
    sequence are remembered, so that reading it again repeats nothing and misses nothing.
    """

    def __init__(self, after: int) -> None:
        self.after = after
        self._seen: set[tuple[str, str]] = set()

    @property
    def reread_from(self) -> int:
        """The ``after`` that misses nothing; ``fresh`` filters repeats."""
        return self.after - 1 if self._seen else self.after

    def fresh(self, notice: Notice) -> bool:
        """True if ``notice`` is new; it counts as seen from now on."""
        mark = (notice.object, notice.change)
        if notice.seq < self.after or (notice.seq == self.after and (not self._seen or mark in self._seen)):
            return False
        if notice.seq > self.after:
            self.after, self._seen = notice.seq, set()
        self._seen.add(mark)
        return True

    def more_behind(self, page: NoticesResult, limit: int) -> bool:
        """True if the journal may hold more behind ``page``. A full page without anything new is stepped over."""
        if len(page.notices) < limit:
            return False
        if page.notices[-1].seq <= self.after:
            self.after, self._seen = max(self.after, page.next_after), set()
        return True
