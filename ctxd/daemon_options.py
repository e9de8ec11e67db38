"""Options of a daemon: the settings of each part, derived from ``Config``, and those that a running daemon can reload.

Builds no part, and opens only the files of rules for secrets and of models.
"""

import dataclasses
import grp
import os
import socket
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Final

import msgspec

from ctxd.assembly.repack_policy import Aim
from ctxd.config import Config, field_of
from ctxd.errors import StateDirError
from ctxd.models import Models, ModelsRefused, read_models
from ctxd.projection.progress import Room
from ctxd.projection.projection_loop import Target
from ctxd.rpc.listener_state import Timing
from ctxd.rpc.socket_server import CONNECTIONS_MAX
from ctxd.secrets.custom_rules import RulesRefused, scanner_of
from ctxd.secrets.policy import DEFAULT
from ctxd.secrets.scanner import Scanner
from ctxd.trackers.watcher_interface import WatcherChoice
from ctxd_protocol.limits import Limits
from ctxd_protocol.secret_types import SecretPolicy
from ctxd_protocol.session_types import Collapse

_EXIT_CONFIG: Final = 78


class Shared(msgspec.Struct, frozen=True, kw_only=True):
    """Settings for an XTDB log that other hosts share. ``host``: the name of this host there; ``lease_s``: seconds of
    silence after which others may take over its sessions."""

    host: str
    lease_s: float


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """Options of one daemon. ``state_dir`` None: a temporary directory; ``cache_dir`` None: the state directory;
    ``socket_gid`` None: mode 0600.

    ``metrics``: path of the HTTP metrics socket, or None. ``collapse``, ``secrets``: defaults of sessions. ``watcher``:
    kind of the file watcher, or None. ``store``: the XTDB node to project to, or None. ``artifacts_bytes_max``: bytes
    of artifacts above which they are collected; 0: never. ``scanner``: detector of secrets; None: the built-in rules.
    ``models``: the models that requests may be made for; None: the built-in ones. ``aim``: of repacks.
    """

    socket: Path
    state_dir: Path | None
    cache_dir: Path | None = None
    socket_gid: int | None = None
    metrics: Path | None = None
    limits: Limits = Limits()
    timing: Timing = Timing()
    connections_max: int = CONNECTIONS_MAX
    collapse: Collapse = Collapse()
    watcher: WatcherChoice | None = "auto"
    store: Target | None = None
    shared: Shared | None = None
    secrets: SecretPolicy = DEFAULT
    artifacts_bytes_max: int = 0
    scanner: Scanner | None = None
    models: Models | None = None
    aim: Aim = "cost"


def scanner_from(config: Config) -> Scanner:
    """The scanner with the configured rules for secrets. Raises: StateDirError for rules that cannot be used."""
    try:
        return scanner_of(config.secrets_rules)
    except RulesRefused as refused:
        raise StateDirError(str(refused), exit_code=_EXIT_CONFIG) from None


def options_of(config: Config, scanner: Scanner, *, ephemeral: bool) -> Options:
    """Return the options for ``config``. Raises: StateDirError if this host cannot provide them."""
    if config.socket_group is not None:
        _require_group_rights(config)
    return Options(
        socket=config.socket,
        state_dir=None if ephemeral else config.state_dir,
        cache_dir=None if ephemeral else config.cache_dir,
        socket_gid=None if config.socket_group is None else _gid(config.socket_group),
        metrics=config.metrics_socket,
        limits=Limits(frame_bytes=config.frame_bytes, in_flight=config.in_flight),
        timing=timing_of(config),
        connections_max=config.connections_max,
        collapse=Collapse(per_turn=config.collapse_per_turn, turns=config.collapse_turns),
        watcher=None if config.tracking_watcher == "off" else config.tracking_watcher,
        store=_target(config),
        shared=_shared(config),
        secrets=config.secrets_policy,
        artifacts_bytes_max=config.artifacts_bytes_max,
        scanner=scanner,
        models=_models(config),
        aim=config.window_aim,
    )


