"""References: the stored form of a window, and the items that they resolve to. Pure.

A record keeps no text of the conversation: it refers to events of the chat and to versions of objects, which the store
keeps for good. Only text that ctxd itself writes into a window, a line or two, is stored in full, so that a window is
the same after an upgrade of ctxd. The items of a reference depend only on the data that it refers to.
"""

import hashlib
import re
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, Literal

import msgspec

from ctxd.assembly.repack_policy import Kind
from ctxd.assembly.token_budget import TokenCounter
from ctxd.assembly.truncation import cut, cut_arguments
from ctxd.assembly.window_items import (
    AssistantText,
    ImageItem,
    Picture,
    Reasoning,
    SystemText,
    ToolOutput,
    ToolUse,
    Update,
    UpdateKind,
    UserText,
    WindowItem,
)
from ctxd.epochs.epoch_state import PURGED_PART, ComponentChange, ComponentText, EpochEvent
from ctxd.objects.document import Content, Stored, is_binary
from ctxd.objects.generated_ids import is_hash
from ctxd.objects.version_state import binary_text, is_purged
from ctxd.secrets.policy import IMAGE_MEDIA_TYPES
from ctxd.sessions.session_state import EventPosition
from ctxd_protocol.event_types import (
    Attachment,
    CompactionEvent,
    Event,
    PromptEvent,
    ResponseEvent,
    SystemEvent,
    ThinkingEvent,
    ToolCallEvent,
    ToolResultEvent,
)

WHOLE: Final = 0
STUB: Final = -1
"""Values of ``shown``: the whole content, or its stub. Any other value is the number of tokens that it is cut to."""

ITEM_TOKENS: Final = 4
"""Tokens that an item takes besides its text."""

ARGUMENT_CHARS: Final = 60
OTHER_ARGUMENT_CHARS: Final = 20
"""Characters that an argument keeps once the output of its call is a stub: a command or a path, and any other."""

IMAGE_TOKENS: Final = 1_500
"""Tokens that an image counts for."""

ID_DIGITS: Final = 12
"""Digits of a file's id in a window."""

ObjectRole = Literal["system", "prompt", "use", "output", "late", "active", "changed", "call"]


TextKind = Literal["system", "output"] | UpdateKind


class _Ref(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="ref", gc=False):
    """``key``: that of the item; if there are several, a number is appended. ``turn``: see ``Item``. ``is_cut``: a late
    output is cut to ``shown`` tokens; earlier versions recorded ``shown`` for late outputs too, but showed all."""

    key: str
    turn: int = 0
    shown: int = WHOLE
    is_cut: bool = False


class EventRef(_Ref, frozen=True, kw_only=True, omit_defaults=True, tag="event", gc=False):
    """An event of the chat. ``call``: the window's id for its tool call, empty if the call is not in the window.
    ``late``: the event is an output that came after a placeholder took its place. ``pictures``: number of its pictures
    that are shown, with a line about the others; -1 for all that the item can show, without that line. ``provider``,
    ``model`` and ``prefix`` are those of reasoning."""

    at: EventPosition
    call: str = ""
    late: bool = False
    pictures: int = -1
    provider: str | None = None
    model: str | None = None
    prefix: str | None = None


class ObjectRef(_Ref, frozen=True, kw_only=True, omit_defaults=True, tag="object", gc=False):
    """A version of an object, and the part of it that the item shows. ``label``: the file's path, as the agent knows
    it; ``name``: the object's id when this was planned, empty if it has not changed. ``own``: the call's id in the
    chat, which differs from ``object`` where that is an alias; empty if no event names the call."""

    object: str
    valid_time: int
    tx: int
    role: ObjectRole
    call: str = ""
    label: str = ""
    name: str = ""
    own: str = ""

    @property
    def shown_id(self) -> str:
        """The name of the object in a window: a prefix of a hash long enough to find the file, or any other id
        whole."""
        return short_id(self.name or self.object)


def versions_of(refs: Iterable["Ref"]) -> Iterator[tuple[str, int, int]]:
    """The versions that ``refs`` refer to: ids of objects, each with a valid time and a transaction."""
    return ((ref.object, ref.valid_time, ref.tx) for ref in refs if isinstance(ref, ObjectRef))


class TextRef(_Ref, frozen=True, kw_only=True, omit_defaults=True, tag="text", gc=False):
    """Text of ctxd itself. ``call``: the tool call whose missing output it replaces."""

    kind: TextKind
    text: str
    call: str = ""


