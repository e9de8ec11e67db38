"""Import of transcripts: each source becomes chains of commits in its own format. Each line is committed once;
compactions and branches may repeat it.

The daemon stores a state of each imported source, so that a repeated import reads only changed sources. Existing
commits are recognised by their content, even after a file was rewritten, so that nothing is stored twice.
"""

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

import anyio
import anyio.lowlevel
from anyio.abc import TaskGroup

from ctxd.clock import SystemClock
from ctxd.imports.busy_sources import BusySources
from ctxd.imports.chain_starts import ChainStarts, UnderWay
from ctxd.imports.changed_sources import ChangedSources
from ctxd.imports.commit_batches import CommitBatches, Parent
from ctxd.imports.copy_detection import CopyDetector, copied_to
from ctxd.imports.existing_events import ExistingEvents
from ctxd.imports.existing_events_reading import read_existing_events, read_session_events
from ctxd.imports.handed_over_start import handed_over
from ctxd.imports.import_lock import import_lock
from ctxd.imports.import_result import ImportResult
from ctxd.imports.import_state import ImportState, SourceState
from ctxd.imports.origin_candidates import OriginCandidates
from ctxd.imports.origin_plans import ImportedLines
from ctxd.imports.plan_types import CONTINUED, PLAN_VERSION, PlannedDelta, Start
from ctxd.imports.repeated_lines import RepeatedLines
from ctxd.imports.session_description import TitlesElsewhere, describe_session, directory_of
from ctxd.imports.source_reading import PlannedSource, SourceReading, await_stable, is_grown, keep_cuts, newest_time
from ctxd.imports.transcript_plan import TranscriptPlan
from ctxd.imports.whole_import_check import WholeImportCheck
from ctxd.remedies import reason_of
from ctxd.task_groups import first_of
from ctxd.transcripts.discovery import Transcript, can_continue, in_groups, lines_of
from ctxd.transcripts.format_detection import HEADLESS
from ctxd.transcripts.harness_labels import HARNESS, PARSER
from ctxd.transcripts.harness_names import HARNESS_OF, HarnessCommand
from ctxd.transcripts.session_metadata import SessionFacts
from ctxd.transcripts.transcript_files import Skipped, Stat, is_of_source, source_reason
from ctxd_client.errors import CallFailed, Conflict, InvalidCall, NotFound, Unavailable
from ctxd_protocol.limits import PAGE_ITEMS_MAX
from ctxd_protocol.methods.commits import ImportedDelta
from ctxd_protocol.session_types import SessionView

if TYPE_CHECKING:
    from ctxd_client import Client

_AT_ONCE: Final = 24
"""Groups of sources that are imported concurrently: commits of a chain wait for their parents' ids, and the daemon
takes longer to commit most sources than it takes to plan them."""

_BYTES_PER_CHECKPOINT: Final = 128 * 1024
"""Bytes that are planned between two checkpoints for other tasks."""

_KEPT_PLANS_MAX: Final = 16
"""Plans that are kept from one run to the next, so that a growing file is not read from its start again."""

_QUIET_MS: Final = 3_600_000
"""Milliseconds without an event after which hooks are assumed to report nothing more in an open session."""

_PLANNED_LINES_MAX: Final = 200_000


