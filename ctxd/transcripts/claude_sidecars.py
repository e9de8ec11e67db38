"""Files that Claude Code keeps beside the transcript of a session, in the directory named after the session.

The title that the user gave the session: ``custom-title.json``.

Sub-agents: ``subagents/[GROUP/…]agent-ID.jsonl``, or beside the session's file up to version 2.0. The call that spawned
one is in ``agent-ID.meta.json``; the agents of a workflow are in ``subagents/workflows/RUN``.
"""

import os
import re
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Final, NamedTuple

from ctxd.transcripts.record_decoding import Record, as_text, decoded, milliseconds, record_of
from ctxd.transcripts.source_lines import open_source

AGENT_FILES: Final = "subagents/**/agent-*.jsonl"
"""Glob for the files of a session's sub-agents, from the directory of the session."""

_FOLDER: Final = "subagents"
_WORKFLOWS: Final = "workflows"
_META_BYTES_MAX: Final = 1024 * 1024
_TITLE: Final = "custom-title.json"
_TITLE_BYTES_MAX: Final = 64 * 1024
_CONTROLS: Final = re.compile(r"[\x00-\x1f\x7f-\x9f]")
_PIECE_BYTES: Final = 4 * 1024 * 1024
_NAME: Final = re.compile(rb'"(?:agentId|runId)"\s*:\s*"([^"\\]+)"')


def agents_folder(path: Path) -> Path | None:
    """Return the directory ``subagents`` with the file ``path``; None if it is elsewhere."""
    return next((folder for folder in path.parents if folder.name == _FOLDER), None)


def reason_to_skip(path: Path) -> str:
    """Return why the file ``path`` is not a transcript, though it consists of JSON lines; empty for others."""
    if path.name == "journal.jsonl" and path.parent.parent.name == _WORKFLOWS:
        return "the journal of a workflow, whose results the transcripts of its sub-agents have too"
    if path.name == "resume-head.jsonl":
        return "Claude Code's copy of the beginning of a session"
    return ""


def spawn_keys(path: Path, agent: str) -> tuple[str, ...]:
    """Return the names by which a caller knows the sub-agent in the file ``path``, most reliable first: the id of the
    call that spawned it, ``agent``, and the run of its workflow."""
    call = as_text(_meta(path).get("toolUseId"))
    run = path.parent.name if path.parent.parent.name == _WORKFLOWS else ""
    return tuple(key for key in (call, agent, run) if key)


def _meta(path: Path) -> Record:
    """Return Claude Code's metadata of the sub-agent in the file ``path``; empty if it is missing or damaged."""
    with suppress(OSError, ValueError), open_source(path.with_suffix(".meta.json")) as file:
        return record_of(decoded(file.read(_META_BYTES_MAX)))
    return {}


class SidecarTitle(NamedTuple):
    """A title of a session, and the time at which it was set, in ms since 1970."""

    text: str
    at: int


def title_beside(path: Path) -> SidecarTitle | None:
    """Return the title beside the transcript ``path``; None if it is missing or damaged. Without a noted time, it is as
    old as its file."""
    with suppress(OSError, ValueError), open_source(path.with_suffix("") / _TITLE) as file:
        content = file.read(_TITLE_BYTES_MAX + 1)
        found = record_of(decoded(content)) if len(content) <= _TITLE_BYTES_MAX else {}
        if text := _CONTROLS.sub("", as_text(found.get("customTitle"))).strip():
            at = milliseconds(found.get("at"))
            return SidecarTitle(text, os.fstat(file.fileno()).st_mtime_ns // 1_000_000 if at is None else at)
    return None


class AgentCallers:
    """Finds the file of the sub-agent that spawned another one. Each session's directory is read once, on first use."""

    def __init__(self) -> None:
        self._files: dict[Path, dict[str, str]] = {}
        self._mentions: dict[Path, dict[str, str]] = {}

    def path(self, file: Path, keys: Sequence[str]) -> str:
        """Return the file of the sub-agent that spawned the one in ``file``, whose ``spawn_keys`` are ``keys``: the one
        that Claude Code noted, else the first one that mentions it, such as in the result of a call; empty without
        one."""
        folder = agents_folder(file) or file.parent
        if (noted := as_text(_meta(file).get("parentAgentId"))) and (known := self._files_in(folder).get(noted)):
            return known
        mentions = self._mentions_in(folder)
        return next((mentions[key] for key in keys if key in mentions), "")

    def _files_in(self, folder: Path) -> dict[str, str]:
        """Return the files in ``folder`` by sub-agent."""
        if folder not in self._files:
            found = sorted(folder.glob("**/agent-*.jsonl" if folder.name == _FOLDER else "agent-*.jsonl"))
            self._files[folder] = {path.stem.removeprefix("agent-"): str(path) for path in reversed(found)}
        return self._files[folder]

    def _mentions_in(self, folder: Path) -> dict[str, str]:
        """Return the first file in ``folder`` that mentions each sub-agent and workflow."""
        if folder not in self._mentions:
            mentions = self._mentions[folder] = dict[str, str]()
            for path in sorted(self._files_in(folder).values()):
                for name in _mentioned(Path(path)):
                    mentions.setdefault(name, path)
        return self._mentions[folder]


def _mentioned(path: Path) -> set[str]:
    """Return the sub-agents and workflows that a file mentions, except its own agent; none if it cannot be read."""
    found: set[str] = set()
    with suppress(OSError), open_source(path) as file:
        for piece in iter(partial(file.readline, _PIECE_BYTES), b""):
            found.update(name.decode("utf-8", "replace") for name in _NAME.findall(piece))
    return found - {path.stem.removeprefix("agent-")}
