"""Lifecycle of sandboxes, from registration to the end of their lease.

Owns the registrations, their leases and the file with each sandbox's current context; the listeners serve the sockets.
Promises: acknowledged registrations survive a restart, at the same path; once its lease has ended, a sandbox has no
socket and no connections; the file has the result of ``context.current``.
"""

import math
import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

import anyio
import msgspec
from anyio.abc import TaskStatus
from structlog.typing import FilteringBoundLogger

from ctxd.clock import Clock
from ctxd.commits.session_checkpoints import SessionCheckpoints
from ctxd.errors import CtxdError, StateDirError
from ctxd.mounts.mapping import normalise
from ctxd.objects.document import Page
from ctxd.sandboxes import registration
from ctxd.sandboxes.listeners import SandboxListeners
from ctxd.sandboxes.registration import Registration
from ctxd.sandboxes.sandbox_directories import Directories
from ctxd.sessions.registry import Sessions
from ctxd.sessions.session_settings import SessionSettings
from ctxd.sources.confinement import Confinement
from ctxd.sources.user_rights import User
from ctxd.store.write_types import Pending, Write
from ctxd.task_groups import task_group
from ctxd.trackers.tracker import FILES_MAX
from ctxd.worker_threads import Lane, NoThread, in_thread
from ctxd_protocol.context_types import CurrentContext
from ctxd_protocol.sandbox_types import SandboxView
from ctxd_protocol.session_types import Mount
from ctxd_protocol.status_types import SandboxesStatus

SANDBOXES_MAX: Final = 4096
"""Maximum registered sandboxes. Each takes a descriptor, and some 10 KB without connections."""

ROOTS_S: Final = 5.0
"""Timeout in seconds of the look-up of mount roots."""

ROOTS_AT_ONCE: Final = 16
"""Maximum concurrent look-ups, including hanging ones."""

RESTART_GRACE_S: Final = 30.0
"""Minimum duration in seconds of a lease after the daemon's start: without a daemon it could not be renewed."""

RETRY_S: Final = 10.0
"""Seconds until the next attempt to end a sandbox whose end could not be written."""


class Lease:
    """Lease of one sandbox. ``ends`` is in seconds of the monotonic clock, infinite while a connection holds it."""

    __slots__ = ("by_time", "ends", "holder")

    def __init__(self, ends: float, *, by_time: bool) -> None:
        self.ends = ends
        self.by_time = by_time
        self.holder: int | None = None

    @classmethod
    def of(cls, registration: Registration, clock: Clock) -> "Lease":
        """Start a lease now."""
        seconds = registration.grace_s if registration.ttl_s is None else registration.ttl_s
        return cls(clock.monotonic() + seconds, by_time=registration.ttl_s is not None)

    @classmethod
    def after_restart(cls, registration: Registration, clock: Clock) -> "Lease":
        """Resume the lease of a sandbox that was registered before."""
        left = float(registration.grace_s)
        if registration.expires_at is not None and registration.ttl_s is not None:
            # Not longer than it lasts, also if the clock was ahead when it was written.
            left = min(registration.ttl_s, (registration.expires_at - clock.wall_ms()) / 1000)
        return cls(clock.monotonic() + max(left, RESTART_GRACE_S), by_time=registration.ttl_s is not None)

    def expires_at(self, registration: Registration, clock: Clock) -> int | None:
        """The end in ms since 1970; ``None`` while a connection holds the lease."""
        if self.ends == math.inf:
            return None
        ends = clock.wall_ms() + round(1000 * (self.ends - clock.monotonic()))
        written = registration.expires_at
        # Exactly the acknowledged time, unless a restart has postponed it, or the clock was set.
        return ends if written is None or abs(ends - written) > 1000 else written

    def hold(self, connection: int) -> None:
        """Make the lease last as long as ``connection``."""
        self.holder, self.ends = connection, math.inf

    def let_go(self, ends: float) -> None:
        """Make the lease end at ``ends``, without a connection that holds it."""
        self.holder, self.ends = None, ends


