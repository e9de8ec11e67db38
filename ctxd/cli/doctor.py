"""``ctx doctor``: run every check; one line each, with the fix below each problem."""

import os
from pathlib import Path
from typing import Final

import click
import msgspec

from ctxd import __version__
from ctxd.cli import daemon_checks, host_checks, install, spool_maintenance
from ctxd.cli.common_options import Invocation, common
from ctxd.cli.exit_codes import CHECK_FAILED, OK
from ctxd.click_support import Command
from ctxd.clock import SystemClock
from ctxd.config import Config, ConfigError, load
from ctxd.doctor_findings import Finding, fail, lines, ok
from ctxd_client.errors import CallFailed, TimedOut
from ctxd_client.socket_lookup import find_socket
from ctxd_client.sync import connect_sync
from ctxd_protocol.default_paths import SYSTEM_SOCKET, SYSTEM_STATE_DIR
from ctxd_protocol.sandbox_types import SandboxView
from ctxd_protocol.status_types import DaemonStatus

ANSWER_S_MAX: Final = 5.0
"""Maximum seconds for a reply of the daemon: a later one is itself a finding."""


@click.command(cls=Command, examples="ctx doctor\nctx doctor --json | jq '.items[] | select(.verdict != \"ok\")'")
@common
def doctor(run: Invocation) -> int:
    """Check this host, the daemon, its sandboxes, and the hooks of the harnesses.

    Prints a remedy for each problem. Exits with 7 if a check fails; warnings alone do not count.
    """
    found = _all(run)
    failed = sum(check.verdict == "fail" for check in found)
    if run.screen.as_json:
        run.screen.document({"items": found, "failed": failed})
    else:
        for line in lines(found, run.screen):
            run.screen.line(line)
    return CHECK_FAILED if failed else OK


def _all(run: Invocation) -> list[Finding]:
    found: list[Finding] = []
    config: Config | None = None
    try:
        config = load()
        found.append(ok("settings", "all valid"))
    except ConfigError as error:
        found.append(fail("settings", str(error), "correct it: the daemon does not start with it"))
    named = run.socket or os.environ.get("CTXD_SOCKET") or None
    if named is None and config is not None and config.origins["socket"].startswith("file"):
        named = str(config.socket)
    path = find_socket(named).path
    asked = _ask(path)
    status = asked.status
    if asked.is_sandbox:
        found += [host_checks.environment(os.environ), host_checks.socket_path(path), host_checks.socket_file(path)]
        return [*found, ok("daemon", "replies on a sandbox's socket; run ctx doctor on the host for all other checks")]
    found += [
        host_checks.environment(os.environ),
        host_checks.socket_path(path),
        host_checks.socket_file(path),
        *host_checks.daemon(status, asked.silence, __version__, asked.remedy),
        host_checks.distribution(),
        host_checks.executables(os.environ.get("PATH", "")),
        host_checks.sqlite(),
        host_checks.machine_id(),
        *host_checks.inotify(),
        *spool_maintenance.findings(path),
        *install.findings(),
    ]
    if status is not None:
        found += [
            daemon_checks.daemon_descriptors(status.pid),
            daemon_checks.watching(status.tracking),
            daemon_checks.sandboxes(asked.sandboxes),
            daemon_checks.mounts(asked.sandboxes, status.pid),
            *daemon_checks.check_sandbox_access(asked.sandboxes),
        ]
    if config is not None:
        state_dir = state_dir_of(status, config, path)
        if state_dir is not None:
            newest_ms = host_checks.newest_file_ms(state_dir)
            found += [host_checks.state_dir(state_dir), host_checks.disk(state_dir)]
            found += [host_checks.clock(SystemClock().wall_ms(), newest_ms)]
        found += [host_checks.descriptors(config.connections_max)]
    node = _node(status, config)
    return found + (list(host_checks.node(node)) if node else [])


def state_dir_of(status: DaemonStatus | None, config: Config, socket: str) -> Path | None:
    """Return the state directory of the daemon at ``socket``; None for an ephemeral one.

    Without a ``status`` it is that of the system service for the service's socket, else the configured one.
    """
    if status is not None:
        found = Path(status.state_dir)
        return found if found.is_absolute() else None
    if socket == SYSTEM_SOCKET and config.origins["state_dir"] == "default":
        return Path(SYSTEM_STATE_DIR)
    return config.state_dir


def _node(status: DaemonStatus | None, config: Config | None) -> str:
    """Return the URL of the XTDB node, from the running daemon, else from the settings; empty without a node."""
    if status is not None:
        return status.store.projection.url if status.store.projection is not None else ""
    return config.store_url if config is not None and config.store_backend == "xtdb" else ""


class _Asked(msgspec.Struct, frozen=True):
    """Replies of the daemon; ``silence`` and ``remedy`` explain a ``status`` of None. ``is_sandbox``: the socket is a
    sandbox's, which has no status."""

    status: DaemonStatus | None
    silence: str
    remedy: str
    sandboxes: tuple[SandboxView, ...] = ()
    is_sandbox: bool = False


def _ask(path: str) -> _Asked:
    try:
        with connect_sync(path, deadline_s=ANSWER_S_MAX, client="ctx doctor", version=__version__) as client:
            return _Asked(client.daemon_status(), "", "", client.sandbox_list().sandboxes)
    except TimedOut as error:
        return _Asked(
            None,
            error.message,
            "look for the reason in its log; then run systemctl restart ctxd, or end it and start it",
        )
    except CallFailed as error:
        return _Asked(None, error.message, error.hint, is_sandbox=error.code == "method_not_found")
