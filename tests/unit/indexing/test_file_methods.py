"""The file methods over a real store and real files."""

import base64
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest

from ctxd.errors import CtxdError
from ctxd.sessions.file_operations import OUTPUT_INLINE_CHARS_MAX
from tests.unit.sessions.world import HOST, World, world

pytestmark = pytest.mark.anyio

BOX = "b" * 64


class Desk:
    """Two sessions over one directory: ``host`` calls it by its path, ``box`` has it mounted at /w."""

    def __init__(self, world: World, root: Path) -> None:
        self.world = world
        self.root = root
        self.begin = world.begin
        self.call = world.call

    def write(self, name: str, text: str | bytes) -> None:
        place = self.root / name
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(text.encode() if isinstance(text, str) else text)

    async def index(self, path: str, session: str = "box", **rest: Any) -> Any:
        return await self.call("file.index", session=session, path=path, **rest)

    async def level(self, object: str, session: str = "box") -> str:
        return (await self.world.sessions.live(session)).state.level(object)

    @property
    def seq(self) -> int:
        head = self.world.store.head()
        return 0 if head is None else head.seq


@asynccontextmanager
async def at_desk(tmp_path: Path) -> AsyncIterator[Desk]:
    root = tmp_path / "src"
    root.mkdir(exist_ok=True)
    async with world(tmp_path / "state") as made:
        desk = Desk(made, root)
        mount = {"agent_prefix": "/w", "canonical_prefix": str(root)}
        await desk.call("session.create", agent="a", session="host", workdir=str(root))
        await desk.call("session.create", agent="b", session="box", workdir="/w", mounts=[mount], filesystem_id=BOX)
        yield desk


@pytest.mark.requirement("IDX-1")
async def test_a_read_makes_the_file_active(tmp_path: Path) -> None:
    async with at_desk(tmp_path) as desk:
        desk.write("a.py", "x = 1\n")
        result = await desk.index("a.py")
        assert (result.outcome, result.kind, result.char_count) == ("created", "text", 6)
        assert result.receipt is not None
        assert await desk.level(result.object) == "active"


@pytest.mark.requirement("IDX-2")
async def test_a_second_read_writes_nothing(tmp_path: Path) -> None:
    async with at_desk(tmp_path) as desk:
        desk.write("a.py", "x = 1\n")
        await desk.index("a.py")
        before = desk.seq
        again = await desk.index("/w/a.py")
        assert (again.outcome, again.receipt, desk.seq) == ("unchanged", None, before)


@pytest.mark.requirement("OBJ-1")
async def test_another_sessions_read_of_the_same_file_only_enters_its_sets(tmp_path: Path) -> None:
    async with at_desk(tmp_path) as desk:
        desk.write("a.py", "x = 1\n")
        first = await desk.index("a.py")
        second = await desk.index(f"{desk.root}/a.py", "host")
        assert (second.object, second.outcome) == (first.object, "unchanged")
        assert second.receipt is not None
        assert await desk.level(first.object, "host") == "active"


@pytest.mark.requirement("IDX-4")
async def test_two_sessions_that_index_one_change_at_once_make_one_version(tmp_path: Path) -> None:
    async with at_desk(tmp_path) as desk:
        desk.write("a.py", "x = 1\n")
        results: list[Any] = []

        async def index(session: str, path: str) -> None:
            results.append(await desk.index(path, session))

        async with anyio.create_task_group() as group:
            group.start_soon(index, "host", "a.py")
            group.start_soon(index, "box", "/w/a.py")
        assert sorted(result.outcome for result in results) == ["created", "unchanged"]
        assert len(await desk.world.store.history(results[0].object)) == 1


async def test_an_answer_that_rests_on_anothers_write_waits_for_it(tmp_path: Path) -> None:
    async with at_desk(tmp_path) as desk:
        desk.write("a.py", "one")
        await desk.index("a.py")
        await desk.index("a.py", "host")
        desk.write("a.py", "two!")
        written = await desk.begin("file.index", session="host", path="a.py")
        assert not written.pending.done
        unchanged = await desk.begin("file.index", session="box", path="a.py")
        assert unchanged.result(None).outcome == "unchanged"
        assert written.pending.done


