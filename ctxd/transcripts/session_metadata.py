"""Facts of a transcript for the list of sessions: title, first prompt, times, permissions of the harness, and moves."""

import re
from collections import deque
from collections.abc import Iterable
from typing import Any, Final

import msgspec

from ctxd.transcripts.claude_code import ASKED_BY_OTHERS, HEADING, relocated_to
from ctxd.transcripts.claude_sidecars import SidecarTitle
from ctxd.transcripts.codex import request_in
from ctxd.transcripts.format_detection import LINE_READERS, Format
from ctxd.transcripts.opencode_storage import STATE
from ctxd.transcripts.record_decoding import Line, Record, as_text, decoded, flattened, record_of
from ctxd_protocol.event_types import Event, PromptEvent, SystemEvent
from ctxd_protocol.session_types import RecordedSession

_TEXT_CHARS_MAX: Final = 200
_GRANT_BYTES_MAX: Final = 4096
_GRANT_LEVELS_MAX: Final = 32
"""Levels of nesting of a grant: a call to the daemon has a limit, and the grant is inside it."""

_ENDINGS: Final = 50
"""Number of last records in which the end time is searched."""

_CLAUDE_TITLES: Final = {"custom-title": "customTitle", "agent-name": "agentName", "ai-title": "aiTitle"}
_CODEX_GRANTS: Final = (
    "approval_policy", "approvals_reviewer", "sandbox_policy", "permission_profile", "file_system_sandbox_policy",
)  # fmt: skip
_AROUND_TASK: Final = re.compile(rf"^{HEADING.pattern}|</?(?:{'|'.join(ASKED_BY_OTHERS)})\b[^>]*>")
_UNTITLED: Final = ("New session - ", "Child session - ")
"""Prefixes of the titles that opencode generates for sessions without a title."""


