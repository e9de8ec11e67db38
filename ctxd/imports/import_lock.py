"""Lock that lets one import of a harness's transcripts run at a time.

Separate from the import: this is the only use of a file. Two imports that read a growing file at once would cut it at
different places, and commit the same lines twice.
"""

import fcntl
import os
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from hashlib import blake2b
from pathlib import Path
from typing import Final

from ctxd.clock import Clock
from ctxd.transcripts.harness_names import HarnessCommand
from ctxd_protocol.default_paths import state_home

_PAUSE_S: Final = 0.1
_NO_FILE: Final = -1


@asynccontextmanager
async def import_lock(
    socket: str, harness: HarnessCommand, clock: Clock, note: Callable[[str], None]
) -> AsyncIterator[None]:
    """Hold the lock for imports from ``harness`` by this user to the daemon at ``socket``; wait for it first.

    ``note`` is called once if another import holds it. If the file cannot be written, there is no lock. Raises: as
    ``note``. Cancel: safe.
    """
    place = _place(socket, harness)
    if (file := _locked(place)) is None:
        note(f"waiting for another import of {harness}")
    while file is None:
        await clock.sleep(_PAUSE_S)
        file = _locked(place)
    try:
        yield
    finally:
        if file != _NO_FILE:
            with suppress(OSError):
                place.unlink()
            os.close(file)


def _place(socket: str, harness: HarnessCommand) -> Path:
    name = f"{blake2b(os.path.abspath(socket).encode(), digest_size=8).hexdigest()}-{harness}"
    return Path(state_home(os.environ)) / "ctx-import" / name


def _locked(place: Path) -> int | None:
    """Return the locked file; None if another process holds the lock, ``_NO_FILE`` if the file cannot be written."""
    if not place.is_absolute():  # The user has no home directory.
        return _NO_FILE
    try:
        place.parent.mkdir(0o700, parents=True, exist_ok=True)
        file = os.open(place, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    except OSError:
        return _NO_FILE
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        # The process that had the lock has removed the file, and a third one may have created another.
        if os.path.samestat(os.fstat(file), os.stat(place)):
            return file
    except (BlockingIOError, FileNotFoundError):
        pass
    except OSError:
        os.close(file)
        return _NO_FILE
    os.close(file)
    return None
