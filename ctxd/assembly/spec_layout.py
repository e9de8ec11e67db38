"""Layout ``spec`` (spec 1 §4.1): system prompt, metadata pool, chat, active content; and the composition of a context.

Owns the closed set of reasons, and decides which values of a version are shown; ``spec_rendering`` makes them text. A
tool call that had to be renamed is shown under its old id (``SessionSettings.renamed``).

A layout is a function that makes the sections of one session, in the order of the window. A section updates its pieces
from a ``View``, the current state of a session, and keeps them by key, so that an unchanged object is not rendered
again and a piece can be replaced in place. ``Composition`` is one context, immutable. Its text is always the same as
that of a new rendering.
"""

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import aclosing
from sys import getsizeof
from typing import Final, Literal, Protocol

import msgspec
from anyio.lowlevel import checkpoint

from ctxd.assembly.spec_rendering import (
    POOL_HEADER,
    SEPARATOR,
    LineState,
    escape,
    render_active,
    render_file_line,
    render_message,
    render_tool_message,
    render_toolcall_line,
    render_toolcall_ref,
)
from ctxd.assembly.token_budget import DropReason, Piece, TokenCounter, drop_order, plan, size_bytes
from ctxd.assembly.truncation import cut, cut_arguments
from ctxd.assembly.window_references import arguments_of
from ctxd.errors import CtxdError
from ctxd.mounts.mapping import MountTable
from ctxd.objects.document import Content, Stored, is_binary, require_text
from ctxd.objects.version_state import binary_text, state_of, unkept_kind
from ctxd.sessions.chat import ChatPage, read_pages
from ctxd.sessions.compaction_kept_messages import has_summary, kept_events
from ctxd.sessions.live_session import LiveSession
from ctxd.sessions.session_state import EventPosition, SessionState
from ctxd.sessions.stored_session import chars_of
from ctxd_protocol.context_types import BudgetPlan
from ctxd_protocol.event_types import CompactionEvent, Event, ToolCallEvent, ToolResultEvent, message_of
from ctxd_protocol.ids import chat_id, session_object_id, system_prompt_id

Heads = Mapping[str, Stored | None]
"""Versions by id of the object; None, or no entry, for an object without one."""

ReadHeads = Callable[[Iterable[str]], Awaitable[Heads]]
"""Read the versions of objects, in the order of their ids."""


class View(msgspec.Struct, frozen=True, kw_only=True):
    """A session at one moment, and the reads for its content.

    ``contents`` returns contents by reference. ``chars_max``: maximum characters of the chat and the content read for
    one context; None: no limit. ``renderer``: the version of the text format.
    """

    live: LiveSession
    heads: ReadHeads
    contents: Callable[[Iterable[str]], Awaitable[Mapping[str, Content]]]
    count: TokenCounter
    renderer: int
    chars_max: int | None = None

    def piece(
        self,
        section: str,
        key: str,
        text: str,
        *,
        reason: str,
        object: str,
        tx: int | None,
        valid_time: int | None = None,
        entries: int = 1,
    ) -> Piece:
        """The piece ``key`` of ``section`` with its measures."""
        return Piece(
            key=key,
            section=section,
            text=text,
            size=size_bytes(text),
            tokens=self.count(text),
            reason=reason,
            object=object,
            valid_time=valid_time,
            tx=tx,
            entries=entries,
        )

    def too_long(self, chars: int) -> CtxdError:
        """The error for a context of at least ``chars`` characters."""
        assert self.chars_max is not None, "there is a bound"
        return too_long(self.live.session, chars, self.chars_max)


def too_long(session: str, chars: int, chars_max: int) -> CtxdError:
    """The error for a context of at least ``chars`` characters, above the limit ``chars_max``."""
    return CtxdError(
        "too_large",
        f"the context of session {session} has at least {chars:,} characters; "
        f"the limit for one assembly is {chars_max:,}",
        hint="Deactivate objects, collapse tool calls, or continue in a new session.",
        outcome="not_applied",
    )