def _models(config: Config) -> Models:
    try:
        return read_models(config.models_file)
    except ModelsRefused as refused:
        raise StateDirError(str(refused), exit_code=_EXIT_CONFIG) from None


class Settings:
    """The settings in force, which can be reloaded. ``read`` loads them; it raises ConfigError."""

    def __init__(self, config: Config, read: Callable[[], Config]) -> None:
        self.config = config
        self._read = read

    def reread(self) -> "Changes":
        """Read the settings again and apply those that can change in a running daemon.

        Raises: ConfigError for settings that cannot be used; those in force do not change. Blocks briefly.
        """
        old, read = self.config, self._read()
        changed = [key for (key, was, _), (_, now, _) in zip(old.items(), read.items(), strict=True) if was != now]
        applied = {field_of(key): getattr(read, field_of(key)) for key in changed if key in RELOADABLE}
        self.config = dataclasses.replace(old, **applied)
        return Changes(
            applied=tuple(key for key in changed if key in RELOADABLE),
            after_restart=tuple(key for key in changed if key not in RELOADABLE),
        )


class Changes(msgspec.Struct, frozen=True):
    """Keys of changed settings: those in force now, and those that will be in force after a restart."""

    applied: tuple[str, ...]
    after_restart: tuple[str, ...]

    @property
    def summary(self) -> str:
        """The changes as text."""
        parts = [("now in force", self.applied), ("in force after a restart", self.after_restart)]
        return "; ".join(f"{what}: {', '.join(keys)}" for what, keys in parts if keys) or "nothing has changed"


RELOADABLE: Final = frozenset(
    {
        "log.level",
        "limits.request_deadline_s",
        "limits.drain_s",
        "limits.frame_s",
        "limits.stall_s",
        "limits.connections_max",
    }
)
"""Keys that take effect in a running daemon. Other limits do not, as they were announced to clients."""


def timing_of(config: Config) -> Timing:
    """Return the timeouts of connections."""
    return Timing(
        frame_s=config.frame_s, stall_s=config.stall_s, deadline_s=config.request_deadline_s, drain_s=config.drain_s
    )


def _require_group_rights(config: Config) -> None:
    """Refuse a socket group for a daemon that runs as root, unless the configuration allows it. Raises:
    StateDirError."""
    if os.geteuid() == 0 and not config.socket_group_as_root:
        raise StateDirError(
            "a daemon that runs as root reads every file for a group that may connect: run it as its own user, leave"
            " the group out, or set socket_group_as_root = true",
            exit_code=_EXIT_CONFIG,
        )


def with_passed_socket(options: Options, path: str, config: Config) -> Options:
    """Return ``options`` for the socket that the service manager passed at ``path``, empty for none; the mode of that
    socket decides on its group.

    Raises: StateDirError if its file cannot be examined.
    """
    if not path:
        return options
    try:
        found = os.stat(path)
    except OSError as error:
        message = f"the passed socket is not at {path}: {error.strerror}; start its unit again"
        raise StateDirError(message, exit_code=_EXIT_CONFIG) from error
    gid = found.st_gid if stat.S_IMODE(found.st_mode) & stat.S_IWGRP else None
    if gid not in (None, 0):
        _require_group_rights(config)
    return msgspec.structs.replace(options, socket=Path(path), socket_gid=gid)


def _target(config: Config) -> Target | None:
    if config.store_backend == "sqlite":
        return None
    return Target(url=config.store_url, room=Room(config.store_backlog_rows, config.store_backlog_bytes))


def _shared(config: Config) -> Shared | None:
    if not config.store_shared:
        return None
    if config.store_backend != "xtdb":
        raise StateDirError("store.shared needs store.backend = xtdb", exit_code=_EXIT_CONFIG)
    return Shared(host=config.store_host or socket.gethostname(), lease_s=config.store_lease_s)


def _gid(group: str) -> int:
    try:
        return grp.getgrnam(group).gr_gid
    except KeyError:
        raise StateDirError(f"there is no group {group!r} for the socket", exit_code=_EXIT_CONFIG) from None