class EpochRef(_Ref, frozen=True, kw_only=True, omit_defaults=True, tag="epoch", gc=False):
    """Texts of components: the baseline of an epoch, or one update. ``is_system``: see ``Update``."""

    role: Literal["baseline", "update"]
    parts: tuple[ComponentChange, ...]
    is_system: bool | None = None


def baseline_of(event: EpochEvent, turn: int) -> EpochRef | None:
    """The reference to the baseline with which ``event`` begins its epoch, None for an empty one."""
    parts = tuple(change for change in event.changes if change.part == "baseline")
    return EpochRef(key=f"epoch-{event.epoch}", turn=turn, role="baseline", parts=parts) if parts else None


Ref = EventRef | ObjectRef | TextRef | EpochRef
"""Any reference. The tags are the stored names."""


class CallFacts(msgspec.Struct, gc=False):
    """A tool call of the window. ``subject``: its command or path. ``reads``: the path that it read, or its command
    after ``$``, None for neither. ``object``: its tool call object, None if it has none. ``has_output``: an output of
    it was shown, not a placeholder."""

    tool: str
    subject: str
    reads: str | None
    object: str | None = None
    has_output: bool = False

    @property
    def kind(self) -> Kind:
        """Kind of the output for the policy."""
        if self.reads is None:
            return "other"
        return "command" if self.reads.startswith("$ ") else "file"


class Material(msgspec.Struct, frozen=True):
    """The data that references are resolved from: events by place, versions by id and transaction, contents, component
    texts by address, None for purged ones."""

    events: Mapping[EventPosition, Event]
    versions: Mapping[tuple[str, int], Stored]
    contents: Mapping[str, Content]
    count: TokenCounter
    components: Mapping[str, ComponentText | None]

    @property
    def content_chars(self) -> int:
        """Characters of all contents."""
        return sum(map(len, self.contents.values()))


def short_id(id: str) -> str:
    """The name of object ``id`` in a window: a prefix of a hash long enough to find the file, or any other id whole."""
    return id[:ID_DIGITS] if is_hash(id) else id


_COMMANDS: Final = ("command", "cmd")
_PATHS: Final = ("file_path", "filePath", "path", "notebook_path", "filename")
_OTHERS: Final = ("pattern", "query", "url", "description")
_SUBJECTS: Final = frozenset((*_COMMANDS, *_PATHS, *_OTHERS))
_READING: Final = re.compile("read|view|cat|open", re.IGNORECASE)
_SUBJECT_CHARS: Final = 80


def call_facts(tool: str, arguments: str) -> CallFacts:
    """The facts of a call of ``tool`` with ``arguments``, a JSON object."""
    given: dict[str, Any] = msgspec.json.decode(arguments)
    names = [name for name in (*_COMMANDS, *_PATHS, *_OTHERS) if given.get(name)]
    value = given[names[0]] if names else next((each for each in given.values() if isinstance(each, str)), "")
    subject = " ".join(map(str, value)) if isinstance(value, list) else str(value)
    reads = None
    if names and names[0] in _COMMANDS:
        reads = f"$ {subject}"
    elif names and names[0] in _PATHS and _READING.search(tool):
        part = [f"{name}={given[name]}" for name in ("offset", "limit") if given.get(name)]
        reads = " ".join((subject, *part))
    line = " ".join(subject.split())
    return CallFacts(tool, line if len(line) <= _SUBJECT_CHARS else f"{line[: _SUBJECT_CHARS - 1]}…", reads)


def arguments_of(args: object) -> str:
    """The arguments of a call as the text of a JSON object: a value that is not an object becomes its member
    ``input``."""
    if isinstance(args, str):
        try:
            args = msgspec.json.decode(args)
        except (msgspec.DecodeError, RecursionError):
            args = {"input": args}
    if args is None:
        args = {}
    return msgspec.json.encode(args if isinstance(args, dict) else {"input": args}).decode()


def short_arguments(arguments: str) -> str:
    """The JSON object ``arguments`` with long values cut to their beginning."""
    given: dict[str, Any] = msgspec.json.decode(arguments)
    for name, value in given.items():
        text = value if isinstance(value, str) else msgspec.json.encode(value).decode()
        most = ARGUMENT_CHARS if name in _SUBJECTS else OTHER_ARGUMENT_CHARS
        if len(text) > most:
            given[name] = f"{text[:most]}…"
    return msgspec.json.encode(given).decode()


def short_use(item: ToolUse) -> ToolUse:
    """Return ``item`` with short arguments."""
    return msgspec.structs.replace(item, arguments=item.stub, tokens=item.stub_tokens, shown="stub")