class TranscriptImport:
    """Import of the transcripts of one harness."""

    def __init__(
        self,
        client: "Client",
        harness: HarnessCommand,
        *,
        dry_run: bool = False,
        watch: bool = False,
        progress: Callable[[str], None],
        note: Callable[[str], None] | None = None,
    ) -> None:
        """``watch``: ``run`` will be called again, so the newest plans are kept. ``note`` is called if another import
        has to end first, ``progress`` without it."""
        self._client = client
        self._harness = harness
        self._dry_run = dry_run
        self._progress = progress
        self._note = note or progress
        self._clock = SystemClock()
        self._state = ImportState(client, harness, saved_every_s=60.0 if watch else 10.0)
        self._states = self._state.sources
        self._sources = ChangedSources(harness, self._state)
        self._sessions: set[str] = set()
        # The sessions without events of their own, as read in this run; None for one that it has created.
        self._listed: dict[str, SessionView | None] = {}
        self._plans: dict[str, PlannedSource] = {}
        self._planned_lines = 0
        self._is_watch = watch
        self._live: dict[str, PlannedSource] = {}
        self._checks: dict[str, WholeImportCheck] = {}
        self._busy = BusySources()
        self._waiting: dict[str, Transcript] = {}
        self._tasks: TaskGroup | None = None
        """The tasks of the run in progress, which send commits."""
        self._origins = OriginCandidates(self._state)
        self._starts = ChainStarts(client, self._origins, self._ensure_imported)
        self._repeated = RepeatedLines(client, self._sources, self._plans)
        self._titles = TitlesElsewhere()
        self.result = ImportResult(harness, dry_run)

    async def run(self, places: Sequence[Path]) -> ImportResult:
        """Import new and changed sources in ``places``, once no other import is running. Returns the outcome.

        Raises: CallFailed if the daemon cannot be reached. Cancel: safe; the next import recognises the commits made.
        """
        if self._dry_run:
            return await self._run(places)
        async with import_lock(self._client.socket, self._harness, self._clock, self._note):
            return await self._run(places)

    async def _run(self, places: Sequence[Path]) -> ImportResult:
        self.result = ImportResult(self._harness, self._dry_run)
        self._listed = {}
        self._starts.begin_run()
        self._repeated.begin_run()
        states = await self._state.load()
        # Origins come before their copies, so that the common lines belong to the origin's session.
        live = {path: planned.stat for path, planned in self._live.items()}
        changed = self._sources.find(places, live, self.result)
        # Runs that continue a session come after the earlier ones.
        found = sorted(changed, key=lambda source: (bool(source.agent), source.is_copy, _run_ended_ns(source)))
        self._state.follow_renames()
        for path in self._state.in_order(path for path in states if states[path].number):
            self._origins.enter(path, states[path])
        self._waiting = {source.path: source for source in found}
        for source in found:
            self._origins.enter(source.path, source)
        groups = in_groups([*self._waiting.values()])
        self.result.sources += len(self._waiting)
        left = iter(groups)
        try:
            async with anyio.create_task_group() as tasks:
                self._tasks = tasks
                for _ in range(min(_AT_ONCE, len(groups))):
                    tasks.start_soon(self._import_groups, left)
        except BaseExceptionGroup as failed:
            # Once the daemon is gone, or refuses the calls, all tasks fail alike: one of their errors is enough.
            gone, others = failed.split(CallFailed)
            if gone is None or others is not None:
                raise
            raise first_of(gone) from None
        finally:
            self._tasks = None
        for path in [*self._plans]:  # Plans of origins, whose files may change before the next run.
            self._take_plan(path)
        await self._titles.store(self._client)
        self._sources.note_databases(self.result)
        # The order of new sources decides which of them are copies: save it, in case this import is killed.
        await self.save(when_due=self._is_watch and not self._state.has_new)
        self.result.sessions = sorted(set(self.result.sessions))
        # A source in which several others begin was tried for each of them.
        self.result.skipped = [*dict.fromkeys(self.result.skipped)]
        return self.result

    async def save(self, *, when_due: bool) -> None:
        """Save the import state, unless this is a dry run; ``when_due``: not if it was saved a short while ago.

        Raises: CallFailed.
        """
        if not self._dry_run:
            await self._state.save(when_due=when_due)

    async def _import_groups(self, left: Iterator[list[str]]) -> None:
        for group in left:
            for path in group:
                await self._ensure_imported(path)
                await self.save(when_due=True)
            for path in group:
                planned = self._take_plan(path)
                if planned is not None and self._is_watch and not planned.done.is_within_copy:
                    self._live[path] = planned
            while len(self._live) > _KEPT_PLANS_MAX:
                self._live.pop(next(iter(self._live)))

    # --- sources ---

    def _skip(self, path: str, reason: str) -> None:
        self.result.skipped.append(Skipped(path, reason))

    async def _ensure_imported(self, path: str) -> PlannedSource | None:
        """Return the plan of a source, imported if necessary; None if it cannot be read, or if its own import needs
        the requesting source."""
        if not await self._busy.is_free(path):
            return None
        if path in self._plans:
            return self._plans[path]
        if (source := self._waiting.get(path) or self._sources.find_again(path)) is None:
            return None
        try:
            with self._busy.importing(path):
                planned = await self._import_source(source)
        except (Unavailable, anyio.get_cancelled_exc_class()):
            raise
        except CallFailed as error:
            if error.code == "method_not_found":  # Refused to this connection, for every source.
                raise
            self._skip(path, reason_of(error))
            return None
        except Exception as error:
            # Such as a damaged database, a damaged zstd frame, or a file that is gone.
            if not is_of_source(error):
                raise
            self._skip(path, source_reason(error))
            return None
        finally:
            self._waiting.pop(path, None)
        self._plans[path] = planned
        self._planned_lines += planned.plan.size
        while self._planned_lines > _PLANNED_LINES_MAX and len(self._plans) > 1:
            self._take_plan(next(iter(self._plans)))
        return planned

    def _take_plan(self, path: str) -> PlannedSource | None:
        planned = self._plans.pop(path, None)
        self._planned_lines -= 0 if planned is None else planned.plan.size
        return planned

    # --- one source ---

    async def _import_source(self, source: Transcript) -> PlannedSource:
        """Commit the lines of a source that are not committed yet. Raises: as reading the source; CallFailed."""
        state = self._states[source.path]
        last = (self._live.get(source.path) or state).stat
        is_stamped = source.stored is not None and source.stored.stamp
        stat = None if is_stamped else await await_stable(source.file, last, self._clock)
        existing = await self._existing_events(source, state)
        planned, copies = await self._new_or_kept_plan(source, state, stat, existing)
        if not planned.is_continuation:
            await keep_cuts(self._client, source, planned.done)
        await self._learn_ends(planned)
        planned.plan.existing, left_out_before = existing, 0 if existing is None else existing.left_out
        for delta in _deltas(planned, copies):
            if delta is None:
                await self._continue_comparison(source, copies)
                await anyio.lowlevel.checkpoint()
            else:
                await self._deliver(planned, delta)
        assert self._tasks is not None, "a run is in progress"
        await planned.batches.finish(self._tasks)
        if made := planned.batches.take_made():
            self.result.sessions.append(source.session)
        self.result.commits += made
        if source.path in self._waiting:
            await self._record_outcome(planned, made)
            self.result.recorded += 0 if existing is None else existing.left_out - left_out_before
        return planned

    async def _new_or_kept_plan(
        self, source: Transcript, state: SourceState, stat: Stat | None, existing: ExistingEvents | None
    ) -> tuple[PlannedSource, CopyDetector]:
        """Return the plan of a source: the kept one if the file has only grown since, else a new one."""
        live = self._live.pop(source.path, None)
        # The state is ahead of the plan of a file that was read under another name, or by another import, meanwhile.
        is_behind = live is not None and (live.done.size != state.size or source.path in self._state.merged)
        self._state.merged.discard(source.path)
        live = None if is_behind or (existing is not None and existing.is_completed) else live
        if live is None or not is_grown(live.stat, stat) or not can_continue(source, live.done.size, live.done.tail):
            start = await self._starts.start(source, state, existing)
            plan = TranscriptPlan(source.format, source.path, start=start, agent=source.agent)
            batches = CommitBatches(self._client, source.session, source.format, state.commits, dry_run=self._dry_run)
            facts = SessionFacts(source.format, is_agent=bool(source.agent))
            done = SourceReading(state, facts, start)
            if (before := await self._imported_before(source, state)) is not None:
                return PlannedSource(source, plan, batches, done, stat, is_continuation=True), CopyDetector(
                    source, (source, before)
                )
            # A hand-over to the same harness repeats messages of the session that it continues.
            is_written = existing is not None and existing.written > 0
            copies = CopyDetector(source, None) if is_written else await self._copies(source)
            return PlannedSource(source, plan, batches, done, stat), copies
        live.done.continue_reading(live.plan)
        if existing is not None and live.plan.existing is not None:
            existing.take_over(live.plan.existing)
        return live._replace(stat=stat), CopyDetector(source, None)

    async def _learn_ends(self, planned: PlannedSource) -> None:
        """Make deltas end where those of other imports of the session do that the state lacks: imports that were
        killed, or are running now. A commit is recognised by its whole delta only. Raises: CallFailed."""
        source, done = planned.source, planned.done
        known = set(done.state.commits.values())
        ends, newest = await self._state.session_ends(source.session, newest_only=bool(done.listed_tx))
        found = [commit for commit, tx in ends[source.agent[:256]] if tx > done.listed_tx and commit not in known]
        done.listed_tx = max(done.listed_tx, newest)
        for path in self._origins.of_session(source, source.session) if found else ():
            known = set(self._states[path].commits.values())
            found = [commit for commit in found if commit not in known]
        while found:
            deltas = (await self._client.commit_deltas(found[:PAGE_ITEMS_MAX])).deltas
            for each in deltas:
                if each.data is not None:
                    done.learn(each.data)
            found = found[max(1, len(deltas)) :]

    async def _existing_events(self, source: Transcript, state: SourceState) -> ExistingEvents | None:
        """Return the events that the session of a source already has, usually from its hooks; None without any.

        Raises: UnderWay while hooks may still be recording events that the source already has; CallFailed.
        """
        if source.session in self._listed:
            return None
        try:
            session = (await self._client.session_get(source.session)).session
        except NotFound:
            return None
        events = await read_session_events(self._client, source.session)
        written, begun = handed_over(source, session.labels)
        if not events and not written:
            self._listed[source.session] = session
            return None
        last = max((event.at for event in events if event.at is not None), default=session.updated_at)
        if session.state == "active" and min(last, session.updated_at) > self._clock.wall_ms() - _QUIET_MS:
            self._starts.under_way.add(source.path)
            raise UnderWay(
                f"{source.session} has events of the last hour, and hooks may be recording more: import it again once "
                f"it is paused (ctx session pause {source.session})"
            )
        return await read_existing_events(
            self._client, self._clock, source, state, events[begun:], written, self._checks, dry_run=self._dry_run
        )

    async def _record_outcome(self, planned: PlannedSource, made: int) -> None:
        """Update the state of a source that was read to its end, and add its new content to the result. ``made``: the
        number of its new commits."""
        source, plan, done = planned.source, planned.plan, planned.done
        state, result = done.state, self.result
        is_rewritten = bool(state.size) and not done.is_same
        # Imports read the sources of an interrupted watch again.
        is_known = bool(state.size) and done.is_same and done.size == state.size and not made
        result.imported, result.unchanged = result.imported + (not is_known), result.unchanged + is_known
        result.rewritten += is_rewritten
        before = Counter[str]() if is_rewritten else done.counted
        for kind, number in (plan.counts - before).items():
            result.events[kind] = result.events.get(kind, 0) + number
        result.lines += done.lines if is_rewritten else done.lines - done.lines_before
        result.bytes += done.size if is_rewritten else done.size - state.size
        result.copied += plan.copied - (0 if is_rewritten else done.copied_before)
        if self._dry_run:
            return
        if plan.copied and not plan.made:
            await self._create(source)
            end = plan.at_line(plan.size - 1)
            state.newest = "" if end.repeated else (await self._parent(planned, end)).commit or ""
        if done.is_within_copy and plan.outside:
            # Its origin may be gone once it has lines of its own.
            state.copy_end = copied_to(plan)
        changed_at = self._changed_at(planned)
        self._titles.note(planned.source.session, planned.done.facts)
        await describe_session(self._client, planned, self._listed, self._states, changed_at=changed_at)
        state.cuts = [*(state.cuts if not is_rewritten else ()), done.size]
        state.cuts, state.ends = sorted(set(state.cuts)), sorted(done.ends)
        state.size, state.digest = done.size, done.digest()
        state.parser, state.planned_before = PLAN_VERSION, 0 if is_rewritten else done.planned_before
        if plan.existing is None:
            state.unrecorded = done.size
        else:
            state.continued_at = plan.existing.continued_at
            if plan.existing.is_completed:
                state.whole, state.continued = plan.existing.whole, ""
                state.whole_lines = bisect_left(plan.starts, state.whole)
        # The bytes that were not read again may have changed: an import without a kept plan must read all.
        state.stat = None if done.is_continued else planned.stat
        state.stamp = source.stored.stamp if source.stored is not None else ""
        state.session, state.agent, state.root = source.session, source.agent, source.root
        if state.start is None and (source.agent or source.is_spawned):
            begin = await self._parent(planned, done.start)
            state.start = Start(repeated=done.start.repeated, commit=begin.commit)
        if (last := plan.at_spawn()).source == source.path and last.tip is not None:
            state.newest = planned.batches.ids[last.tip - 1]
        self._state.note(source.path)
        self._origins.note_imported(source.path, source.root)
        self._progress(f"{result.imported}/{result.sources - result.unchanged} {source.path}")

    async def _copies(self, source: Transcript) -> CopyDetector:
        """Return the comparison of a source with the one whose beginning it may repeat, or after which it may begin."""
        paths = self._origins.of_copy(source)
        # The newest run that has continued the session.
        for path in reversed([*paths]) if source.format in HEADLESS else paths:
            # Events that a session has from its hooks are in no commit of its transcript.
            if (origin := await self._ensure_imported(path)) is not None and origin.plan.existing is None:
                return CopyDetector(source, (origin.source, origin.plan))
        return CopyDetector(source, None)

    async def _imported_before(self, source: Transcript, state: SourceState) -> ImportedLines | None:
        """Return the imported lines of a copy whose origin is gone, as Claude Code removes old files, or is such a copy
        itself; None for other sources, and for a rewritten one."""
        if state.copy_end is None or not state.newest:
            return None
        origin = await self._ensure_imported(state.copy_end.path) if state.copy_end.path != source.path else None
        if origin is not None and not origin.is_continuation:
            return None
        with suppress(ValueError):
            return ImportedLines(source, state.size, state.digest, state.newest)
        return None

    async def _continue_comparison(self, source: Transcript, copies: CopyDetector) -> None:
        """If a copy leaves its origin, continue the comparison with another source that left it at the same line."""
        if (end := copies.end) is None:
            return
        path = self._origins.going_on(source, end) or end.path
        other = await self._ensure_imported(path) if path not in (source.path, copies.origin.path) else None
        if other is not None and other.plan.existing is None:
            copies.continue_comparison(other.source, other.plan, after=end.place if path == end.path else None)
        else:
            self._origins.note_end(source, end)

    # --- commits ---

    async def _deliver(self, planned: PlannedSource, delta: PlannedDelta) -> None:
        """Queue the commit of a delta unless it exists. Raises: CallFailed, also for an earlier delta."""
        parent = await self._parent(planned, delta.parent)
        lines = await self._repeated.content(planned, delta, parent, dry_run=self._dry_run)
        batches, existing = planned.batches, planned.plan.existing
        is_wanted = existing is None or not existing.hides_context(delta)
        is_newest = existing is not None and existing.note_beginning(delta)
        if not batches.add(delta, parent, lines, is_wanted=is_wanted) or self._dry_run:
            return
        await self._create(planned.source)
        batches.put(self._imported_delta(planned, delta, len(lines), is_newest), parent, lines)
        if batches.is_full:
            assert self._tasks is not None, "a run is in progress"
            await batches.send(self._tasks)

    def _changed_at(self, planned: PlannedSource) -> int | None:
        """Return the time of the last change of a source, in ms; None without one, or if it is in the future."""
        at = -1 if planned.stat is None else planned.stat.changed_ns // 1_000_000
        return at if 0 <= at < self._clock.wall_ms() else None

    def _imported_delta(self, planned: PlannedSource, delta: PlannedDelta, size: int, is_newest: bool) -> ImportedDelta:
        now = self._clock.wall_ms()
        state = planned.done.state
        if delta.at is not None and 0 <= delta.at < now:
            valid_time = max(delta.at, state.undated)
        else:
            # Lines without a time, or with an impossible one, get the time of the file's last change.
            changed = self._changed_at(planned)
            state.undated = valid_time = max(state.undated, now if changed is None else changed)
        if (end := self._conversation_end(planned, delta)) is not None:
            # A sub-agent that outlasts the conversation must not become the newest commit, from which the session
            # continues. In a watch, the conversation is still under way and continues after its sub-agents.
            valid_time = max(0, min(valid_time, end - 1))
        if (existing := planned.plan.existing) is not None and is_newest:
            # Newer than the commits of the hooks, so that the session continues from it.
            valid_time = max(existing.before, valid_time)
        elif existing is not None and not delta.is_continued:
            valid_time = min(existing.before - 1, valid_time)
        messages, tokens = delta.counts if delta.counts is not None else (None, None)
        return ImportedDelta(
            size=size,
            commit_type="compaction" if delta.is_compaction else "delta",
            checkpoint=delta.trigger,
            thread_id=delta.agent[:256],
            summary=delta.summary,
            message_count=messages,
            token_count=tokens,
            valid_time=valid_time,
        )

    def _conversation_end(self, planned: PlannedSource, delta: PlannedDelta) -> int | None:
        """Return the end of the conversation whose sub-agent made ``delta``, in ms since 1970; None if it is not known,
        may not be its end yet, or for other deltas. Raises: as ``lines_of``."""
        if self._is_watch:
            return None
        if planned.source.agent:
            return self._starts.conversation_ends.get(planned.source.session)
        if not delta.agent:
            return None
        if (done := planned.done).conversation_end is None and delta.trigger != "session_end":
            done.conversation_end = newest_time(planned)
        return planned.plan.newest if done.conversation_end is None else done.conversation_end

    async def _parent(self, planned: PlannedSource, start: Start) -> Parent:
        if start.tip is None or start.commit is not None:
            return Parent(commit=start.commit, key=start.commit or "")
        if start.tip == CONTINUED.tip:
            own = None if planned.plan.existing is None else planned.plan.existing.newest
            return Parent(commit=own, key=own or "")
        if start.source == planned.source.path:
            return Parent(start.tip, key=planned.batches.key_of(start.tip))
        found = await self._ensure_imported(start.source)
        if found is None:
            return Parent()
        commit = found.batches.ids[start.tip - 1]
        return Parent(commit=commit, key=commit)

    async def _create(self, source: Transcript) -> None:
        """Create the session of a source, paused, unless it exists. Raises: CallFailed."""
        if source.session in self._sessions:  # No race: all sources of a session are in one group.
            return
        agent = HARNESS_OF[self._harness]
        labels = {HARNESS: agent, PARSER: f"{source.format}-v1/{PLAN_VERSION}", **source.labels}
        # An open session would become the default of every command.
        create = partial(
            self._client.session_create, agent, session=source.session, labels=labels, checkpoint="turn",
            state="paused", archived=bool(source.hidden),
        )  # fmt: skip
        with suppress(Conflict):
            try:
                await create(workdir=directory_of(source.workdir))
            except InvalidCall:
                await create()
            self._listed[source.session] = None
        self._sessions.add(source.session)


def _run_ended_ns(source: Transcript) -> int:
    """Return the time of the last change of headless output; 0 for other sources."""
    with suppress(OSError):
        return source.file.stat().st_mtime_ns if source.format in HEADLESS else 0
    return 0


def _deltas(planned: PlannedSource, copies: CopyDetector) -> Iterator[PlannedDelta | None]:
    """Yield the deltas of unread lines; None when other tasks are due, or when ``copies`` has reached an end."""
    source, plan, done = planned.source, planned.plan, planned.done
    copies.ends_delta = done.note_learnt_end
    unseen = 0
    for line in lines_of(source, done.size):
        unseen += len(line.source)
        if unseen > _BYTES_PER_CHECKPOINT:
            yield None
            unseen = 0
        plan.keeps_cuts = line.end <= done.planned_before
        yield from copies.taken(plan, line)
        if done.take(line):
            yield from copies.cut(plan)
        elif done.note_learnt_end(line, plan.pending):
            yield from plan.end_delta()
        if done.is_level:
            done.counted, done.copied_before = plan.counts.copy(), plan.copied
    # The comparison of a copy that is still being written begins again.
    done.is_within_copy = copies.is_copy
    yield from copies.rest(plan)
    yield from plan.flush()
