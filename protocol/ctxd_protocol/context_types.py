"""The assembled context: blocks with their reasons (spec 1 §4), the text, or a request for a provider's API."""

from typing import Annotated, Any, Literal

import msgspec

from ctxd_protocol.object_types import Receipt

Section = str
"""A section of the context. The layout names them: ``system_prompt``, ``metadata_pool``, ``chat`` and
``active_content``."""


class Block(msgspec.Struct, frozen=True, kw_only=True):
    """One block of the context.

    ``text`` is the block as rendered, escapes included; ``offset`` is its first byte in the whole text. ``object``,
    ``valid_time`` and ``tx`` identify the version shown. ``reason``: why the block is included, one of a closed set of
    short phrases.
    """

    section: Section
    text: str
    offset: int
    tokens: int
    reason: str
    object: str | None = None
    valid_time: int | None = None
    tx: int | None = None


class Dropped(msgspec.Struct, frozen=True, kw_only=True):
    """An active object, or a tool call that only the chat has, which is left out to fit the budget, and the reason why
    it is dropped before others. ``object`` of the latter is the chat."""

    object: str
    tokens: int
    reason: str


class BudgetPlan(msgspec.Struct, frozen=True, kw_only=True):
    """A session's tokens against its budget. ``over_by``: tokens above the budget after all possible drops."""

    budget_tokens: int | None
    tokens: int
    tokens_after: int
    over_by: int
    dropped: tuple[Dropped, ...]


class SectionSize(msgspec.Struct, frozen=True, kw_only=True):
    """The size of one section: bytes of UTF-8, estimated tokens, number of entries."""

    section: Section
    bytes: int
    tokens: int
    entries: int


Layout = Literal["spec", "append"]
"""Order of the window. ``spec``: system prompt, metadata pool, chat, active content (spec 1 §4). ``append``: a
baseline, then the conversation in order; changes are appended, and sent content stays until a repack."""

RequestFormat = Literal["anthropic-messages", "openai-responses", "openai-chat"]
"""API of a request body: Anthropic Messages, OpenAI Responses, OpenAI Chat Completions."""

ContextFormat = Literal["blocks", "text", "anthropic-messages", "openai-responses", "openai-chat"]
"""Form of an assembly: its blocks, its text, or a request body."""


RepackReason = Literal["cache_expired", "budget", "cost"]
"""Reason for a repack: the provider's cache had expired, the budget forced it, or it costs less than continuing."""


CacheBreak = Literal[
    "first_request", "format", "model", "tools", "compaction", "cache_expired", "purge", "budget", "cost"
]
"""Reason why a request does not begin with the whole cached prefix of the previous one: there was none, its format,
model or tools differed, a compaction or content hidden from a sandbox began a new window, the cache has expired,
content in it was purged, or a repack for ``budget`` or ``cost``."""


class RequestCost(msgspec.Struct, frozen=True, kw_only=True):
    """Estimated tokens and price of a request, before it is sent. Prices are integer micro-dollars, without the reply.

    ``tokens``: those of the whole request, calibrated by the usage of earlier requests if ``reserve`` is not None;
    ``reserve``: an error bound that nine of ten increases stay within. ``shared_bytes``: length of the common prefix
    with the previous request, which had ``before_bytes``; ``shared_tokens``: the prefix's estimated tokens.
    ``broken_by``: the reason why the cache does not have all of the previous request, None if it does. ``cache_read``:
    tokens that the cache has. ``history_tokens`` and ``history_price``: those of a request with all content that the
    session ever showed, uncut. A price is None for a model that is no longer in the table of models.
    """

    model: str
    tokens: int
    reserve: int | None
    shared_bytes: int
    before_bytes: int
    shared_tokens: int
    broken_by: CacheBreak | None
    cache_read: int
    price: int | None
    history_tokens: int
    history_price: int | None


ShownAs = Literal["whole", "cut", "stub", "line", "none"]
"""Part of an object that is in a window: its whole content, the beginning and end, a stub in place of removed content,
a line that names the object, or nothing."""

