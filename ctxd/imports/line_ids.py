"""Native ids of the lines of one transcript, by which later lines name the line that they follow. Pure.

This knows places of lines, but neither chains nor commits.
"""

from ctxd.transcripts.record_decoding import Record, as_text, parent_of


class LineIds:
    """Places of lines by their ids. Memory: about 140 bytes for each line with an id."""

    def __init__(self) -> None:
        # Hashes, as an id takes three times the memory.
        self._places: dict[int, int] = {}
        self._relinked: dict[int, int] = {}
        self._early: dict[int, int] = {}  # Places of lines that were written before their parents, by their parents.
        self._seen = set[int]()

    def is_repetition(self, id: str | None, line: bytes) -> bool:
        """Return True if the same line with this id was asked about before: Claude Code may write one twice."""
        before = len(self._seen)
        if id is not None:
            self._seen.add(hash((id, line)))
        return id is not None and len(self._seen) == before

    def place(self, id: str) -> int | None:
        """Return the first place of the line with this id; None if it is unknown."""
        return self._places.get(hash(id)) if id else None

    def followed(self, id: str) -> int | None:
        """Return the place after which the children of a line continue: see ``relink``."""
        return self._relinked.get(hash(id), self._places.get(hash(id))) if id else None

    def early_child(self, id: str | None) -> int | None:
        """Return the place of a line that was written before its parent, the line with this id; None without one."""
        return self._early.get(hash(id)) if self._early and id is not None else None

    def note(self, id: str | None, record: Record, place: int) -> None:
        """Note the place of a line, and of an earlier id of its prompt."""
        if (parent := parent_of(record)) and hash(parent) not in self._places:
            self._early.setdefault(hash(parent), place)
        if id is not None and self._places.setdefault(hash(id), place) == place:
            # A message that a compaction keeps may be written only after it.
            self._relinked.pop(hash(id), None)
        self._note_sent_as(record, place)

    def note_copied(self, id: str | None, record: Record, place: int) -> None:
        """Note the place of a line that repeats a line of another source, and of an earlier id of its prompt."""
        if id is not None:
            self._places[hash(id)] = place
        self._note_sent_as(record, place)

    def pass_over(self, id: str | None, record: Record) -> None:
        """Attach the children of a line that is left out to its parent."""
        if id is not None and (place := self._places.get(hash(parent_of(record)))) is not None:
            self._places.setdefault(hash(id), place)
            self._note_sent_as(record, place)

    def relink(self, id: str, place: int) -> None:
        """Let later children of a line continue after ``place``: after the compaction that keeps it, or after the
        rewind to it."""
        self._relinked[hash(id)] = place

    def forget(self, id: str) -> None:
        """Forget the place of a line, and the one after which its children continue."""
        self._places.pop(hash(id), None)
        self._relinked.pop(hash(id), None)

    def _note_sent_as(self, record: Record, place: int) -> None:
        """Note the earlier id of a prompt that Claude Code has stored again: later records may name it as parent."""
        if earlier := as_text(record.get("sentAsUuid")):
            self._places.setdefault(hash(earlier), place)
