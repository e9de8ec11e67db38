"""Tracked files: the sessions that lease them, the directories in which their changes show, and their debounce. Pure.

Owns the states of the specification (§5.9). One directory has one watch, however many files and sessions it is for.
Taking up a file or giving one up costs nothing but that file.

A changed file is looked at soon, but not for each of many changes. One that is whole is due almost at once: its writer
may be about to report it. One that is being written is due a moment later; one whose name went away, later still, for
editors and version control put another in its place. After each look the file is left alone for a while that doubles as
long as it goes on changing. The promise: what was noted last is looked at, at most ``GAP_MAX_S`` later than its kind of
change asks for.
"""

import heapq
from collections import OrderedDict
from collections.abc import Iterable, Iterator
from typing import Final, Literal

Hint = Literal["written", "touched", "gone", "directory"]
"""``written``: it is whole now. ``touched``: something of it changed, more may follow. ``gone``: the name went away.
``directory``: the name is that of a directory that came, went or was moved."""


WRITTEN_S: Final = 0.008
"""Seconds that a writer is given to report what it wrote."""

TOUCHED_S: Final = 0.015
"""Seconds that a writer is given to close a file."""

GONE_S: Final = 0.1
"""Seconds that a replacement is given to appear."""

GAP_MIN_S: Final = 0.02
"""Seconds between the first two looks at one file."""

GAP_MAX_S: Final = 0.25
"""Seconds between two looks at a file that never stops changing."""

QUIET_S: Final = 1.0
"""Seconds without a look after which a file counts as quiet again."""

State = Literal["attached", "orphaned", "resumed"]
"""``attached``: changes are reported. ``orphaned``: they are not; the newest version stands.
``resumed``: attached again after it was orphaned."""

Mode = Literal["new", "watched", "polled", "away"]
"""How a directory is followed: not yet; by the system; by looking at intervals; not at all, it is not there."""

Place = tuple[str, str]
"""A directory and a name in it."""

NOT_YET: Final = "not attached yet"
DELETED: Final = "the file is deleted"
OUT_OF_REACH: Final = "the file cannot be reached"
UNANSWERED: Final = "its file system does not answer"


class TrackedFile:
    """One tracked file. ``since``: when its state began, in ms since 1970.

    ``missing``: why it was not there when it was looked at last; empty if it was. ``answers``: whether looking at its
    name, and at what that leads to, came to an end then.
    ``read_at``: when what is known of it was read, in ms since 1970.
    """

    __slots__ = (
        "active", "answers", "known", "linked", "missing", "path", "places", "read_at", "reason", "sessions", "since"
    )  # fmt: skip

    def __init__(self, path: str, *, known: bool, since: int, read_at: int = 0) -> None:
        self.path = path
        self.read_at = read_at
        self.sessions: dict[str, None] = {}
        self.places: tuple[Place, ...] = ()
        self.missing = ""
        self.answers = True
        self.linked = False
        self.active = False
        self.known = known
        self.reason = NOT_YET
        self.since = since

    @property
    def state(self) -> State:
        """See ``State``."""
        if not self.active:
            return "orphaned"
        return "resumed" if self.known else "attached"


class Directory:
    """One directory. ``names``: its entries of interest, and the keys of the files that show there."""

    __slots__ = ("mode", "names", "reason")

    def __init__(self) -> None:
        self.names: dict[str, dict[str, None]] = {}
        self.mode: Mode = "new"
        self.reason = NOT_YET

    @property
    def keys(self) -> Iterator[str]:
        """The keys of its files."""
        for keys in self.names.values():
            yield from keys


