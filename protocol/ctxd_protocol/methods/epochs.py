"""Methods of context epochs: entries of the system context, and the texts of it that the model has received."""

from typing import Annotated, Any, Final, Literal

import msgspec

from ctxd_protocol.ids import EntryKeyText, OpIdText
from ctxd_protocol.methods.declaration import (
    ACTIVE_ERRORS,
    Method,
    Milliseconds,
    PageSize,
    Result,
    SessionParams,
    WriteResult,
)


class EntrySetParams(SessionParams, frozen=True, kw_only=True):
    """An entry of the system context: ``key``, and ``value``, any JSON of at most 8 KiB. Request bodies have it in the
    baseline or, if it is set later, as an update. Text is shown unchanged, any other value as JSON."""

    key: EntryKeyText
    value: Any
    op_id: OpIdText | None = None


class EntryDeleteParams(SessionParams, frozen=True, kw_only=True):
    """The entry ``key``. If the model has received it, the next request has a notice that it no longer applies."""

    key: EntryKeyText
    op_id: OpIdText | None = None


class EpochShowParams(SessionParams, frozen=True, kw_only=True):
    """A session, and the assembly to show: by ``number``, the newest of ``turn``, or the newest up to ``at``, in ms
    since 1970; by default the newest of all. Only assemblies in the layout ``append`` count.

    ``after``: number of texts to skip, ``next_after`` of the previous page.
    """

    number: Annotated[int, msgspec.Meta(ge=1)] | None = None
    turn: Annotated[int, msgspec.Meta(ge=0)] | None = None
    at: Milliseconds | None = None
    after: Annotated[int, msgspec.Meta(ge=0)] = 0
    limit: PageSize = 100


class EpochSource(msgspec.Struct, frozen=True, kw_only=True):
    """Version of a file, or of an entry, that a text was made from. ``path``: the agent's path, or the entry's key;
    ``object``, ``tx`` and ``content_hash`` identify the version, see ``object.get``."""

    path: str
    object: str
    tx: int
    content_hash: str


class EpochText(msgspec.Struct, frozen=True, kw_only=True):
    """One text of the system context, added by the assembly ``number`` of ``turn`` ``at`` a time in ms since 1970.

    ``key``: the component, such as ``core/date``, ``instructions/{path}``, ``api/{key}``, ``pool`` or ``tools``.
    ``part``: in the baseline, or an update because the component is new, changed, or gone. ``sent``: the model has
    replied since. ``object``: the id with which to purge the text, None for ctxd's own text. ``purged``: it was erased.
    """

    key: str
    part: Literal["baseline", "new", "changed", "removed"]
    text: str
    number: int
    turn: int
    at: int
    sent: bool
    object: str | None = None
    purged: bool = False
    sources: tuple[EpochSource, ...] = ()


class EpochShowResult(Result, frozen=True, kw_only=True):
    """The epoch of assembly ``number`` of ``turn``; 0 if the texts that the model had received were not recorded.

    ``begins``: the reason why the epoch began. ``texts``: one page, the baseline first, then the updates in order.
    ``tools``: the names of the declared tools. ``next_after``: None at the end.
    """

    session: str
    epoch: int
    begins: str | None
    number: int
    turn: int
    at: int
    tools: tuple[str, ...]
    texts: tuple[EpochText, ...]
    next_after: int | None


ROWS: Final = (
    Method(
        name="session.set_entry",
        params=EntrySetParams,
        result=WriteResult,
        access="prompt",
        writes=True,
        handle="set_entry",
        summary="Set an entry of the system context, such as a rule or a state of the harness.",
        errors=ACTIVE_ERRORS,
        example={"session": "s1", "key": "mode", "value": "Plan only: change no file."},
        positional=("key", "value"),
    ),
    Method(
        name="session.delete_entry",
        params=EntryDeleteParams,
        result=WriteResult,
        access="prompt",
        writes=True,
        handle="delete_entry",
        summary="Delete an entry of the system context, and notify the model in one line.",
        errors=ACTIVE_ERRORS,
        example={"session": "s1", "key": "mode"},
        positional=("key",),
    ),
    Method(
        name="epoch.show",
        params=EpochShowParams,
        result=EpochShowResult,
        access="read",
        handle="epoch",
        summary="Get the system context that the model had received, and its sources.",
        errors=("session_not_found", "assembly_not_found"),
        example={"session": "s1"},
        shows=".texts",
    ),
)
