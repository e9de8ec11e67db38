"""Bytes by their BLAKE3, one file each: content too large for a database row.

A file appears under its name only once its bytes are on the disk, and its folder entry is on the disk before ``keep``
returns: so whatever refers to it afterwards never dangles. Files that a crash cut have no name and vanish.

Bytes that a write is about to refer to are held: they are not removed meanwhile. A removal is claimed first, which
fails while there is a hold and makes new ones wait; whether something refers to the bytes is looked up after that.
"""

import errno
import os
import re
import secrets
import threading
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

from blake3 import blake3

from ctxd import dbfile
from ctxd.errors import CtxdError
from ctxd.failpoints import hit
from ctxd.objects.document import Artifact

_NAME: Final = re.compile(r"[0-9a-f]{64}")
_FANOUT_DIGITS: Final = 2
_TEMPORARY: Final = ".tmp-"
_ZEROS: Final = bytes(1 << 20)


class ArtifactStore:
    """A folder of immutable files, for any thread. Calls block. ``create`` comes before the first ``keep``."""

    def __init__(self, root: Path, unused: Callable[[str], None] = lambda _: None) -> None:
        """``unused`` receives, on any thread, each ref whose last hold ended without a use. It does not raise."""
        self._root = root
        self._unused = unused
        # Reentrant: a hold may be collected, and so end, while the same thread is inside.
        self._changed = threading.Condition(threading.RLock())
        self._removing: set[str] = set()
        self._holds: Counter[str] = Counter()

    def create(self) -> None:
        """Make the folder if it is missing, and remove temporary files that a crash left. Raises: OSError."""
        self._root.mkdir(mode=0o700, exist_ok=True)
        sync_folder(self._root.parent)
        for folder in self.folders():
            for path in folder.glob(f"{_TEMPORARY}*"):
                erase(path)

    def path(self, ref: str) -> Path:
        """Return the path of the bytes of ``ref``, 64 hex digits."""
        assert _NAME.fullmatch(ref), "an artifact is named by 64 hex digits"
        return self._root / ref[:_FANOUT_DIGITS] / ref

    def keep(self, data: bytes) -> Artifact:
        """Keep ``data`` and return a hold on it. On return it is on the disk. Damaged bytes of its name are replaced.

        Raises: OSError.
        """
        ref = blake3(data).hexdigest()
        path = self.path(ref)
        with self._changed:
            # A file that is being removed must not be taken for one that stays.
            self._changed.wait_for(lambda: ref not in self._removing)
            self._holds[ref] += 1
        artifact = Artifact(ref, len(data), self._release)
        if not self._has(ref, data):
            path.parent.mkdir(mode=0o700, exist_ok=True)
            self._place(path, data)
        hit("art.dirsync")
        # Also when the file was there: its writer may have died before this.
        sync_folder(path.parent)
        sync_folder(self._root)
        return artifact

    def _release(self, artifact: Artifact) -> None:
        with self._changed:
            self._holds[artifact.ref] -= 1
            if self._holds[artifact.ref]:
                return
            del self._holds[artifact.ref]
        if not artifact.used:
            self._unused(artifact.ref)

    def _place(self, path: Path, data: bytes) -> None:
        descriptor, temporary = _open_nameless(path.parent)
        try:
            hit("art.write")
            view = memoryview(data)
            while view:
                view = view[os.write(descriptor, view) :]
            os.fchmod(descriptor, 0o400)
            hit("art.fsync")
            os.fdatasync(descriptor)
            hit("art.link")
            source = temporary or f"/proc/self/fd/{descriptor}"
            while not self._has(path.name, data):
                with suppress(FileExistsError):
                    # The folder's descriptor is not looked at, but without one Python does not follow the link in
                    # /proc.
                    os.link(source, path, src_dir_fd=descriptor, follow_symlinks=True)
        finally:
            os.close(descriptor)
            if temporary is not None:
                os.unlink(temporary)

    def _has(self, ref: str, data: bytes) -> bool:
        """Return True if ``data`` is stored. A damaged file of that name, also one on a bad sector, is removed: it was
        lost already."""
        path = self.path(ref)
        try:
            if path.read_bytes() == data:
                return True
        except FileNotFoundError:
            return False
        except OSError as error:
            if error.errno != errno.EIO:
                raise
        path.unlink(missing_ok=True)
        return False

    def read(self, ref: str) -> bytes:
        """The bytes of ``ref``.

        Raises: CtxdError ``corrupt`` if they are not there or do not match their name; ``dbfile.DiskFull`` for want of
        descriptors or memory.
        """
        try:
            with dbfile.faults():
                data = self.path(ref).read_bytes()
        except dbfile.DiskFailed as error:
            raise CtxdError("corrupt", f"artifact {ref} cannot be read: {error}") from error
        if blake3(data).hexdigest() != ref:
            raise CtxdError("corrupt", f"artifact {ref} does not match its hash")
        return data

    def holds(self, ref: str) -> bool:
        """True if there is a file for ``ref``, damaged or not."""
        return self.path(ref).exists()

    def claim_removal(self, refs: Iterable[str]) -> list[str]:
        """Claim and return those of ``refs`` without a hold or a claim: every ``keep`` of one waits until
        ``remove`` or ``disclaim`` was called for it."""
        with self._changed:
            claimed = [ref for ref in dict.fromkeys(refs) if ref not in self._holds and ref not in self._removing]
            self._removing.update(claimed)
        return claimed

    def disclaim(self, refs: Iterable[str]) -> None:
        """End the claims on ``refs``."""
        with self._changed:
            self._removing.difference_update(refs)
            self._changed.notify_all()

    def remove(self, ref: str) -> None:
        """Overwrite and remove the bytes of ``ref``; on return they are off the disk, and the claim has ended. A
        missing file is no error.

        Raises: OSError.
        """
        try:
            erase(self.path(ref))
        finally:
            self.disclaim((ref,))

    def remove_unused(self, claimed: Sequence[str], used: Collection[str]) -> None:
        """Remove ``claimed`` except for those that are ``used``; on return, also after an error, no claim is left.

        Raises: OSError.
        """
        left = list(claimed)
        try:
            while left:
                # A claim ends with the removal: the next one on the same bytes is not ours to end.
                if (ref := left.pop()) in used:
                    self.disclaim((ref,))
                else:
                    self.remove(ref)
        finally:
            self.disclaim(left)

    def folders(self) -> list[Path]:
        """The folders that hold artifacts, in order."""
        return sorted(path for path in self._root.iterdir() if path.is_dir()) if self._root.is_dir() else []

    def names(self) -> Iterator[str]:
        """The names of all there are, in order."""
        for folder in self.folders():
            yield from names_in(folder)


