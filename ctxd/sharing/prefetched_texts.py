"""Prefetching of the texts of an import from their origin.

Separate from the import of the rows: this knows only the order in which the texts are needed.
"""

from collections.abc import Awaitable, Callable, Container, Iterable, Sequence
from typing import Final

from ctxd.objects.document import Content

TEXTS_AHEAD: Final = 64
"""Initial number of texts fetched together. It bounds the memory of an import."""

TEXTS_AHEAD_MAX: Final = 2_000
TEXTS_HELD_CHARS: Final = 1024 * 1024
"""Maximum characters of texts fetched together for which the next batch has four times as many texts."""


class PrefetchedTexts:
    """The texts of one import, by their ``content_ref``. ``refs``: most of them, in the order in which they are needed;
    ``contents``: as ``SessionSource.contents``."""

    def __init__(self, contents: Callable[[Iterable[str]], Awaitable[dict[str, Content]]], refs: Sequence[str]) -> None:
        self._contents = contents
        self._order = refs
        self._places = {ref: place for place, ref in reversed(list(enumerate(refs)))}
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
            self._next = min(coming) + self._ahead
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
