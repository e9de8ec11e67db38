"""Record of an assembly, and the result that clients get for it.

The record holds enough to render the assembly again byte for byte, and nothing that is stored elsewhere: its size
depends on the active objects, never on the pool or the chat. Owns the stored form of ``assembly:{session}#{number}``. A
result is encoded once for each of its forms.
"""

from datetime import UTC, datetime
from math import ceil
from typing import Any, Final

import msgspec

from ctxd.assembly.append_window import AppendWindow, LastRequest, NotedObject
from ctxd.assembly.request_target import RequestTarget
from ctxd.assembly.spec_layout import Composition
from ctxd.assembly.spec_rendering import SEPARATOR
from ctxd.assembly.token_budget import sha256
from ctxd.assembly.token_calibration import ContentMeasures
from ctxd.assembly.window_references import Ref
from ctxd.epochs.epoch_state import EpochEvent
from ctxd.errors import CtxdError
from ctxd.objects.document import Document, Stored, document_without_source
from ctxd.objects.generated_ids import assembly_id, session_of
from ctxd.secrets.policy import to_payload
from ctxd.store.write_types import Pending
from ctxd_protocol.context_types import (
    AssembledContext,
    AssemblyRecord,
    Block,
    CacheBreak,
    RepackReason,
    RequestFormat,
    SectionSize,
    ToolDeclaration,
)
from ctxd_protocol.ids import context_id
from ctxd_protocol.object_types import Receipt
from ctxd_protocol.secret_types import Secrets

ID_DIGITS = (16, 64)
"""Hex digits of a context id: the longer form only if other content of the session has the shorter id."""