def _use(ref: EventRef | ObjectRef, tool: str, arguments: str, count: TokenCounter) -> ToolUse:
    tool, shown = tool_name(tool), arguments
    other = count(tool) + count(ref.call) + ITEM_TOKENS
    stub = short_arguments(arguments)
    if ref.shown > 0:
        how = f"all of it is event {ref.key} of the chat"
        if isinstance(ref, ObjectRef):
            how = f"activate {ref.name or ref.object} to load it"
        shown = cut_arguments(arguments, ref.shown, count, how)
    item = ToolUse(
        key=ref.key,
        turn=ref.turn,
        tokens=other + count(shown),
        object=ref.object if isinstance(ref, ObjectRef) else None,
        call=ref.call,
        tool=tool,
        arguments=shown,
        stub_tokens=other + count(stub),
        stub=stub,
        shown="whole" if shown is arguments else "cut",
    )
    return short_use(item) if ref.shown == STUB else item


def tool_name(tool: str) -> str:
    """``tool`` in a form that every provider accepts."""
    return re.sub("[^A-Za-z0-9_-]", "_", tool)[:64] or "tool"


def call_name(own: str, taken: Container[str], tried: dict[str, int]) -> str:
    """The id of a tool call in the window: its ``own`` if every provider accepts it and no other call has it, else a
    hash, with a number if another call has that too.

    ``tried``: the last number given to each hash, updated here: lower ones are not tried again. A name that was in
    ``taken`` must stay there as long as the same ``tried`` is used.
    """
    if re.fullmatch("[A-Za-z0-9_-]{1,40}", own) and own not in taken:
        return own
    base = f"c_{hashlib.sha256(own.encode()).hexdigest()[:16]}"
    number = tried.get(base, 0) + 1
    while (name := base if number == 1 else f"{base}_{number}") in taken:
        number += 1
    tried[base] = number
    return name


def items_of(ref: Ref, material: Material, calls: Mapping[str, CallFacts]) -> tuple[WindowItem, ...]:
    """The items of ``ref``, none for an empty system prompt.

    ``calls``: facts of the calls before it, by their id in the window.
    """
    match ref:
        case TextRef():
            return (_text_item(ref, material.count),)
        case EpochRef():
            return (_epoch_item(ref, material),)
        case EventRef():
            return tuple(_event_items(ref, material.events[ref.at], material.count, calls))
        case ObjectRef():
            item = _object_item(ref, material, calls)
            return () if isinstance(item, SystemText) and not item.text.strip() else (item,)


def _text_item(ref: TextRef, count: TokenCounter) -> WindowItem:
    tokens = count(ref.text) + ITEM_TOKENS
    match ref.kind:
        case "system":
            return SystemText(key=ref.key, turn=ref.turn, tokens=tokens, text=ref.text)
        case "output":
            # A call needs an output in every request, so this is never removed.
            return ToolOutput(
                key=ref.key,
                turn=ref.turn,
                tokens=tokens,
                call=ref.call,
                text=ref.text,
                full_tokens=tokens,
                stub_tokens=tokens,
                stub=ref.text,
                is_error=True,
                shown="stub" if ref.shown == STUB else "whole",
            )
        case kind:
            return _update(ref, kind, ref.text, count)


def _epoch_item(ref: EpochRef, material: Material) -> WindowItem:
    found = [(material.components[part.address], part.part) for part in ref.parts]
    text = "\n\n".join(PURGED_PART if each is None else each.text(part) for each, part in found)
    if ref.role == "update":
        return msgspec.structs.replace(_update(ref, "component", text, material.count), is_system=ref.is_system)
    return SystemText(key=ref.key, turn=ref.turn, tokens=material.count(text) + ITEM_TOKENS, text=text)


def _update(ref: _Ref, kind: UpdateKind, text: str, count: TokenCounter, object: str | None = None) -> Update:
    tokens = count(text) + ITEM_TOKENS
    return Update(
        key=ref.key,
        turn=ref.turn,
        tokens=tokens,
        object=object,
        kind=kind,
        text=text,
        full_tokens=tokens,
        stub_tokens=tokens,
        stub=text,
    )


