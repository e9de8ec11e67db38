"""Starts of imported chains: the places in the sources that spawned others, or that others continue.

This reads the plans of other sources, and the commits of earlier versions.
"""

from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import TYPE_CHECKING

from ctxd.imports.existing_events import ExistingEvents
from ctxd.imports.import_state import SourceState
from ctxd.imports.origin_candidates import OriginCandidates
from ctxd.imports.origin_plans import LinesToRepeat
from ctxd.imports.plan_types import Start
from ctxd.imports.source_reading import PlannedSource
from ctxd.imports.transcript_plan import TranscriptPlan
from ctxd.transcripts.claude_sidecars import AgentCallers
from ctxd.transcripts.discovery import Transcript
from ctxd.transcripts.transcript_files import SourceSkipped
from ctxd_client.errors import NotFound

if TYPE_CHECKING:
    from ctxd_client import Client


class UnderWay(SourceSkipped):
    """Hooks may still be recording the session of the source."""


class ChainStarts:
    """The starts of the sources of one harness. ``planned``: returns the plan of the source at a path, imported if
    necessary, or None if it cannot be read."""

    def __init__(
        self, client: "Client", origins: OriginCandidates, planned: Callable[[str], Awaitable[PlannedSource | None]]
    ) -> None:
        self._client = client
        self._origins = origins
        self._planned = planned
        self._callers = AgentCallers()
        self.under_way: set[str] = set()
        """Paths of the sources whose sessions hooks may still be recording, as noted in this run."""
        self.conversation_ends: dict[str, int] = {}
        """The end of each session's conversation in which a sub-agent begins, in ms since 1970."""

    def begin_run(self) -> None:
        """Forget the callers and the recorded sessions of the run before, as files may have changed."""
        self._callers, self.under_way = AgentCallers(), set()

    async def start(self, source: Transcript, state: SourceState, existing: ExistingEvents | None) -> Start:
        """Return where the first chain of a source begins; a start without a commit for one that has its own root.

        ``existing``: the events that its session has. ``state.start`` is set if it repeats the lines of its origin.
        Raises: UnderWay if hooks may still be recording the session in which it begins; CallFailed.
        """
        others = source.parent if source.parent != source.session else ""
        parent = source.session if source.agent else others
        if not parent and source.base is None:
            return Start()
        near: Start | None = None
        for path in self._origins.of_session(source, parent or source.session):
            origin = await self._planned(path)
            if path in self.under_way:
                raise UnderWay(f"{parent or source.session}, in which it began, is recorded as it runs")
            if origin is None:
                continue
            if source.base is not None:
                # If a thread has several files, the right one has a line that ends at this byte.
                start, is_line_end = _start_of_fork(source, state, existing, origin)
                if is_line_end:
                    return start
                near = near or start
            elif source.agent or source.is_spawned:
                if source.agent and origin.plan.newest is not None:
                    self.conversation_ends[source.session] = origin.plan.newest
                known = await self._known_start(source, state)
                caller = await self._caller(source, origin.plan)
                keys = source.spawn_keys or (source.native,)
                return known or caller.at_spawn(*keys, began=source.began, after=source.after)
        return near or await self._known_start(source, state) or Start()

    async def _known_start(self, source: Transcript, state: SourceState) -> Start | None:
        """Return where an earlier import has begun the chain of a sub-agent; None for other sources and a new one."""
        if not state.size or not (source.agent or source.is_spawned):
            return None
        if state.start is not None:
            return state.start
        # An earlier version has imported it: its first commit has the start as parent.
        made, commit = set(state.commits.values()), next(iter(state.commits.values()), None)
        with suppress(NotFound):
            while commit in made:
                commit = (await self._client.commit_show(commit)).commit.parent or None
            return Start(commit=commit)
        return None

    async def _caller(self, source: Transcript, conversation: TranscriptPlan) -> TranscriptPlan:
        """Return the plan with the call that spawned a sub-agent: another sub-agent's, else the conversation's."""
        keys = source.spawn_keys
        if not source.agent or conversation.spawning.line(keys) is not None:
            return conversation
        path = self._callers.path(source.file, keys)
        caller = await self._planned(path) if path else None
        return conversation if caller is None or caller.plan.spawning.line(keys) is None else caller.plan


def _start_of_fork(
    source: Transcript, state: SourceState, existing: ExistingEvents | None, origin: PlannedSource
) -> tuple[Start, bool]:
    """Return the start of a source that continues ``origin`` at a byte, and True if a line ends there. It repeats the
    lines up to there if the commits of ``origin`` lack what hooks have recorded; one that an earlier import has chosen
    stays. Raises: as ``lines_of``."""
    end, has = source.base or 0, origin.plan.existing
    if source.is_spawned:
        return origin.plan.at_byte(end)
    is_own = existing is None or existing.is_completed
    if is_own and state.start is None and (not state.size or existing is not None):
        is_lacking = has is not None and end > has.imported_whole and origin.source.session != source.session
        state.start = Start(origin.source.path) if is_lacking else None
    if state.start is not None:
        return LinesToRepeat(origin.source, end, start=origin.done.start).at_byte(end)
    return origin.plan.at_byte(end)