class TrackedFiles:
    """All of it. Read ``files`` and ``directories`` freely."""

    def __init__(self) -> None:
        self.files: dict[str, TrackedFile] = {}
        self.directories: dict[str, Directory] = {}
        self.astray: dict[str, None] = {}
        """Directories that are not watched by the system."""
        self.indirect: dict[str, None] = {}
        """Files whose name is a symlink."""
        self.unanswered: dict[str, None] = {}
        """Files whose file system did not answer when they were looked at last."""
        self.leases: dict[str, float] = {}
        """Sessions that lease files, each with the second at which its leases end."""
        self._held: dict[str, dict[str, None]] = {}

    # --- leases ---

    def lease(self, session: str, key: str, path: str, *, known: bool, now_ms: int, read_at: int = 0) -> bool:
        """Track the file at ``path`` for ``session``. ``known``: it was tracked before. Returns: whether it is new."""
        self._held.setdefault(session, {})[key] = None
        file = self.files.get(key)
        is_new = file is None
        if file is None:
            file = self.files[key] = TrackedFile(path, known=known, since=now_ms, read_at=read_at)
        file.sessions[session] = None
        return is_new

    def holds(self, session: str, key: str) -> bool:
        """True if ``session`` leases ``key``."""
        return key in self._held.get(session, ())

    def count(self, session: str) -> int:
        """The number of files that ``session`` leases."""
        return len(self._held.get(session, ()))

    def expired(self, now: float) -> list[str]:
        """The sessions whose leases have ended."""
        return [session for session, until in self.leases.items() if until <= now]

    def release(self, session: str) -> list[str]:
        """End the leases of ``session``. Returns: the keys without a lease; ``forget`` them."""
        self.leases.pop(session, None)
        dropped: list[str] = []
        for key in self._held.pop(session, ()):
            file = self.files[key]
            file.sessions.pop(session, None)
            if not file.sessions:
                dropped.append(key)
        return dropped

    def forget(self, key: str) -> list[str]:
        """Track ``key`` no more. Returns: the directories that no file needs any more."""
        emptied = self.place(key, ())[1]
        file = self.files.pop(key)
        self.unanswered.pop(key, None)
        for session in file.sessions:
            self._held[session].pop(key, None)
        return emptied

    # --- places ---

    def place(
        self, key: str, places: Iterable[Place], *, linked: bool = False, now_ms: int = 0
    ) -> tuple[list[str], list[str]]:
        """Changes of ``key`` show at ``places``, the first of which is its own name.

        Returns: the directories that are new, and those that no file needs any more; both are taken in, and left out.
        """
        file = self.files[key]
        before, file.places, file.linked = file.places, tuple(dict.fromkeys(places)), linked
        if len(file.places) > 1:
            self.indirect[key] = None
        else:
            self.indirect.pop(key, None)
        added: list[str] = []
        for directory, name in file.places:
            kept = self.directories.get(directory)
            if kept is None:
                kept = self.directories[directory] = Directory()
                self.astray[directory] = None
                added.append(directory)
            kept.names.setdefault(name, {})[key] = None
        emptied = [directory for place in before if place not in file.places for directory in self._leave(key, place)]
        self._settle(file, now_ms)
        return added, emptied

    def _leave(self, key: str, place: Place) -> list[str]:
        directory, name = place
        kept = self.directories[directory]
        keys = kept.names[name]
        del keys[key]
        if not keys:
            del kept.names[name]
        if kept.names:
            return []
        del self.directories[directory]
        self.astray.pop(directory, None)
        return [directory]

    def keys_at(self, directory: str, name: str) -> Iterable[str]:
        """The files whose changes show at the entry ``name`` of ``directory``."""
        kept = self.directories.get(directory)
        return () if kept is None else tuple(kept.names.get(name, ()))

    def names(self, directory: str) -> list[str]:
        """The names of ``directory`` that are of interest."""
        kept = self.directories.get(directory)
        return [] if kept is None else list(kept.names)

    def looked_at(self, directory: str) -> list[str]:
        """The names of ``directory`` that have to be looked at: what the system does not report."""
        kept = self.directories.get(directory)
        if kept is None:
            return []
        if kept.mode != "watched":
            return list(kept.names)
        return [name for name, keys in kept.names.items() if any(self.files[key].linked for key in keys)]

    # --- states ---

    def follow(self, directory: str, mode: Mode, reason: str, now_ms: int) -> bool:
        """``directory`` is followed by ``mode`` now, and why not by a better one. Returns: whether that is another."""
        kept = self.directories.get(directory)
        if kept is None or (kept.mode, kept.reason) == (mode, reason):
            return False
        changed = kept.mode != mode
        kept.mode, kept.reason = mode, reason
        if mode == "watched":
            self.astray.pop(directory, None)
        else:
            self.astray[directory] = None
        for key in kept.keys:
            self._settle(self.files[key], now_ms)
        return changed

    def found(self, key: str, present: bool | None, now_ms: int) -> None:
        """The file was looked at: it is there, or it was deleted; `None` if that is unknown."""
        file = self.files.get(key)
        missing = "" if present else OUT_OF_REACH if present is None else DELETED
        if file is not None and file.missing != missing:
            file.missing = missing
            self._settle(file, now_ms)

    def answered(self, key: str, answers: bool, now_ms: int) -> bool:
        """Looking at the file's name came to an end, or did not. Returns: whether it does again."""
        file = self.files[key]
        if file.answers == answers:
            return False
        file.answers = answers
        if answers:
            self.unanswered.pop(key, None)
        else:
            self.unanswered[key] = None
        self._settle(file, now_ms)
        return answers

    def is_unanswered(self, key: str) -> bool:
        """True if the file, or its directory, lies where nothing answers; once that does, it is looked at."""
        file = self.files[key]
        own = self.directories.get(file.places[0][0]) if file.places else None
        return not file.answers or (own is not None and own.mode == "away" and own.reason == UNANSWERED)

    def _settle(self, file: TrackedFile, now_ms: int) -> None:
        """Find the state of ``file`` out anew."""
        own = self.directories.get(file.places[0][0]) if file.places else None
        followed = own is not None and own.mode in ("watched", "polled")
        missing = file.missing if file.answers else UNANSWERED
        active = followed and not missing
        reason = NOT_YET if own is None else missing if followed and missing else own.reason
        if active != file.active:
            file.since = now_ms
            if not active:
                # When it is attached again, that is a return.
                file.known = True
            file.active = active
        file.reason = reason