async def test_an_edit_shows_a_new_file_and_leaves_a_known_ones_level(tmp_path: Path) -> None:
    async with at_desk(tmp_path) as desk:
        desk.write("a.py", "one")
        made = await desk.index("a.py", cause="edit")
        assert await desk.level(made.object) == "active"
        await desk.call("session.deactivate", session="box", object=made.object)
        desk.write("a.py", "two!")
        edited = await desk.index("a.py", cause="edit")
        assert edited.outcome == "updated"
        assert await desk.level(made.object) == "inactive"


async def test_a_check_changes_no_set(tmp_path: Path) -> None:
    async with at_desk(tmp_path) as desk:
        desk.write("a.py", "one")
        checked = await desk.index("a.py", cause="check")
        assert checked.outcome == "created"
        live = await desk.world.sessions.live("box")
        assert checked.object not in live.state.index


@pytest.mark.requirement("IDX-5")
async def test_content_is_sent_as_text_or_as_bytes(tmp_path: Path) -> None:
    async with at_desk(tmp_path) as desk:
        text = await desk.index("/inside/a", content="héllo")
        assert (text.outcome, text.char_count) == ("created", 5)
        same = await desk.index("/inside/a", content_base64=base64.b64encode("héllo".encode()).decode())
        assert same.outcome == "unchanged"
        binary = await desk.index("/inside/b", content_base64=base64.b64encode(b"\0\xff").decode())
        assert (binary.kind, binary.char_count) == ("binary", 0)


@pytest.mark.parametrize(
    "sent", [{"content": "a", "content_base64": "YQ=="}, {"content_base64": "not base64"}, {"content_base64": "YQ"}]
)
async def test_ambiguous_content_is_rejected(tmp_path: Path, sent: dict[str, str]) -> None:
    async with at_desk(tmp_path) as desk:
        with pytest.raises(CtxdError) as caught:
            await desk.index("a", **sent)
        assert caught.value.code == "invalid_params"


@pytest.mark.requirement("IDX-6")
async def test_a_missing_file_fails_and_writes_nothing(tmp_path: Path) -> None:
    async with at_desk(tmp_path) as desk:
        before = desk.seq
        with pytest.raises(CtxdError) as caught:
            await desk.index("none.py")
        assert (caught.value.code, caught.value.outcome) == ("file_not_found", "not_applied")
        assert caught.value.message == "no file /w/none.py"
        assert desk.seq == before


async def test_a_resend_answers_as_the_first_time(tmp_path: Path) -> None:
    async with at_desk(tmp_path) as desk:
        desk.write("a.py", "one")
        first = await desk.index("a.py", op_id="op-1")
        desk.write("a.py", "two!")
        assert await desk.index("a.py", op_id="op-1") == first
        discovered = await desk.call("file.discover", session="host", paths=["a.py"], op_id="op-2")
        assert await desk.call("file.discover", session="host", paths=["a.py"], op_id="op-2") == discovered


@pytest.mark.requirement("IDX-8")
async def test_discovery_creates_stubs_and_lists_ignored_paths_with_reasons(tmp_path: Path) -> None:
    async with at_desk(tmp_path) as desk:
        desk.write("lib/a.py", "one")
        result = await desk.call("file.discover", session="box", paths=["lib/a.py", "lib", "none"])
        assert [(row.path, row.outcome, row.reason) for row in result.objects] == [
            ("lib/a.py", "created", None),
            ("lib", "ignored", "directory"),
            ("none", "ignored", "no such file"),
        ]
        assert await desk.level(result.objects[0].object) == "inactive"
        before = desk.seq
        again = await desk.call("file.discover", session="box", paths=["lib/a.py"])
        assert (again.objects[0].outcome, again.receipt, desk.seq) == ("unchanged", None, before)


async def test_more_files_than_fit_one_write_are_all_discovered(tmp_path: Path) -> None:
    async with at_desk(tmp_path) as desk:
        for number in range(1200):
            desk.write(f"{number}", "x")
        result = await desk.call("file.discover", session="box", paths=[str(number) for number in range(1200)])
        assert {row.outcome for row in result.objects} == {"created"}
        live = await desk.world.sessions.live("box")
        assert list(live.state.index) == [row.object for row in result.objects]
        heads = await desk.world.store.heads(live.state.index)
        assert all(heads.values())


