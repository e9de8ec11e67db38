"""A filesystem of a test's own, with little room, which the test can make read-only."""

import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest


@contextmanager
def mounted(place: Path, mib: int) -> Iterator[Path]:
    """Mount a filesystem with ``mib`` MiB at ``place`` for the block. Skips the test where that is not permitted."""
    place.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"size={mib}m,mode=700", "ctxd-test", str(place)]
    reason = "there is no mount"
    if shutil.which("mount") is not None:
        made = subprocess.run(command, capture_output=True, text=True)
        reason = made.stderr.strip() if made.returncode else ""
    if reason:
        pytest.skip(f"mounting a small filesystem is not permitted here: {reason}")
    try:
        yield place
    finally:
        subprocess.run(["umount", "--lazy", str(place)], check=True)


def remount(place: Path, option: str) -> None:
    """Make the filesystem at ``place`` read-only (``ro``) or writable (``rw``)."""
    subprocess.run(["mount", "-o", f"remount,{option}", str(place)], check=True)
