"""The daemon's socket as the option, the environment and the configuration name it."""

import os


def named_socket(given: str | None) -> str | None:
    """Return the socket named by ``--socket``, ``$CTXD_SOCKET`` or a configuration file; None for the default places,
    and for ``$CTXD_SOCKET``, which the client reads. Raises: ConfigError."""
    if given or os.environ.get("CTXD_SOCKET"):
        return given
    from ctxd.config import load

    config = load()
    return str(config.socket) if config.origins["socket"].startswith("file") else None
