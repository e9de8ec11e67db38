"""What is kept between two assemblies never shows: the text is always that of a rendering from scratch."""

import random

import msgspec
import pytest

from ctxd.assembly.composition import CHUNK_LINES, Composition, Rendering, View
from ctxd.assembly.measure import stable_prefix, tokens_of
from ctxd.errors import CtxdError
from ctxd.objects import next_version
from ctxd.objects.document import Document, Stored
from ctxd.objects.hashing import source_hash
from ctxd.objects.identity import file_id
from ctxd.sessions.segments import (
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
from ctxd.sessions.state import Place, SessionState, apply
from ctxd_protocol.events import event_of
from ctxd_protocol.objects import FilesystemSource
from ctxd_protocol.sessions import Message
from tests.unit.assembly.parsing import parse


class World:
    """A session and its objects, changed by chance; versions are numbered in order of making."""

    def __init__(self, seed: int = 0) -> None:
        self.rng = random.Random(seed)
        self.state = SessionState()
        self.heads: dict[str, Stored] = {}
        self.texts: dict[str, str] = {}
        self.budget: int | None = None
        self.looks = 0
        self.said: dict[Place, tuple[Message, int]] = {}
        self._tx = 0

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
            self.store(next_version.file_tombstone(id, source))
        elif stub or text is None:
            self.store(next_version.file_stub(id, source))
        else:
            self.store(next_version.file_text(id, source, text, source_hash(text.encode())))
        return id

    def call(self, number: int, text: str) -> str:
        id = f"call_{number}|x"
        self.store(next_version.toolcall(id, tool="bash", args={}, content=text, chat_ref="chat:s"))
        return id

    def view(self, budget: int | None = None) -> View:
        return View(
            session="s",
            seq=self._tx,
            state=self.state,
            message_at=self.said.__getitem__,
            prompt="system_prompt:s",
            head=self._head,
            content=self.texts.__getitem__,
            display=lambda source: source.path.replace("/src", "/workspace", 1),
            budget_tokens=budget,
        )

    def say(self, message: Message, *rest: SegmentOperation) -> None:
        apply(self.state, (AppendChat((event_of(message),)), *rest))
        turn = self.state.turn
        self.said[turn, len(self.state.turns[turn]) - 1] = (message, self._tx)

    def _head(self, id: str) -> Stored | None:
        self.looks += 1
        return self.heads.get(id)

    def step(self) -> None:  # noqa: C901 - one case for each thing that can happen
        rng, state = self.rng, self.state
        text = rng.choice(("", "a", "ACTIVE_CONTENT id=x\n", "é\n" * rng.randint(0, 9)))
        match rng.randint(0, 10):
            case 0:
                self.store(next_version.system_prompt("s", text))
            case 1 | 2:
                apply(state, (DiscoverObjects(tuple(self.file(rng.randint(0, 400), stub=True) for _ in range(40))),))
            case 3:
                apply(state, (ReadObjects((self.file(rng.randint(0, 400), text),)),))
            case 4:
                id = self.call(len(self.heads), text)
                self.say(Message(role="toolcall", toolcall=id), RecordCalls((id,)))
            case 5:
                self.say(Message(role=rng.choice(("user", "assistant")), content=text))
            case 6 if state.active:
                apply(state, (DeactivateObjects((rng.choice(list(state.active)),)),))
            case 7 if state.pool:
                apply(state, (HideObjects((rng.choice(list(state.pool)),)),))
            case 8 if state.pool:
                apply(state, (PinObjects((rng.choice(list(state.pool)),)),))
            case 9 if state.index:
                apply(state, (ActivateObjects((rng.choice(list(state.index)),)),))
            case 10:
                self.file(rng.randint(0, 400), text, deleted=rng.random() < 0.3)


@pytest.mark.parametrize("seed", range(12))
def test_a_kept_rendering_gives_what_one_from_scratch_gives(seed: int) -> None:
    world, kept = World(seed), Rendering()
    before: Composition | None = None
    for _ in range(60):
        world.step()
        budget = world.rng.choice((None, None, 5, 60, 300))
        made, fresh = kept.compose(world.view(budget)), Rendering().compose(world.view(budget))
        assert made == fresh
        text = made.text()
        assert (made.size, made.text()) == (len(text.encode()), fresh.text())
        if before is not None:
            assert stable_prefix(before.fragments, made.fragments) == equal_bytes(before.text(), text)
            assert (made.fragments == before.fragments) == (text == before.text())
        before = made


def equal_bytes(a: str, b: str) -> int:
    equal = 0
    for x, y in zip(a.encode(), b.encode(), strict=False):
        if x != y:
            break
        equal += 1
    return equal


@pytest.mark.parametrize("seed", range(3))
def test_the_text_says_what_the_session_holds(seed: int) -> None:
    world = World(seed)
    for _ in range(80):
        world.step()
    context = parse(Rendering().compose(world.view()).text())
    assert [line.id for line in context.pool] == list(world.state.pool)
    shown = [id for id in world.state.active if world.heads[id].content_ref is not None]
    assert [active.id for active in context.active] == shown
    assert [active.content for active in context.active] == [
        world.texts[world.heads[id].content_ref or ""] for id in shown
    ]
    assert len(context.chat) == sum(map(len, world.state.turns))


def test_blocks_lie_where_they_say_and_name_their_version_and_reason() -> None:
    world = World()
    world.store(next_version.system_prompt("s", "Sei nützlich.\n"))
    read, stub, call = world.file(1, "text é"), world.file(2, stub=True), world.call(1, "out\n")
    chosen, pinned = world.file(3, "chosen"), world.file(4, "pinned")
    said = (Message(role="user", content="grüß dich"), Message(role="toolcall", toolcall=call))
    world.say(said[0])
    apply(world.state, (RecordCalls((call,)), ReadObjects((read, pinned)), DiscoverObjects((stub, chosen))))
    world.say(said[1], ActivateObjects((chosen,)), PinObjects((pinned,)))
    made = Rendering().compose(world.view())
    data, blocks = made.text().encode(), made.blocks()
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
    assert blocks[1].tx == world.view().seq
    assert blocks[2].tx == world.said[1, 0][1]
    sections = {size.section: size for size in made.sections()}
    assert sections["metadata_pool"].entries == 5
    assert sections["active_content"].entries == 4
    assert sum(size.bytes for size in sections.values()) + 2 * (len(blocks) - 1) == len(data)


def test_a_deleted_active_object_shows_a_line_and_no_content() -> None:
    world = World()
    apply(world.state, (ReadObjects((world.file(1, "text"),)),))
    id = world.file(1, deleted=True)
    text = Rendering().compose(world.view()).text()
    assert text == f"METADATA_POOL\nid={id} type=file path=/workspace/f1.py file_type=py char_count=0 [deleted]"


def test_what_is_dropped_for_the_budget_keeps_its_line() -> None:
    world = World()
    call, file = world.call(1, "x" * 4000), world.file(1, "y" * 400)
    apply(world.state, (RecordCalls((call,)), ReadObjects((file,))))
    made = Rendering().compose(world.view(budget=300))
    assert [dropped.object for dropped in made.plan.dropped] == [call]
    context = parse(made.text())
    assert [line.id for line in context.pool] == [call, file]
    assert [active.id for active in context.active] == [file]
    assert made.plan.tokens_after == tokens_of(made.size)


def test_one_changed_object_leaves_the_other_chunks_as_they_are() -> None:
    world, kept = World(), Rendering()
    ids = tuple(world.file(n, stub=True) for n in range(10 * CHUNK_LINES))
    apply(world.state, (DiscoverObjects(ids),))
    before = kept.compose(world.view())
    world.file(5 * CHUNK_LINES + 3, "now read")
    after = kept.compose(world.view())
    assert sum(a is not b for a, b in zip(before.fragments, after.fragments, strict=True)) == 1


def test_an_unchanged_pool_is_not_even_looked_at_when_no_head_moved() -> None:
    world, kept = World(), Rendering()
    apply(world.state, (DiscoverObjects(tuple(world.file(n, stub=True) for n in range(1000))),))
    before = kept.compose(world.view())
    world.looks = 0
    after = kept.compose(world.view(), heads_moved=False)
    assert after.fragments == before.fragments
    assert world.looks <= 1


def test_an_object_without_a_version_is_corrupt() -> None:
    world = World()
    apply(world.state, (DiscoverObjects(("f" * 64,)),))
    with pytest.raises(CtxdError, match="no version"):
        Rendering().compose(world.view())


def test_a_composition_that_was_cut_short_by_a_version_out_of_reach_can_be_made_again() -> None:
    class OutOfReach(Exception):
        pass

    world, kept = World(7), Rendering()
    for _ in range(40):
        world.step()
        whole = world.view()
        for _ in range(3):
            left = world.rng.randint(0, 60)

            def head(id: str) -> Stored | None:
                nonlocal left
                left -= 1
                if left < 0:
                    raise OutOfReach
                return world.heads.get(id)

            try:
                kept.compose(msgspec.structs.replace(whole, head=head))
            except OutOfReach:
                continue
        assert kept.compose(whole) == Rendering().compose(whole)
