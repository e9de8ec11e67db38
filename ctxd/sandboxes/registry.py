"""Which sandboxes there are, from registration to the end of their lease.

Owns the registrations, their leases and the file that tells each sandbox its current context. Opens no socket itself:
that is a ``Doors``. Promises: what was acknowledged is there after a restart, at the same path; a sandbox whose lease
ran out has no socket and no connection any more; the file tells what ``context.current`` answers.
"""

import math
from collections.abc import Callable, Container, Sequence
from pathlib import Path
from typing import Final, Protocol

import anyio
import anyio.to_thread
import msgspec
from anyio.abc import TaskStatus
from structlog.typing import FilteringBoundLogger

from ctxd.clock import Clock
from ctxd.errors import CtxdError, StateDirError
from ctxd.sandboxes import registration
from ctxd.sandboxes.lease import RETRY_S, Lease
from ctxd.sandboxes.places import Places
from ctxd.sandboxes.registration import Registration
from ctxd.store.store import VersionStore
from ctxd.store.writes import Pending, Write
from ctxd_protocol.context import CurrentContext
from ctxd_protocol.sandboxes import SandboxView
from ctxd_protocol.sessions import Mount

SANDBOXES_MAX: Final = 4096
"""Sandboxes at once. Each costs a descriptor, and some 10 KB while nobody is connected."""


ROOTS_S: Final = 5.0
"""Seconds that looking at what is to be mounted may take."""


class Figures(msgspec.Struct, frozen=True):
    """What a sandbox's socket has seen: open connections, calls since it was opened, and those beyond the quota."""

    connections: int = 0
    requests: int = 0
    refused: int = 0


class Doors(Protocol):
    """The sockets of sandboxes."""

    async def open(self, registration: Registration, path: Path) -> None:
        """Listen at ``path`` for the sandbox. Raises: StateDirError."""

    async def close(self, sandbox: str) -> None:
        """Listen no more for ``sandbox``, and end its connections. Nothing if it has none."""

    async def close_others(self, sandboxes: Container[str]) -> None:
        """Close what was kept from an earlier run for any but ``sandboxes``."""

    def figures(self, sandbox: str) -> Figures:
        """What its socket has seen."""


class Home(msgspec.Struct, frozen=True):
    """Where a session's files lie: ``apart`` from the host's but for its ``mounts``, or among them."""

    apart: bool
    mounts: tuple[Mount, ...]


class Households(Protocol):
    """The sessions, as far as sandboxes ask for them."""

    def home(self, session: str) -> Home:
        """Where the files of ``session`` lie. Raises: CtxdError session_not_found."""

    def current(self, session: str) -> CurrentContext:
        """The durable context of ``session``. Raises: CtxdError session_not_found."""

    def limit(self, sandbox: str, mounts: Sequence[Mount], uid: int | None) -> None:
        """Read nothing below ``mounts`` that user ``uid`` may not; null: the daemon's own. Blocks briefly."""

    def lift(self, sandbox: str) -> None:
        """End that limit, if there is one."""

    def restrict(self, sandbox: str, sessions: Sequence[str], seq: int) -> None:
        """Show ``sandbox`` of ``sessions`` what it may see since its registration, of journal sequence ``seq``."""

    def unrestrict(self, sandbox: str, sessions: Sequence[str]) -> None:
        """End that."""


