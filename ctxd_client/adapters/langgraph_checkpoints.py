"""LangGraph's threads as commits: each checkpoint and each task's writes are a commit of the thread's session.

A checkpoint's commit has the changes of channel values since the previous checkpoint, whose commit is its parent. It is
a snapshot of all values instead once the deltas since the last snapshot take as many bytes. A thread therefore takes at
most twice the bytes of its changes. Without I/O: see ``commit_log``.
"""

import hashlib
import secrets
from bisect import bisect_left, insort
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, Final, NamedTuple

import msgspec

from ctxd_client.adapters.commit_log import (
    REMOVAL,
    BoundedCache,
    CommitLog,
    CommitLogs,
    Steps,
    as_label,
    create_session,
    note_removal,
    remove_session,
    session_name,
    sessions_of,
)
from ctxd_client.adapters.langgraph_deltas import ValueDelta, Values, ValueWalk, difference
from ctxd_protocol.methods.commits import Commit

AGENT: Final = "langgraph"
"""The agent of the sessions that contain threads."""

CHECKPOINT: Final = "langgraph-checkpoint-v1"
WRITES: Final = "langgraph-writes-v1"
"""Formats of deltas."""

_CHECKPOINT_ID_MAX: Final = 256
"""Maximum length of a checkpoint's id, in characters."""

_NAME_MAX: Final = 200
_STATES_BYTES: Final = 64 * 1024 * 1024
_WALKS_MAX: Final = 4
_TRIED_MAX: Final = 64
_COPIED_AT_ONCE: Final = 100


class CheckpointFrame(msgspec.Struct, frozen=True, array_like=True, tag="checkpoint"):
    """The delta of a checkpoint. ``state``: the serialised checkpoint without its values, and its metadata.

    ``base``: the commit whose values the ``deltas`` change, None if they are a snapshot of all values; ``spent``: bytes
    of deltas since the last snapshot. ``run``: the id of its run. ``nonce``: makes every frame unique, since equal
    contents would be discarded together.
    """

    thread: str
    namespace: str
    id: str
    parent: str | None
    base: str | None
    kind: str
    state: bytes
    deltas: list[ValueDelta]
    gone: list[str]
    spent: int
    run: str | None
    nonce: bytes


class OneWrite(msgspec.Struct, frozen=True, array_like=True):
    """A write of a task: its number within the task, its channel, and its serialised value."""

    number: int
    channel: str
    kind: str
    data: bytes


class WritesFrame(msgspec.Struct, frozen=True, array_like=True, tag="writes"):
    """The delta of the writes of a task. ``replaces``: they replace earlier writes with the same numbers."""

    thread: str
    namespace: str
    id: str
    task: str
    path: str
    replaces: bool
    writes: list[OneWrite]
    nonce: bytes


_ENCODE: Final = msgspec.msgpack.Encoder().encode
_CHECKPOINT_DECODER: Final = msgspec.msgpack.Decoder(CheckpointFrame)
_WRITES_DECODER: Final = msgspec.msgpack.Decoder(WritesFrame)


class CheckpointPlace(NamedTuple):
    """The key of a checkpoint: thread and namespace by their names in commits, and its id."""

    thread: str
    namespace: str
    id: str


class ReadCheckpoint(NamedTuple):
    """A checkpoint without its values: its commit, its frame, and the writes pending for the next checkpoint."""

    commit: str
    frame: CheckpointFrame
    writes: list[WritesFrame]


class FoundCheckpoint(NamedTuple):
    """A checkpoint that was read: its frame, its values, and the tasks' writes pending for the next checkpoint, in the
    order of their commits."""

    frame: CheckpointFrame
    values: Values
    writes: list[WritesFrame]


class NewCheckpoint(NamedTuple):
    """A checkpoint to add, with all its values."""

    thread: str
    namespace: str
    id: str
    parent: str | None
    kind: str
    state: bytes
    values: Values
    run: str | None
    summary: str


class _ValuesAt(NamedTuple):
    """The values of a checkpoint, and the bytes of deltas that lead to them."""

    values: Values
    spent: int


