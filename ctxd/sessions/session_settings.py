"""Settings of a session: their stored form, defaults, validation, and the mounts they describe."""

import re
from typing import Any, Final

import msgspec

from ctxd.errors import CtxdError
from ctxd.mounts.mapping import MountTable, normalise
from ctxd.objects.commit_document import Position
from ctxd.secrets.policy import DEFAULT
from ctxd.secrets.redaction import Capture, Guard
from ctxd.transcripts.harness_labels import HARNESS_LABELS
from ctxd_protocol.ids import ID_PATTERN
from ctxd_protocol.limits import SETTINGS_BYTES_MAX
from ctxd_protocol.methods.sessions import SessionCreateParams
from ctxd_protocol.secret_types import SecretPolicy
from ctxd_protocol.session_types import (
    CheckpointPolicy,
    Collapse,
    ComponentName,
    ComponentOptions,
    Mount,
    Project,
    RecordedSession,
    Removal,
    SessionOrigin,
    SessionStatus,
)

_FILESYSTEM_ID: Final = re.compile(ID_PATTERN)


class ForkBase(msgspec.Struct, frozen=True, array_like=True):
    """The moment of ``session`` that a fork continues from: its first ``segments`` segments and its assemblies up to
    ``assembly``, as of the journal sequence ``tx``."""

    session: str
    segments: int
    assembly: int
    tx: int


class ContinuedCommit(msgspec.Struct, frozen=True, array_like=True):
    """The commit that a session's chain of commits continues, and the end of the chat that came with that commit."""

    commit: str
    position: Position


