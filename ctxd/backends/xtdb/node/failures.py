"""What an installation or a start of a node may fail with: always a cause and a remedy."""

import os


class NodeFailure(Exception):
    """A node that cannot be installed, started or asked. ``remedy`` is what helps; ``exit_code`` is what a command that
    meets it ends with."""

    def __init__(self, message: str, *, remedy: str, exit_code: int = 1) -> None:
        super().__init__(message)
        self.message = message
        self.remedy = remedy
        self.exit_code = exit_code


EXIT_MISSING = os.EX_UNAVAILABLE
"""A program that the machine has to have is missing, or too old."""

EXIT_CONFIG = os.EX_CONFIG
"""A configuration that cannot be used."""