class ThreadIndex:
    """Checkpoints and writes of one session, by place; for a checkpoint that was put twice, the last one."""

    def __init__(self) -> None:
        self.commits: dict[CheckpointPlace, str] = {}
        self.writes: dict[CheckpointPlace, list[str]] = {}
        self.places: dict[str, CheckpointPlace] = {}
        self._bases: dict[str, str | None] = {}
        self._ids: dict[tuple[str, str], list[str]] = {}

    def add(self, commit: Commit) -> bool:
        """Add a commit. Returns: False for a notice that earlier commits are being, or have been, removed."""
        if commit.artifact_ref is None:
            return True
        place = CheckpointPlace(commit.thread_id, commit.template, commit.ticket_id)
        if commit.format == WRITES:
            self.writes.setdefault(place, []).append(commit.commit)
        elif commit.format == CHECKPOINT:
            if place not in self.commits:
                insort(self._ids.setdefault((place.thread, place.namespace), []), place.id)
            self.commits[place] = commit.commit
            self.places[commit.commit] = place
            self._bases[commit.commit] = commit.parent if commit.commit_type == "delta" else None
        return commit.format != REMOVAL

    def chain(self, commit: str) -> list[str]:
        """A checkpoint's commit and the commits that its values depend on, the snapshot last."""
        chain = [commit]
        while (base := self._bases.get(chain[-1])) is not None:
            chain.append(base)
        return chain

    def newest(self, thread: str, namespace: str) -> Iterator[CheckpointPlace]:
        """The checkpoints of a namespace, by descending id."""
        return (CheckpointPlace(thread, namespace, id) for id in reversed(self._ids.get((thread, namespace), ())))

    def list_checkpoints(
        self, thread: str | None, namespace: str | None, before: str | None
    ) -> Iterator[CheckpointPlace]:
        """Checkpoints with ids below ``before``, by descending id in each namespace; None matches any."""
        for (of, within), ids in self._ids.items():
            if thread in (None, of) and namespace in (None, within):
                end = len(ids) if before is None else bisect_left(ids, before)
                yield from (CheckpointPlace(of, within, id) for id in reversed(ids[:end]))


