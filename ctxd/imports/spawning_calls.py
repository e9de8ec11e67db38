"""The calls of a transcript that spawned sub-agents, and the names by which their files are found. Pure.

This knows neither chains nor commits.
"""

import re
from collections.abc import Iterable, Iterator
from typing import Final

from ctxd.transcripts.record_decoding import Record, as_text, record_of
from ctxd_protocol.event_types import Event, OpaqueEvent, ToolCallEvent, ToolResultEvent

_SPAWNING: Final = frozenset({"Task", "Agent", "Workflow", "task", "spawn_agent", "subagent"})
"""Tools that start a sub-agent, or several."""

_STARTED: Final = frozenset({"event_msg.sub_agent_activity", "event_msg.collab_agent_spawn_end"})
"""Events of codex that name a new sub-agent and its call, whose result may have no name that its file has too."""

_TASK: Final = re.compile(r'"task_name":\s*"(/[^"\\]+)"')
_UUID: Final = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")


class SpawningCalls:
    """The calls of one source that spawned sub-agents, with the places of their lines."""

    def __init__(self) -> None:
        self._calls: dict[str, int] = {}
        self._results: dict[str, list[int]] = {}

    def __contains__(self, call: str) -> bool:
        return call in self._calls

    def note(self, events: Iterable[Event], place: int) -> bool:
        """Note the calls and results in the line at ``place``. A call that continues a sub-agent did not spawn it.
        Returns: True if ``events`` have a call that spawns sub-agents."""
        is_spawning = False
        for event in events:
            if isinstance(event, ToolCallEvent):
                if event.tool in _SPAWNING:
                    self._calls[event.call] = place
                    is_spawning = True
            elif isinstance(event, ToolResultEvent) and (call := self._calls.get(event.call or "")) is not None:
                for name in _spawned_in(event):
                    self._results.setdefault(name, []).append(call)
            elif isinstance(event, OpaqueEvent) and event.kind in _STARTED:
                started, spawner = _started_in(record_of(event.data))
                if started:
                    self._results.setdefault(started, []).append(self._calls.get(spawner, place))
        return is_spawning

    def line(self, keys: Iterable[str], last: int | None = None) -> int | None:
        """Return the place of the call of the sub-agent with these ``keys`` (``Transcript.spawn_keys``), if any.

        codex may use the name of a task for several sub-agents, one after the other. Of their calls, this is the last
        one up to the place ``last``.
        """
        for key in keys:
            if (call := self._calls.get(key)) is not None:
                return call
            if found := self._results.get(key):
                return max((place for place in found if last is not None and place <= last), default=found[0])
        return None


def _spawned_in(result: ToolResultEvent) -> Iterator[str]:
    """Yield the sub-agents and the workflow that a ``result`` names, most reliable first."""
    match result.meta:
        case {"toolUseResult": {"agentId": str(name)} | {"runId": str(name)}}:
            yield name
        case {"metadata": {"sessionId": str(name)} | {"sessionID": str(name)}}:
            yield name
    yield from _UUID.findall(result.text[:4096])
    yield from _TASK.findall(result.text[:4096])


def _started_in(data: Record) -> tuple[str, str]:
    """Return the thread of a new sub-agent of codex and the call that spawned it; empty for other activities."""
    if data.get("kind", "started") != "started":
        return "", ""
    thread = as_text(data.get("agent_thread_id")) or as_text(data.get("new_thread_id"))
    return thread, as_text(data.get("event_id")) or as_text(data.get("call_id"))
