"""Key file of a state directory, for tags of secrets and hashes of redacted files.

It is excluded from backups: without the key, a copy of the store cannot be used to guess redacted text.
"""

import os
import secrets
import stat
from contextlib import suppress
from pathlib import Path
from typing import Final

from ctxd.errors import StateDirError
from ctxd.secrets.redaction import KEY_BYTES

KEY_FILE: Final = "secrets.key"
"""Name of the file in the state directory."""

_EXIT_UNSAFE: Final = 78


def load_key(root: Path) -> bytes:
    """The key of the state directory ``root``, created by the first call: 32 bytes in a file of mode 0600. Blocks.

    Raises: StateDirError if the file is not a key or is accessible to other users; OSError.
    """
    path = root / KEY_FILE
    if not path.exists():
        _make(path)
    with path.open("rb") as file:
        key = file.read(KEY_BYTES + 1)
        mode = stat.S_IMODE(os.fstat(file.fileno()).st_mode)
    if mode & 0o077:
        raise StateDirError(f"{path} is open to others: run chmod 600 {path}", exit_code=_EXIT_UNSAFE)
    if len(key) != KEY_BYTES:
        raise StateDirError(f"{path} is not a key: it does not have {KEY_BYTES} bytes", exit_code=_EXIT_UNSAFE)
    return key


def _make(path: Path) -> None:
    """Create the file atomically: after a crash, half a key would be a different key."""
    temporary = path.with_name(f".{path.name}-{secrets.token_hex(8)}")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        os.write(descriptor, secrets.token_bytes(KEY_BYTES))
        os.fsync(descriptor)
        with suppress(FileExistsError):
            os.link(temporary, path)
    finally:
        os.close(descriptor)
        temporary.unlink()
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