class SessionSettings(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Settings of a session. ``created_at`` is in ms since 1970; ``ordinal`` is its place in the order of creation.

    ``prefixes`` are the canonical prefixes of ``mounts`` without symlinks, resolved when the mounts were set; empty in
    sessions of earlier versions.
    ``detect_filesystems``: files outside mounts are on the file system of their device. ``renamed``: tool calls whose
    id belonged to another object on the host that imported the session: their id there, to the original id under which
    they are shown. ``entries``: the keys of the entries that clients have set. ``removed``: set only in the state
    ``removed``. ``base``: set in a fork. ``continues``: set in a session that began from a commit, except the newest
    commit of ``base``, and in a session imported from another host. ``project``: None without a working directory on
    the host.
    """

    agent: str
    principal: str
    created_at: int
    ordinal: int
    filesystem_id: str
    detect_filesystems: bool = False
    state: SessionStatus = "active"
    workdir: str = "/"
    mounts: tuple[Mount, ...] = ()
    prefixes: tuple[str, ...] = ()
    collapse: Collapse = Collapse()
    budget_tokens: int | None = None
    labels: dict[str, str] = {}
    secrets: SecretPolicy = DEFAULT
    renamed: dict[str, str] = {}
    components: tuple[ComponentName, ...] = ()
    entries: tuple[str, ...] = ()
    component_options: ComponentOptions = ComponentOptions()
    removed: Removal | None = None
    base: ForkBase | None = None
    checkpoint: CheckpointPolicy = "none"
    continues: ContinuedCommit | None = None
    project: Project | None = None
    title: str = ""
    archived: bool = False
    recorded: RecordedSession | None = None


def origin_of(settings: SessionSettings) -> SessionOrigin | None:
    """Return the origin of a session with ``settings``; None if it began empty."""
    base, continues = settings.base, settings.continues
    if base is None and continues is None:
        return None
    return SessionOrigin(
        session=None if base is None else base.session, commit=None if continues is None else continues.commit
    )


def continued(settings: SessionSettings) -> SessionSettings:
    """Return the settings of a session that continues one with ``settings``. Of the harness's metadata, it keeps only
    the title and the first prompt, not the harness's labels."""
    labels = {name: value for name, value in settings.labels.items() if name not in HARNESS_LABELS}
    recorded = settings.recorded
    if recorded is not None:
        recorded = RecordedSession(title=recorded.title, prompt=recorded.prompt)
    return msgspec.structs.replace(settings, labels=labels, recorded=recorded)


def title_of(settings: SessionSettings, first_prompt: str) -> str:
    """Return the title of a session with ``settings``: the given title, else the harness's own, else the first line
    with text of the first prompt; empty without any of them."""
    recorded = settings.recorded or RecordedSession()
    prompt = recorded.prompt or first_prompt
    return (
        settings.title or recorded.title or next((line for each in prompt.splitlines() if (line := each.strip())), "")
    )


class CreatedSession(msgspec.Struct, frozen=True):
    """Stored result of ``session.create``: for a resend, the session is read as of its write."""

    session: str


_TEMPLATE: Final = (
    "agent", "workdir", "filesystem_id", "detect_filesystems", "mounts", "collapse", "budget_tokens", "labels",
    "secrets", "components", "component_options", "checkpoint",
)  # fmt: skip


def template_of(params: SessionCreateParams) -> dict[str, Any]:
    """Return the settings in ``params`` that differ from their defaults, by name."""
    defaults = SessionCreateParams()
    given = {name: getattr(params, name) for name in _TEMPLATE}
    return {name: value for name, value in given.items() if value != getattr(defaults, name)}


def normalised(settings: SessionSettings, guard: Guard, host_filesystem_id: str) -> SessionSettings:
    """Return ``settings`` with a normalised working directory, without repeated components, and with secrets in labels,
    title, remotes and the harness's own facts flagged or redacted.

    Raises: CtxdError invalid_path for a relative working or home directory or an invalid mount, too_large for more than
    SETTINGS_BYTES_MAX bytes, invalid_params for a malformed filesystem id.
    """
    size = len(msgspec.json.encode(settings))
    if size > SETTINGS_BYTES_MAX:
        raise CtxdError(
            "too_large",
            f"the session's settings take {size:,} bytes; the maximum is {SETTINGS_BYTES_MAX:,}",
            hint="Give fewer or shorter labels and mounts.",
            outcome="not_applied",
        )
    home = settings.component_options.home
    for name, path in (("working directory", settings.workdir), ("home directory", home)):
        if path is not None and not path.startswith("/"):
            raise CtxdError(
                "invalid_path",
                f"the {name} {path[:100]!r} is relative",
                hint="Give an absolute path, as the agent knows it.",
                outcome="not_applied",
            )
    for id in (settings.filesystem_id, *(mount.filesystem_id for mount in settings.mounts)):
        if id is not None and not _FILESYSTEM_ID.fullmatch(id):
            raise CtxdError(
                "invalid_params",
                f"filesystem_id {id[:40]!r} is not an id",
                hint="Give 1 to 128 letters, digits and . _ : @ / -, or leave it out for the host's filesystem.",
                outcome="not_applied",
            )
    mount_table(settings, host_filesystem_id)
    capture = Capture(guard, settings.secrets)
    labels, project = capture.value(settings.labels), settings.project
    if project is not None and project.remotes:
        project = msgspec.structs.replace(project, remotes=tuple([capture.text(each) for each in project.remotes]))
    components = tuple(dict.fromkeys(settings.components))
    recorded = settings.recorded
    if recorded is not None:
        recorded = msgspec.convert(capture.value(msgspec.to_builtins(recorded)), RecordedSession)
    return msgspec.structs.replace(
        settings, workdir=normalise(settings.workdir), labels=labels, components=components, project=project,
        title=capture.text(settings.title) if settings.title else "", recorded=recorded,
    )  # fmt: skip


def mount_table(settings: SessionSettings, host_filesystem_id: str) -> MountTable:
    """Return the mounts of ``settings`` as a table. Raises: CtxdError invalid_path."""
    return MountTable(
        settings.mounts,
        filesystem_id=settings.filesystem_id,
        host_filesystem_id=host_filesystem_id,
        by_device=settings.detect_filesystems,
        resolved=settings.prefixes,
    )
