"""Operations on whole sessions: create, configure, pause, resume, close, remove and restore."""

import secrets as random
from typing import Any, Final

import msgspec

from ctxd.errors import CtxdError
from ctxd.indexing.file_indexer import Indexer
from ctxd.objects.document import AsOf
from ctxd.sessions.live_session import Accepted, Actor, Transaction, WriteRequest, kept_result, write_request
from ctxd.sessions.operation_admission import OperationGroup, admitted
from ctxd.sessions.reconciliation import reconciled, refresh
from ctxd.sessions.registry import Sessions
from ctxd.sessions.session_loading import EMPTY_CHAT, InitialChat
from ctxd.sessions.session_settings import (
    ContinuedCommit,
    CreatedSession,
    SessionSettings,
    continued,
    normalised,
    template_of,
)
from ctxd.store.write_types import Replay
from ctxd_protocol.methods import sessions as session_methods
from ctxd_protocol.object_types import Receipt
from ctxd_protocol.secret_types import SecretPolicy
from ctxd_protocol.session_types import (
    PURGED_TEXT,
    Collapse,
    ComponentOptions,
    Reconciled,
    Removal,
    SessionStatus,
    SessionView,
)

_SETTINGS: Final = (
    "workdir", "mounts", "collapse", "labels", "secrets", "components", "component_options", "checkpoint",
)  # fmt: skip
_OPEN: Final[tuple[SessionStatus, ...]] = ("active", "paused")
_EVERY: Final[tuple[SessionStatus, ...]] = (*_OPEN, "closed", "removed")


