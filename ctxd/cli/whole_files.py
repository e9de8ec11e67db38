"""Files that commands write for their user: whole, or not at all."""

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from stat import S_IMODE
from typing import IO

from ctxd.cli.exit_codes import FAILURE
from ctxd.click_support import Stop


@contextmanager
def whole_file(path: Path) -> Iterator[IO[bytes]]:
    """Open a file that replaces ``path``, with the mode of that file, at the end of the body. A device or a pipe at
    ``path`` is opened itself. Raises: Stop if it cannot be written, also from the body."""
    try:
        # Before links are followed: that of a pipe, as in /dev/fd, leads to no path.
        if path.exists() and not path.is_file():
            with path.open("wb") as file:
                yield file
            return
        target = Path(os.path.realpath(path))
        beside = target.parent / f".ctx-{os.getpid()}-{time.monotonic_ns()}"
        try:
            with beside.open("xb") as file:
                yield file
                file.flush()
                os.fsync(file.fileno())
            if target.exists():
                beside.chmod(S_IMODE(target.stat().st_mode))
            beside.replace(target)
        except BaseException:
            beside.unlink(missing_ok=True)
            raise
    except OSError as error:
        raise Stop(FAILURE, f"{path} cannot be written: {error.strerror}", symbol="output_failed") from None
