"""What is kept between two assemblies never shows: the text is always that of a rendering from scratch."""

import random
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from ctxd.assembly.assembly_record import Recorded, context_of
from ctxd.assembly.spec_layout import Composition, Heads, SectionPieces, View, compose, spec
from ctxd.assembly.spec_rendering import RENDERER
from ctxd.assembly.token_budget import Piece, TokenCounter, estimate_tokens, stable_prefix
from ctxd.assembly.window_references import arguments_of
from ctxd.errors import CtxdError
from ctxd.mounts.mapping import MountTable
from ctxd.objects import document as documents
from ctxd.objects.document import Document, Stored
from ctxd.objects.generated_ids import file_id
from ctxd.objects.hashing import source_hash
from ctxd.sessions.session_state import SessionState, apply
from ctxd.sessions.stored_session import (
    ActivateObjects,
    AppendChat,
    DeactivateObjects,
    DiscoverObjects,
    HideObjects,
    PinObjects,
    ReadObjects,
    RecordCalls,
    SegmentOperation,
)
from ctxd_protocol.context_types import AssembledContext
from ctxd_protocol.event_types import (
    CompactionEvent,
    Event,
    PromptEvent,
    ResponseEvent,
    ThinkingEvent,
    ToolCallEvent,
    ToolResultEvent,
    event_of,
)
from ctxd_protocol.object_types import FilesystemSource
from ctxd_protocol.session_types import Message, Mount
from tests.unit.assembly.parsing import parse
from tests.unit.assembly.reference import ChatEntry, ChatText, ToolcallRef, ToolMessage

pytestmark = pytest.mark.anyio


