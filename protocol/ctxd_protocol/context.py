"""The assembled context: what a model sees, block by block, and why (spec 1 §4)."""

from typing import Literal

import msgspec

from ctxd_protocol.objects import Receipt

Section = Literal["system_prompt", "metadata_pool", "chat", "active_content"]


class Block(msgspec.Struct, frozen=True, kw_only=True):
    """One block of the context.

    ``text`` is the block as rendered, escapes included; ``offset`` is its first byte in the whole text. ``object``,
    ``valid_time`` and ``tx`` name the version shown. ``reason`` says why it is there, in a closed set of short phrases.
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
    """An active object that is left out so that the context fits its budget, and why it goes before the others."""

    object: str
    tokens: int
    reason: str


class BudgetPlan(msgspec.Struct, frozen=True, kw_only=True):
    """How a session stands against its token budget. ``over_by`` counts what no drop can save."""

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


class AssembledContext(msgspec.Struct, frozen=True, kw_only=True):
    """One assembly. ``number`` counts the session's recorded assemblies from 1; an unchanged repeat keeps its number.

    ``stable_prefix`` is how many leading bytes equal the session's assembly before this one; null for the first.
    ``sha256`` is the hash of ``text``. ``text`` and ``blocks`` are empty when the caller asked without them.
    ``receipt`` is that of the write which recorded it, null when nothing was written.
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


class AssemblyRecord(msgspec.Struct, frozen=True, kw_only=True):
    """What is kept of an assembly: enough to render it again byte for byte, and nothing that is kept elsewhere."""

    number: int
    context_id: str
    turn: int
    sha256: str
    bytes: int
    tokens: int
    assembled_at: int
    stable_prefix: int | None


class CurrentContext(msgspec.Struct, frozen=True, kw_only=True):
    """The context an agent works in now. ``context_id`` is null while nothing was assembled."""

    context_id: str | None
    session: str | None
    turn: int
    assembly: int