class SectionPieces(Protocol):
    """Pieces of one section, by key and in order. ``other_bytes``: approximate memory of all else that it keeps."""

    section: str
    pieces: dict[str, Piece]
    other_bytes: int

    async def update(self, view: View) -> None:
        """Render changed pieces, in portions, yielding to other tasks in between. Versions may change meanwhile: the
        pieces are consistent if nothing was written during the call.

        Raises: CtxdError corrupt if an object has no version, too_large, store_failed. Cancel: safe; rendered pieces
        are kept.
        """


Layout = Callable[[], Sequence[SectionPieces]]
"""The components of one session, in the order of the window."""


class Composition(msgspec.Struct, frozen=True, kw_only=True):
    """One context. ``texts``: of its ``pieces``; ``size``: bytes, with the separators; ``plan`` lists the objects left
    out. ``sections``: all of the layout, including empty ones."""

    sections: tuple[str, ...]
    pieces: tuple[Piece, ...]
    texts: tuple[str, ...]
    size: int
    plan: BudgetPlan

    def text(self) -> str:
        """The whole text."""
        return SEPARATOR.join(self.texts)


def compose(components: Sequence[SectionPieces], budget_tokens: int | None, count: TokenCounter) -> Composition:
    """The context of the current pieces of ``components``, without those that the budget leaves out."""
    pieces = [piece for component in components for piece in component.pieces.values()]
    made = plan(pieces, budget_tokens, count)
    if made.dropped:
        gone = {(piece.section, piece.key) for piece, _ in drop_order(pieces)[: len(made.dropped)]}
        pieces = [piece for piece in pieces if (piece.section, piece.key) not in gone]
    return Composition(
        sections=tuple(component.section for component in components),
        pieces=tuple(pieces),
        texts=tuple(piece.text for piece in pieces),
        size=sum(piece.size for piece in pieces) + max(0, len(pieces) - 1) * len(SEPARATOR),
        plan=made,
    )


Reason = Literal["system prompt", "metadata pool", "chat", "pinned", "activated explicitly", "recent tool call", "read"]
"""Why a block is in the context."""

ARGUMENTS_TOKENS: Final = 500
"""Tokens to which the arguments of a tool call of the chat are cut. A change of any of these needs a new renderer."""

OUTPUT_TOKENS: Final = 2_000
"""Tokens to which its output is cut."""

_REPLACES_CHAT_SINCE: Final = 3
"""First version of the format with tool calls without an object, and with compactions."""

PORTION_LINES: Final = 512
"""Lines of the pool rendered before yielding to other tasks: about 2 ms."""

PORTION_EVENTS: Final = 256
"""Events of the chat rendered before yielding: about 2 ms."""

PORTION_CHARACTERS: Final = 512 * 1024
"""Characters of active objects rendered before yielding: about 2 ms; each object counts as a thousand more."""

_PIECE_CHARACTERS: Final = 1_000

_BINARY_HINT: Final = ": object.get returns them in base64"

_ENTRY_BYTES: Final = 300
"""Approximate memory of a small entry of a dict: its key, and a tuple or structure without its texts."""

TEXTS_AT_ONCE: Final = 16
"""Texts loaded at once: at most 16 MiB of content recorded by sandboxes."""


def spec() -> Sequence[SectionPieces]:
    """The components of one session."""
    return PromptSection(), PoolSection(), ChatSection(), ActiveSection()


class PromptSection:
    """The system prompt."""

    section = "system_prompt"

    def __init__(self) -> None:
        self.pieces: dict[str, Piece] = {}
        self.other_bytes = 0

    async def update(self, view: View) -> None:
        """See ``SectionPieces``. An empty prompt has no piece."""
        id = system_prompt_id(view.live.session)
        stored = (await view.heads((id,))).get(id)
        if stored is None or (ref := stored.content_ref) is None:
            self.pieces = {}
        elif id not in self.pieces or self.pieces[id].tx != stored.tx:
            text = escape(require_text((await view.contents((ref,)))[ref]))
            piece = view.piece(
                self.section,
                id,
                text,
                reason="system prompt",
                object=id,
                tx=stored.tx,
                valid_time=stored.valid_time,
            )
            self.pieces = {id: piece} if text else {}