def _event_items(
    ref: EventRef, event: Event, count: TokenCounter, calls: Mapping[str, CallFacts]
) -> Iterable[WindowItem]:
    text = getattr(event, "text", "")
    same: dict[str, Any] = {"key": ref.key, "turn": ref.turn}
    match event:
        case PromptEvent():
            yield from _prompt_items(ref, event, count)
        case ResponseEvent():
            yield AssistantText(**same, tokens=count(text) + ITEM_TOKENS, text=text)
        case ThinkingEvent():
            size = count(text) + count(event.encrypted or event.signature or "") + ITEM_TOKENS
            # No request includes it without the messages that it was written for.
            size = 0 if ref.prefix is None else size
            yield Reasoning(
                **same,
                tokens=size,
                place=ref.at,
                provider=ref.provider,
                model=ref.model,
                prefix=ref.prefix,
                text=text,
                signature=event.signature,
                encrypted=event.encrypted,
                id=event.id,
            )
        case ToolCallEvent():
            yield _use(ref, event.tool, arguments_of(event.args), count)
        case ToolResultEvent():
            facts, where = calls.get(ref.call), f"event {ref.key} of the chat"
            images = tuple(pictures(event.attachments))
            yield _output(ref, text, "fail" if event.is_error else "ok", where, facts, count, images)
        case SystemEvent():
            yield _update(ref, "notice", _message(ref, text, count), count)
        case CompactionEvent():
            yield _update(ref, "compaction", event.summary, count)
        case _:
            raise AssertionError("a window refers to events of the kinds above")


def _message(ref: EventRef, text: str, count: TokenCounter) -> str:
    """The ``text`` of a message, cut if it was too long for the window."""
    return cut(text, ref.shown, count, f"all of it is event {ref.key} of the chat") if ref.shown else text


def _pictured(ref: EventRef | ObjectRef, text: str, images: tuple[Picture, ...]) -> tuple[str, tuple[Picture, ...]]:
    """``text`` of ``ref``, with a line about the ``images`` that are left out, and those that are shown."""
    if not isinstance(ref, EventRef) or not 0 <= ref.pictures < len(images):
        return text, images
    line = f"[{_counted(len(images) - ref.pictures)} left out here; all of it is event {ref.key} of the chat]"
    return f"{text}\n{line}" if text.strip() else line, images[: ref.pictures]


def _counted(images: int) -> str:
    return "1 image" if images == 1 else f"{images} images"


def _prompt_items(ref: EventRef, event: PromptEvent, count: TokenCounter) -> Iterable[WindowItem]:
    text, images = _pictured(ref, _message(ref, event.text, count), tuple(pictures(event.attachments)))
    if text.strip():
        yield UserText(key=ref.key, turn=ref.turn, tokens=count(text) + ITEM_TOKENS, text=text)
    for nth, picture in enumerate(images, 1):
        yield ImageItem(key=f"{ref.key}/{nth}", turn=ref.turn, tokens=IMAGE_TOKENS, picture=picture)


def _object_item(ref: ObjectRef, material: Material, calls: Mapping[str, CallFacts]) -> WindowItem:
    stored = material.versions[ref.object, ref.tx]
    payload, count = stored.document.payload, material.count
    if ref.role == "use":
        return _use(ref, payload["tool"], arguments_of(payload.get("args")), count)
    text = _content(stored, material.contents)
    match ref.role:
        case "system":
            return SystemText(
                key=ref.key, turn=ref.turn, tokens=count(text) + ITEM_TOKENS, object=ref.object, text=text
            )
        case "prompt":
            return _update(ref, "prompt", f"The system prompt is now:\n{text}", count, ref.object)
        case "output" | "late":
            return _output(ref, text, payload["status"], ref.shown_id, calls.get(ref.call), count, object=ref.object)
        case "call":
            arguments = arguments_of(payload.get("args"))
            return _file_update(ref, "active", f"Arguments:\n{arguments}\nOutput:\n{text}", count)
        case kind:
            assert kind == "active" or kind == "changed", "the others were handled"
            return _file_update(ref, kind, text, count)


def _content(stored: Stored, contents: Mapping[str, Content]) -> str:
    if is_purged(stored.document):
        return "[purged]"
    if is_binary(stored.document):
        return binary_text(stored.document)
    content = "" if stored.content_ref is None else contents[stored.content_ref]
    return content if isinstance(content, str) else content.decode(errors="replace")


def pictures(attachments: Sequence[Attachment]) -> Iterable[Picture]:
    """The images among ``attachments`` that every provider accepts."""
    for each in attachments:
        if each.media_type in IMAGE_MEDIA_TYPES and each.data:
            yield Picture(media_type=each.media_type, data=each.data)
        elif each.media_type.startswith("image/") and each.url is not None and each.url.startswith("https://"):
            yield Picture(media_type=each.media_type, url=each.url)