WhyRule = Literal[
    "pinned",
    "activated",
    "read",
    "recorded",
    "changed",
    "read_by_call",
    "cut_on_entry",
    "cut_for_budget",
    "repacked_cache_expired",
    "repacked_budget",
    "repacked_cost",
    "purged",
    "removed_budget",
    "compacted",
    "dropped_budget",
    "listed",
    "known_by_name",
    "not_active",
    "left_pool",
    "not_in_pool",
    "not_assembled",
]
"""Rule that includes an object in a window, or excludes it.

Whole: it is ``pinned``, was ``activated`` by request, was ``read``, is the output of a ``recorded`` call, or has
``changed`` since it was shown. In part: ``cut_on_entry`` because it is long, ``cut_for_budget``; ``repacked_*``: a
repack replaced it with a stub, because the cache had expired, for the budget, or because keeping it had cost too much.
``purged``: its content was erased, and a stub or a line is left.
``dropped_budget``: the layout ``spec`` left it out for the budget. ``removed_budget``: the responses around it were
removed for the budget; ``compacted``: a compaction replaced the conversation. As a line: ``read_by_call``, a call's
output has its content; ``listed`` in the metadata pool; ``known_by_name``, never read; ``not_active`` any more, or
collapsed. Nothing: ``left_pool`` or ``not_in_pool``, it is hidden; ``not_assembled``, no assembly since it was added.
"""


class ToolDeclaration(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """A tool that the model may call. ``input_schema``: JSON Schema of its arguments, an object."""

    name: Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z0-9_-]{1,64}$(?!\n)")]
    description: str = ""
    input_schema: dict[str, Any]


def declared(format: RequestFormat, tool: ToolDeclaration) -> dict[str, Any]:
    """``tool`` as a request of ``format`` declares it."""
    name, description, schema = tool.name, tool.description, tool.input_schema
    match format:
        case "anthropic-messages":
            return {"name": name, "description": description, "input_schema": schema}
        case "openai-responses":
            function = {"name": name, "description": description, "parameters": schema}
            return {"type": "function", **function, "strict": False}
        case "openai-chat":
            return {"type": "function", "function": {"name": name, "description": description, "parameters": schema}}


class Omitted(msgspec.Struct, frozen=True, kw_only=True):
    """Part of the conversation that is not in a request. ``place``: the turn, and the number of the event in it.

    ``kind``: the kind of the part. ``reason``: one of a closed set of short phrases.
    """

    place: tuple[int, int]
    kind: str
    reason: str


class AssembledContext(msgspec.Struct, frozen=True, kw_only=True):
    """One assembly. ``number`` counts the session's recorded assemblies from 1; an unchanged repeat keeps its number,
    and an unrecorded one of a dry run has number 0 and no ``context_id``.

    ``stable_prefix``: the number of leading bytes equal to the session's previous assembly in the same layout and
    format, without cache markers; None for the first, and after a purge of content in the previous one. ``sha256`` is
    the hash of ``text``, or of the request's JSON text without cache markers; ``bytes`` is the length of that text.
    ``text`` and ``blocks`` are empty if the caller left them out. ``receipt``: the receipt of the recording write; None
    if nothing was written.
    ``request``: the body to send, None without a request format. ``omitted``: parts that it leaves out. ``repacked``:
    the reason why contents sent before are now stubs, None without a repack. ``cost``: that of a request in the layout
    ``append``; its ``tokens`` are calibrated, those of sections and blocks are not.
    """

    session: str
    number: int
    context_id: str
    turn: int
    text: str
    sha256: str
    bytes: int
    tokens: int
    sections: tuple[SectionSize, ...]
    blocks: tuple[Block, ...]
    plan: BudgetPlan
    stable_prefix: int | None
    assembled_at: int
    receipt: Receipt | None = None
    layout: Layout = "spec"
    request: dict[str, Any] | None = None
    omitted: tuple[Omitted, ...] = ()
    repacked: RepackReason | None = None
    cost: RequestCost | None = None


class AssemblyRecord(msgspec.Struct, frozen=True, kw_only=True):
    """Summary of a recorded assembly. Its text is rendered again from the versions that it references.

    ``session``: the session that recorded it; an ancestor, if a fork inherited the assembly. ``tx``: the journal
    sequence of the record: an object as of that sequence is the version that the model saw.
    ``format`` and ``model``: those of its request, None for text and blocks. ``policy``: version of the repack policy
    that decided on it, None if none did. ``repacked``: the reason for its repack, None without one.
    """

    number: int
    tx: int
    context_id: str
    turn: int
    sha256: str
    bytes: int
    tokens: int
    assembled_at: int
    stable_prefix: int | None
    layout: Layout = "spec"
    format: RequestFormat | None = None
    model: str | None = None
    policy: int | None = None
    repacked: RepackReason | None = None
    session: str | None = None


class CurrentContext(msgspec.Struct, frozen=True, kw_only=True):
    """The current context of an agent. ``context_id``: the newest commit of the session, None before the first.
    ``assembly``: the number of its newest assembly."""

    context_id: str | None
    session: str | None
    turn: int
    assembly: int
