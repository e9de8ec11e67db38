"""How one daemon is to run, and how that follows from the settings.

Owns the step from what an operator writes to what the parts are handed. Builds no part, and opens nothing but the file
of the rules for secrets.
"""

import grp
import socket
from pathlib import Path
from typing import Final

import msgspec

from ctxd.config import Config
from ctxd.errors import StateDirError
from ctxd.rpc.lane import Timing
from ctxd.rpc.server import CONNECTIONS_MAX
from ctxd.secrets.policy import DEFAULT
from ctxd.secrets.rulefile import RulesRefused, scanner_of
from ctxd.secrets.scan import Scanner
from ctxd.store.projection.projection import Target
from ctxd.store.projection.spill import Room
from ctxd.trackers.opening import Choice
from ctxd_protocol.limits import Limits
from ctxd_protocol.secrets import SecretPolicy
from ctxd_protocol.sessions import Collapse

_EXIT_CONFIG: Final = 78


class Shared(msgspec.Struct, frozen=True, kw_only=True):
    """Other hosts use the same log. ``host`` is what they call this one; others may take over after ``lease_s`` of
    its silence."""

    host: str
    lease_s: float


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """How one daemon is to run. ``state_dir`` null: a temporary directory; ``socket_gid`` null: mode 0600.

    ``collapse``: the window of sessions that ask for none. ``watcher``: what files are followed by; null: none are.
    ``store``: the XTDB node to project to; null: none. ``secrets``: the policy of sessions that ask for none;
    ``scanner``: the rules that secrets are found by, null for the built-in ones.
    """

    socket: Path
    state_dir: Path | None
    socket_gid: int | None = None
    limits: Limits = Limits()
    timing: Timing = Timing()
    connections_max: int = CONNECTIONS_MAX
    collapse: Collapse = Collapse()
    watcher: Choice | None = "auto"
    store: Target | None = None
    shared: Shared | None = None
    secrets: SecretPolicy = DEFAULT
    scanner: Scanner | None = None


def scanner_from(config: Config) -> Scanner:
    """The rules that secrets are found by. Raises: StateDirError for rules that cannot be used."""
    try:
        return scanner_of(config.secrets_rules)
    except RulesRefused as refused:
        raise StateDirError(str(refused), exit_code=_EXIT_CONFIG) from None


def options_of(config: Config, scanner: Scanner, *, ephemeral: bool) -> Options:
    """What ``config`` asks for. Raises: StateDirError if it cannot be had on this host."""
    return Options(
        socket=config.socket,
        state_dir=None if ephemeral else config.state_dir,
        socket_gid=None if config.socket_group is None else _gid(config.socket_group),
        limits=Limits(frame_bytes=config.frame_bytes, in_flight=config.in_flight),
        timing=Timing(
            frame_s=config.frame_s, stall_s=config.stall_s, deadline_s=config.request_deadline_s, drain_s=config.drain_s
        ),
        connections_max=config.connections_max,
        collapse=Collapse(per_turn=config.collapse_per_turn, turns=config.collapse_turns),
        watcher=None if config.tracking_watcher == "off" else config.tracking_watcher,
        store=_target(config),
        shared=_shared(config),
        secrets=config.secrets_policy,
        scanner=scanner,
    )


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