def _output(
    ref: EventRef | ObjectRef,
    text: str,
    status: str,
    where: str,
    facts: CallFacts | None,
    count: TokenCounter,
    pictures: tuple[Picture, ...] = (),
    object: str | None = None,
) -> WindowItem:
    """The output of a call, or its stub; an update if the output came late."""
    whole = count(text) + len(pictures) * IMAGE_TOKENS + ITEM_TOKENS
    how = f"activate {where} to load it" if object is not None else f"it is {where}"
    # The stub need not name the call, which comes before it with the beginning of its command or path.
    # Stubs of earlier versions, recorded without a number of pictures, did not mention them.
    is_named = pictures and isinstance(ref, EventRef) and (ref.shown != STUB or ref.pictures == 0)
    size = f"{int(whole):,} tokens{f' with {_counted(len(pictures))}' if is_named else ''}"
    stub = f"[removed: {status}, {size}; {how}]"
    if ref.late if isinstance(ref, EventRef) else ref.role == "late":
        stub = f"[{_late_title(facts)} removed: {status}, {size}; {how}]"
        shown_text = cut(text, ref.shown, count, how) if ref.is_cut and ref.shown != STUB else text
        shown_text, _ = _pictured(ref, shown_text, pictures)
        return _late(ref, f"{_late_title(facts)} ({status}):", text, shown_text, stub, count, object)
    shown_text, tokens = text, whole
    if ref.shown == STUB:
        shown_text, pictures, tokens = stub, (), count(stub) + ITEM_TOKENS
    elif ref.shown:
        shown_text, pictures = _pictured(ref, cut(text, ref.shown, count, how), pictures)
        tokens = count(shown_text) + len(pictures) * IMAGE_TOKENS + ITEM_TOKENS
    return ToolOutput(
        key=ref.key,
        turn=ref.turn,
        tokens=tokens,
        object=object,
        call=ref.call,
        text=shown_text,
        full_tokens=whole,
        stub_tokens=count(stub) + ITEM_TOKENS,
        stub=stub,
        pictures=pictures,
        is_error=status in ("fail", "aborted", "unanswered"),
        shown="stub" if ref.shown == STUB else "whole" if shown_text is text else "cut",
    )


def _late(
    ref: EventRef | ObjectRef, title: str, text: str, shown: str, stub: str, count: TokenCounter, object: str | None
) -> Update:
    """The late output ``text`` of ``ref``, shown as ``shown``, or its stub."""
    late = _update(ref, "output", stub if ref.shown == STUB else f"{title}\n{shown}", count, object)
    return msgspec.structs.replace(
        late,
        full_tokens=late.tokens if late.text is not stub and shown is text else count(f"{title}\n{text}") + ITEM_TOKENS,
        stub=stub,
        stub_tokens=count(stub) + ITEM_TOKENS,
        shown="stub" if ref.shown == STUB else "whole" if shown is text else "cut",
    )


def _late_title(facts: CallFacts | None) -> str:
    """The title of an output that is separate from its call. ``facts``: of the call, None if the window lacks it."""
    subject = f" {facts.subject}" if facts is not None and facts.subject else ""
    return f"Late output of {'a tool call' if facts is None else facts.tool}{subject}"


def late_without_call(item: Update, facts: CallFacts, count: TokenCounter) -> Update:
    """The late output ``item`` in a window from which its call, with ``facts``, was removed."""
    text, stub = (each.replace(_late_title(facts), _late_title(None), 1) for each in (item.text, item.stub))
    tokens = count(text) + ITEM_TOKENS
    return msgspec.structs.replace(
        item,
        text=text,
        tokens=tokens,
        full_tokens=item.full_tokens + tokens - item.tokens,
        stub=stub,
        stub_tokens=count(stub) + ITEM_TOKENS,
    )


def _file_update(ref: ObjectRef, kind: Literal["active", "changed"], text: str, count: TokenCounter) -> Update:
    name = f"{ref.label} (id={ref.shown_id})"
    title = f"Content of {name}:" if kind == "active" else f"{name} changed. Its content is now:"
    whole = count(title) + count(text) + ITEM_TOKENS
    stub = f"[content of {name} removed, {int(whole):,} tokens; activate it to load it]"
    shown_text, shown = f"{title}\n{text}", ref.shown
    if shown == STUB:
        shown_text = stub
    elif shown:
        shown_text = f"{title}\n{cut(text, shown, count, 'activate a part of it by a tool')}"
    return Update(
        key=ref.key,
        turn=ref.turn,
        tokens=count(shown_text) + ITEM_TOKENS,
        object=ref.object,
        kind=kind,
        text=shown_text,
        full_tokens=whole,
        stub_tokens=count(stub) + ITEM_TOKENS,
        stub=stub,
        shown="stub" if shown == STUB else "cut" if shown else "whole",
    )
