import hashlib
from pathlib import Path
from typing import Any

import msgspec
import pytest

from ctxd.assembly import assembler, render_cache
from ctxd.assembly.append_rendering import KeptWindow, Rendering
from ctxd.assembly.append_window import AppendWindow
from ctxd.assembly.assembly_record import Recorded, new_context_id
from ctxd.errors import CtxdError
from ctxd.objects import document as documents
from ctxd.objects.document import AsOf, Stored
from ctxd.objects.generated_ids import assembly_id
from ctxd.sessions import activation_operations
from ctxd.sessions.live_session import WriteRequest
from ctxd_protocol.context_types import AssembledContext
from ctxd_protocol.ids import chat_id, context_id, session_object_id, system_prompt_id
from ctxd_protocol.limits import FILE_BYTES_MAX
from ctxd_protocol.session_types import Message, Mount
from tests.unit.assembly.parsing import parse
from tests.unit.assembly.stored_sessions import MODELS, Household, TestClock, household

USER = Message(role="user", content="Fix it.")


async def head_seq(home: Household) -> int:
    await home.store.get("nothing", AsOf(tx=0))
    receipt = home.store.head()
    return 0 if receipt is None else receipt.seq


@pytest.mark.anyio
@pytest.mark.requirement("CTX-1")
@pytest.mark.requirement("CTX-2")
async def test_a_context_has_four_sections_in_order_with_paths_as_the_agent_knows_them(tmp_path: Path) -> None:
    async with household(tmp_path) as home:
        (home.files / "main.py").write_text("print(1)\n")
        (home.files / "other.py").write_text("x")
        live = await home.create(mounts=(Mount(agent_prefix="/workspace", canonical_prefix=str(home.files)),))
        home.append(live, USER)
        file = await home.read(live, "/workspace/main.py")
        call = home.record(live, "call_1|fc 2", "out")
        (stub,) = await home.discover(live, [Path("/workspace/other.py")])
        home.append(live, Message(role="assistant", content="Done."))
        made = await home.assemble()
    assert made.text == (
        "Be brief.\n"
        "\n"
        "METADATA_POOL\n"
        f"id={file} type=file path=/workspace/main.py file_type=py char_count=9\n"
        f'id="{call}" type=toolcall tool=bash status=ok\n'
        f"id={stub} type=file path=/workspace/other.py file_type=py char_count=0 [unread]\n"
        "\n"
        "CHAT_MESSAGE role=user\n"
        "Fix it.\n"
        "\n"
        f'toolcall_ref id="{call}" tool=bash status=ok\n'
        "\n"
        "CHAT_MESSAGE role=assistant\n"
        "Done.\n"
        "\n"
        f"ACTIVE_CONTENT id={file}\n"
        "print(1)\n"
        "\n"
        "\n"
        f'ACTIVE_CONTENT id="{call}"\n'
        "out"
    )


