"""Prefetching of the texts of an import from their origin.

Separate from the import of the rows: this knows only the order in which the texts are needed, and their sizes as far as
versions record them.
"""

from collections.abc import Awaitable, Callable, Container, Iterable, Mapping, Sequence
from typing import Final

from ctxd.objects.document import Content, Stored
from ctxd.sharing.commit_rewriter import read_commit

TEXTS_AHEAD: Final = 64
"""Initial number of texts fetched together."""

TEXTS_AHEAD_MAX: Final = 2_000
TEXTS_HELD_CHARS: Final = 1024 * 1024
"""Maximum characters expected of texts fetched together, which bounds the memory of an import. A batch that had no more
is followed by one of up to four times as many texts."""

UNRECORDED_CHARS: Final = 4096
"""Characters expected of a text whose size is not recorded, such as the output of a tool call."""

_TOKEN_CHARS: Final = 4


def expected_chars(stored: Stored) -> int:
    """Return roughly the size of the text of ``stored``. Raises: CtxdError corrupt."""
    match stored.document.type:
        case "file":
            return int(stored.document.payload.get("char_count", UNRECORDED_CHARS))
        case "commit":
            return _TOKEN_CHARS * read_commit(stored).token_count
        case _:
            return UNRECORDED_CHARS


class PrefetchedTexts:
    """The texts of one import, by their ``content_ref``. ``chars``: the characters expected of most of them, in the
    order in which they are needed; ``contents``: as ``SessionSource.contents``."""

    def __init__(
        self, contents: Callable[[Iterable[str]], Awaitable[dict[str, Content]]], chars: Mapping[str, int]
    ) -> None:
        self._contents = contents
        self._chars = chars
        self._order = list(chars)
        self._places = {ref: place for place, ref in enumerate(chars)}
        self._next = 0
        self._have: dict[str, Content] = {}
        self._used: set[str] = set()
        self._gone: set[str] = set()
        self._ahead = TEXTS_AHEAD

    async def of(self, refs: Iterable[str]) -> dict[str, Content]:
        """Return the texts of ``refs`` that were not purged. Raises: as ``SessionSource.contents``."""
        needed = {ref: None for ref in refs if ref not in self._gone}
        if missing := [ref for ref in needed if ref not in self._have]:
            await self._fetch(missing, needed)
        self._used.update(needed)
        return {ref: self._have[ref] for ref in needed if ref in self._have}

    async def _fetch(self, missing: Sequence[str], needed: Container[str]) -> None:
        """Fetch ``missing``. Keep those of ``needed``, and prefetched texts that may still be needed."""
        kept = {ref: text for ref, text in self._have.items() if ref in needed}
        coming = [place for ref in missing if (place := self._places.get(ref, -1)) >= self._next]
        ahead: Sequence[str] = ()
        if coming:
            self._next = self._end(min(coming))
            ahead = [ref for ref in self._order[min(coming) : self._next] if ref not in kept]
        else:
            # A text out of order, such as a file's that is restated for a record.
            kept |= {ref: text for ref, text in self._have.items() if ref not in self._used}
        requested = dict.fromkeys((*missing, *ahead))
        found = await self._contents(requested)
        self._gone |= requested.keys() - found.keys()
        if coming:
            # For small texts, round trips for a few each would take longer than everything else.
            small = sum(map(len, found.values())) <= TEXTS_HELD_CHARS
            self._ahead = min(TEXTS_AHEAD_MAX, 4 * self._ahead) if small else TEXTS_AHEAD
        self._have = {**kept, **found}
        self._used.clear()

    def _end(self, first: int) -> int:
        """Return the place after the batch from ``first`` on, which has at least one text."""
        end, chars = first, 0
        while end < min(first + self._ahead, len(self._order)):
            chars += self._chars[self._order[end]]
            if chars > TEXTS_HELD_CHARS and end > first:
                break
            end += 1
        return end