class RequestMetrics(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Measures of a window, and the cost of its request.

    ``outside``, ``reply``: of the whole window, see ``measure_items``. ``history``: tokens of everything that the
    session ever showed, uncut. Of a request: ``reserve``, None if its estimate is not calibrated; ``limit``: the tokens
    that it was meant to stay within, also None in records of earlier versions; ``budget``: ``limit`` as the policy was
    given it, in tokens of items; ``before_bytes``: size of the last request; ``sent``, ``full``: tokens of this
    request, and of one with the full history; ``read``, ``full_read``: the cached tokens among these; ``broken``: why
    less is cached than the last request.
    """

    outside: ContentMeasures = ContentMeasures()
    reply: ContentMeasures = ContentMeasures()
    history: int = 0
    reserve: int | None = None
    limit: int | None = None
    budget: int | None = None
    before_bytes: int = 0
    sent: int = 0
    read: int = 0
    full: int = 0
    full_read: int = 0
    broken: CacheBreak | None = None


class WindowPart(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The part of a window that an assembly in the layout ``append`` added, and the request made from it.

    ``base``: number of the assembly that began the window. ``refs``: the references added; ``noted``: the objects that
    they concern. ``place``: the first event of the chat that is not shown. ``prompt``: transaction of the system prompt
    shown. ``format``: None for text and blocks. ``model``, ``max_tokens`` and ``prefix``: see ``RequestTarget`` and
    ``RequestBody``. ``tools``: hash of the declared tools, which are the document's content. ``repacked``: why the
    window was repacked, None if it was not; ``policy``: version of the policy that decided; ``carried``: see
    ``Decision``. ``epoch``: the change of the context epoch, None for none. ``cache_key``: of a request that the
    session made under another id, None for its present id.
    """

    base: int
    refs: tuple[Ref, ...] = ()
    noted: tuple[NotedObject, ...] = ()
    place: tuple[int, int] = (0, 0)
    prompt: int | None = None
    format: RequestFormat | None = None
    model: str | None = None
    max_tokens: int | None = None
    prefix: str | None = None
    tools: str = ""
    repacked: RepackReason | None = None
    policy: int | None = None
    carried: dict[str, int] = {}
    figures: RequestMetrics = RequestMetrics()
    epoch: EpochEvent | None = None
    cache_key: str | None = None


class SpecForm(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The request made from an assembly in the layout ``spec``. ``tools``: hash of the document's content;
    ``cache_key``: as in ``WindowPart``."""

    format: RequestFormat
    model: str
    max_tokens: int | None = None
    tools: str = ""
    cache_key: str | None = None


class Recorded(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One assembly. ``segments``: number of the session's segments that it includes. Its transaction is the record's
    own.

    ``active``: the versions shown whole, as (object, valid time, transaction). ``dropped``: (object, reason) of objects
    that the budget left out. ``assembled_at`` is in ms since 1970; ``renderer`` is the version of the text format,
    which records of the first version leave out.
    ``window``: of an assembly in the layout ``append``, None in the layout ``spec``; ``form``: of a request in the
    layout ``spec``, None for text and blocks.
    """

    number: int
    segments: int
    turn: int
    context_id: str
    parent: str
    sha256: str
    bytes: int
    tokens: int
    stable_prefix: int | None
    assembled_at: int
    active: tuple[tuple[str, int, int], ...] = ()
    dropped: tuple[tuple[str, str], ...] = ()
    renderer: int = 1
    window: WindowPart | None = None
    form: SpecForm | None = None

    @property
    def is_request(self) -> bool:
        """True if a request body was made from it, False for text and blocks."""
        made = self.window or self.form
        return made is not None and made.format is not None


def note_assembly(window: AppendWindow, record: Recorded, count: int) -> None:
    """Remember the assembly of ``record``, which shows the ``count`` items of ``window``. Of a request, this is also
    the prefix to which reasoning in its answer is bound; an assembly as text is not a request."""
    window.ends = window.ends_with(count)
    part = record.window
    if part is not None and part.format is not None:
        window.carried = part.carried
        window.request = LastRequest(
            format=part.format,
            model=part.model or "",
            tools=part.tools,
            prefix=part.prefix or "",
            at_ms=record.assembled_at,
            count=count,
        )


def document_of(
    session: str, recorded: Recorded, content: str | None = None, secrets: Secrets | None = None
) -> Document:
    """The document for ``recorded``, with ``content`` and the ``secrets`` found in it."""
    payload = msgspec.to_builtins(recorded)
    if secrets is not None:
        payload |= to_payload(secrets)
    return document_without_source(assembly_id(session, recorded.number), "assembly", payload, content)


def read_record(stored: Stored) -> Recorded:
    """Return the record in a version. Raises: CtxdError corrupt."""
    try:
        return msgspec.convert(stored.document.payload, Recorded)
    except msgspec.ValidationError as error:
        raise CtxdError("corrupt", f"the record {stored.document.id} cannot be read") from error


def summary(stored: Stored) -> AssemblyRecord:
    """The row of a listing. Raises: CtxdError corrupt."""
    recorded = read_record(stored)
    made = recorded.window or recorded.form
    return AssemblyRecord(
        layout="spec" if recorded.window is None else "append",
        format=None if made is None else made.format,
        model=None if made is None else made.model,
        policy=None if recorded.window is None else recorded.window.policy,
        repacked=None if recorded.window is None else recorded.window.repacked,
        number=recorded.number,
        tx=stored.tx,
        context_id=recorded.context_id,
        turn=recorded.turn,
        sha256=recorded.sha256,
        bytes=recorded.bytes,
        tokens=recorded.tokens,
        assembled_at=recorded.assembled_at,
        stable_prefix=recorded.stable_prefix,
        session=session_of(stored.document.id),
    )


_LAST_SECOND: Final = 253_402_300_799
"""The end of the year 9999, in seconds since 1970: later times, which a broken clock may show, cannot be formatted."""


def new_context_id(parent: str, sha256: str, assembled_at: int, agent: str, taken: set[str]) -> str:
    """A context id for text with the hash ``sha256``, not in ``taken``. It is longer than the ids of commits, so that
    the two never collide. ``assembled_at`` is in ms."""
    moment = datetime.fromtimestamp(min(assembled_at // 1000, _LAST_SECOND), UTC)
    second = moment.strftime("%Y-%m-%dT%H:%M:%SZ")
    id = ""
    for digits in ID_DIGITS:
        id = context_id(parent, sha256, second, agent, digits=digits)
        if id not in taken:
            break
    return id


class Assembled(msgspec.Struct):
    """Assembly as a client gets it. ``pending``: the write that must be durable before the reply is sent, None for
    none.

    ``carries_receipt``: this replies to the call that recorded the assembly, so it includes the receipt of that write.
    """

    context: AssembledContext
    pending: Pending | None = None
    carries_receipt: bool = False
    _encoded: dict[tuple[bool, bool], msgspec.Raw] = msgspec.field(default_factory=dict)

    def with_blocks(self, blocks: tuple[Block, ...]) -> "Assembled":
        """The same answer with other blocks."""
        context = msgspec.structs.replace(self.context, blocks=blocks)
        return Assembled(context, self.pending, self.carries_receipt)

    def with_request(self, body: dict[str, Any]) -> "Assembled":
        """The same answer with a request."""
        return Assembled(msgspec.structs.replace(self.context, request=body), self.pending, self.carries_receipt)

    @property
    def encoded_bytes(self) -> int:
        """The size of the bytes that are kept for later calls."""
        return sum(memoryview(made).nbytes for made in self._encoded.values())

    def encoded(self, receipt: Receipt | None = None, *, text: bool = True, blocks: bool = True) -> msgspec.Raw:
        """Encode as JSON, with or without text and blocks. The bytes are kept for later calls unless they include a
        receipt."""
        made = None if self.carries_receipt else self._encoded.get((text, blocks))
        if made is None:
            context = msgspec.structs.replace(
                self.context,
                text=self.context.text if text else "",
                blocks=self.context.blocks if blocks else (),
                receipt=receipt if self.carries_receipt else self.context.receipt,
            )
            made = msgspec.Raw(msgspec.json.encode(context))
            if not self.carries_receipt:
                self._encoded[text, blocks] = made
        return made


def context_of(session: str, recorded: Recorded, composition: Composition, text: str) -> AssembledContext:
    """The reply for ``recorded``. ``composition`` is its context and ``text`` its text."""
    blocks: list[Block] = []
    sizes = {section: [0, 0.0, 0] for section in composition.sections}
    offset = 0
    for piece in composition.pieces:
        block = Block(
            section=piece.section,
            text=piece.text,
            offset=offset,
            tokens=ceil(piece.tokens),
            reason=piece.reason,
            object=piece.object,
            valid_time=piece.valid_time,
            tx=piece.tx,
        )
        blocks.append(block)
        offset += piece.size + len(SEPARATOR)
        size = sizes[piece.section]
        size[0], size[1], size[2] = size[0] + piece.size, size[1] + piece.tokens, size[2] + piece.entries
    return AssembledContext(
        session=session,
        number=recorded.number,
        context_id=recorded.context_id,
        turn=recorded.turn,
        text=text,
        sha256=recorded.sha256,
        bytes=recorded.bytes,
        tokens=recorded.tokens,
        sections=tuple(
            # Separators between blocks are not counted.
            SectionSize(section=section, bytes=int(size), tokens=ceil(tokens), entries=int(entries))
            for section, (size, tokens, entries) in sizes.items()
        ),
        blocks=tuple(blocks),
        plan=composition.plan,
        stable_prefix=recorded.stable_prefix,
        assembled_at=recorded.assembled_at,
    )


class KeptNumber(msgspec.Struct, frozen=True):
    """Stored result of ``context.assemble`` for a resend: the assembly is rendered again from its record."""

    number: int


def form_of(target: RequestTarget | None) -> SpecForm | None:
    """The form of a request for ``target`` as stored with an assembly in the layout ``spec``, None for text."""
    if target is None:
        return None
    return SpecForm(format=target.format, model=target.model, max_tokens=target.max_tokens, tools=tools_hash(target))


def target_of(root: str, part: WindowPart | SpecForm, content: str | None) -> RequestTarget | None:
    """The target recorded in ``part``, with the tools in the ``content`` of its document. ``root``: the session that
    began the conversation."""
    if part.format is None:
        return None
    tools = () if content is None else msgspec.json.decode(content, type=tuple[ToolDeclaration, ...])
    return RequestTarget(
        format=part.format,
        model=part.model or "",
        max_tokens=part.max_tokens,
        tools=tools,
        cache_key=part.cache_key or root,
    )


def tools_text(target: RequestTarget | None) -> str | None:
    """The tools of ``target`` as stored with its record, None if there are none."""
    return None if target is None or not target.tools else msgspec.json.encode(target.tools).decode()


def tools_hash(target: RequestTarget | None) -> str:
    """The hash of the tools that a request for ``target`` declares, empty if there are none."""
    text = tools_text(target)
    return "" if text is None else sha256(text)
