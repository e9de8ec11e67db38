"""The daemon: one a host, holding every client's sessions, versions and contexts."""

from typing import Final

__version__: Final = "0.1.0"