class Threads:
    """Operations on threads. With ``session``, all threads are in that session; otherwise each has its own."""

    def __init__(self, session: str | None) -> None:
        self._session = session
        self._logs = CommitLogs(ThreadIndex, None if session else AGENT)
        self._states = BoundedCache[str, _ValuesAt](_STATES_BYTES, _size_of)

    def log(self, thread: str) -> CommitLog[ThreadIndex]:
        """The log that contains ``thread``."""
        return self._logs.of(self._session or session_name(AGENT, thread))

    def logs(self) -> Steps[list[CommitLog[ThreadIndex]]]:
        """Every log that may contain threads. Raises: CallFailed."""
        if self._session:
            return [self._logs.of(self._session)]
        found = [row.labels.get("log") for row in (yield from sessions_of(AGENT))]
        return [self._logs.of(name) for name in dict.fromkeys(found) if name]

    def find(self, thread: str, namespace: str, id: str | None) -> Steps[FoundCheckpoint | None]:
        """The checkpoint with ``id``, or the newest one; None if it does not exist. Raises: CallFailed."""
        log = self.log(thread)
        yield from log.sync()
        names = shorten_field(thread), shorten_field(namespace)
        places = [*islice(log.index.newest(*names), _TRIED_MAX)] if id is None else [CheckpointPlace(*names, id)]
        for place in places:
            if place not in log.index.commits:
                continue
            commit, writes = log.index.commits[place], log.index.writes.get(place, ())
            chain = [commit] if commit in self._states else log.index.chain(commit)
            bodies = yield from log.read([*chain, *writes])
            state = self._states.find(commit) or _state_of(bodies, chain)
            # A checkpoint without its values was put during a removal, and never acknowledged.
            if state is not None and commit in bodies:
                self._states.put(commit, state)
                return FoundCheckpoint(
                    _CHECKPOINT_DECODER.decode(bodies[commit]), state.values, _writes(bodies, writes)
                )
        return None

    def put(self, new: NewCheckpoint) -> Steps[None]:
        """Add a checkpoint. Raises: CallFailed; ValueError for ids that the policy on secrets would redact."""
        log = self.log(new.thread)
        place = CheckpointPlace(shorten_field(new.thread), shorten_field(new.namespace), new.id)
        parent: str | None = None
        before = None if new.parent is None else place._replace(id=new.parent)
        if before is not None:
            if before not in log.index.commits:
                yield from log.sync()
            parent = log.index.commits.get(before)
        old = _ValuesAt({}, 0) if parent is None else (yield from self._base(log, parent))
        frame = _frame(new, parent, old)
        commit = yield from self._append_frame(log, new.thread, place, frame, new.summary, parent)
        while not (yield from log.sync()) and frame.base is not None or place not in log.index.commits:
            # Earlier commits are being removed, and it may depend on one; or its session was emptied meanwhile.
            frame, parent = _frame(new, None, _ValuesAt({}, 0)), log.index.commits.get(before) if before else None
            commit = yield from self._append_frame(log, new.thread, place, frame, new.summary, parent)
        self._states.put(commit, _ValuesAt(new.values, frame.spent))

    def put_writes(self, frame: WritesFrame) -> Steps[None]:
        """Add writes of a task. Raises: CallFailed; ValueError for ids that the policy on secrets would redact."""
        log = self.log(frame.thread)
        place = CheckpointPlace(shorten_field(frame.thread), shorten_field(frame.namespace), frame.id)
        if place not in log.index.commits:
            yield from log.sync()
        summary = f"writes to {', '.join(write.channel for write in frame.writes)}"[:1000]
        parent = log.index.commits.get(place)
        yield from self._append(
            log, frame.thread, place, _ENCODE(frame), format=WRITES, summary=summary, parent=parent
        )  # fmt: skip

    def read(self, log: CommitLog[ThreadIndex], places: Sequence[CheckpointPlace]) -> Steps[list[ReadCheckpoint]]:
        """The frames of the existing checkpoints among ``places``, and of their writes. Raises: CallFailed."""
        index = log.index
        there = [place for place in places if place in index.commits]
        bodies = yield from log.read(
            commit for place in there for commit in (index.commits[place], *index.writes.get(place, ()))
        )
        return [
            ReadCheckpoint(
                commit, _CHECKPOINT_DECODER.decode(bodies[commit]), _writes(bodies, index.writes.get(place, ()))
            )
            for place in there
            if (commit := index.commits[place]) in bodies
        ]

    def copy(self, source: str, target: str) -> Steps[None]:
        """Copy every checkpoint and write of a thread to another one. Raises: CallFailed."""
        log, other = self.log(source), self.log(target)
        yield from log.sync()
        copies: dict[str, str] = {}
        name, places, writes = shorten_field(source), {**log.index.places}, {**log.index.writes}
        wanted = [commit for commit, place in places.items() if place.thread == name]
        for first in range(0, len(wanted), _COPIED_AT_ONCE):
            bodies = yield from log.read(wanted[first : first + _COPIED_AT_ONCE])
            for commit, body in bodies.items():
                frame = _CHECKPOINT_DECODER.decode(body)
                base = None if frame.base is None else copies.get(frame.base)
                if base is None and frame.base is not None:
                    continue  # It was put during a removal, and never acknowledged.
                frame = msgspec.structs.replace(frame, thread=target, base=base, nonce=nonce())
                place = places[commit]._replace(thread=shorten_field(target))
                copies[commit] = yield from self._append_frame(other, target, place, frame, "copied", base)
        yield from other.sync()
        for place, commits in writes.items():
            if place.thread == name:
                bodies = yield from log.read(commits)
                for each in _writes(bodies, commits):
                    yield from self.put_writes(msgspec.structs.replace(each, thread=target, nonce=nonce()))

    def remove(
        self,
        log: CommitLog[ThreadIndex],
        thread: str,
        is_doomed: Callable[[CheckpointPlace], bool],
        *,
        all_of_it: bool = False,
    ) -> Steps[None]:
        """Destroy the doomed checkpoints of a thread, with their writes; the others keep their values.

        Raises: CallFailed; ``Forbidden`` in a sandbox, and then nothing is destroyed.
        """
        name = shorten_field(thread)
        yield from log.sync()
        if not any(place.thread == name for place in (*log.index.commits, *log.index.writes)):
            return
        # From here on, no other program adds a checkpoint that depends on an earlier one.
        yield from note_removal(log, thread_id=name, summary="removal begins")
        yield from log.sync()
        index = log.index
        doomed = [
            commit
            for commit, place in index.places.items()
            if place.thread == name and (is_doomed(place) or index.commits[place] != commit)
        ]
        for place, writes in index.writes.items():
            if place.thread == name and is_doomed(place):
                doomed += writes
        doomed += yield from self._moved(log, thread, {*doomed})
        yield from log.discard(doomed)
        for commit in doomed:
            self._states.drop(commit)
        yield from note_removal(log, thread_id=name, summary=f"{len(doomed)} commits removed")
        if all_of_it and self._session is None:
            yield from remove_session(log.session)
        log.forget()

    def _moved(self, log: CommitLog[ThreadIndex], thread: str, doomed: set[str]) -> Steps[list[str]]:
        """Put checkpoints that depend on ``doomed`` ones again, without that dependency. Returns: their old commits."""
        moved: dict[str, str] = {}
        index, walks = log.index, StateWalks(log)
        for commit, place in [*index.places.items()]:
            base = index.chain(commit)[1:2]
            if (
                place.thread != shorten_field(thread)
                or commit in doomed
                or not base
                or not {*base} & (doomed | moved.keys())
            ):
                continue
            bodies = yield from log.read([commit])
            frame = _CHECKPOINT_DECODER.decode(bodies[commit])
            if base[0] in moved:
                frame = msgspec.structs.replace(frame, base=moved[base[0]], nonce=nonce())
            else:
                walk = yield from walks.at(commit)
                if walk is None:
                    continue
                deltas = [difference(channel, None, value) for channel, value in walk.values().items()]
                frame = msgspec.structs.replace(frame, base=None, deltas=deltas, gone=[], spent=0, nonce=nonce())
            moved[commit] = yield from self._append_frame(log, thread, place, frame, "moved", frame.base or base[0])
        return [*moved]

    def _append_frame(
        self, log: CommitLog[ThreadIndex], thread: str, place: CheckpointPlace, frame: CheckpointFrame, summary: str,
        parent: str | None,
    ) -> Steps[str]:  # fmt: skip
        commit_type = "snapshot" if frame.base is None else "delta"
        made = yield from self._append(
            log, thread, place, _ENCODE(frame), format=CHECKPOINT, summary=summary, parent=parent,
            commit_type=commit_type, checkpoint="turn_boundary",
        )  # fmt: skip
        return made.commit

    def _append(
        self,
        log: CommitLog[ThreadIndex],
        thread: str,
        place: CheckpointPlace,
        body: bytes,
        **fields: Any,  # noqa: ANN401 - as CheckpointParams has them
    ) -> Steps[Commit]:
        made = yield from log.append(
            body, lambda: self._create(log, thread), template=place.namespace, ticket_id=place.id,
            thread_id=place.thread, token_count=0, message_count=0, **fields,
        )  # fmt: skip
        if (made.thread_id, made.ticket_id) != (place.thread, place.id):
            message = "the id of the thread or of the checkpoint counts as a secret, which the session's policy redacts"
            raise ValueError(f"{message}: it will not be found again; use another id")
        return made

    def _create(self, log: CommitLog[ThreadIndex], thread: str) -> Steps[None]:
        if self._session is None:
            labels = {"harness": AGENT, "thread": as_label(thread)}
            yield from create_session(AGENT, log, "/", labels)

    def _base(self, log: CommitLog[ThreadIndex], commit: str) -> Steps[_ValuesAt]:
        """The values of a commit that serves as a base; empty if they are gone."""
        state = self._states.find(commit)
        if state is None:
            chain = log.index.chain(commit)
            bodies = yield from log.read(chain)
            state = _state_of(bodies, chain) or _ValuesAt({}, 0)
        return state