class World:
    """A session and its objects, changed by chance; versions are numbered in order of making."""

    def __init__(self, seed: int = 0) -> None:
        self.rng = random.Random(seed)
        self.state = SessionState()
        self.heads: dict[str, Stored] = {}
        self.texts: dict[str, str] = {}
        self.said: list[Event] = []
        self.count: TokenCounter = estimate_tokens
        self._tx = 0
        mounts = (Mount(agent_prefix="/workspace", canonical_prefix="/src"),)
        self.live: Any = SimpleNamespace(
            session="s",
            state=self.state,
            mounts=MountTable(mounts, filesystem_id="fs", host_filesystem_id="fs"),
            settings=SimpleNamespace(renamed={}),
            seqs=[],
            recent=defaultdict(tuple),
        )

    def store(self, document: Document) -> Stored:
        self._tx += 1
        ref = None
        if document.content is not None:
            ref = f"text-{self._tx}"
            self.texts[ref] = document.content
        bare = Document(
            id=document.id,
            type=document.type,
            source=document.source,
            identity_hash=document.identity_hash,
            source_hash=document.source_hash,
            content_hash=document.content_hash,
            payload=document.payload,
        )
        stored = Stored(document=bare, content_ref=ref, valid_time=1000 + self._tx, tx=self._tx, tx_time=self._tx)
        self.heads[document.id] = stored
        return stored

    def file(self, number: int, text: str | None = "", *, stub: bool = False, deleted: bool = False) -> str:
        source = FilesystemSource("fs", f"/src/f{number}.py")
        id = file_id(source)
        if deleted:
            self.store(documents.file_tombstone(id, source))
        elif stub or text is None:
            self.store(documents.file_stub(id, source))
        else:
            self.store(documents.file_text(id, source, text, source_hash(text.encode())))
        return id

    def call(self, number: int, text: str) -> str:
        id = f"call_{number}|x"
        self.store(documents.toolcall(id, tool="bash", args={}, content=text, chat_ref="chat:s"))
        return id

    async def heads_of(self, ids: Iterable[str]) -> Heads:
        return {id: self.heads.get(id) for id in ids}

    async def contents_of(self, refs: Iterable[str]) -> Mapping[str, str]:
        return {ref: self.texts[ref] for ref in refs}

    def view(self, **rest: Any) -> View:
        usual = {"heads": self.heads_of, "contents": self.contents_of, "count": self.count, "renderer": RENDERER}
        return View(live=self.live, **(usual | rest))

    async def composed(
        self, components: Sequence[SectionPieces] | None = None, budget: int | None = None
    ) -> Composition:
        """The context as of now, of ``components`` or from scratch."""
        components = components or spec()
        for component in components:
            await component.update(self.view())
        return compose(components, budget, self.count)

    def apply(self, *operations: SegmentOperation) -> None:
        apply(self.state, operations)
        self.live.seqs.append(self._tx)

    def say(self, said: Event | Message, *rest: SegmentOperation) -> None:
        event = event_of(said) if isinstance(said, Message) else said
        self.said.append(event)
        self.live.recent[self.state.segments] = (event,)
        self.apply(AppendChat((event,)), *rest)

    def say_any(self, text: str) -> None:
        """Say an event that has no message of its own, or a compaction."""
        rng, number = self.rng, self._tx
        self.store(documents.system_prompt("s", text))
        call = f"c{rng.randint(0, 3)}"
        self.say(
            rng.choice(
                (
                    ToolCallEvent(call=call, tool="my tool", args={"text": text}, id=f"e{number}"),
                    ToolResultEvent(call=call, text=text, is_error=rng.random() < 0.5),
                    ToolResultEvent(call=call, text=text),
                    ThinkingEvent(text=text),
                    ResponseEvent(text=text, id=f"e{number}"),
                    CompactionEvent(summary=text, kept_from=f"e{rng.randint(0, number)}", id=f"e{number}"),
                )
            )
        )

    def step(self) -> None:  # noqa: C901 - one case for each thing that can happen
        rng, state = self.rng, self.state
        text = rng.choice(("", "a", "ACTIVE_CONTENT id=x\n", "é\n" * rng.randint(0, 9)))
        match rng.randint(0, 12):
            case 0:
                self.store(documents.system_prompt("s", text))
            case 1 | 2:
                self.apply(DiscoverObjects(tuple(self.file(rng.randint(0, 400), stub=True) for _ in range(40))))
            case 3:
                self.apply(ReadObjects((self.file(rng.randint(0, 400), text),)))
            case 4:
                id = self.call(len(self.heads), text)
                self.say(Message(role="toolcall", toolcall=id), RecordCalls((id,)))
            case 5:
                self.say(Message(role=rng.choice(("user", "assistant")), content=text))
            case 6 if state.active:
                self.apply(DeactivateObjects((rng.choice(list(state.active)),)))
            case 7 if state.pool:
                self.apply(HideObjects((rng.choice(list(state.pool)),)))
            case 8 if state.pool:
                self.apply(PinObjects((rng.choice(list(state.pool)),)))
            case 9 if state.index:
                self.apply(ActivateObjects((rng.choice(list(state.index)),)))
            case 11 | 12:
                self.say_any(text)
            case 10:
                self.file(rng.randint(0, 400), text, deleted=rng.random() < 0.3)


@pytest.mark.parametrize("seed", range(12))
async def test_reused_components_equal_new_ones(seed: int) -> None:
    world, kept = World(seed), spec()
    before: Composition | None = None
    for _ in range(60):
        world.step()
        budget = world.rng.choice((None, None, 5, 60, 300))
        made, fresh = await world.composed(kept, budget), await world.composed(budget=budget)
        assert made == fresh
        text = made.text()
        assert (made.size, made.text()) == (len(text.encode()), fresh.text())
        if before is not None:
            assert stable_prefix(before.pieces, made.pieces) == equal_bytes(before.text(), text)
            assert (made.texts == before.texts) == (text == before.text())
        before = made


def equal_bytes(a: str, b: str) -> int:
    equal = 0
    for x, y in zip(a.encode(), b.encode(), strict=False):
        if x != y:
            break
        equal += 1
    return equal


@pytest.mark.requirement("CTX-12")
@pytest.mark.requirement("CTX-13")
@pytest.mark.parametrize("seed", range(12))
async def test_the_text_matches_the_state_of_the_session(seed: int) -> None:
    world = World(seed)
    for _ in range(80):
        world.step()
    context = parse((await world.composed()).text())
    assert [line.id for line in context.pool] == list(world.state.pool)
    shown = [id for id in world.state.active if world.heads[id].content_ref is not None]
    assert [active.id for active in context.active] == shown
    assert [active.content for active in context.active] == [
        world.texts[world.heads[id].content_ref or ""] for id in shown
    ]
    assert list(context.chat) == list(told(world.said))