class _Limits(msgspec.Struct):
    """The resolved paths of mounts, and the users of sandboxes by number."""

    roots: dict[str, str]
    users: dict[int, User]


class Sandboxes:
    """The registered sandboxes. ``start`` before anything else, then ``run``."""

    def __init__(
        self,
        sessions: Sessions,
        checkpoints: SessionCheckpoints,
        confinement: Confinement,
        clock: Clock,
        listeners: SandboxListeners,
        directories: Directories,
        log: FilteringBoundLogger,
        *,
        not_mounted: Sequence[Path],
    ) -> None:
        """``confinement`` limits reads of the host for sandboxes. ``not_mounted``: the daemon's own directories, which
        no sandbox may mount."""
        self._store = sessions.store
        self._sessions = sessions
        self._checkpoints = checkpoints
        self._confinement = confinement
        self._checking = Lane("sandbox.mounts", ROOTS_AT_ONCE)
        self._clock = clock
        self._listeners = listeners
        self._directories = directories
        self._log = log
        self._not_mounted = [os.path.realpath(each) for each in not_mounted]
        self._known: dict[str, Registration] = {}
        self._versions: dict[str, int] = {}
        self._leases: dict[str, Lease] = {}
        self._renewing: dict[str, tuple[Registration, Lease]] = {}
        """The newest written registration and lease of sandboxes whose leases are timed and were renewed."""
        self._held: dict[int, set[str]] = {}
        """The sandboxes whose leases each open connection has held."""
        self._contexts: dict[str, CurrentContext] = {}
        self._of_session: dict[str, list[str]] = {}
        self._unwritten: set[str] = set()
        self._ending: dict[str, anyio.Lock] = {}
        self._wake = anyio.Event()
        self._listens = False

    async def start(self) -> None:
        """Open the sockets of all registered sandboxes, at their previous paths.

        Raises: CtxdError corrupt, store_failed. A socket that cannot be opened is logged, and the others are opened.
        """
        stored = await self._store.scan(registration.PREFIX)
        kept = [(registration.read(each), each.valid_time) for each in stored]
        ids = {one.id for one, _ in kept}
        limits = await self._limits_of([one for one, _ in kept])
        await self._listeners.close_others(ids)
        await self._remove_strays(ids)
        for one, valid_time in kept:
            (first,) = await self._store.history(registration.entity_id(one.id), page=Page(limit=1))
            self._admit(one, valid_time, first.tx)
            self._leases[one.id] = Lease.after_restart(one, self._clock)
            try:
                await self._open(one, limits)
            except (OSError, StateDirError, CtxdError) as error:
                self._log.error("sandbox.not_opened", sandbox=one.id, error=str(error))

    async def _remove_strays(self, ids: set[str]) -> None:
        """Remove the directories of sandboxes that are not among ``ids``, as far as possible."""
        try:
            strays = await in_thread(self._directories.remove_strays, ids)
        except (OSError, CtxdError) as error:
            self._log.warning("sandbox.directories_stay", error=str(error))
            return
        for sandbox, failure in strays.items():
            if failure is not None:
                self._log.warning("sandbox.directory_stays", sandbox=sandbox, error=str(failure))

    async def run(self, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        """End sandboxes when their leases end, until cancelled. Cancel: safe; sandboxes stay registered."""
        task_status.started()
        while True:
            self._wake = anyio.Event()
            now = self._clock.monotonic()
            for sandbox in [id for id, lease in self._leases.items() if lease.ends <= now]:
                # It may have been renewed, or have ended, while another one ended.
                if (lease := self._leases.get(sandbox)) is not None and lease.ends <= now:
                    await self._expire(sandbox)
            delay = min((lease.ends for lease in self._leases.values()), default=math.inf) - self._clock.monotonic()
            with anyio.move_on_after(None if delay == math.inf else max(delay, 0.0)):
                await self._wake.wait()

    async def register(self, wanted: Registration, mounts: tuple[Mount, ...] | None, write: Write) -> Pending:
        """Register ``wanted`` and open its socket, with ``write``, which must have no other puts.

        ``mounts``: ``None`` for those of its sessions; an empty tuple for no mounts.
        Raises: CtxdError session_not_found, invalid_params, invalid_path, source_unreachable, principal_exists,
        too_large, unsupported, and those of the store. Cancel: safe; nothing is registered then.
        """
        self._require(wanted)
        made = msgspec.structs.replace(wanted, mounts=await self._mounts(wanted, mounts))
        self._directories.require_room()
        try:
            await self._open(made, await self._limits_of([made]))
            # No await from here to the registration: neither the mounts of sessions nor the principals change.
            self._require(made)
            self._require_mounts(made)
            pending = self._store.submit(msgspec.structs.replace(write, puts=(registration.document(made),)))
        except BaseException as error:
            with anyio.CancelScope(shield=True):
                await self._close(made.id)
            if not isinstance(error, OSError | StateDirError):
                raise
            why = (error.strerror or str(error)) if isinstance(error, OSError) else str(error)
            raise CtxdError("unsupported", f"the sandbox cannot have a socket: {why}", outcome="not_applied") from error
        self._admit(made, pending.vt, pending.seq)
        self._leases[made.id] = Lease.of(made, self._clock)
        pending.on_done(lambda done: self._withdraw(made.id) if done.error is not None else None)
        self._wake.set()
        return pending

    def hold(self, sandbox: str, connection: int, on_close: Callable[[Callable[[], None]], None]) -> None:
        """Give the lease of ``sandbox`` to ``connection``, unless the lease is timed.

        Raises: CtxdError sandbox_not_found.
        """
        self._named(sandbox)
        lease = self._leases[sandbox]
        if lease.by_time:
            return
        lease.hold(connection)
        if connection not in self._held:
            # One callback for all leases of a connection, which may renew them for months.
            self._held[connection] = set()
            on_close(lambda: self._let_go(connection))
        self._held[connection].add(sandbox)
        self._wake.set()

    def renew(self, sandbox: str, write: Write) -> Pending | None:
        """Renew the lease of ``sandbox`` from now on. Returns: the write; ``None`` if the lease is not timed.

        Raises: CtxdError sandbox_not_found, and those of the store; the lease is then unchanged.
        """
        known, lease = self._named(sandbox), self._leases[sandbox]
        if (ending := self._ending.get(sandbox)) is not None and ending.locked():
            raise _not_found(sandbox)
        if known.ttl_s is None:
            return None
        renewed = msgspec.structs.replace(known, expires_at=self._clock.wall_ms() + 1000 * known.ttl_s)
        floor_vt = self._versions[sandbox] + 1
        pending = self._store.submit(
            msgspec.structs.replace(write, puts=(registration.document(renewed),), floor_vt=floor_vt)
        )
        self._renewing.setdefault(sandbox, (known, lease))
        self._known[sandbox], self._versions[sandbox] = renewed, pending.vt
        self._leases[sandbox] = after = Lease.of(renewed, self._clock)
        pending.on_done(lambda done: self._note_renewal(renewed, after, is_written=done.error is None))
        self._wake.set()
        return pending

    async def release(self, sandbox: str, write: Write) -> Pending:
        """End ``sandbox``: its socket, connections and directory are removed once its end is durable.

        Its sessions stay. Raises: CtxdError sandbox_not_found, and those of the store; the sandbox is then unchanged.
        Cancel: deferred until the sandbox has ended, or the attempt has failed.
        """
        self._named(sandbox)
        with anyio.CancelScope(shield=True):
            async with self._ending.setdefault(sandbox, anyio.Lock()):
                self._named(sandbox)
                entity = registration.entity_id(sandbox)
                floor_vt = self._versions[sandbox] + 1
                pending = self._store.submit(msgspec.structs.replace(write, deletes=(entity,), floor_vt=floor_vt))
                await pending.wait()
                await self._end(sandbox)
        return pending

    def view(self, sandbox: str) -> SandboxView:
        """One sandbox. Raises: CtxdError sandbox_not_found."""
        known = self._named(sandbox)
        figures = self._listeners.figures(sandbox)
        return SandboxView(
            sandbox=sandbox,
            principal=known.principal,
            directory=str(self._directories.directory(sandbox)),
            socket=str(self._directories.socket(sandbox)),
            sessions=known.sessions,
            mounts=known.mounts,
            grants=known.grants,
            quota=known.quota,
            ttl_s=known.ttl_s,
            grace_s=known.grace_s,
            uid=known.uid,
            created_at=known.created_at,
            expires_at=self._leases[sandbox].expires_at(known, self._clock),
            connections=figures.connections,
            requests=figures.requests,
            refused=figures.refused,
        )

    def all(self) -> list[SandboxView]:
        """All sandboxes, oldest first."""
        return [self.view(id) for id in sorted(self._known, key=lambda id: (self._known[id].created_at, id))]

    def status(self) -> SandboxesStatus:
        """Totals of all sandboxes."""
        views = self.all()
        return SandboxesStatus(
            registered=len(views),
            oldest=views[0].created_at if views else None,
            next_end=min((view.expires_at for view in views if view.expires_at is not None), default=None),
            connections=sum(view.connections for view in views),
            requests=sum(view.requests for view in views),
            refused=sum(view.refused for view in views),
        )

    def tracking_room(self, session: str, count: Callable[[str], int]) -> int:
        """Number of further files that may be tracked for ``session`` by the quotas of the sandboxes that may use it.

        ``count`` returns the number of files tracked for a session.
        """
        sharing = [self._known[id] for id in self._of_session.get(session, ())]
        rooms = (one.quota.tracked_files - sum(map(count, one.sessions)) for one in sharing)
        return min(rooms, default=FILES_MAX)

    # --- conditions of a registration

    def _require(self, wanted: Registration) -> None:
        if len(self._known) >= SANDBOXES_MAX:
            raise CtxdError(
                "too_large",
                f"there are {SANDBOXES_MAX} sandboxes, the maximum",
                hint="Release those that are no longer needed.",
                outcome="not_applied",
            )
        if any(known.principal == wanted.principal for known in self._known.values()):
            raise CtxdError(
                "principal_exists",
                f"principal {wanted.principal} belongs to another sandbox",
                hint="Each sandbox has a principal of its own; leave it out for a new one.",
                outcome="not_applied",
            )
        if len(set(wanted.sessions)) < len(wanted.sessions):
            raise CtxdError("invalid_params", "a session is named twice", outcome="not_applied")

    async def _mounts(self, wanted: Registration, given: tuple[Mount, ...] | None) -> tuple[Mount, ...]:
        """The mounts of the sessions of ``wanted``, which must agree with each other and with ``given``. Raises:
        CtxdError."""
        mounts = self._settings(wanted.sessions[0]).mounts if given is None else given
        self._require_mounts(msgspec.structs.replace(wanted, mounts=mounts))
        try:
            with anyio.fail_after(ROOTS_S):
                await self._checking.run(registration.require_plain_roots, mounts, self._not_mounted, abandon=True)
        except TimeoutError as error:
            raise CtxdError(
                "source_unreachable",
                "the file system of a mount does not respond",
                hint="Repeat the call once it responds, or mount another directory.",
                outcome="not_applied",
            ) from error
        return mounts

    def _require_mounts(self, wanted: Registration) -> None:
        """Raises: CtxdError invalid_params unless the sessions have the mounts, and a filesystem of their own."""
        host = self._sessions.host_filesystem_id
        for session in wanted.sessions:
            settings = self._settings(session)
            if settings.mounts != wanted.mounts:
                raise CtxdError(
                    "invalid_params",
                    f"session {session} has different mounts from the sandbox",
                    hint="Register the sandbox with the mounts that its sessions were made with, or leave them out.",
                    outcome="not_applied",
                )
            if wanted.methods and (settings.detect_filesystems or settings.filesystem_id == host):
                raise CtxdError(
                    "invalid_params",
                    f"session {session} uses the host's filesystem, which a sandbox with grants may not",
                    hint="Create the session with a filesystem_id of its own, or register the sandbox without grants.",
                    outcome="not_applied",
                )

    def _settings(self, session: str) -> SessionSettings:
        """The settings of ``session``, those of a write in flight included. Raises: CtxdError session_not_found."""
        durable = self._sessions.catalog.settings(session)
        live = self._sessions.peek(session)
        return durable if live is None else live.settings

    # --- sockets

    async def _open(self, known: Registration, limits: _Limits) -> None:
        """Open the socket. Raises: OSError, StateDirError, CtxdError."""
        # The limits first: they apply to every read below the mounts, even if the socket cannot be opened.
        self._limit(known, limits)
        await in_thread(self._directories.make, known.id)
        await self._checkpoints.load(known.sessions[0])
        self._write_context(known)
        await self._listeners.open(known, self._directories.socket(known.id))
        self._directories.grant_socket(known.id, known.uid)

    def _limit(self, known: Registration, limits: _Limits) -> None:
        """Limit reads below the mounts to files that the user of the sandbox may read.

        Raises: CtxdError ``unsupported`` if the user's groups could not be looked up: without them, it has no limits.
        """
        if known.uid is None or not (named := self._limited(known)):
            return
        if known.uid not in limits.users:
            hint = "Repeat the call once the system answers: getent group."
            raise CtxdError("unsupported", f"the system does not name the groups of user {known.uid}", hint=hint)
        roots = {root.rstrip("/") for name in named for root in (name, limits.roots.get(name, name))}
        self._confinement.limit(known.id, roots, limits.users[known.uid])

    def _limited(self, known: Registration) -> list[str]:
        """The mounts of the host below which reads are limited: none if the sandbox has the daemon's user."""
        if known.uid is None or known.uid == os.geteuid():
            return []
        host = (None, self._sessions.host_filesystem_id)
        return [normalise(mount.canonical_prefix) for mount in known.mounts if mount.filesystem_id in host]

    async def _limits_of(self, every: Sequence[Registration]) -> _Limits:
        """Look up the mounts and users that limit ``every`` sandbox, as far as they are found within ``ROOTS_S``.

        A mount may hang: its name is then limited as it is. Cancel: at once; hanging look-ups end later.
        """
        found = _Limits({}, {})

        async def resolve(name: str) -> None:
            with suppress(NoThread):
                found.roots[name] = await self._checking.run(os.path.realpath, name, abandon=True)

        async def look_up(uid: int) -> None:
            with suppress(NoThread):
                found.users[uid] = await self._checking.run(User.of, uid, abandon=True)

        limited = [(one.uid, named) for one in every if one.uid is not None and (named := self._limited(one))]
        with anyio.move_on_after(ROOTS_S):
            async with task_group() as looking:
                # The users first: a place in the lane may be taken by a mount that hangs.
                for uid in {uid for uid, _ in limited}:
                    looking.start_soon(look_up, uid)
                for name in {name for _, named in limited for name in named}:
                    looking.start_soon(resolve, name)
        return found

    async def _end(self, sandbox: str) -> None:
        self._forget(sandbox)
        await self._close(sandbox)

    async def _close(self, sandbox: str) -> None:
        # The socket first: a connection must not outlast the limits on its reads.
        await self._listeners.close(sandbox)
        self._confinement.lift(sandbox)
        try:
            await in_thread(self._directories.remove, sandbox)
        except (OSError, CtxdError) as error:
            # The next start removes it.
            self._log.warning("sandbox.directory_stays", sandbox=sandbox, error=str(error))

    # --- leases

    def _let_go(self, connection: int) -> None:
        for sandbox in self._held.pop(connection):
            lease = self._leases.get(sandbox)
            if lease is not None and lease.holder == connection:
                lease.let_go(self._clock.monotonic() + self._known[sandbox].grace_s)
                self._wake.set()

    def _withdraw(self, sandbox: str) -> None:
        """End a sandbox whose registration was never written."""
        if (lease := self._leases.get(sandbox)) is not None:
            self._unwritten.add(sandbox)
            lease.let_go(self._clock.monotonic())
            self._wake.set()

    def _note_renewal(self, renewed: Registration, lease: Lease, *, is_written: bool) -> None:
        """Keep a renewal that was written; otherwise restore the newest one that was, unless another is on its way."""
        sandbox = renewed.id
        if is_written and sandbox in self._known:
            self._renewing[sandbox] = renewed, lease
        elif self._known.get(sandbox) is renewed:
            self._known[sandbox], self._leases[sandbox] = self._renewing[sandbox]
            self._wake.set()

    async def _expire(self, sandbox: str) -> None:
        if sandbox in self._unwritten:
            with anyio.CancelScope(shield=True):
                await self._end(sandbox)
            return
        self._log.info("sandbox.expired", sandbox=sandbox)
        try:
            await self.release(sandbox, Write(kind="sandbox.release", principal="daemon"))
        except CtxdError as error:
            self._log.warning("sandbox.not_released", sandbox=sandbox, error=error.message)
            if (lease := self._leases.get(sandbox)) is not None:
                lease.let_go(self._clock.monotonic() + RETRY_S)

    # --- known sandboxes

    def _named(self, sandbox: str) -> Registration:
        known = self._known.get(sandbox)
        if known is None:
            raise _not_found(sandbox)
        return known

    def _admit(self, one: Registration, valid_time: int, seq: int) -> None:
        self._sessions.visibility.restrict(one.id, one.sessions, seq)
        self._known[one.id], self._versions[one.id] = one, valid_time
        if not self._listens:
            # Only from the first sandbox on, as most hosts have no sandboxes.
            self._listens = True
            self._store.on_durable(self._note, types=("session", "commit"))
        for session in one.sessions:
            self._of_session.setdefault(session, []).append(one.id)

    def _forget(self, sandbox: str) -> None:
        gone = self._known.pop(sandbox)
        self._sessions.visibility.lift(sandbox, gone.sessions)
        del self._versions[sandbox], self._leases[sandbox]
        self._contexts.pop(sandbox, None)
        self._renewing.pop(sandbox, None)
        self._unwritten.discard(sandbox)
        self._ending.pop(sandbox, None)
        for session in gone.sessions:
            left = self._of_session[session]
            left.remove(sandbox)
            if not left:
                del self._of_session[session]

    # --- the current context

    def _note(self, writes: Sequence[tuple[Write, Pending]]) -> None:
        """Update the context files that changed.

        It runs on the event loop, so that a client that has received a reply finds the same context in the file. The
        cost is two calls to an in-memory file system, and only if the context changed.
        """
        written = {write.session for write, _ in writes}
        written |= {each.payload.get("in") for write, _ in writes for each in write.puts if each.type == "commit"}
        for session in written & self._of_session.keys():
            self._checkpoints.note_assembled(session or "")
            for sandbox in self._of_session[session or ""]:
                known = self._known[sandbox]
                if known.sessions[0] == session:
                    try:
                        self._write_context(known)
                    except (OSError, CtxdError) as error:
                        self._log.warning("sandbox.context_not_written", sandbox=sandbox, error=str(error))

    def _write_context(self, known: Registration) -> None:
        current = self._checkpoints.known(known.sessions[0])
        if self._contexts.get(known.id) != current:
            self._directories.write_context(known.id, current, known.uid)
            self._contexts[known.id] = current


def _not_found(sandbox: str) -> CtxdError:
    return CtxdError("sandbox_not_found", f"there is no sandbox {sandbox}", hint="sandbox.list lists them.")