class SessionFacts:
    """Collects the facts of one transcript from its records, in order. ``is_agent``: of the transcript of a sub-agent,
    which has only times: its title, prompt and grants are not those of the session."""

    def __init__(self, format: Format, *, is_agent: bool = False) -> None:
        self._format = format
        self._is_agent = is_agent
        self._read = LINE_READERS[format]
        self._titles: dict[str, str] = {}
        self._titled_at: int | None = None  # The last time before the title of Claude Code's user.
        self._summaries: dict[str, str] = {}
        self._ids: set[int] = set()
        self._permissions: dict[str, Any] = {}
        self._prompt = self._task = ""
        self.last_id = ""
        """The id of the last message; empty in other formats than that of Claude Code."""
        self.directory = ""
        """The last directory to which the harness moved the session."""
        self._began: int | None = None
        self._endings: deque[Record] = deque(maxlen=_ENDINGS)

    def add(self, record: Record) -> None:
        """Add the next record. Cost: a few look-ups, once the first prompt is found."""
        # A record of this type has neither a prompt nor a task, and takes longest to read.
        if self._began is None or not (self._prompt or self._is_agent or record.get("type") == "assistant"):
            self._begin(self._events(record))
        self._endings.append(record)
        if self._is_agent:
            return
        match self._format:
            case "claude-code":
                self._claude_code(record)
            case "codex" | "codex-events":
                self._codex(record)
            case "pi":
                if record.get("type") == "session_info":
                    self._titles["session_info"] = as_text(record.get("name"))
            case "opencode":
                self._opencode(record)

    def add_title_beside(self, title: SidecarTitle) -> None:
        """Add the title beside a transcript of Claude Code, unless that in the transcript is known to be newer."""
        if self._titled_at is None or self._titled_at <= title.at:
            self._titles["custom-title"] = title.text

    def recorded(self, before: RecordedSession | None = None, changed_at: int | None = None) -> RecordedSession:
        """Return all facts, merged with ``before``, those of another transcript of the same session: the outer times,
        the earlier first prompt, and otherwise the facts of this transcript first. ``changed_at``: the time of the last
        change of the transcript, in ms, for a session without any time."""
        known = before or RecordedSession()
        order = ("custom-title", "agent-name", "ai-title", "summary", "thread_name", "session_info", "session")
        titles = {**self._titles, "summary": self._summary()}
        title = next((titles[name] for name in order if titles.get(name)), "")
        ended = self._newest_time()
        began = [at for at in (known.began_at, self._began) if at is not None]
        prompt = self._prompt or self._task
        is_first = prompt and (known.began_at is None or self._began in (None, min(began)))
        return RecordedSession(
            title=_short(title) or ("" if known.title in self.titles_elsewhere().values() else known.title),
            prompt=_short(prompt) if is_first else known.prompt or _short(prompt),
            began_at=min(began, default=changed_at),
            ended_at=max([at for at in (known.ended_at, ended) if at is not None], default=changed_at),
            permissions={**known.permissions, **self._permissions},
        )

    def _events(self, record: Record) -> list[Event]:
        return [entry.event for entry in self._read([Line(1, record)])]

    def _begin(self, events: Iterable[Event]) -> None:
        for event in events:
            if self._began is None and event.at is not None and event.at >= 0:
                self._began = event.at
            is_first = not (self._prompt or self._is_agent) and event.sidechain is None
            if is_first and isinstance(event, PromptEvent):
                self._prompt = request_in(event.text).strip()
            elif is_first and isinstance(event, SystemEvent) and event.kind in ASKED_BY_OTHERS:
                # The task of an agent in a team or of a schedule, whose session may have no prompt.
                self._task = self._task or _AROUND_TASK.sub("", event.text).strip()

    def _newest_time(self) -> int | None:
        """Return the time of the last record with one, among the last ones."""
        return next((at for record in reversed(self._endings) if (at := self._time(record)) is not None), None)

    def _time(self, record: Record) -> int | None:
        times = [event.at for event in self._events(record) if event.at is not None and event.at >= 0]
        return max(times, default=None)

    def _claude_code(self, record: Record) -> None:
        kind = as_text(record.get("type"))
        self.directory = relocated_to(record) or self.directory
        if kind in _CLAUDE_TITLES:
            self._titles[kind] = as_text(record.get(_CLAUDE_TITLES[kind]))
            self._titled_at = self._newest_time() if kind == "custom-title" else self._titled_at
        elif kind == "summary" and (leaf := as_text(record.get("leafUuid"))):
            self._summaries.pop(leaf, None)
            self._summaries[leaf] = as_text(record.get("summary"))
        elif id := as_text(record.get("uuid")):
            self._ids.add(hash(id))
            self.last_id = id
        if not record.get("isSidechain"):
            self._grant("permission_mode", record.get("permissionMode"))

    def _summary(self) -> str:
        """Return the newest summary of this session. Claude Code also writes those of other sessions, which end with
        messages there; in a file without messages, all are taken."""
        own = (text for leaf, text in reversed(self._summaries.items()) if not self._ids or hash(leaf) in self._ids)
        return next(own, "")

    def titles_elsewhere(self) -> dict[str, str]:
        """Return the titles of other sessions by their last messages, as is known once there are messages here: an
        import that saw no message yet may have taken one for the title of this session."""
        others = ((leaf, text) for leaf, text in self._summaries.items() if self._ids and hash(leaf) not in self._ids)
        return {leaf: _short(text) for leaf, text in others}

    def _codex(self, record: Record) -> None:
        payload = record_of(record.get("payload"))
        if record.get("type") == "turn_context":
            for name in _CODEX_GRANTS:
                self._grant(name, payload.get(name))
        elif payload.get("type") == "thread_name_updated":
            self._titles["thread_name"] = as_text(payload.get("thread_name"))

    def _opencode(self, record: Record) -> None:
        row = record_of(record.get("session") or record.get(STATE))
        if not row:
            return
        title = as_text(row.get("title"))
        self._titles["session"] = "" if title.startswith(_UNTITLED) else title
        given = row.get("permission")
        if isinstance(given, str):
            try:
                given = decoded(given.encode())
            except ValueError:
                pass  # Kept as text.
        self._grant("permission", given)

    def _grant(self, name: str, value: object) -> None:
        if value is None or value in ("", [], {}):
            return
        encoded = msgspec.json.encode(value)
        size = len(encoded)
        is_long = size > _GRANT_BYTES_MAX
        kept = f"[{size:,} bytes, in the transcript]" if is_long else decoded(flattened(encoded, _GRANT_LEVELS_MAX))
        self._permissions[name] = kept


def _short(text: str) -> str:
    return text[:_TEXT_CHARS_MAX]