class PoolSection:
    """The metadata pool, one line for each object in it."""

    section = "metadata_pool"

    def __init__(self) -> None:
        self.pieces: dict[str, Piece] = {}
        self.other_bytes = 0
        self._mounts: MountTable | None = None
        self._lines: dict[str, tuple[int, str]] = {}

    async def update(self, view: View) -> None:
        """See ``SectionPieces``. The piece has the version of the session's newest segment."""
        if view.live.mounts is not self._mounts:
            # Any display path may have changed.
            self._mounts, self._lines = view.live.mounts, {}
        live, made = view.live, 0
        heads = await view.heads(live.state.pool)
        lines: dict[str, tuple[int, str]] = {}
        for id in live.state.pool:
            if (stored := heads.get(id)) is None:
                raise _without_version(id)
            line = self._lines.get(id)
            if line is None or line[0] != stored.tx:
                line = self._lines[id] = stored.tx, _pool_line(view, id, stored)
                made += 1
                if made % PORTION_LINES == 0:
                    await checkpoint()
            lines[id] = line
        self._lines, self.pieces = lines, {}
        self.other_bytes = sum(_ENTRY_BYTES + getsizeof(text) for _, text in lines.values())
        if lines:
            id = session_object_id(live.session)
            self.pieces[id] = view.piece(
                self.section,
                id,
                "\n".join((POOL_HEADER, *(text for _, text in lines.values()))),
                reason="metadata pool",
                object=id,
                tx=live.seqs[-1],
                entries=len(lines),
            )


class _Call(msgspec.Struct, frozen=True, gc=False):
    """A tool call of the chat, with its arguments as the text shows them: cut."""

    tool: str
    arguments: str

    @property
    def memory(self) -> int:
        """Approximate bytes in memory, with its key."""
        return _ENTRY_BYTES + getsizeof(self.tool) + getsizeof(self.arguments)


