"""Backup of a state directory while a daemon writes, and restore into an empty directory; both verify the copy.

A backup is a folder: ``state.db``, ``artifacts/`` and ``manifest.json``, which is written last and lists the BLAKE3 of
each file. A folder without a manifest is not a backup.
"""

import os
import shutil
from collections.abc import Iterator, Set
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Annotated, BinaryIO, Final, Literal

import msgspec
from blake3 import blake3

from ctxd import sqlite_file
from ctxd.artifacts.artifact_store import ArtifactStore
from ctxd.errors import CtxdError, StateDirError
from ctxd.failpoints import hit
from ctxd.file_writes import make_folder, sync_folder
from ctxd.store import journal, state_directory
from ctxd.store.head_witness import Head, WitnessFile
from ctxd.store.verify import Report, Step, verified

_EXIT_NO_STATE: Final = 10
_EXIT_IO: Final = 74
_EXIT_REFUSED: Final = 73
_EXIT_DAMAGED: Final = 2
_PAGES_STEP: Final = 4_096
_READ_BYTES: Final = 1024 * 1024


def _unheard(what: str, done: int) -> None:
    """Ignore progress."""


_PATH: Final = r"^(state\.db|artifacts/([0-9a-f]{2}/[0-9a-f]{64}|index\.db|packs/[0-9]{8}\.pack))$(?!\n)"
"""An earlier version kept each artifact in a file of its own."""

_CHAIN: Final = r"^[0-9a-f]{64}$(?!\n)"


class BackupFile(msgspec.Struct, frozen=True):
    """One file of a backup: its path below it, its size in bytes, its BLAKE3 in hex.

    The pattern allows only paths that a backup has: an untrusted manifest must not point outside the backup.
    """

    path: Annotated[str, msgspec.Meta(pattern=_PATH)]
    size: int
    blake3: str


class BackupManifest(msgspec.Struct, frozen=True, kw_only=True):
    """The files of a backup, and the newest journal row in it."""

    format: Literal[1] = 1
    head_seq: Annotated[int, msgspec.Meta(ge=0)]
    head_chain: Annotated[str, msgspec.Meta(pattern=_CHAIN)]
    digest: str
    files: tuple[BackupFile, ...]


def backup(root: Path, destination: Path, step: Step = _unheard) -> BackupManifest:
    """Copy the state directory ``root`` to ``destination``, which is made or empty. Blocks; a daemon may be running.

    ``step`` reports pages and artifacts as they are copied, then the verification of the copy.

    Raises: StateDirError if there is no state, ``destination`` is in it, not empty or cannot be written, or the copy is
    damaged. After a failure there is no manifest, and nothing else unless the copy itself is damaged.
    """
    database = root / "state.db"
    if not database.is_file():
        raise StateDirError(f"there is no state in {root}", exit_code=_EXIT_NO_STATE)
    if Path(os.path.realpath(destination)).is_relative_to(os.path.realpath(root)):
        # It would be lost with the original, and would block a restore.
        raise StateDirError(f"{destination} is in the state directory itself", exit_code=_EXIT_REFUSED)
    _make_empty(destination)
    with _copying(root, destination):
        for last in (False, False, True):
            _copy_database(database, destination / "state.db", step)
            if _copy_artifacts(root, destination, step, last=last):
                break
            # A daemon has purged a text since the database was copied: the copy must not keep it.
            _remove_copy(destination)
        report = _verified(destination, step)
        files = tuple(_describe(destination, path) for path in sorted(destination.rglob("*")) if path.is_file())
        manifest = BackupManifest(
            head_seq=report.head_seq, head_chain=report.head_chain, digest=report.digest, files=files
        )
        _write_synced(destination / "manifest.json", msgspec.json.format(msgspec.json.encode(manifest)))
    return manifest


@contextmanager
def _copying(source: Path, destination: Path) -> Iterator[None]:
    """Remove the copy in ``destination`` if a disk fails or has no room. Raises: StateDirError then."""
    try:
        with sqlite_file.faults():
            yield
    except sqlite_file.DiskFull as error:
        _remove_copy(destination)
        remedy = error.hint or "free space there, or name another directory"
        raise StateDirError(f"there is no room in {destination}: {error}", exit_code=_EXIT_IO, remedy=remedy) from error
    except (sqlite_file.DiskFailed, sqlite_file.FileDamaged, sqlite_file.SqlFailed) as error:
        _remove_copy(destination)
        message = f"{source} cannot be copied to {destination}: {error}"
        raise StateDirError(message, exit_code=_EXIT_IO, remedy=_remedy(error)) from error


