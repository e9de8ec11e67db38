"""What resuming a session writes: files that changed while nobody looked (spec 1 §3.6).

Decides no membership: a resume finds what became of the objects, and every one stays in the sets it was in.
"""

from collections.abc import Iterator, Sequence
from typing import Final

from ctxd.indexing.freshen import Freshened
from ctxd.objects.document import Document
from ctxd.objects.identity import is_file_id
from ctxd.sessions.state import SessionState
from ctxd_protocol.methods import Reconciled

PUTS_MAX: Final = 500
"""Versions of one write. More go in several writes, so that no single one holds up its neighbours' commit."""


def to_check(state: SessionState) -> list[str]:
    """The objects whose sources a resume looks at: every file; tool calls have none."""
    return [id for id in state.index if is_file_id(id)]


def reconciled(found: Freshened) -> Reconciled:
    """``found`` as a client is told."""
    return Reconciled(
        unchanged=found.unchanged,
        unread=found.unread,
        updated=found.updated,
        deleted=found.deleted,
        orphaned=found.orphaned,
    )


def portions(documents: Sequence[Document]) -> Iterator[Sequence[Document]]:
    """``documents`` in runs that each fit a write, at least one run."""
    for start in range(0, max(1, len(documents)), PUTS_MAX):
        yield documents[start : start + PUTS_MAX]