class ChatSection:
    """The chat, message by message; the result of a tool is a reference to its tool call, or the call with its output
    if no object holds it. The summary of a compaction takes the place of the messages that it replaces."""

    section = "chat"

    def __init__(self) -> None:
        self.pieces: dict[str, Piece] = {}
        self.other_bytes = 0
        self._unread: dict[str, str] = {}
        self._end = (0, 0)
        self._calls: dict[str, _Call] = {}
        """Those without an output in the chat: an object may have their output, and the chat may have it later."""
        self._answered: dict[EventPosition, _Call | None] = {}
        """The call of each output, by the place of the output."""
        self._compaction: tuple[EventPosition, int, CompactionEvent] | None = None
        """The newest compaction, until the pieces begin with it."""
        self._chars = 0
        """Characters of the texts since the newest compaction, with the messages that it keeps."""
        self._is_cut = False
        """The pieces are missing, as they exceeded the limit; only characters are counted until the next compaction."""

    async def update(self, view: View) -> None:
        """See ``SectionPieces``. Messages and calls are immutable, so each is read once. A purge drops the whole
        cache."""
        turns = view.live.state.turns
        if self._is_cut and (view.chars_max is None or self._chars <= view.chars_max):
            # The limit of the host is larger than that of a sandbox.
            self.pieces, self._unread, self._compaction = {}, {}, None
            self._end, self._chars, self._is_cut = (0, 0), 0, False
        if self._end != (len(turns) - 1, len(turns[-1])):
            async with aclosing(read_pages(view.live, self._end)) as pages:
                portion = 0
                async for page in pages:
                    self._add_page(view, page)
                    portion += len(page.events)
                    if portion >= PORTION_EVENTS:
                        # Pages that are in memory are read without a wait.
                        portion = 0
                        await checkpoint()
        if self._is_cut:
            raise view.too_long(self._chars)
        if self._compaction is not None:
            # Also if an earlier update read the chat up to its end, but was cancelled here.
            await self._begin_with(view, *self._compaction)
            self._compaction = None
        if not self._unread:
            return
        heads = await view.heads(self._unread.values())
        for key, id in self._unread.items():
            if (stored := heads.get(id)) is None:
                raise _without_version(id)
            name, payload = view.live.settings.renamed.get(id, id), stored.document.payload
            text = render_toolcall_ref(name, payload["tool"], payload["status"])
            self.pieces[key] = view.piece(
                self.section, key, text, reason="chat", object=id, tx=stored.tx, valid_time=stored.valid_time
            )
        self._unread = {}

    def _add_page(self, view: View, page: ChatPage) -> None:
        for place, event in page.placed():
            if place < self._end:
                continue
            if view.renderer >= _REPLACES_CHAT_SINCE and has_summary(event) and event.sidechain is None:
                self._compaction, self.pieces, self._unread = (place, page.seq, event), {}, {}
                self._chars, self._is_cut = 0, False
            else:
                self._add(view, place, page.seq, event)
            self._end = place[0], place[1] + 1
            if view.chars_max is not None and self._chars > view.chars_max:
                self.pieces, self._unread, self._is_cut = {}, {}, True

    def _add(self, view: View, place: EventPosition, seq: int, event: Event) -> None:
        # Spec 1's chat has no message for reasoning, notices and some others: these are not shown.
        if (message := message_of(event)) is None:
            if event.sidechain is None and view.renderer >= _REPLACES_CHAT_SINCE:
                self._add_call(view, place, seq, event)
        elif message.role == "toolcall":
            assert message.toolcall is not None, "the result of a tool names its tool call"
            # A placeholder without text and version, which ``update`` replaces.
            self._unread[f"{place[0]}.{place[1]}"] = message.toolcall
            self._put(view, place, "", None)
        else:
            self._put(view, place, render_message(message.role, message.content), seq)

    def _put(self, view: View, place: EventPosition, text: str, seq: int | None) -> Piece:
        key = f"{place[0]}.{place[1]}"
        chat = chat_id(view.live.session)
        made = self.pieces[key] = view.piece(self.section, key, text, reason="chat", object=chat, tx=seq)
        self._chars += len(text)
        return made

    def _add_call(self, view: View, place: EventPosition, seq: int, event: Event) -> None:
        """Add a tool call once it has an output, unless an object holds it."""
        if isinstance(event, ToolCallEvent):
            how = "all of it is in the chat"
            arguments = cut_arguments(arguments_of(event.args), ARGUMENTS_TOKENS, view.count, how)
            if (before := self._calls.get(event.call)) is not None:
                self.other_bytes -= before.memory
            self._calls[event.call] = _Call(event.tool, arguments)
            self.other_bytes += self._calls[event.call].memory
        if not isinstance(event, ToolResultEvent):
            return
        if place not in self._answered:
            self._answered[place] = self._calls.pop(event.call or "", None)
            self.other_bytes += _ENTRY_BYTES
        if (call := self._answered[place]) is None:
            return
        how = f"all of it is event {place[0]}.{place[1]} of the chat"
        output = "\n".join((event.text, *(f"[{each.media_type}]" for each in event.attachments)))
        text = render_tool_message(
            call.tool,
            "fail" if event.is_error else "ok",
            call.arguments,
            cut(output, OUTPUT_TOKENS, view.count, how),
        )
        made = self._put(view, place, text, seq)
        self.pieces[made.key] = msgspec.structs.replace(made, drop="oldest tool call")

    async def _begin_with(self, view: View, place: EventPosition, seq: int, event: CompactionEvent) -> None:
        """Put the summary of ``event``, and the messages that it keeps, before those after it."""
        kept: list[tuple[EventPosition, int, Event]] = []
        chars = self._chars
        async with aclosing(kept_events(view.live, place, event)) as found:
            async for each in found:
                chars += chars_of((each[2],))
                if view.chars_max is not None and chars > view.chars_max:
                    raise view.too_long(chars)
                kept.append(each)
        later, unread = self.pieces, self._unread
        self.pieces, self._unread = {}, {}
        self._put(view, place, render_message("user", event.summary), seq)
        for at, written, message in kept:
            if has_summary(message):
                self._put(view, at, render_message("user", message.summary), written)
            elif not isinstance(message, ToolCallEvent):
                # Calls without an output stay: a harness may compact while a tool runs.
                self._add(view, at, written, message)
        self.pieces |= later
        self._unread |= unread