def answered_calls(events: Iterable[Event]) -> dict[int, ToolCallEvent | None]:
    """The call of each result without an object, by the identity of the result."""
    calls: dict[str, ToolCallEvent] = {}
    answered: dict[int, ToolCallEvent | None] = {}
    for event in events:
        if isinstance(event, ToolCallEvent):
            calls[event.call] = event
        elif isinstance(event, ToolResultEvent) and event.object is None:
            answered[id(event)] = calls.pop(event.call or "", None)
    return answered


def told(events: Sequence[Event]) -> Iterator[ChatEntry]:
    """The chat of ``events`` as text."""
    answered = answered_calls(events)
    at = next((n for n in reversed(range(len(events))) if getattr(events[n], "summary", "").strip()), None)
    if at is not None:
        kept = next((n for n in range(at) if events[n].id == events[at].kept_from), at)
        events = [events[at], *events[kept:at], *events[at + 1 :]]
    for event in events:
        match event:
            case CompactionEvent() if event.summary.strip():
                yield ChatText(role="user", text=event.summary)
            case PromptEvent():
                yield ChatText(role="user", text=event.text)
            case ResponseEvent():
                yield ChatText(role="assistant", text=event.text)
            case ToolResultEvent(object=str(known)):
                yield ToolcallRef(id=known, tool="bash", status="ok")
            case ToolResultEvent() if (call := answered[id(event)]) is not None:
                status, arguments = "fail" if event.is_error else "ok", arguments_of(call.args)
                yield ToolMessage(tool=call.tool, status=status, arguments=arguments, output=event.text)
            case _:
                pass


def assembled(made: Composition) -> AssembledContext:
    """The answer for ``made``, as if it had been recorded."""
    figures: dict[str, Any] = dict.fromkeys(("number", "segments", "turn", "bytes", "tokens", "assembled_at"), 0)
    figures |= {"context_id": "", "parent": "", "sha256": "", "stable_prefix": None}
    return context_of("s", Recorded(**figures), made, made.text())


async def test_blocks_lie_at_their_offset_and_name_their_version_and_reason() -> None:
    world = World()
    world.store(documents.system_prompt("s", "Sei nützlich.\n"))
    read, stub, call = world.file(1, "text é"), world.file(2, stub=True), world.call(1, "out\n")
    chosen, pinned = world.file(3, "chosen"), world.file(4, "pinned")
    world.say(Message(role="user", content="grüß dich"))
    said_at = world.live.seqs[-1]
    world.apply(RecordCalls((call,)), ReadObjects((read, pinned)), DiscoverObjects((stub, chosen)))
    world.say(Message(role="toolcall", toolcall=call), ActivateObjects((chosen,)), PinObjects((pinned,)))
    context = assembled(await world.composed())
    data, blocks = context.text.encode(), context.blocks
    assert [data[b.offset : b.offset + len(b.text.encode())].decode() for b in blocks] == [b.text for b in blocks]
    assert [(b.section, b.reason, b.object) for b in blocks] == [
        ("system_prompt", "system prompt", "system_prompt:s"),
        ("metadata_pool", "metadata pool", "session:s"),
        ("chat", "chat", "chat:s"),
        ("chat", "chat", call),
        ("active_content", "recent tool call", call),
        ("active_content", "read", read),
        ("active_content", "pinned", pinned),
        ("active_content", "activated explicitly", chosen),
    ]
    assert all(b.tx == world.heads[str(b.object)].tx for b in blocks if b.object in world.heads)
    assert blocks[1].tx == world.live.seqs[-1]
    assert blocks[2].tx == said_at
    sections = {size.section: size for size in context.sections}
    assert sections["metadata_pool"].entries == 5
    assert sections["active_content"].entries == 4
    assert sum(size.bytes for size in sections.values()) + 2 * (len(blocks) - 1) == len(data)