class Debouncer:
    """Keys that are due, by time. Times are in seconds of any one clock. Every step costs the logarithm of its size."""

    __slots__ = ("_due", "_gone", "_heap", "_looked")

    def __init__(self) -> None:
        self._due: dict[str, float] = {}
        self._gone: set[str] = set()
        self._heap: list[tuple[float, str]] = []
        self._looked: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._due)

    def note(self, key: str, hint: Hint, now: float) -> None:
        """Something became of ``key``."""
        if hint == "gone":
            self._gone.add(key)
            self._plan(key, now + GONE_S)
            return
        due = now + (WRITTEN_S if hint == "written" else TOUCHED_S)
        if key in self._gone:
            self._gone.discard(key)
            self._plan(key, due)
        elif key not in self._due or due < self._due[key]:
            self._plan(key, due)

    def again(self, keys: Iterable[str], at: float) -> None:
        """Look at ``keys`` at ``at``, unless they are due before."""
        for key in keys:
            if key not in self._due or at < self._due[key]:
                self._plan(key, at)

    def forget(self, key: str) -> None:
        """``key`` is of no interest any more."""
        self._due.pop(key, None)
        self._gone.discard(key)
        self._looked.pop(key, None)

    def next_at(self) -> float | None:
        """The time at which the next key is due; `None` if no key is."""
        heap = self._heap
        while heap and self._due.get(heap[0][1]) != heap[0][0]:
            heapq.heappop(heap)
        return heap[0][0] if heap else None

    def take(self, now: float, limit: int) -> list[str]:
        """At most ``limit`` keys that are due, the longest due first: they are looked at now."""
        self._quieten(now)
        taken: list[str] = []
        while len(taken) < limit and (at := self.next_at()) is not None and at <= now:
            _, key = heapq.heappop(self._heap)
            del self._due[key]
            self._gone.discard(key)
            before = self._looked.pop(key, None)
            gap = GAP_MIN_S if before is None else min(2 * before[1], GAP_MAX_S)
            self._looked[key] = (now, gap)
            taken.append(key)
        return taken

    def _plan(self, key: str, due: float) -> None:
        looked = self._looked.get(key)
        if looked is not None:
            due = max(due, looked[0] + looked[1])
        if self._due.get(key) == due:
            return
        self._due[key] = due
        heapq.heappush(self._heap, (due, key))

    def _quieten(self, now: float) -> None:
        while self._looked and next(iter(self._looked.values()))[0] + QUIET_S <= now:
            self._looked.popitem(last=False)
