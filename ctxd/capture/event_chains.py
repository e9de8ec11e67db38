"""Chains of commits from the events of a whole transcript: one of the conversation, and one of each sub-agent. Pure.

The chain of a sub-agent begins at the commit with the tool call that spawned it. A file with several sessions yields
several conversations.
"""

from collections.abc import Iterable, Iterator, Set
from typing import Final, NamedTuple

from ctxd.capture.stream_checkpoints import DEFAULT_POLICY, Checkpoint, CheckpointTracker, Trigger
from ctxd_protocol.event_types import Event, OpaqueEvent, ToolCallEvent, ToolResultEvent

_SESSION: Final = "session"
"""Kind of the opaque event that begins a session in a file with several sessions."""


class PlannedCommit(NamedTuple):
    """A planned commit. ``number`` counts from 1; ``parent`` is the number of an earlier one, None for a root.

    ``sidechain``: the sub-agent whose commit it is. ``at``: the latest time of an event so far, in ms since 1970.
    """

    number: int
    parent: int | None
    sidechain: str | None
    checkpoint: Checkpoint
    at: int | None


class _Chain:
    """The chain of one conversation: its tracker, its newest commit, and the tool calls of the delta in progress."""

    def __init__(self, tracker: CheckpointTracker, newest: int | None) -> None:
        self.tracker = tracker
        self.newest = newest
        self.calls: list[str] = []


class EventChains:
    """Plan of the commits of one transcript under a policy; see ``CheckpointTracker``.

    Memory: one delta of each chain, and one number for each tool call.
    """

    def __init__(self, policy: Set[Trigger] = DEFAULT_POLICY, *, every: int = 1) -> None:
        self._policy = policy
        self._every = every
        self._made = 0
        self._at: int | None = None
        self._begin()

    def _begin(self) -> None:
        self._chains: dict[str | None, _Chain] = {}
        self._commit_of_call: dict[str, int] = {}
        self._call_of_agent: dict[str, str] = {}

    def commits(self, events: Iterable[Event]) -> Iterator[PlannedCommit]:
        """Yield the commits of ``events``, each after its parent. Each event is in one of them, in order."""
        for event in events:
            if isinstance(event, OpaqueEvent) and event.kind == _SESSION:
                yield from self._end()
            if event.at is not None:
                self._at = max(self._at or 0, event.at)
            name = event.sidechain
            if name not in self._chains:
                parent = None
                if name is not None:
                    yield from self._spawning(name)
                    parent = self._spawned_at(name)
                tracker = CheckpointTracker(self._policy, every=self._every, sidechain=name)
                self._chains[name] = _Chain(tracker, parent)
            chain = self._chains[name]
            if isinstance(event, ToolCallEvent) and event.call:
                chain.calls.append(event.call)
            if isinstance(event, ToolResultEvent):
                self._note_agent(event)
            yield from self._planned(name, chain.tracker.add([event]))
        yield from self._end()

    def _note_agent(self, event: ToolResultEvent) -> None:
        match event.meta:
            case {"toolUseResult": {"agentId": str(agent)}} if event.call:
                self._call_of_agent[agent] = event.call

    def _spawning(self, name: str) -> Iterator[PlannedCommit]:
        """Cut the delta with the call that spawned ``name``, so that its commit can be the parent."""
        for other, chain in list(self._chains.items()):
            is_caller = self._call_of_agent.get(name, name) in chain.calls
            if is_caller or (other is None and self._spawned_at(name) is None):
                yield from self._planned(other, chain.tracker.cut("explicit"))

    def _spawned_at(self, name: str) -> int | None:
        """The commit with the call that spawned ``name``; the newest of the conversation if the call is unknown."""
        call = self._call_of_agent.get(name, name)
        main = self._chains.get(None)
        return self._commit_of_call.get(call, None if main is None else main.newest)

    def _planned(self, name: str | None, found: Iterable[Checkpoint]) -> Iterator[PlannedCommit]:
        chain = self._chains[name]
        for checkpoint in found:
            self._made += 1
            yield PlannedCommit(self._made, chain.newest, name, checkpoint, self._at)
            chain.newest = self._made
            if not checkpoint.is_compaction:
                self._commit_of_call |= dict.fromkeys(chain.calls, self._made)
                chain.calls = []

    def _end(self) -> Iterator[PlannedCommit]:
        for name, chain in list(self._chains.items()):
            yield from self._planned(name, chain.tracker.cut("session_end"))
        self._begin()
