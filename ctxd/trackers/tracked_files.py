"""Tracked files: the sessions that lease them, the directories that show their changes, and their debounce. Pure.

Owns the states of the specification (§5.9). A directory has one watch, however many files and sessions need it. The
cost of adding or removing a file does not depend on the other files.

A changed file is read soon, but not once for each of many changes. A file that was closed is due almost at once; the
short delay lets its writer report it first. A file that is still being written is due a little later, and one whose
name disappeared later still, because editors and version control replace files. After each read, the file is not read
again for a gap that doubles while it keeps changing. Guarantee: the last change noted is read at most ``GAP_MAX_S``
after the delay of its kind.
"""

import heapq
from collections import OrderedDict
from collections.abc import Iterable, Iterator
from typing import Final, Literal

Hint = Literal["written", "touched", "gone", "directory"]
"""``written``: the file is complete. ``touched``: it changed, and more changes may follow. ``gone``: the name
disappeared. ``directory``: the name is a directory's that was created, removed or moved."""


WRITTEN_S: Final = 0.008
"""Seconds that a writer has to report its own change."""

TOUCHED_S: Final = 0.015
"""Seconds that a writer has to close a file."""

GONE_S: Final = 0.1
"""Seconds that a replacement has to appear."""

GAP_MIN_S: Final = 0.02
"""Seconds between the first two reads of a changing file."""

GAP_MAX_S: Final = 0.25
"""Maximum seconds between two reads of a file that keeps changing."""

QUIET_S: Final = 1.0
"""Seconds without a read after which a file counts as quiet again."""

State = Literal["attached", "orphaned", "resumed"]
"""``attached``: changes are reported. ``orphaned``: they are not, and the newest version stands. ``resumed``: attached
again after it was orphaned."""

Mode = Literal["new", "watched", "polled", "away"]
"""How a directory is followed: not yet, by the system, by polling at intervals, or not at all."""

WatchedPlace = tuple[str, str]
"""A directory, and the name of an entry in it."""

NOT_YET: Final = "not attached yet"
DELETED: Final = "the file is deleted"
UNREACHABLE: Final = "the file cannot be reached"
TIMED_OUT: Final = "its file system does not respond"


