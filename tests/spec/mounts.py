"""Mounts of a session, and how its paths are shown."""

import json
from pathlib import Path

from ctxd_client import SyncSession
from ctxd_protocol.session_types import Mount


def mount(agent: str, canonical: Path | str, filesystem_id: str | None = None) -> Mount:
    return Mount(agent_prefix=agent, canonical_prefix=str(canonical), filesystem_id=filesystem_id)


def canonical(s: SyncSession, path: str) -> str:
    return s.resolve(path).canonical_path


def shown(s: SyncSession, object: str) -> str:
    """Path of ``object`` as the pool of the session's context shows it."""
    blocks = s.assemble().blocks
    lines = [line for block in blocks if block.section == "metadata_pool" for line in block.text.split("\n")]
    (line,) = [line for line in lines if line.startswith(f"id={object} ")]
    path = line.partition(" path=")[2].rpartition(" file_type=")[0]
    return str(json.loads(path)) if path.startswith('"') else path