def names_in(folder: Path) -> list[str]:
    """The names of the artifacts in ``folder``, in order."""
    return sorted(path.name for path in folder.iterdir() if _NAME.fullmatch(path.name))


def erase(path: Path) -> None:
    """Overwrite and remove a file; on return it is off the disk. A missing one is no error. Raises: OSError."""
    try:
        left = path.stat().st_size
        path.chmod(0o600)
        with path.open("r+b") as file:
            while left > 0:
                left -= file.write(_ZEROS[:left])
            file.flush()
            os.fsync(file.fileno())
        path.unlink()
    except FileNotFoundError:
        return
    sync_folder(path.parent)


def _open_nameless(folder: Path) -> tuple[int, str | None]:
    """A new file in ``folder`` that has no name yet, or where the filesystem has none such, its temporary name."""
    try:
        return os.open(folder, os.O_TMPFILE | os.O_WRONLY | os.O_CLOEXEC, 0o600), None
    except OSError as error:
        if error.errno not in (errno.EOPNOTSUPP, errno.EISDIR):
            raise
    name = str(folder / f"{_TEMPORARY}{secrets.token_hex(8)}")
    return os.open(name, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o600), name


def make_folder(folder: Path) -> None:
    """Make ``folder`` and the missing ones above it, with mode 0700; on return their entries are on the disk, but for
    one in a folder that may be written and not read.

    Raises: OSError.
    """
    made = [each for each in (folder, *folder.parents) if not each.exists()]
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    for each in reversed(made):
        with suppress(PermissionError):
            sync_folder(each.parent)


def sync_folder(folder: Path) -> None:
    """Sync the entries of ``folder`` to the disk. Raises: OSError."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
