"""The versions of the wire protocol."""

from typing import Final

PROTOCOL_VERSIONS: Final[tuple[int, ...]] = (1,)
"""Every wire version this side speaks, oldest first. A peer names the ones it knows in ``hello``."""

SERVER_NAME: Final = "ctxd"
"""What the daemon calls itself in ``hello``."""