class StateWalks:
    """Values of checkpoints requested from newest to oldest along their chains, which may branch."""

    def __init__(self, log: CommitLog[ThreadIndex]) -> None:
        self._log = log
        self._walks: list[tuple[list[str], ValueWalk]] = []

    def at(self, commit: str) -> Steps[ValueWalk | None]:
        """The values of the checkpoint of ``commit``, valid until the next call; None if a commit of its chain is gone.

        Raises: CallFailed.
        """
        for number, (path, walk) in enumerate(self._walks):
            if commit in path[-2:]:
                self._walks.append(self._walks.pop(number))
                if path[-1] != commit:
                    path.pop()
                    walk.back()
                return walk
        path = self._log.index.chain(commit)
        bodies = yield from self._log.read(path)
        made = _walked(bodies, path)
        if made is None:
            return None
        self._walks = [*self._walks[1 - _WALKS_MAX :], (path[::-1], made)]
        return made


def _walked(bodies: Mapping[str, bytes], chain: Sequence[str]) -> ValueWalk | None:
    """The values that result from the frames of a chain, given newest first; None if a frame is gone."""
    walk = ValueWalk()
    for commit in reversed(chain):
        if commit not in bodies:
            return None
        frame = _CHECKPOINT_DECODER.decode(bodies[commit])
        walk.forward(frame.deltas, frame.gone)
    return walk