async def test_a_key_identifies_one_piece_across_contexts() -> None:
    world, kept = World(5), spec()
    before: dict[tuple[str, str], Piece] = {}
    for _ in range(60):
        world.step()
        pieces = (await world.composed(kept)).pieces
        made = {(piece.section, piece.key): piece for piece in pieces}
        assert len(made) == len(pieces)
        for key in before.keys() & made.keys():
            old, new = before[key], made[key]
            assert old.object == new.object
            assert old.text == new.text or old.tx != new.tx or new.section == "metadata_pool"
        before = made


async def test_a_deleted_active_object_shows_a_line_and_no_content() -> None:
    world = World()
    world.apply(ReadObjects((world.file(1, "text"),)))
    id = world.file(1, deleted=True)
    text = (await world.composed()).text()
    assert text == f"METADATA_POOL\nid={id} type=file path=/workspace/f1.py file_type=py char_count=0 [deleted]"


async def test_an_object_dropped_for_the_budget_keeps_its_line() -> None:
    world = World()
    call, file = world.call(1, "x" * 4000), world.file(1, "y" * 400)
    world.apply(RecordCalls((call,)), ReadObjects((file,)))
    made = await world.composed(budget=300)
    assert [dropped.object for dropped in made.plan.dropped] == [call]
    context = parse(made.text())
    assert [line.id for line in context.pool] == [call, file]
    assert [active.id for active in context.active] == [file]
    assert made.plan.tokens_after == -(-made.size // 4)


async def test_the_chat_reads_each_tool_call_once() -> None:
    world, chat = World(), spec()[2]
    read: list[str] = []

    async def heads(ids: Iterable[str]) -> Heads:
        read.extend(ids := list(ids))
        return await world.heads_of(ids)

    calls = [world.call(number, "out") for number in range(5)]
    for call in calls:
        world.say(Message(role="toolcall", toolcall=call), RecordCalls((call,)))
        await chat.update(world.view(heads=heads))
    assert read == calls
    assert [piece.object for piece in chat.pieces.values()] == calls


class Reversed:
    """The chat, its newest message first."""

    section = "newest_first"

    def __init__(self) -> None:
        self.pieces: dict[str, Piece] = {}

    async def update(self, view: View) -> None:
        for events in reversed(list(view.live.recent.values())):
            for event in events:
                key, text = str(len(self.pieces)), event.text
                self.pieces[key] = view.piece(self.section, key, text, reason="said", object="chat:s", tx=None)


async def test_another_layout_defines_the_sections_and_another_counter_the_tokens() -> None:
    world = World()
    world.count = lambda text: len(text.split())
    world.say(Message(role="user", content="one two three"))
    world.say(Message(role="assistant", content="four five"))
    context = assembled(await world.composed((Reversed(), *spec()[:1])))
    assert context.text == "four five\n\none two three"
    assert [(size.section, size.tokens, size.entries) for size in context.sections] == [
        ("newest_first", 5, 2),
        ("system_prompt", 0, 0),
    ]
    assert (context.plan.tokens, [block.tokens for block in context.blocks]) == (5, [2, 3])


async def test_an_object_without_a_version_is_corrupt() -> None:
    world = World()
    world.apply(DiscoverObjects(("f" * 64,)))
    with pytest.raises(CtxdError, match="no version"):
        await world.composed()


async def test_an_update_that_was_cut_short_can_be_made_again() -> None:
    class OutOfReach(Exception):
        pass

    world, kept = World(7), spec()
    for _ in range(60):
        world.step()
        for _ in range(4):
            left = world.rng.randint(0, 5)

            async def heads(ids: Iterable[str]) -> Heads:
                nonlocal left
                left -= 1
                if left < 0:
                    raise OutOfReach
                return await world.heads_of(ids)

            async def contents(refs: Iterable[str]) -> Mapping[str, str]:
                nonlocal left
                left -= 1
                if left < 0:
                    raise OutOfReach
                return await world.contents_of(refs)

            try:
                for component in kept:
                    await component.update(world.view(heads=heads, contents=contents))
            except OutOfReach:
                continue
        assert await world.composed(kept) == await world.composed()