class ActiveSection:
    """The active objects, whole, in order of activation; one line for binary content."""

    section = "active_content"

    def __init__(self) -> None:
        self.pieces: dict[str, Piece] = {}
        self.other_bytes = 0

    async def update(self, view: View) -> None:
        """See ``SectionPieces``. Content over the limit is refused before all of it is in memory."""
        live, kept = view.live, self.pieces
        heads = await view.heads(live.state.active)
        shown = {id: stored for id, stored in heads.items() if stored is not None and stored.content_ref is not None}
        changed = [id for id, stored in shown.items() if id not in kept or kept[id].tx != stored.tx]
        # Content rendered before counts too: whether a context is refused must not depend on what is kept of the last.
        chars, portion = sum(len(kept[id].text) for id in shown.keys() - set(changed)), 0
        for first in range(0, len(changed), TEXTS_AT_ONCE):
            some = changed[first : first + TEXTS_AT_ONCE]
            refs = {id: shown[id].content_ref or "" for id in some if not is_binary(shown[id].document)}
            texts = await view.contents(refs.values())
            chars += sum(map(len, texts.values()))
            if view.chars_max is not None and chars > view.chars_max:
                raise view.too_long(chars)
            for id in some:
                stored = shown[id]
                content = require_text(texts[refs[id]]) if id in refs else binary_text(stored.document, _BINARY_HINT)
                text = render_active(live.settings.renamed.get(id, id), content)
                kept[id] = view.piece(
                    self.section, id, text, reason="", object=id, tx=stored.tx, valid_time=stored.valid_time
                )
                portion += _PIECE_CHARACTERS + len(content)
                if portion >= PORTION_CHARACTERS:
                    portion = 0
                    await checkpoint()
        for id, stored in shown.items():
            reason = why_active(live.state, id)
            if kept[id].reason != reason:
                drop = None if reason == "pinned" else _DROPS[stored.document.type == "toolcall"]
                kept[id] = msgspec.structs.replace(kept[id], reason=reason, drop=drop, is_active=True)
        self.pieces = {id: kept[id] for id in shown}


_DROPS: Final[dict[bool, DropReason]] = {True: "oldest tool call", False: "file activated longest ago"}


def why_active(state: SessionState, id: str) -> Reason:
    """Why the active object ``id`` is in the window: the strongest of its reasons."""
    if id in state.pinned:
        return "pinned"
    if id in state.chosen:
        return "activated explicitly"
    # An active tool call that was not chosen is in ``recency``; a file never is.
    return "recent tool call" if id in state.recency else "read"


def _pool_line(view: View, id: str, stored: Stored) -> str:
    live, document = view.live, stored.document
    payload = document.payload
    if document.type == "toolcall":
        return render_toolcall_line(live.settings.renamed.get(id, id), payload["tool"], payload["status"])
    if document.source is None:
        raise CtxdError("corrupt", f"the file {id} has no source")
    known = state_of(document)
    assert known != "orphaned", "no version records that its source is unreachable"
    state: LineState = known
    if state == "present" and view.renderer > 1:
        state = unkept_kind(document) or state
    path = live.mounts.display(document.source)
    return render_file_line(id, path, payload["file_type"], payload["char_count"], state)


def _without_version(id: str) -> CtxdError:
    return CtxdError("corrupt", f"{id} is in the session but has no version")