@pytest.mark.anyio
@pytest.mark.requirement("CTX-4")
async def test_every_block_has_its_version_and_reason(tmp_path: Path) -> None:
    async with household(tmp_path) as home:
        live = await home.create()
        (home.files / "a.py").write_text("a")
        home.append(live, USER)
        file, call = await home.read(live, home.files / "a.py"), home.record(live, "call_1", "out")
        made = await home.assemble()
        for block in made.blocks:
            assert made.text.encode()[block.offset :].startswith(block.text.encode())
            assert block.object is not None and block.tx is not None
            if not block.object.startswith(("chat:", "session:")):
                version = await home.store.get(block.object)
                assert version is not None
                assert (block.valid_time, block.tx) == (version.valid_time, version.tx)
    assert [(block.object, block.reason) for block in made.blocks] == [
        (system_prompt_id("s"), "system prompt"),
        (session_object_id("s"), "metadata pool"),
        (chat_id("s"), "chat"),
        (call, "chat"),
        (file, "read"),
        (call, "recent tool call"),
    ]
    assert made.blocks[1].tx == live.seqs[-1]
    assert made.blocks[2].tx == live.seqs[0]
    assert made.tokens == -(-made.bytes // 4)
    assert made.sha256 == hashlib.sha256(made.text.encode()).hexdigest()


@pytest.mark.anyio
@pytest.mark.requirement("CTX-6")
async def test_an_unchanged_repeat_returns_the_record_and_writes_nothing(tmp_path: Path) -> None:
    async with household(tmp_path) as home:
        live = await home.create()
        (home.files / "a.py").write_text("a")
        await home.read(live, home.files / "a.py")
        first = await home.assemble()
        before = await head_seq(home)
        assert await home.assemble() == first
        assert await head_seq(home) == before
        fresh = assembler.Assembler(
            home.store, home.sessions, home.indexer, home.archive, MODELS, TestClock(), providers={}
        )
        again = await fresh.assemble(live, WriteRequest("context.assemble", "p"))
        assert again.context == first
        assert await head_seq(home) == before
    async with household(tmp_path) as home:
        assert await home.assemble() == first
        assert await head_seq(home) == before


@pytest.mark.anyio
async def test_a_new_turn_is_a_new_assembly_under_a_new_id_that_names_the_one_before(tmp_path: Path) -> None:
    clock = TestClock()
    clock.wall = 1_700_000_000_500
    async with household(tmp_path, clock) as home:
        live = await home.create()
        first = await home.assemble()
        home.append(live, USER)
        second = await home.assemble()
        assert (first.number, second.number, second.turn) == (1, 2, 1)
        assert first.context_id == context_id("", first.sha256, "2023-11-14T22:13:20Z", "agent", digits=16)
        follows = context_id(first.context_id, second.sha256, "2023-11-14T22:13:20Z", "agent", digits=16)
        assert second.context_id == follows
        current = home.sessions.catalog.current("s")
        assert (current.context_id, current.assembly, current.turn) == (second.context_id, 2, 1)
    async with household(tmp_path, clock) as home:
        assert home.sessions.catalog.current(None).context_id == second.context_id


def test_the_id_of_an_assembly_is_longer_than_that_of_a_commit_and_grows_where_it_is_taken() -> None:
    whole = context_id("", "sha", "1970-01-01T00:00:00Z", "a", digits=64)
    assert new_context_id("", "sha", 999, "a", set()) == whole[: 4 + 16]
    assert new_context_id("", "sha", 999, "a", {whole[: 4 + 16]}) == whole


@pytest.mark.anyio
async def test_a_clock_beyond_the_year_9999_does_not_prevent_an_assembly(tmp_path: Path) -> None:
    clock = TestClock()
    clock.wall = 400_000_000_000_000
    async with household(tmp_path, clock) as home:
        await home.create()
        context = await home.assemble()
        assert context.assembled_at == clock.wall
        assert context.context_id == context_id("", context.sha256, "9999-12-31T23:59:59Z", "agent", digits=16)


@pytest.mark.anyio
@pytest.mark.requirement("CTX-7")
async def test_the_stable_prefix_is_the_length_of_the_unchanged_start(tmp_path: Path) -> None:
    async with household(tmp_path) as home:
        live = await home.create(prompt="Grüße")
        first = await home.assemble()
        home.append(live, USER)
        second = await home.assemble()
        home.append(live, Message(role="assistant", content="Ok."))
        third = await home.assemble()
    assert first.stable_prefix is None
    assert second.stable_prefix == first.bytes
    assert third.stable_prefix == second.bytes
    async with household(tmp_path) as home:
        live = await home.sessions.live("s")
        document = documents.system_prompt("s", "Grüsse")
        live.submit(WriteRequest("session.set_system_prompt", "p"), puts=(document,), floor_vt=live.updated_at + 1)
        fourth = await home.assemble()
    assert fourth.stable_prefix == len("Grü".encode())


@pytest.mark.anyio
@pytest.mark.requirement("CTX-8")
async def test_an_active_file_that_changed_is_read_again_before_it_is_shown(tmp_path: Path) -> None:
    async with household(tmp_path) as home:
        live = await home.create()
        path = home.files / "a.py"
        path.write_text("old")
        await home.read(live, path)
        first = await home.assemble()
        path.write_text("new and longer")
        second = await home.assemble()
        assert [block.text.split("\n")[1] for block in first.blocks[-1:] + second.blocks[-1:]] == [
            "old",
            "new and longer",
        ]
        assert "char_count=14" in second.text
        path.unlink()
        third = await home.assemble()
    assert third.text.endswith("char_count=0 [deleted]")
    assert (first.number, second.number, third.number) == (1, 2, 3)


@pytest.mark.anyio
@pytest.mark.requirement("CTX-9")
async def test_a_deleted_file_keeps_its_place_and_shows_a_line_but_no_content(tmp_path: Path) -> None:
    async with household(tmp_path) as home:
        live = await home.create()
        path = home.files / "a.py"
        path.write_text("text")
        id = await home.read(live, path)
        path.unlink()
        made = await home.assemble()
        assert list(live.state.active) == [id]
        context = parse(made.text)
        assert [(line.id, getattr(line, "state", "")) for line in context.pool] == [(id, "deleted")]
        assert context.active == ()


@pytest.mark.anyio
@pytest.mark.requirement("CTX-5")
async def test_every_assembly_renders_again_byte_for_byte_also_after_a_restart(tmp_path: Path) -> None:
    made: list[AssembledContext] = []
    async with household(tmp_path) as home:
        live = await home.create(budget_tokens=400)
        for step in range(12):
            path = home.files / f"f{step % 5}.py"
            path.write_text(f"text {step} " * (step * 10))
            home.append(live, msgspec.structs.replace(USER, content=f"turn {step}\nACTIVE_CONTENT id=x"))
            await home.read(live, path)
            call = home.record(live, f"call_{step}", "é" * step * 20)
            if step % 3 == 0:
                live.submit(WriteRequest("session.pin", "p"), activation_operations.pin_delta(live.state, call))
            if step == 6:
                mounts = (Mount(agent_prefix="/w", canonical_prefix=str(home.files)),)
                settings = msgspec.structs.replace(live.settings, mounts=mounts, budget_tokens=900)
                live.submit(WriteRequest("session.configure", "p"), settings=settings)
            if step == 8:
                path.unlink()
            made.append(await home.assemble())
        for one in made:
            assert (await home.archive.show("s", number=one.number)).context == one
    assert any(one.plan.dropped for one in made)
    async with household(tmp_path) as home:
        for one in made:
            assert (await home.archive.show("s", number=one.number)).context == one
            assert (await home.archive.show("s", turn=one.turn)).context == one
        assert (await home.archive.show("s")).context == made[-1]
        records = await home.archive.records("s", after=3, limit=4)
        assert [record.number for record in records] == [4, 5, 6, 7]
        assert [record.sha256 for record in records] == [one.sha256 for one in made[3:7]]


@pytest.mark.anyio
async def test_an_assembly_is_found_by_its_number_in_one_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with household(tmp_path) as home:
        live = await home.create()
        for text in ("one", "two"):
            home.append(live, Message(role="user", content=text))
            await home.assemble()
        scan = home.store.scan
        read: list[list[Stored]] = []

        async def scanned(*args: Any, **rest: Any) -> list[Stored]:
            found: list[Stored] = await scan(*args, **rest)
            read.append(found)
            return found

        monkeypatch.setattr(home.store, "scan", scanned)
        assert (await home.archive.show("s", number=1)).context.number == 1
        assert [
            [one.document.id for one in found] for found in read if found and found[0].document.type == "assembly"
        ] == [[assembly_id("s", 1)]]


@pytest.mark.anyio
async def test_errors_for_missing_assemblies_name_them(tmp_path: Path) -> None:
    async with household(tmp_path) as home:
        await home.create("empty")
        live = await home.create()
        home.append(live, USER)
        await home.assemble()
        for session, asked, code in [
            ("nobody", {}, "session_not_found"),
            ("empty", {}, "assembly_not_found"),
            ("s", {"number": 2}, "assembly_not_found"),
            ("s", {"number": 10**12}, "assembly_not_found"),
            ("s", {"turn": 0}, "assembly_not_found"),
            ("s", {"turn": 2}, "assembly_not_found"),
        ]:
            with pytest.raises(CtxdError) as caught:
                await home.archive.show(session, **asked)
            assert caught.value.code == code
        with pytest.raises(CtxdError, match="no session"):
            await home.archive.records("nobody")
        assert await home.archive.records("empty") == []


@pytest.mark.anyio
async def test_a_record_that_does_not_match_is_corrupt_and_never_shown(tmp_path: Path) -> None:
    async with household(tmp_path) as home:
        live = await home.create()
        await home.assemble()
        stored = await home.archive.newest("s")
        assert stored is not None
        forged = msgspec.structs.replace(
            stored.document,
            payload={**stored.document.payload, "sha256": "0" * 64, "number": 2},
            id=stored.document.id[:-1] + "2",
        )
        await live.submit(WriteRequest("context.assemble", "p"), puts=(forged,), assembly=(2, "ctx-00000000")).wait()
        with pytest.raises(CtxdError) as caught:
            await home.archive.show("s", number=2)
        assert caught.value.code == "corrupt"


@pytest.mark.anyio
async def test_the_size_of_a_record_does_not_depend_on_the_pool(tmp_path: Path) -> None:
    async with household(tmp_path) as home:
        live = await home.create()
        sizes = []
        for count in (1, 400):
            paths = [home.files / f"{count}-{n}.py" for n in range(count)]
            for path in paths:
                path.touch()
            await home.discover(live, paths)
            await home.assemble()
            stored = await home.archive.newest("s")
            assert stored is not None
            sizes.append(len(msgspec.json.encode(msgspec.convert(stored.document.payload, Recorded))))
    assert abs(sizes[0] - sizes[1]) < 60


@pytest.mark.anyio
async def test_a_paused_or_closed_session_records_nothing_but_shows_its_last_assembly(tmp_path: Path) -> None:
    async with household(tmp_path) as home:
        live = await home.create()
        first = await home.assemble()
        for state, code in (("paused", "session_not_active"), ("closed", "session_closed")):
            settings = msgspec.structs.replace(live.settings, state=state)
            live.submit(WriteRequest("session.pause", "p"), settings=settings)
            with pytest.raises(CtxdError) as caught:
                await home.assemble()
            assert caught.value.code == code
            assert (await home.archive.show("s")).context == first


@pytest.mark.anyio
@pytest.mark.requirement("BUD-1")
@pytest.mark.requirement("BUD-2")
@pytest.mark.requirement("BUD-3")
async def test_a_budget_leaves_out_the_oldest_tool_calls_first_and_changes_no_set(tmp_path: Path) -> None:
    async with household(tmp_path) as home:
        live = await home.create()
        home.append(live, USER)
        (home.files / "a.py").write_text("a" * 400)
        file = await home.read(live, home.files / "a.py")
        calls = [home.record(live, f"call_{n}", "x" * 400) for n in range(3)]
        live.submit(WriteRequest("session.pin", "p"), activation_operations.pin_delta(live.state, calls[0]))
        whole = (await home.assemble()).tokens
        for less, gone in (
            (0, []),
            (10, calls[1:2]),
            (150, calls[1:]),
            (250, [*calls[1:], file]),
            (400, [*calls[1:], file]),
        ):
            made, _ = await home.assembler.plan(live, whole - less)
            assert [dropped.object for dropped in made.dropped] == gone
            assert {dropped.reason for dropped in made.dropped} <= {"oldest tool call", "file activated longest ago"}
            assert (made.over_by > 0) == (less == 400)
        assert (await home.assemble()).number == 1
        settings = msgspec.structs.replace(live.settings, budget_tokens=whole - 150)
        live.submit(WriteRequest("session.configure", "p"), settings=settings)
        tight = await home.assemble()
        assert tight.tokens == tight.plan.tokens_after <= whole - 150
        assert [active.id for active in parse(tight.text).active] == [file, calls[0]]
        assert list(live.state.active) == [file, *calls]
        assert len(parse(tight.text).pool) == 4


@pytest.mark.anyio
async def test_a_change_by_another_session_shows_although_little_else_moved(tmp_path: Path) -> None:
    async with household(tmp_path) as home:
        one, other = await home.create("one"), await home.create("other")
        path = home.files / "a.py"
        path.touch()
        await home.discover(one, [path])
        first = await home.assemble("one")
        assert await home.assemble("one") == first
        path.write_text("read by the other one")
        await home.read(other, path)
        home.append(one, USER)
        second = await home.assemble("one")
        assert "[unread]" in first.text
        assert "char_count=21\n" in second.text
        assert (await home.archive.show("one", number=2)).context == second


@pytest.mark.anyio
async def test_many_sessions_are_assembled_in_turns_although_few_are_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(render_cache, "SESSIONS_KEPT_MAX", 2)
    async with household(tmp_path) as home:
        for n in range(5):
            home.append(await home.create(f"s{n}"), USER)
        firsts = [await home.assemble(f"s{n}") for n in range(5)]
        assert [await home.assemble(f"s{n}") for n in range(5)] == firsts


@pytest.mark.requirement("RPC-11")
def test_a_large_window_with_wide_characters_counts_as_the_memory_that_it_takes() -> None:
    def size(text: str) -> int:
        made = Rendering(target=None, text=text, request=None, sha256="", sections=(), blocks=())
        return KeptWindow(AppendWindow(), rendering=made).size

    small, large = 1000, 2 * 1024 * 1024
    assert size("x" * large) == 2 * large
    assert size("\N{SNOWMAN}" + "x" * large) > 5 * large, "its bytes, and the text with four bytes a character"
    assert size("\N{SNOWMAN}" + "x" * small) < 3 * small, "in a small one the difference is not worth a look"


@pytest.mark.anyio
async def test_a_context_of_the_first_text_format_is_shown_as_it_was_recorded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with household(tmp_path) as home:
        with (home.files / "big.log").open("wb") as file:
            file.truncate(FILE_BYTES_MAX + 1)
        live = await home.create()
        id = await home.read(live, home.files / "big.log")
        with monkeypatch.context() as earlier:
            earlier.setattr(assembler, "RENDERER", 1)
            first = await home.assemble()
        home.append(live, USER)
    async with household(tmp_path) as home:
        second = await home.assemble()
        line = f"id={id} type=file path={home.files}/big.log file_type=log char_count=0"
        assert first.text.endswith(line) and f"{line} [too large]\n" in second.text
        for each in (first, second):
            assert (await home.archive.show("s", number=each.number)).context.text == each.text
        assert [record.renderer for record in await home.archive.records("s")] == [1, assembler.RENDERER]
