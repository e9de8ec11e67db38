"""The API's index: every method, its parameters, its result, who may call it, and whether a resend is safe.

Every write takes an optional ``op_id``: the same ``op_id`` with the same parameters is applied once and answers
the first result; with other parameters it is refused as ``idempotency_mismatch``. A call that changes nothing
writes nothing, its ``op_id`` neither: sent again later, it is decided anew.
"""

from typing import Any, Final, Literal

import msgspec

from ctxd_protocol.context import AssembledContext, CurrentContext
from ctxd_protocol.methods.context import (
    AssembleParams,
    AssemblyListParams,
    AssemblyListResult,
    ContextCurrentParams,
    PlanParams,
    PlanResult,
    ShowParams,
)
from ctxd_protocol.methods.daemon import CancelParams, HelloParams, HelloResult
from ctxd_protocol.methods.events import NoticeEvent, SubscribeParams, SubscribeResult, UnsubscribeParams
from ctxd_protocol.methods.files import (
    Discovered,
    FileDiscoverParams,
    FileIndexParams,
    FileIndexResult,
    FileKind,
    FileOutcome,
    FileResolveParams,
    FileResolveResult,
    MountDetectParams,
    MountDetectResult,
    ToolcallRecordParams,
    ToolcallRecordResult,
    ToolObserveParams,
    ToolObserveResult,
)
from ctxd_protocol.methods.objects import (
    ObjectBulkParams,
    ObjectBulkResult,
    ObjectGetParams,
    ObjectGetResult,
    ObjectHistoryParams,
    ObjectHistoryResult,
    ObjectListItem,
    ObjectListParams,
    ObjectListResult,
    ObjectPurgeParams,
    ObjectPurgeResult,
    ObjectScanParams,
    ObjectScanResult,
    ObjectSessionsParams,
    ObjectSessionsResult,
    Scanned,
)
from ctxd_protocol.methods.parts import Milliseconds, Nothing, PageSize, Params, PathText, Result, WriteResult
from ctxd_protocol.methods.sandboxes import SandboxListResult, SandboxParams, SandboxRegisterParams, SandboxResult
from ctxd_protocol.methods.sessions import (
    ChatParams,
    ChatResult,
    MembershipParams,
    MembershipResult,
    NoticesParams,
    NoticesResult,
    Reconciled,
    SessionAppendParams,
    SessionAppendResult,
    SessionConfigureParams,
    SessionCreateParams,
    SessionExportParams,
    SessionExportResult,
    SessionListParams,
    SessionListResult,
    SessionOwnerResult,
    SessionParams,
    SessionResult,
    SessionResumeResult,
    SessionWriteParams,
    SystemPromptParams,
)
from ctxd_protocol.methods.trackers import TrackerListParams, TrackerListResult
from ctxd_protocol.status import DaemonStatus

__all__ = [
    "AssembleParams",
    "AssemblyListParams",
    "AssemblyListResult",
    "CancelParams",
    "Capability",
    "ChatParams",
    "ChatResult",
    "ContextCurrentParams",
    "Discovered",
    "FileDiscoverParams",
    "FileIndexParams",
    "FileIndexResult",
    "FileKind",
    "FileOutcome",
    "FileResolveParams",
    "FileResolveResult",
    "HelloParams",
    "HelloResult",
    "METHODS",
    "MembershipParams",
    "MembershipResult",
    "Method",
    "Milliseconds",
    "MountDetectParams",
    "MountDetectResult",
    "NOTIFICATIONS",
    "Nothing",
    "NoticeEvent",
    "NoticesParams",
    "NoticesResult",
    "ObjectBulkParams",
    "ObjectBulkResult",
    "ObjectGetParams",
    "ObjectGetResult",
    "ObjectHistoryParams",
    "ObjectHistoryResult",
    "ObjectListItem",
    "ObjectListParams",
    "ObjectListResult",
    "ObjectPurgeParams",
    "ObjectPurgeResult",
    "ObjectScanParams",
    "ObjectScanResult",
    "ObjectSessionsParams",
    "ObjectSessionsResult",
    "PageSize",
    "Params",
    "PathText",
    "PlanParams",
    "PlanResult",
    "Reconciled",
    "Result",
    "SandboxListResult",
    "SandboxParams",
    "SandboxRegisterParams",
    "SandboxResult",
    "Scanned",
    "SessionAppendParams",
    "SessionAppendResult",
    "SessionConfigureParams",
    "SessionCreateParams",
    "SessionExportParams",
    "SessionExportResult",
    "SessionListParams",
    "SessionListResult",
    "SessionOwnerResult",
    "SessionParams",
    "SessionResult",
    "SessionResumeResult",
    "SessionWriteParams",
    "ShowParams",
    "SubscribeParams",
    "SubscribeResult",
    "SystemPromptParams",
    "ToolObserveParams",
    "ToolObserveResult",
    "ToolcallRecordParams",
    "ToolcallRecordResult",
    "TrackerListParams",
    "TrackerListResult",
    "UnsubscribeParams",
    "WriteResult",
]