class LifecycleOperations(OperationGroup):
    """Creation, settings and states of sessions. ``collapse`` and ``policy`` are defaults for new sessions."""

    def __init__(self, sessions: Sessions, indexer: Indexer, collapse: Collapse, policy: SecretPolicy) -> None:
        super().__init__(sessions, indexer)
        self._collapse = collapse
        self.policy = policy

    async def create(
        self,
        actor: Actor,
        params: session_methods.SessionCreateParams,
        request: WriteRequest | None = None,
        *,
        like: SessionSettings | None = None,
        continues: ContinuedCommit | None = None,
        initial: InitialChat = EMPTY_CHAT,
    ) -> Accepted:
        """Create a session with the chat ``initial``. ``like``: settings to use where ``params`` give none. The caller
        resolves the context in ``params``, see ``ctxd.commits.session_start``.

        Raises: CtxdError session_exists, invalid_params, invalid_path, too_large, idempotency_mismatch, and those of
        the store; PurgedMeanwhile. Cancel: safe.
        """
        request = request or write_request("session.create", actor.principal, params)
        if params.agent is None and like is None:
            message, hint = "agent is required without a context", "Name the template of the session."
            if params.context is not None:
                message = "agent is required, as the session of the context is gone"
            raise CtxdError("invalid_params", message, hint=hint, outcome="not_applied")
        if params.detect_filesystems and params.filesystem_id is not None:
            raise CtxdError(
                "invalid_params",
                "filesystem_id and detect_filesystems exclude each other",
                hint="Leave out filesystem_id for an agent on the host, detect_filesystems for a sandboxed one.",
                outcome="not_applied",
            )
        session = f"s-{random.token_hex(8)}" if params.session is None else params.session
        kept = kept_result(request, CreatedSession(session))
        # A client may send calls of the new session before the reply: they wait for its settings.
        async with self.sessions.loading(session):
            settings = await self._settings_of_new(actor, params, like, continues)
            made = await self.sessions.create(request, session, settings, params.system_prompt, kept, initial=initial)
        if isinstance(made, Replay):
            return await self.created_again(made)
        live, pending = made
        # Confine reads now, not at the first file: a symlink planted below the mounts may wait for another session.
        self.indexer.visibility.confine(live.mounts)
        view = live.view()
        return Accepted(pending, lambda receipt: session_result(view, receipt))

    async def _settings_of_new(
        self,
        actor: Actor,
        params: session_methods.SessionCreateParams,
        like: SessionSettings | None,
        continues: ContinuedCommit | None,
    ) -> SessionSettings:
        """Return the settings of a new session, see ``create``, without its time and ordinal."""
        settings = SessionSettings(
            agent=params.agent or "",
            principal=actor.principal,
            created_at=0,
            ordinal=0,
            filesystem_id=self.sessions.host_filesystem_id if params.filesystem_id is None else params.filesystem_id,
            detect_filesystems=params.detect_filesystems,
            workdir=params.workdir,
            mounts=params.mounts,
            prefixes=await self.indexer.visibility.resolve_prefixes(params.mounts),
            collapse=self._collapse if params.collapse is None else params.collapse,
            budget_tokens=params.budget_tokens,
            labels=params.labels,
            secrets=self.policy if params.secrets is None else params.secrets,
            components=params.components,
            checkpoint=params.checkpoint,
            component_options=params.component_options or ComponentOptions(),
            continues=continues,
            state=params.state,
            archived=params.archived,
        )
        given: dict[str, Any] = {}
        if like is not None:
            given = {name: getattr(settings, name) for name in template_of(params)}
            if "mounts" in given:
                given["prefixes"] = settings.prefixes
            settings = msgspec.structs.replace(
                continued(like), principal=actor.principal, state=params.state, archived=params.archived, removed=None,
                entries=(), renamed={}, base=None, continues=continues, **given,
            )  # fmt: skip
        if settings.project is None or not given.keys().isdisjoint(("workdir", "mounts")):
            settings = msgspec.structs.replace(settings, project=await self.sessions.project_of(settings))
        return settings

    async def created_again(self, replay: Replay) -> Accepted:
        """Return the reply to a creation that is sent again. Raises: as ``create``."""
        return await self._view_again(msgspec.json.decode(replay.result, type=CreatedSession).session, replay)

    async def _view_as_of(self, session: str, replay: Replay) -> tuple[Receipt, SessionView]:
        receipt = await replay.durable()
        return receipt, (await self.sessions.as_of(session, AsOf(tx=receipt.seq))).view()

    async def _view_again(self, session: str, replay: Replay) -> Accepted:
        receipt, view = await self._view_as_of(session, replay)
        return Accepted(None, lambda _: session_methods.SessionResult(session=view, receipt=receipt))

    async def _resumed_again(self, session: str, replay: Replay) -> Accepted:
        kept = msgspec.json.decode(replay.result, type=Reconciled)
        receipt, view = await self._view_as_of(session, replay)
        return Accepted(
            None,
            lambda _: session_methods.SessionResumeResult(session=view, reconciled=kept, receipt=receipt),
        )

    @admitted("session.configure", _view_again)
    async def configure(self, tx: Transaction, params: session_methods.SessionConfigureParams) -> Accepted:
        """Change the given settings."""
        given: dict[str, Any] = {name: value for name in _SETTINGS if (value := getattr(params, name)) is not None}
        if params.mounts is not None:
            given["prefixes"] = await self.indexer.visibility.resolve_prefixes(params.mounts)
            self.sessions.visibility.require_free_mounts(params.session)
        if params.budget_tokens is not None:
            given["budget_tokens"] = params.budget_tokens or None
        # Below the mounts of a registered sandbox, git would read with more rights than the sandbox's user has.
        if params.workdir is not None and not self.sessions.visibility.restricts(params.session):
            given["project"] = await self.sessions.project_of(msgspec.structs.replace(tx.live.settings, **given))
        return self._set(tx, **given)

    @admitted("session.pause", _view_again, states=_OPEN)
    async def pause(self, tx: Transaction, _: session_methods.SessionPauseParams) -> Accepted:
        """Pause the session: it takes no writes until it is resumed."""
        return self._set(tx, state="paused")

    @admitted("session.close", _view_again, states=_OPEN)
    async def close(self, tx: Transaction, _: session_methods.SessionWriteParams) -> Accepted:
        """Close the session for good."""
        return self._set(tx, state="closed")

    @admitted("session.annotate", _view_again, states=_EVERY)
    async def annotate(self, tx: Transaction, params: session_methods.SessionAnnotateParams) -> Accepted:
        """Change how the session is listed, in any state."""
        given: dict[str, Any] = {
            name: value for name in ("title", "archived", "recorded") if (value := getattr(params, name)) is not None
        }
        if params.recorded is not None and (known := tx.live.settings.recorded) is not None:
            # The harness's file still has purged texts: importing it again must not restore them.
            purged = {name: PURGED_TEXT for name in ("title", "prompt") if getattr(known, name) == PURGED_TEXT}
            given["recorded"] = msgspec.structs.replace(params.recorded, **purged)
        if params.title is not None:
            given["title"] = " ".join(params.title.split())
        if params.labels is not None:
            labels = {**tx.live.settings.labels, **params.labels}
            given["labels"] = {name: value for name, value in labels.items() if value is not None}
        if params.directory is not None:
            given["project"] = await self.sessions.project_at(params.directory)
        return self._set(tx, **given)

    @admitted("session.remove", _view_again, states=_EVERY)
    async def remove(self, tx: Transaction, _: session_methods.SessionWriteParams) -> Accepted:
        """Move the session to the trash."""
        settings = tx.live.settings
        if settings.state == "removed":
            return self._set(tx)
        at = self.sessions.clock.wall_ms()
        removed = Removal(at=at, by=tx.actor.principal, via=tx.actor.via, state=settings.state)
        return self._set(tx, state="removed", removed=removed)

    @admitted("session.restore", _view_again, states=_EVERY)
    async def restore(self, tx: Transaction, _: session_methods.SessionWriteParams) -> Accepted:
        """Move the session out of the trash, to its former state; no effect if it is not in the trash."""
        removed = tx.live.settings.removed
        return self._set(tx) if removed is None else self._set(tx, state=removed.state, removed=None)

    def _set(self, tx: Transaction, **changes: Any) -> Accepted:  # noqa: ANN401 - values of settings
        """Write changed settings. The result contains the whole session."""
        live = tx.live
        wanted = msgspec.structs.replace(live.settings, **changes)
        settings = normalised(wanted, self.sessions.guard, self.sessions.host_filesystem_id)
        if settings == live.settings:
            return tx.unchanged(session_methods.SessionResult(session=live.view(), receipt=None))
        pending = live.submit(tx.request, settings=settings)
        self.indexer.visibility.confine(live.mounts)
        view = live.view()
        return Accepted(pending, lambda receipt: session_result(view, receipt))

    @admitted("session.resume", _resumed_again, states=_OPEN)
    async def resume(self, tx: Transaction, _: session_methods.SessionWriteParams) -> Accepted:
        """Check every file of the session against its source, and make the session active (spec 1 §3.6)."""
        live = tx.live
        found = await refresh(live, self.indexer, live.state.files(live.state.index), tx.request)
        settings = msgspec.structs.replace(live.settings, state="active", archived=False)
        report = reconciled(found)
        if settings == live.settings and not found.changed:
            return tx.unchanged(
                session_methods.SessionResumeResult(session=live.view(), reconciled=report, receipt=None)
            )
        # Only the last slice has the operation id: a resend after an interruption between two checks the files again.
        pending = live.submit(
            tx.request,
            puts=found.documents,
            signatures=found.signatures,
            floor_vt=found.floor_vt,
            settings=settings,
            result=report,
        )
        view = live.view()
        return Accepted(
            pending,
            lambda receipt: session_methods.SessionResumeResult(
                session=_at(view, receipt), reconciled=report, receipt=receipt
            ),
        )


def session_result(view: SessionView, receipt: Receipt | None) -> session_methods.SessionResult:
    """Return the result of a write after which the session is ``view``, still without the time of the write."""
    return session_methods.SessionResult(session=_at(view, receipt), receipt=receipt)


def _at(view: SessionView, receipt: Receipt | None) -> SessionView:
    """Return ``view`` with the valid time in ``receipt``, that of its newest write."""
    return view if receipt is None else msgspec.structs.replace(view, updated_at=receipt.vt)
