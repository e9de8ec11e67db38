"""A file system that does not respond: one in user space whose program never reads what the kernel asks it."""

import ctypes
import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

_FORCE = 1
_DETACH = 2


@contextmanager
def hanging(place: Path) -> Iterator[Path]:
    """``place``, where every look waits until the end. Skips the test where nobody may mount one."""
    place.mkdir(parents=True, exist_ok=True)
    libc = ctypes.CDLL(None, use_errno=True)
    try:
        device = os.open("/dev/fuse", os.O_RDWR)
    except OSError as error:
        pytest.skip(f"needs /dev/fuse: {error.strerror}")
    options = f"fd={device},rootmode=40000,user_id=0,group_id=0"
    if libc.mount(b"silent", os.fsencode(place), b"fuse", 0, options.encode()):
        os.close(device)
        pytest.skip(f"needs to mount: {errno.errorcode[ctypes.get_errno()]}")
    try:
        yield place
    finally:
        # Whoever waits there is told that it is gone.
        os.close(device)
        libc.umount2(os.fsencode(place), _FORCE | _DETACH)
