"""Items of a conversation window, in the order in which one provider request shows them. Pure.

An item is immutable: its content was sent, or will be sent next, and never changes. A window grows at its end only; a
*repack* is the one operation that replaces items, and it makes a new window. Facts that change with time, such as age
or pins, are therefore not part of an item: ``repack_window`` adds them for one decision.

Providers' formats are rendered from items, so items are the same for all providers; only reasoning belongs to one.
"""

from typing import Any, Literal

import msgspec

Shown = Literal["whole", "cut", "stub"]
"""The part of its content that an item shows: all of it, its beginning and end, or one line that names it."""

UpdateKind = Literal["pool", "active", "changed", "prompt", "output", "notice", "compaction", "marker", "component"]
"""Subject of an update: objects that entered or left the metadata pool and the active set; activated content; a changed
file; a new system prompt; a late output; a notice of the harness; the summary of a compaction; a marker that keeps the
order of roles valid; changed components of the system context."""


SystemUpdates = Literal["none", "anywhere", "behind_user"]
"""Places at which a model takes system messages in the conversation."""


class Picture(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Image in the window: its bytes, or an address. Exactly one of the two is given."""

    media_type: str
    data: bytes | None = None
    url: str | None = None


class Item(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One part of the window.

    ``key`` is unique in the session and identifies the same part in all of its windows. ``object``: the id of the
    object that the item shows, None if it shows none. ``tokens``: estimated tokens of the item as it is shown.
    ``turn``: the turn in which it entered the window.
    """

    key: str
    tokens: float
    turn: int
    object: str | None = None


class SystemText(Item, frozen=True, kw_only=True, gc=False):
    """Part of the system prompt. All of these parts come first in a window."""

    text: str


class UserText(Item, frozen=True, kw_only=True, gc=False):
    """Message of the user."""

    text: str


class ImageItem(Item, frozen=True, kw_only=True, gc=False):
    """Image that the user gave, after the text of the same message."""

    picture: Picture


class AssistantText(Item, frozen=True, kw_only=True, gc=False):
    """Text of the model."""

    text: str


class Reasoning(Item, frozen=True, kw_only=True, gc=False):
    """Reasoning of the model, in the form in which its provider takes it back.

    ``prefix``: hash of the messages that the model had when it wrote this, None if unknown. It is sent only to the same
    provider and model, after the same messages. ``signature`` and ``encrypted`` as in a ``ThinkingEvent``; ``id`` is
    the provider's; ``place`` is that of the event in the chat.
    """

    place: tuple[int, int]
    provider: str | None
    model: str | None
    prefix: str | None
    text: str = ""
    signature: str | None = None
    encrypted: str | None = None
    id: str | None = None


class ToolUse(Item, frozen=True, kw_only=True, gc=False):
    """Request of the model to run a tool. ``call`` is unique in the window; ``arguments`` is a JSON object as text.

    ``stub``: short arguments, used once the output is a stub; ``stub_tokens``: estimated tokens of the item with them.
    """

    call: str
    tool: str
    arguments: str
    stub_tokens: float
    stub: str
    shown: Shown = "whole"


class ToolOutput(Item, frozen=True, kw_only=True, gc=False):
    """Output of the tool call ``call``, whose ``ToolUse`` comes before it.

    ``full_tokens``: estimated tokens of the whole output, equal to ``tokens`` where ``shown`` is whole. ``stub``: the
    line that replaces it in a repack, of ``stub_tokens``.
    """

    call: str
    text: str
    full_tokens: float
    stub_tokens: float
    stub: str
    pictures: tuple[Picture, ...] = ()
    is_error: bool = False
    shown: Shown = "whole"


class Update(Item, frozen=True, kw_only=True, gc=False):
    """Message of ctxd: a change since the items before it.

    ``full_tokens``, ``stub`` and ``stub_tokens``: as in ``ToolOutput``; the item's own where no policy may remove it.
    ``is_system``: it is a system message if the API allows one at its place. None: this was not decided when it entered
    the window, and the format of a request decides.
    """

    kind: UpdateKind
    text: str
    full_tokens: float
    stub_tokens: float
    stub: str
    shown: Shown = "whole"
    is_system: bool | None = None


WindowItem = SystemText | UserText | ImageItem | AssistantText | Reasoning | ToolUse | ToolOutput | Update
"""Any item of a window."""


def stubbed(item: ToolOutput | Update) -> ToolOutput | Update:
    """Return ``item`` with its stub in place of its content."""
    changes: dict[str, Any] = {"text": item.stub, "tokens": item.stub_tokens, "shown": "stub"}
    if isinstance(item, ToolOutput):
        changes["pictures"] = ()
    return msgspec.structs.replace(item, **changes)
