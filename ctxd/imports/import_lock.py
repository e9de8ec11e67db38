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

_PAUSE_S: Final = 0.1


@asynccontextmanager
async def import_lock(
    socket: str, harness: HarnessCommand, clock: Clock, note: Callable[[str], None]
) -> AsyncIterator[None]:
    """Hold the lock for imports from ``harness`` by this user to the daemon at ``socket``; wait for it first.

    ``note`` is called once if another import has it. If the file cannot be written, there is no lock. Cancel: safe.
    """
    place, file, has_noted = Path(), None, False
    with suppress(OSError, RuntimeError):  # RuntimeError: the user has no home directory.
        place = _place(socket, harness)
        place.parent.mkdir(0o700, parents=True, exist_ok=True)
        while (file := _locked(place)) is None:
            if not has_noted:
                note(f"waiting for another import of {harness}")
                has_noted = True
            await clock.sleep(_PAUSE_S)
    try:
        yield
    finally:
        if file is not None:
            with suppress(OSError):
                place.unlink()
            os.close(file)


def _place(socket: str, harness: HarnessCommand) -> Path:
    state = Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local/state")
    return state / "ctx-import" / f"{blake2b(os.path.abspath(socket).encode(), digest_size=8).hexdigest()}-{harness}"


def _locked(place: Path) -> int | None:
    """Return the locked file; None if another process has it. Raises: OSError."""
    file = os.open(place, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        # The process that had the lock has removed the file, and a third one may have created another.
        if os.path.samestat(os.fstat(file), os.stat(place)):
            return file
    except (BlockingIOError, FileNotFoundError):
        pass
    except OSError:
        os.close(file)
        raise
    os.close(file)
    return None