def _remedy(error: Exception) -> str:
    if isinstance(error, sqlite_file.CannotOpen):
        return "let this user read and write both, or copy the first one to a writable place and name the copy"
    return "check the disks of both, then repeat the command"


def _remove_copy(destination: Path) -> None:
    shutil.rmtree(destination / "artifacts", ignore_errors=True)
    for name in ("state.db", "state.db-journal", "state.db-wal", "state.db-shm", "manifest.json"):
        with suppress(OSError):
            (destination / name).unlink()


def restore(source: Path, root: Path, step: Step = _unheard) -> Report:
    """Put the backup ``source`` into the state directory ``root``, which is made or empty, and check it there. Blocks.

    ``step`` reports files as they are compared and copied, then their verification.
    A restore that was interrupted is replaced; until one ends, no daemon starts there.

    Raises: StateDirError if ``source`` is not a backup, cannot be read or is damaged, or ``root`` is not empty, in use
    or cannot be written; the copy is removed if the disk is full or fails.
    """
    manifest = _read_manifest(source)
    _compare(source, manifest, step)
    mark = root / state_directory.RESTORING
    is_repeated = mark.exists()
    if not is_repeated:
        _make_empty(root, besides={state_directory.LOCK})
    held = state_directory.hold(root, is_restore=True)
    try:
        if not is_repeated:
            # A daemon may have used it meanwhile.
            _make_empty(root, besides={state_directory.LOCK})
        with _copying(source, root):
            if is_repeated:
                _remove_copy(root)
                held.witness.unlink(missing_ok=True)
            else:
                _write_synced(mark, b"")
            _copy_files(source, root, manifest, step)
            witness = WitnessFile(held.witness)
            witness.write(Head(manifest.head_seq, bytes.fromhex(manifest.head_chain)), sync=True)
            witness.close()
            _become_another(root / "state.db")
            report = _verified(root, step)
            if report.digest != manifest.digest:
                raise StateDirError(f"{root} differs from the backup", exit_code=_EXIT_DAMAGED)
            mark.unlink()
            sync_folder(root)
        return report
    finally:
        held.close()


def _compare(source: Path, manifest: BackupManifest, step: Step) -> None:
    """Raises: StateDirError if a file differs from the manifest, or cannot be read."""
    if all(file.path != "state.db" for file in manifest.files):
        raise StateDirError(f"the manifest of {source} names no state.db", exit_code=_EXIT_DAMAGED)
    for done, file in enumerate(manifest.files):
        step("comparing files", done)
        path = source / file.path
        try:
            is_same = path.is_file() and _describe(source, path) == file
        except OSError as error:
            raise _unreadable(path, error) from error
        if not is_same:
            remedy = "it was changed or damaged: restore another backup"
            if (source / state_directory.LOCK).exists():
                remedy = f"a daemon has used {source}, which is a state directory now: name it with --state-dir"
            raise StateDirError(f"{path} differs from the manifest", exit_code=_EXIT_DAMAGED, remedy=remedy)


def _unreadable(path: Path, error: OSError) -> StateDirError:
    remedy = "check its disk, and that this user can read it"
    return StateDirError(f"{path} cannot be read: {error.strerror}", exit_code=_EXIT_IO, remedy=remedy)


def _copy_files(source: Path, root: Path, manifest: BackupManifest, step: Step) -> None:
    for done, file in enumerate(manifest.files):
        hit("restore.copy")
        step("copying files", done)
        target = root / file.path
        make_folder(target.parent)
        _copy_file(source / file.path, target)
        target.chmod(0o600)


def _make_empty(folder: Path, besides: Set[str] = frozenset()) -> None:
    """Make ``folder``. Raises: StateDirError if it has anything ``besides`` these names, or cannot be used."""
    try:
        state_directory.refuse_backup(folder)
        make_folder(folder)
        names = {path.name for path in folder.iterdir()}
    except OSError as error:
        raise StateDirError(f"{folder} cannot be used: {error.strerror}", exit_code=_EXIT_REFUSED) from error
    if names - besides:
        # A state directory has a lock, a whole backup a manifest.
        is_interrupted = names.isdisjoint({state_directory.LOCK, "manifest.json"}) and "state.db" in names
        remedy = "a backup into it was interrupted: remove it, or choose another path" if is_interrupted else ""
        raise StateDirError(f"{folder} is not empty", exit_code=_EXIT_REFUSED, remedy=remedy)