Capability = Literal["observe", "session", "host"]
"""``observe``: ask for the current context. ``session``: work in one's own session. ``host``: everything."""


class Method(msgspec.Struct, frozen=True, kw_only=True):
    """One row of the table.

    ``idempotent``: safe to send again (a read, or a write under its ``op_id``). ``writes``: changes durable state.
    """

    name: str
    params: type[Params]
    result: type[Any]
    capability: Capability
    summary: str
    writes: bool = False

    @property
    def idempotent(self) -> bool:
        """Whether the call may be sent again after a lost answer: reads always, writes when they carry an ``op_id``."""
        return self.name != "events.subscribe"


def _read(name: str, params: type[Params], result: type[Any], capability: Capability, summary: str) -> Method:
    return Method(name=name, params=params, result=result, capability=capability, summary=summary)


def _write(name: str, params: type[Params], result: type[Any], capability: Capability, summary: str) -> Method:
    return Method(name=name, params=params, result=result, capability=capability, summary=summary, writes=True)


_TABLE: Final = (
    _read("hello", HelloParams, HelloResult, "observe", "Say who one is; learn versions, limits and methods."),
    _read("rpc.discover", Nothing, dict, "observe", "The OpenRPC document of this API."),
    _read("daemon.status", Nothing, DaemonStatus, "host", "Health and figures of the daemon."),
    _write("session.create", SessionCreateParams, SessionResult, "host", "Start a session."),
    _write("session.configure", SessionConfigureParams, SessionResult, "host", "Change a session's settings."),
    _read("session.list", SessionListParams, SessionListResult, "host", "Sessions, newest first, with previews."),
    _read("session.get", SessionParams, SessionResult, "session", "One session whole."),
    _read("session.owner", SessionParams, SessionOwnerResult, "host", "Which of several hosts a session is on."),
    _write("session.pause", SessionWriteParams, SessionResult, "host", "Set a session aside; nothing is lost."),
    _write(
        "session.resume",
        SessionWriteParams,
        SessionResumeResult,
        "host",
        "Take a session up again and check its files.",
    ),
    _write("session.close", SessionWriteParams, SessionResult, "host", "End a session for good; it stays readable."),
    _write(
        "session.append",
        SessionAppendParams,
        SessionAppendResult,
        "session",
        "Add chat messages; a user message starts a turn.",
    ),
    _write("session.set_system_prompt", SystemPromptParams, WriteResult, "session", "Replace the system prompt."),
    _read("session.chat", ChatParams, ChatResult, "session", "The chat, turn by turn."),
    _read("session.export", SessionExportParams, SessionExportResult, "host", "A transcript, always redacted."),
    _write(
        "session.activate", MembershipParams, MembershipResult, "session", "Load an object's content into the window."
    ),
    _write(
        "session.deactivate",
        MembershipParams,
        MembershipResult,
        "session",
        "Take an object's content out of the window.",
    ),
    _write(
        "session.pin",
        MembershipParams,
        MembershipResult,
        "session",
        "Exempt an object from auto-collapse and budget drops.",
    ),
    _write("session.unpin", MembershipParams, MembershipResult, "session", "Undo a pin."),
    _write("session.pool_add", MembershipParams, MembershipResult, "session", "Show an indexed object as metadata."),
    _write(
        "session.pool_remove",
        MembershipParams,
        MembershipResult,
        "session",
        "Hide an object's metadata; it stays indexed.",
    ),
    _read(
        "session.notices",
        NoticesParams,
        NoticesResult,
        "session",
        "Changes that others made to what the session has read.",
    ),
    _write(
        "toolcall.record", ToolcallRecordParams, ToolcallRecordResult, "session", "Keep a tool call and its output."
    ),
    _write(
        "tool.observe", ToolObserveParams, ToolObserveResult, "session", "Find the files a command's output speaks of."
    ),
    _write("file.index", FileIndexParams, FileIndexResult, "session", "Bring a file's object up to date."),
    _write("file.discover", FileDiscoverParams, ToolObserveResult, "session", "Make unread stubs for existing files."),
    _read("file.resolve", FileResolveParams, FileResolveResult, "session", "Which object a path is."),
    _read(
        "mount.detect",
        MountDetectParams,
        MountDetectResult,
        "host",
        "Mount mappings from docker inspect or mountinfo text.",
    ),
    _read(
        "object.get", ObjectGetParams, ObjectGetResult, "session", "One version of one object, now or as of two times."
    ),
    _read("object.bulk", ObjectBulkParams, ObjectBulkResult, "session", "Many objects in one call."),
    _read("object.history", ObjectHistoryParams, ObjectHistoryResult, "session", "An object's versions."),
    _read("object.list", ObjectListParams, ObjectListResult, "session", "Objects, of one session or all."),
    _read("object.sessions", ObjectSessionsParams, ObjectSessionsResult, "host", "The sessions that know an object."),
    _write(
        "object.purge", ObjectPurgeParams, ObjectPurgeResult, "host", "Destroy what an object says, in every version."
    ),
    _read("object.scan", ObjectScanParams, ObjectScanResult, "host", "Look for secrets in what is stored."),
    _read("context.current", ContextCurrentParams, CurrentContext, "observe", "The id of the context being worked in."),
    _write("context.assemble", AssembleParams, AssembledContext, "session", "What the model sees now; recorded."),
    _read("context.plan", PlanParams, PlanResult, "session", "What a token budget would drop, and why."),
    _read("context.show", ShowParams, AssembledContext, "session", "A recorded assembly, byte for byte."),
    _read("context.list", AssemblyListParams, AssemblyListResult, "session", "A session's recorded assemblies."),
    _read(
        "events.subscribe",
        SubscribeParams,
        SubscribeResult,
        "session",
        "Have a session's notices sent as notifications.",
    ),
    _read("events.unsubscribe", UnsubscribeParams, WriteResult, "session", "Stop a subscription."),
    _write("sandbox.register", SandboxRegisterParams, SandboxResult, "host", "Give a sandbox a socket of its own."),
    _write("sandbox.renew", SandboxParams, SandboxResult, "host", "Extend a sandbox's lease, or take it over."),
    _write("sandbox.release", SandboxParams, WriteResult, "host", "End a sandbox: its socket and its connections."),
    _read("sandbox.list", Nothing, SandboxListResult, "host", "The registered sandboxes."),
    _read("tracker.list", TrackerListParams, TrackerListResult, "host", "The files followed on disk, and how."),
)

METHODS: Final[dict[str, Method]] = {method.name: method for method in _TABLE}
"""Every method by its name."""

NOTIFICATIONS: Final[dict[str, type[Any]]] = {"events.notice": NoticeEvent}
"""What the daemon sends unasked, by name. ``$/cancelRequest`` is what a client may send as one."""