@pytest.mark.requirement("DIS-2")
@pytest.mark.parametrize("padding", [0, OUTPUT_INLINE_CHARS_MAX], ids=["on the loop", "in a thread"])
async def test_a_listings_files_become_known_from_where_it_ran(tmp_path: Path, padding: int) -> None:
    async with at_desk(tmp_path) as desk:
        desk.write("lib/a.py", "one")
        desk.write("lib/sub/b.py", "two")
        output = "a.py\nsub\nvanished.py\n" + "\n" * padding
        result = await desk.call("tool.observe", session="box", command="ls", output=output, cwd="lib")
        rows = {row.path: row for row in result.objects}
        assert {path: row.outcome for path, row in rows.items()} == {
            "/w/lib/a.py": "created",
            "/w/lib/vanished.py": "ignored",
        }
        live = await desk.world.sessions.live("box")
        assert list(live.state.index) == [rows["/w/lib/a.py"].object]


async def test_names_that_git_prints_from_the_top_of_its_work_tree_become_known_there(tmp_path: Path) -> None:
    async with at_desk(tmp_path) as desk:
        desk.write(".git/HEAD", "ref")
        desk.write("lib/a.py", "one")
        desk.write("gradlew", "two")
        output = " gradlew  | 2 +-\n lib/a.py | 2 +-\n"
        result = await desk.call("tool.observe", session="box", command="git diff --stat", output=output, cwd="lib")
        assert [(row.path, row.outcome) for row in result.objects] == [
            ("/w/gradlew", "created"),
            ("/w/lib/a.py", "created"),
        ]


async def test_output_without_files_writes_nothing(tmp_path: Path) -> None:
    async with at_desk(tmp_path) as desk:
        before = desk.seq
        result = await desk.call("tool.observe", session="box", command="true", output="")
        assert (result.objects, result.receipt, desk.seq) == ((), None, before)


@pytest.mark.requirement("FS-1")
async def test_a_path_resolves_to_its_object_before_and_after_it_is_known(tmp_path: Path) -> None:
    async with at_desk(tmp_path) as desk:
        desk.write("a.py", "one")
        before = await desk.call("file.resolve", session="box", path="./lib/../a.py")
        assert (before.canonical_path, before.filesystem_id) == (f"{desk.root}/a.py", HOST)
        assert (before.display_path, before.known) == ("/w/a.py", False)
        indexed = await desk.index("a.py")
        after = await desk.call("file.resolve", session="box", path="/w/a.py")
        assert (after.object, after.known) == (indexed.object, True)


async def test_a_resume_detects_changes_without_reading_unchanged_files(tmp_path: Path) -> None:
    async with at_desk(tmp_path) as desk:
        for name in ("same", "changed", "gone"):
            desk.write(name, name)
        ids = {name: (await desk.index(name)).object for name in ("same", "changed", "gone")}
        await desk.call("session.pause", session="box")
        desk.write("changed", "otherwise")
        (desk.root / "gone").unlink()
        result = await desk.call("session.resume", session="box")
        assert result.reconciled.updated == (ids["changed"],)
        assert result.reconciled.deleted == (ids["gone"],)
        assert result.reconciled.unchanged == 1


@pytest.mark.requirement("FS-5")
async def test_mounts_are_detected_from_one_text(tmp_path: Path) -> None:
    async with at_desk(tmp_path) as desk:
        bind = {"Type": "bind", "Source": "/s", "Destination": "/d", "RW": True}
        docker = json.dumps([{"Id": BOX, "Mounts": [bind]}])
        result = await desk.call("mount.detect", docker_inspect=docker)
        assert [(mount.agent_prefix, mount.canonical_prefix) for mount in result.mounts] == [("/d", "/s")]
        assert result.filesystem_id == BOX
        info = await desk.call("mount.detect", mountinfo="1 2 8:1 /s /d rw - ext4 /dev/sda1 rw\n")
        assert [mount.agent_prefix for mount in info.mounts] == ["/d"]
        unclear: list[dict[str, Any]] = [{}, {"docker_inspect": docker, "mountinfo": "x"}]
        for params in unclear:
            with pytest.raises(CtxdError) as caught:
                await desk.call("mount.detect", **params)
            assert caught.value.code == "invalid_params"


async def test_a_call_that_is_cancelled_while_it_reads_lets_the_next_one_in(tmp_path: Path) -> None:
    async with at_desk(tmp_path) as desk:
        desk.write("a.py", "one")
        with anyio.CancelScope() as scope:
            scope.cancel()
            await desk.index("a.py")
        assert (await desk.index("a.py")).outcome == "created"