class Sandboxes:
    """The registered sandboxes. ``start`` before anything else, then ``run``."""

    def __init__(
        self,
        store: VersionStore,
        clock: Clock,
        households: Households,
        doors: Doors,
        places: Places,
        log: FilteringBoundLogger,
        *,
        state_dir: Path | None,
    ) -> None:
        """``state_dir``: what no sandbox may have mounted, besides what none may anyway."""
        self._store = store
        self._clock = clock
        self._households = households
        self._doors = doors
        self._places = places
        self._log = log
        self._state_dir = None if state_dir is None else str(state_dir.resolve())
        self._known: dict[str, Registration] = {}
        self._versions: dict[str, int] = {}
        self._leases: dict[str, Lease] = {}
        self._told: dict[str, CurrentContext] = {}
        self._of_session: dict[str, list[str]] = {}
        self._wake = anyio.Event()
        store.on_durable(self._note)

    async def start(self) -> None:
        """Open the sockets of all that are registered, at the paths they had.

        Raises: CtxdError corrupt, store_failed. A socket that cannot be had is logged: the others are not kept waiting.
        """
        stored = await self._store.scan(registration.PREFIX)
        kept = [(registration.read(each), each.valid_time) for each in stored]
        ids = {one.id for one, _ in kept}
        await self._doors.close_others(ids)
        await self._in_thread(lambda: self._places.remove_strays(ids))
        for one, valid_time in kept:
            (first,) = await self._store.history(registration.entity_id(one.id), limit=1)
            self._admit(one, valid_time, first.tx)
            self._leases[one.id] = Lease.after_restart(one, self._clock)
            await self._open(one)

    async def run(self, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        """End each sandbox whose lease ran out. Cancel: safe; what is registered stays so."""
        task_status.started()
        while True:
            self._wake = anyio.Event()
            now = self._clock.monotonic()
            for sandbox in [id for id, lease in self._leases.items() if lease.ends <= now]:
                await self._expire(sandbox)
            delay = min((lease.ends for lease in self._leases.values()), default=math.inf) - self._clock.monotonic()
            with anyio.move_on_after(None if delay == math.inf else max(delay, 0.0)):
                await self._wake.wait()

    async def register(
        self, wanted: Registration, mounts: tuple[Mount, ...] | None, call: Write
    ) -> tuple[SandboxView, Pending]:
        """Register ``wanted`` and open its socket, under the write that ``call`` is without what it puts.

        ``mounts`` is ``None`` for those of its sessions; an empty tuple is no mount at all.

        Raises: CtxdError session_not_found, invalid_params, invalid_path, source_unreachable, principal_exists,
        too_large, unsupported, and those of the store. Cancel: safe; nothing is registered then.
        """
        self._require(wanted)
        made = msgspec.structs.replace(wanted, mounts=await self._mounts(wanted, mounts))
        self._places.require_room()
        await self._open_first(made)
        try:
            pending = self._store.submit(msgspec.structs.replace(call, puts=(registration.document(made),)))
        except BaseException:
            with anyio.CancelScope(shield=True):
                await self._close(made.id)
            raise
        self._admit(made, pending.vt, pending.seq)
        self._leases[made.id] = Lease.of(made, self._clock)
        pending.on_done(lambda done: self._lost(made.id) if done.error is not None else None)
        self._wake.set()
        return self.view(made.id), pending

    def held_by(self, sandbox: str, connection: int, on_close: Callable[[Callable[[], None]], None]) -> None:
        """Make the lease of ``sandbox`` that of ``connection``, unless it goes by time."""
        lease = self._leases[sandbox]
        if lease.by_time:
            return
        lease.hold(connection)
        on_close(lambda: self._left(sandbox, connection))
        self._wake.set()

    def renew(self, sandbox: str, call: Write) -> Pending | None:
        """Extend the lease of ``sandbox`` that goes by time, from now on; null for one that is a connection's.

        Raises: CtxdError sandbox_not_found, and those of the store.
        """
        known = self._named(sandbox)
        if known.ttl_s is None:
            return None
        renewed = msgspec.structs.replace(known, expires_at=self._clock.wall_ms() + 1000 * known.ttl_s)
        floor_vt = self._versions[sandbox] + 1
        pending = self._store.submit(
            msgspec.structs.replace(call, puts=(registration.document(renewed),), floor_vt=floor_vt)
        )
        self._known[sandbox], self._versions[sandbox] = renewed, pending.vt
        self._leases[sandbox] = Lease.of(renewed, self._clock)
        self._wake.set()
        return pending

    async def release(self, sandbox: str, call: Write) -> Pending:
        """End ``sandbox``: no socket, no connection, no directory. Its sessions stay as they are.

        Raises: CtxdError sandbox_not_found, and those of the store; it is then as before.
        """
        self._named(sandbox)
        entity = registration.entity_id(sandbox)
        pending = self._store.submit(
            msgspec.structs.replace(call, deletes=(entity,), floor_vt=self._versions[sandbox] + 1)
        )
        self._forget(sandbox)
        with anyio.CancelScope(shield=True):
            await self._close(sandbox)
        return pending

    def view(self, sandbox: str) -> SandboxView:
        """One of them. Raises: CtxdError sandbox_not_found."""
        known = self._named(sandbox)
        figures = self._doors.figures(sandbox)
        lease = self._leases[sandbox]
        return SandboxView(
            sandbox=sandbox,
            principal=known.principal,
            directory=str(self._places.directory(sandbox)),
            socket=str(self._places.socket(sandbox)),
            sessions=known.sessions,
            mounts=known.mounts,
            grants=known.grants,
            quota=known.quota,
            ttl_s=known.ttl_s,
            grace_s=known.grace_s,
            uid=known.uid,
            created_at=known.created_at,
            expires_at=lease.expires_at(known, self._clock),
            connections=figures.connections,
            requests=figures.requests,
            refused=figures.refused,
        )

    def all(self) -> list[SandboxView]:
        """All of them, oldest first."""
        return [self.view(id) for id in sorted(self._known, key=lambda id: (self._known[id].created_at, id))]

    def confines(self, session: str) -> bool:
        """Whether a sandbox may name ``session``: its mounts are then fixed."""
        return session in self._of_session

    def sharing(self, session: str) -> list[Registration]:
        """The sandboxes that may name ``session``."""
        return [self._known[id] for id in self._of_session.get(session, ())]

    # --- what may be registered

    def _require(self, wanted: Registration) -> None:
        if len(self._known) >= SANDBOXES_MAX:
            raise CtxdError(
                "too_large",
                f"there are {SANDBOXES_MAX} sandboxes",
                hint="Release those that are no longer needed.",
                outcome="not_applied",
            )
        if any(known.principal == wanted.principal for known in self._known.values()):
            raise CtxdError(
                "principal_exists",
                f"another sandbox is {wanted.principal}",
                hint="Each sandbox has a principal of its own; leave it out for a new one.",
                outcome="not_applied",
            )
        if len(set(wanted.sessions)) < len(wanted.sessions):
            raise CtxdError("invalid_params", "a session is named twice", outcome="not_applied")

    async def _mounts(self, wanted: Registration, given: tuple[Mount, ...] | None) -> tuple[Mount, ...]:
        """The mounts of its sessions, which are to be the same in all. Raises: CtxdError."""
        homes = {session: self._households.home(session) for session in wanted.sessions}
        mounts = next(iter(homes.values())).mounts if given is None else given
        for session, home in homes.items():
            if home.mounts != mounts:
                raise CtxdError(
                    "invalid_params",
                    f"session {session} has other mounts than the sandbox",
                    hint="Register the sandbox with the mounts that its sessions were made with, or leave them out.",
                    outcome="not_applied",
                )
            if not home.apart and wanted.methods:
                raise CtxdError(
                    "invalid_params",
                    f"the files of session {session} are the host's own",
                    hint="Make it with a filesystem_id of the sandbox's own, or grant the sandbox nothing.",
                    outcome="not_applied",
                )
        try:
            with anyio.fail_after(ROOTS_S):
                await anyio.to_thread.run_sync(
                    registration.require_plain_roots, mounts, self._state_dir, abandon_on_cancel=True
                )
        except TimeoutError as error:
            raise CtxdError(
                "source_unreachable",
                "the file system of a mount does not answer",
                hint="Send it again once it does, or mount another directory.",
                outcome="not_applied",
            ) from error
        return mounts

    # --- doors

    async def _open_first(self, made: Registration) -> None:
        try:
            await self._in_thread(lambda: self._places.make(made.id))
            await self._in_thread(lambda: self._households.limit(made.id, made.mounts, made.uid))
            self._tell(made)
            await self._doors.open(made, self._places.socket(made.id))
            self._places.hand_over(made.id, made.uid)
        except (OSError, StateDirError) as error:
            await self._close(made.id)
            why = (error.strerror or str(error)) if isinstance(error, OSError) else str(error)
            raise CtxdError("unsupported", f"the sandbox cannot have a socket: {why}", outcome="not_applied") from error

    async def _open(self, known: Registration) -> None:
        try:
            await self._in_thread(lambda: self._places.make(known.id))
            await self._in_thread(lambda: self._households.limit(known.id, known.mounts, known.uid))
            self._tell(known)
            await self._doors.open(known, self._places.socket(known.id))
            self._places.hand_over(known.id, known.uid)
        except (OSError, StateDirError, CtxdError) as error:
            self._log.error("sandbox.not_opened", sandbox=known.id, error=str(error))

    async def _close(self, sandbox: str) -> None:
        self._households.lift(sandbox)
        await self._doors.close(sandbox)
        try:
            await self._in_thread(lambda: self._places.remove(sandbox))
        except OSError as error:
            self._log.warning("sandbox.directory_stays", sandbox=sandbox, error=str(error))

    async def _in_thread(self, work: Callable[[], object]) -> None:
        await anyio.to_thread.run_sync(work)

    # --- leases

    def _left(self, sandbox: str, connection: int) -> None:
        known, lease = self._known.get(sandbox), self._leases.get(sandbox)
        if known is not None and lease is not None and lease.holder == connection:
            lease.let_go(self._clock.monotonic() + known.grace_s)
            self._wake.set()

    def _lost(self, sandbox: str) -> None:
        """Its registration was never written: end it."""
        if (lease := self._leases.get(sandbox)) is not None:
            lease.let_go(self._clock.monotonic())
            self._wake.set()

    async def _expire(self, sandbox: str) -> None:
        self._log.info("sandbox.expired", sandbox=sandbox)
        try:
            await self.release(sandbox, Write(kind="sandbox.release", principal="daemon"))
        except CtxdError as error:
            self._log.warning("sandbox.not_released", sandbox=sandbox, error=error.message)
            self._leases[sandbox].let_go(self._clock.monotonic() + RETRY_S)

    # --- what is known

    def _named(self, sandbox: str) -> Registration:
        known = self._known.get(sandbox)
        if known is None:
            raise CtxdError("sandbox_not_found", f"there is no sandbox {sandbox}", hint="sandbox.list names them.")
        return known

    def _admit(self, one: Registration, valid_time: int, seq: int) -> None:
        self._households.restrict(one.id, one.sessions, seq)
        self._known[one.id], self._versions[one.id] = one, valid_time
        for session in one.sessions:
            self._of_session.setdefault(session, []).append(one.id)

    def _forget(self, sandbox: str) -> None:
        gone = self._known.pop(sandbox)
        self._households.unrestrict(sandbox, gone.sessions)
        del self._versions[sandbox], self._leases[sandbox]
        self._told.pop(sandbox, None)
        for session in gone.sessions:
            left = self._of_session[session]
            left.remove(sandbox)
            if not left:
                del self._of_session[session]

    # --- the current context

    def _note(self, landed: Sequence[tuple[Write, Pending]]) -> None:
        """Tell sandboxes whose context is another one since. On the loop, so that whoever is answered that a context
        was made finds it in the file; two calls to a file system in memory, and only when it changed."""
        if not self._known:
            return
        for session in {write.session for write, _ in landed if write.session in self._of_session}:
            for sandbox in self._of_session[session or ""]:
                known = self._known[sandbox]
                if known.sessions[0] == session:
                    try:
                        self._tell(known)
                    except (OSError, CtxdError) as error:
                        self._log.warning("sandbox.context_not_told", sandbox=sandbox, error=str(error))

    def _tell(self, known: Registration) -> None:
        current = self._households.current(known.sessions[0])
        if self._told.get(known.id) != current:
            self._places.tell(known.id, current, known.uid)
            self._told[known.id] = current
