"""Artifact stores in tests: restarted, damaged, and looked into."""

import random

from ctxd.artifacts import packs
from ctxd.artifacts.artifact_store import ArtifactStore
from ctxd.artifacts.packs import records
from ctxd.errors import CtxdError

LARGE = random.Random(13).randbytes(1_000_000)


def again(store, root):
    """The store after a restart."""
    store.close()
    store = ArtifactStore(root)
    store.create()
    return store


def the_pack(root):
    (path,) = (root / "packs").iterdir()
    return path


def change(path, at, data=None):
    """Write ``data`` at offset ``at``; without it, flip a bit there."""
    with path.open("r+b") as file:
        file.seek(at)
        data = data or bytes([file.read(1)[0] ^ 1])
        file.seek(at)
        file.write(data)


def live(root):
    return [record.data for path in sorted((root / "packs").iterdir()) for record in records(path) if record.data]


def reads(store, ref):
    try:
        return bool(store.read(ref))
    except CtxdError:
        return False


def files(root):
    """The index as a power cut leaves it now."""
    return {path.name: path.read_bytes() for path in root.glob("index.db*") if not path.name.endswith("-shm")}


def in_small_packs(store, monkeypatch, size):
    """Eight artifacts in packs of some three; those of all but the first, the fifth and the last are removed."""
    monkeypatch.setattr(packs, "PACK_BYTES", size)
    kept = [store.keep(random.Random(number).randbytes(6_000)) for number in range(8)]
    gone = [artifact.ref for number, artifact in enumerate(kept) if number not in (0, 4, 7)]
    kept = [artifact for artifact in kept if artifact.ref not in gone]
    store.remove_unused(store.claim_removal(gone), ())
    return kept
