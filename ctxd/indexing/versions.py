"""What indexing asks of the store: newest versions, and the marks kept beside them. ``VersionStore`` answers it."""

from collections.abc import Iterable, Sequence
from typing import Protocol

from ctxd.objects.document import Stored
from ctxd.store.writes import NotCached


class Versions(Protocol):
    """See ``ctxd.store.versions.VersionStore``, whose methods these are."""

    def peek(self, id: str) -> Stored | None | NotCached:
        """The newest accepted version without awaiting; ``MISSING`` if the cache does not know."""

    async def heads(self, ids: Iterable[str]) -> dict[str, Stored | None]:
        """The newest accepted version of each id, null where there is none."""

    async def signatures(self, ids: Sequence[str]) -> dict[str, bytes]:
        """The marks stored beside versions, where there are any."""


async def newest(versions: Versions, id: str) -> Stored | None:
    """The newest accepted version of ``id``. Does not suspend if the cache knows it."""
    head = versions.peek(id)
    if isinstance(head, NotCached):
        head = (await versions.heads([id])).get(id)
    return head