class TrackedFile:
    """One tracked file. ``since``: when its state began, in ms since 1970.

    ``missing``: the reason why it was not there at the last check; empty if it was. ``responds``: False if the last
    lookup of its path timed out. ``read_at``: when its known content was read, in ms since 1970.
    """

    __slots__ = (
        "active", "known", "linked", "missing", "path", "places", "read_at", "reason", "responds", "sessions", "since"
    )  # fmt: skip

    def __init__(self, path: str, *, known: bool, since: int, read_at: int = 0) -> None:
        self.path = path
        self.read_at = read_at
        self.sessions: dict[str, None] = {}
        self.places: tuple[WatchedPlace, ...] = ()
        self.missing = ""
        self.responds = True
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
    """One directory. ``names``: its entries of interest, with the keys of the files whose changes show there."""

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
    """All tracked files and their directories. ``files`` and ``directories`` may be read freely."""

    def __init__(self) -> None:
        self.files: dict[str, TrackedFile] = {}
        self.directories: dict[str, Directory] = {}
        self.unwatched: dict[str, None] = {}
        """Directories that are not watched by the system."""
        self.indirect: dict[str, None] = {}
        """Files whose name is a symlink."""
        self.hung: dict[str, None] = {}
        """Files whose last lookup timed out."""
        self.leases: dict[str, float] = {}
        """Sessions that lease files, each with the end of its leases in seconds of the monotonic clock."""
        self._held: dict[str, dict[str, None]] = {}

    # --- leases ---

    def lease(self, session: str, key: str, path: str, *, known: bool, now_ms: int, read_at: int = 0) -> bool:
        """Track the file at ``path`` for ``session``. ``known``: it was tracked before. Returns: True if it is new."""
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
        """End the leases of ``session``. Returns: keys that no session leases any more; ``forget`` them."""
        self.leases.pop(session, None)
        dropped: list[str] = []
        for key in self._held.pop(session, ()):
            file = self.files[key]
            file.sessions.pop(session, None)
            if not file.sessions:
                dropped.append(key)
        return dropped

    def forget(self, key: str) -> list[str]:
        """Stop tracking ``key``. Returns: the directories that no file needs any more."""
        emptied = self.place(key, ())[1]
        file = self.files.pop(key)
        self.hung.pop(key, None)
        for session in file.sessions:
            self._held[session].pop(key, None)
        return emptied

    # --- places ---

    def place(
        self, key: str, places: Iterable[WatchedPlace], *, linked: bool = False, now_ms: int = 0
    ) -> tuple[list[str], list[str]]:
        """Set the ``places`` that show changes of ``key``; the first is its own name.

        Returns: the directories added, and the directories removed because no file needs them any more.
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
                self.unwatched[directory] = None
                added.append(directory)
            kept.names.setdefault(name, {})[key] = None
        emptied = [directory for place in before if place not in file.places for directory in self._leave(key, place)]
        self._settle(file, now_ms)
        return added, emptied

    def _leave(self, key: str, place: WatchedPlace) -> list[str]:
        directory, name = place
        kept = self.directories[directory]
        keys = kept.names[name]
        del keys[key]
        if not keys:
            del kept.names[name]
        if kept.names:
            return []
        del self.directories[directory]
        self.unwatched.pop(directory, None)
        return [directory]

    def keys_at(self, directory: str, name: str) -> Iterable[str]:
        """The keys of the files whose changes show at the entry ``name`` of ``directory``."""
        kept = self.directories.get(directory)
        return () if kept is None else tuple(kept.names.get(name, ()))

    def names(self, directory: str) -> list[str]:
        """The entries of interest in ``directory``."""
        kept = self.directories.get(directory)
        return [] if kept is None else list(kept.names)

    def polled_names(self, directory: str) -> list[str]:
        """The entries of ``directory`` that have to be polled because the system does not report their changes."""
        kept = self.directories.get(directory)
        if kept is None:
            return []
        if kept.mode != "watched":
            return list(kept.names)
        return [name for name, keys in kept.names.items() if any(self.files[key].linked for key in keys)]

    # --- states ---

    def follow(self, directory: str, mode: Mode, reason: str, now_ms: int) -> bool:
        """Set how ``directory`` is followed, and why not better. Returns: True if the mode changed."""
        kept = self.directories.get(directory)
        if kept is None or (kept.mode, kept.reason) == (mode, reason):
            return False
        changed = kept.mode != mode
        kept.mode, kept.reason = mode, reason
        if mode == "watched":
            self.unwatched.pop(directory, None)
        else:
            self.unwatched[directory] = None
        for key in kept.keys:
            self._settle(self.files[key], now_ms)
        return changed

    def found(self, key: str, present: bool | None, now_ms: int) -> None:
        """Record the result of a check: the file is there, or was deleted; `None` if that is unknown."""
        file = self.files.get(key)
        missing = "" if present else UNREACHABLE if present is None else DELETED
        if file is not None and file.missing != missing:
            file.missing = missing
            self._settle(file, now_ms)

    def note_lookup(self, key: str, responds: bool, now_ms: int) -> bool:
        """Record whether the filesystem responded to a lookup of the file's path. Returns: True if it has recovered."""
        file = self.files[key]
        if file.responds == responds:
            return False
        file.responds = responds
        if responds:
            self.hung.pop(key, None)
        else:
            self.hung[key] = None
        self._settle(file, now_ms)
        return responds

    def is_hung(self, key: str) -> bool:
        """True if the filesystem of the file or its directory hangs. The file is checked once it no longer does."""
        file = self.files[key]
        own = self.directories.get(file.places[0][0]) if file.places else None
        return not file.responds or (own is not None and own.mode == "away" and own.reason == TIMED_OUT)

    def _settle(self, file: TrackedFile, now_ms: int) -> None:
        """Recompute the state of ``file``."""
        own = self.directories.get(file.places[0][0]) if file.places else None
        followed = own is not None and own.mode in ("watched", "polled")
        missing = file.missing if file.responds else TIMED_OUT
        active = followed and not missing
        reason = NOT_YET if own is None else missing if followed and missing else own.reason
        if active != file.active:
            file.since = now_ms
            if not active:
                # Once attached again, it counts as resumed.
                file.known = True
            file.active = active
        file.reason = reason


class Debouncer:
    """Keys that are due, by time, in seconds of any one clock. Cost: logarithmic per step."""

    __slots__ = ("_due", "_gone", "_heap", "_looked")

    def __init__(self) -> None:
        self._due: dict[str, float] = {}
        self._gone: set[str] = set()
        self._heap: list[tuple[float, str]] = []
        self._looked: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._due)

    def note(self, key: str, hint: Hint, now: float) -> None:
        """Note a change of ``key``."""
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
        """Make ``keys`` due at ``at``, unless they are due earlier."""
        for key in keys:
            if key not in self._due or at < self._due[key]:
                self._plan(key, at)

    def forget(self, key: str) -> None:
        """Drop ``key``."""
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
        """Remove and return at most ``limit`` due keys, most overdue first; the caller must read them immediately."""
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
