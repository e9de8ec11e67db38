"""A host that starts no further threads."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from ctxd import worker_threads


@contextmanager
def no_threads() -> Iterator[list[None]]:
    """Refuse every thread inside, also those that wait for work. Yields: an element for each that was refused."""
    refused = list[None]()

    def refuse(*_: object) -> None:
        refused.append(None)
        raise worker_threads.NoThread

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(worker_threads.ThreadPool, "start", refuse)
        yield refused
