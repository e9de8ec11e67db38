"""The paths that a sandbox may try, and the tree that they are tried on."""

import json
import os
from pathlib import Path
from typing import Any

from ctxd_protocol.session_types import Mount

DATA = json.loads((Path(__file__).parents[1] / "data" / "sandboxes" / "paths.json").read_text())
VECTORS: list[dict[str, str]] = DATA["vectors"]
OWN = "b" * 64
MASKED = "e" * 64


def make_tree(root: Path) -> tuple[Mount, ...]:
    """Make the tree below ``root``; the mounts of the sandbox."""
    tree: dict[str, Any] = DATA["tree"]
    for name, text in tree["files"].items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    for name in tree["fifos"]:
        os.mkfifo(root / name)
    for name, target in tree["links"].items():
        (root / name).symlink_to(placed(target, root))
    return (
        Mount(agent_prefix="/workspace", canonical_prefix=str(root / "project")),
        Mount(agent_prefix="/data", canonical_prefix=str(root / "data")),
        Mount(agent_prefix="/workspace/nested", canonical_prefix=str(root / "other")),
        Mount(agent_prefix="/workspace/masked", canonical_prefix="/masked", filesystem_id=MASKED),
    )


def placed(text: str, root: Path) -> str:
    """``text`` with the root in its place."""
    return text.replace("{root}", str(root))
