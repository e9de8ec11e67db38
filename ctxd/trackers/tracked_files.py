"""Tracked files: files by key, the sessions that lease them, and the directories in which their changes show. Pure.

Owns the states of the specification (§5.9). One directory has one watch, however many files and sessions it is for.
Taking up a file or giving one up costs nothing but that file.
"""

from collections.abc import Iterable, Iterator
from typing import Final, Literal

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