def _copy_database(source: Path, target: Path, step: Step) -> None:
    copied = 0

    def next_pages() -> None:
        nonlocal copied
        hit("backup.copy")
        step("copying pages", copied)
        copied += _PAGES_STEP

    # Create the file before SQLite does, with mode 0600: the write-ahead log gets the same mode.
    os.close(_create(target))
    reader, writer = sqlite_file.open_reader(source), sqlite_file.open_copy(target)
    try:
        sqlite_file.copy(reader, writer, pages=_PAGES_STEP, step=next_pages)
    finally:
        writer.close()
        reader.close()


def _become_another(database: Path) -> None:
    connection = sqlite_file.open_copy(database)
    try:
        journal.renew_journal_id(connection)
    finally:
        connection.close()


def _copy_artifacts(root: Path, destination: Path, step: Step, *, last: bool) -> bool:
    """Copy the artifacts that the copied database refers to: an artifact is on disk before any row that names it.

    Returns: False if one was purged meanwhile, unless this is the ``last`` try.
    Raises: StateDirError if one is damaged.
    """
    sources, targets = ArtifactStore(root / "artifacts"), ArtifactStore(destination / "artifacts")
    reader = sqlite_file.open_reader(destination / "state.db")
    try:
        for done, (ref,) in enumerate(reader.execute("SELECT hash FROM content WHERE bytes IS NULL")):
            hit("backup.copy")
            step("copying artifacts", done)
            try:
                if not done:
                    targets.create()
                with targets.writer() as writer:
                    for piece in sources.pieces(ref.hex()):
                        writer.write(piece)
                    if writer.finish().ref != ref.hex():
                        raise CtxdError("corrupt", f"artifact {ref.hex()} does not match its hash")
            except CtxdError:
                if last or sources.holds(ref.hex()):
                    raise
                return False
        return True
    except CtxdError as error:
        raise StateDirError(error.message, exit_code=_EXIT_DAMAGED) from error
    finally:
        targets.close()
        sources.close()
        reader.close()


def _verified(root: Path, step: Step) -> Report:
    report = verified(root, step)
    if report.worst not in (None, "warning"):
        raise StateDirError(f"{root} is damaged: {report.problems[0].message}", exit_code=_EXIT_DAMAGED)
    for name in ("state.db-wal", "state.db-shm", "artifacts/index.db-wal", "artifacts/index.db-shm"):
        (root / name).unlink(missing_ok=True)
    return report


def _describe(root: Path, path: Path) -> BackupFile:
    hasher, size = blake3(), 0
    with path.open("rb") as file:
        while data := file.read(_READ_BYTES):
            hasher.update(data)
            size += len(data)
    return BackupFile(str(path.relative_to(root)), size, hasher.hexdigest())


def _read_manifest(source: Path) -> BackupManifest:
    try:
        return msgspec.json.decode((source / "manifest.json").read_bytes(), type=BackupManifest)
    except FileNotFoundError as error:
        message = f"{source} is not a backup: it has no manifest.json"
        raise StateDirError(message, exit_code=_EXIT_NO_STATE, remedy="name a backup's directory") from error
    except OSError as error:
        raise _unreadable(source / "manifest.json", error) from error
    except msgspec.DecodeError as error:
        raise StateDirError(f"the manifest of {source} is damaged: {error}", exit_code=_EXIT_DAMAGED) from error


def _copy_file(source: Path, target: Path) -> None:
    with source.open("rb") as old, open(_create(target), "wb") as new:
        shutil.copyfileobj(old, new, _READ_BYTES)
        _sync(new)
    sync_folder(target.parent)


def _write_synced(path: Path, data: bytes) -> None:
    with open(_create(path), "wb") as file:
        file.write(data)
        _sync(file)
    sync_folder(path.parent)


def _create(path: Path) -> int:
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)


def _sync(file: BinaryIO) -> None:
    file.flush()
    os.fsync(file.fileno())