def _state_of(bodies: Mapping[str, bytes], chain: Sequence[str]) -> _ValuesAt | None:
    walk = _walked(bodies, chain)
    return None if walk is None else _ValuesAt(walk.values(), _CHECKPOINT_DECODER.decode(bodies[chain[0]]).spent)


def _writes(bodies: Mapping[str, bytes], commits: Iterable[str]) -> list[WritesFrame]:
    return [_WRITES_DECODER.decode(bodies[commit]) for commit in commits if commit in bodies]


def _frame(new: NewCheckpoint, base: str | None, old: _ValuesAt) -> CheckpointFrame:
    """The frame of a checkpoint: a delta to the ``old`` values of commit ``base``, or a snapshot if the deltas since
    the last one would take as many bytes."""
    deltas = [
        difference(channel, old.values.get(channel), value)
        for channel, value in new.values.items()
        if old.values.get(channel) != value
    ]
    gone = [channel for channel in old.values if channel not in new.values]
    added = len(new.state) + sum(len(delta.added) for delta in deltas)
    whole = len(new.state) + sum(value.size for value in new.values.values())
    spent = old.spent + added
    if base is None or not old.values or spent >= whole:
        base, gone, spent = None, [], 0
        deltas = [difference(channel, None, value) for channel, value in new.values.items()]
    return CheckpointFrame(
        thread=new.thread, namespace=new.namespace, id=new.id, parent=new.parent, base=base, kind=new.kind,
        state=new.state, deltas=deltas, gone=gone, spent=spent, run=new.run, nonce=nonce(),
    )  # fmt: skip


def _size_of(state: _ValuesAt) -> int:
    return sum(value.size for value in state.values.values())


def checked_id(id: Any) -> str:  # noqa: ANN401 - of a caller
    """``id``, if valid for a checkpoint. Raises: ValueError."""
    if not isinstance(id, str) or not 0 < len(id) <= _CHECKPOINT_ID_MAX:
        raise ValueError(
            f"a checkpoint's id is {ascii(id)[:60]}: it must be text of 1 to {_CHECKPOINT_ID_MAX} characters"
        )
    return id


def shorten_field(text: str) -> str:
    """``text`` as a field of a commit: unchanged, or if it is too long, its beginning and a hash."""
    if len(text) <= _NAME_MAX:
        return text
    return f"{text[:_NAME_MAX]}~{hashlib.blake2b(text.encode(), digest_size=16).hexdigest()}"


def nonce() -> bytes:
    """Bytes that make a frame unique."""
    return secrets.token_bytes(8)
