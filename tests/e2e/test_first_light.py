"""The main story, through the client alone, on a real working tree and a real daemon that is killed in mid-story."""

import hashlib
from collections.abc import AsyncIterator
from pathlib import Path

import anyio
import pytest

from ctxd_client import Client, connect
from ctxd_protocol.context_types import AssembledContext
from ctxd_protocol.session_types import Message
from tests.crash.daemon import DaemonProcess

WAIT_S_MAX = 30.0
WORKSPACE = "/workspace"

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(120)]


@pytest.fixture
async def client(daemon: DaemonProcess) -> AsyncIterator[Client]:
    await daemon.start()
    async with connect(daemon.socket) as made:
        yield made


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A working tree with three files."""
    root = tmp_path / "tree"
    (root / "src").mkdir(parents=True)
    (root / "src" / "main.py").write_text("print('one')\n")
    (root / "src" / "other.py").write_text("OTHER = 1\n")
    (root / "README.md").write_text("# Tree\n")
    return root.resolve()


def pool_of(context: AssembledContext) -> str:
    return next(block.text for block in context.blocks if block.section == "metadata_pool")


def active_of(context: AssembledContext) -> dict[str, str]:
    return {block.object or "": block.text for block in context.blocks if block.section == "active_content"}


@pytest.mark.requirement("CTX-5")
async def test_a_context_survives_kill_9_byte_for_byte(client: Client, daemon: DaemonProcess, tree: Path) -> None:
    session = await client.session("s", agent="a", system_prompt="Be brief.", workdir=str(tree))
    await session.user("What is in src?")
    listed = await session.tool("bash", {"command": "ls src"}, output="main.py\nother.py\n", id="c1", command="ls src")
    assert listed.observed is not None
    assert [found.outcome for found in listed.observed.objects] == ["created", "created"]
    await session.append([Message(role="toolcall", toolcall="c1")])
    read = await session.read("src/main.py")
    await session.assistant("A program that prints one.")
    await session.pin(read.object)
    before = await session.assemble()
    assert hashlib.sha256(before.text.encode()).hexdigest() == before.sha256
    assert before.text.startswith("Be brief.")
    assert f"path={tree}/src/other.py file_type=py char_count=0 [unread]" in pool_of(before)
    assert active_of(before)[read.object].endswith("print('one')\n")
    assert "toolcall_ref id=c1 tool=bash status=ok" in before.text

    current = (await session.current()).context_id
    await daemon.kill()
    await daemon.start()
    resumed = await session.resume()
    assert resumed.reconciled.unchanged == 1
    assert (resumed.reconciled.updated, resumed.reconciled.deleted, resumed.reconciled.orphaned) == ((), (), ())
    after = await session.assemble()
    assert (after.text, after.sha256, after.number) == (before.text, before.sha256, before.number)
    assert (await session.show(number=before.number)).text == before.text
    assert (await session.current()).context_id == current
    assert resumed.session.pinned_set == (read.object,)


async def test_changes_on_disk_during_downtime_are_found_at_resume(
    client: Client, daemon: DaemonProcess, tree: Path
) -> None:
    session = await client.session("s", agent="a", workdir=str(tree))
    main, other = await session.read("src/main.py"), await session.read("src/other.py")
    old = await session.assemble()
    await daemon.kill()
    (tree / "src" / "main.py").write_text("print('two')\n")
    (tree / "src" / "other.py").unlink()
    await daemon.start()
    resumed = await session.resume()
    assert resumed.reconciled.updated == (main.object,)
    assert resumed.reconciled.deleted == (other.object,)
    new = await session.assemble()
    assert active_of(new)[main.object].endswith("print('two')\n")
    assert "[deleted]" in pool_of(new)
    assert (await session.show(number=old.number)).text == old.text
    history = (await client.object_history(main.object)).versions
    assert len(history) == 2
    first = await client.object_get(main.object, valid_time=history[0].valid_time)
    assert first.object.payload["content"] == "print('one')\n"


@pytest.mark.requirement("NOT-1")
@pytest.mark.requirement("NOT-4")
async def test_two_agents_in_two_views_share_a_file_and_are_notified_of_its_changes(client: Client, tree: Path) -> None:
    host = await client.session("host", agent="a", workdir=str(tree))
    boxed = await client.session("boxed", agent="b", workdir=WORKSPACE, mounts={WORKSPACE: str(tree)})
    mine = await host.read(f"{tree}/src/main.py")
    theirs = await boxed.read(f"{WORKSPACE}/src/main.py")
    assert mine.object == theirs.object
    assert f"path={WORKSPACE}/src/main.py" in pool_of(await boxed.assemble())
    assert f"path={tree}/src/main.py" in pool_of(await host.assemble())

    after = (await client.daemon_status()).store.head_seq
    (tree / "src" / "main.py").write_text("print('three')\n")
    async with client.follow(boxed.id, after=after) as notices:
        await host.edited("src/main.py")
        with anyio.fail_after(WAIT_S_MAX):
            notice = await anext(aiter(notices))
    assert (notice.object, notice.change, notice.by_session) == (mine.object, "updated", "host")
    assert notice.path == f"{WORKSPACE}/src/main.py"
    assert active_of(await boxed.assemble())[mine.object].endswith("print('three')\n")
    assert [n.object for n in (await boxed.notices(after=after)).notices] == [mine.object]
    assert (await host.notices(after=after)).notices == ()
    assert set((await client.object_sessions(mine.object)).sessions) == {"host", "boxed"}


async def test_a_render_shows_the_current_file_without_a_report(client: Client, tree: Path) -> None:
    session = await client.session("s", agent="a", workdir=str(tree))
    read = await session.read("src/main.py")
    await session.assemble()
    (tree / "src" / "main.py").write_text("print('changed behind the back')\n")
    assert active_of(await session.assemble())[read.object].endswith("print('changed behind the back')\n")


async def test_old_tool_calls_leave_the_window_and_come_back_on_request(client: Client, tree: Path) -> None:
    session = await client.session("s", agent="a", workdir=str(tree))
    await session.user("go")
    recorded = [await session.tool("bash", {}, output=f"output {n}\n", id=f"call-{n:04}") for n in range(7)]
    assert [object for one in recorded for object in one.record.collapsed] == ["call-0000", "call-0001"]
    shown = active_of(await session.assemble())
    assert list(shown) == [f"call-{n:04}" for n in range(2, 7)]
    back = await session.activate("call-0000")
    assert (back.level, back.changed) == ("active", True)
    assert active_of(await session.assemble())["call-0000"].endswith("output 0\n")


@pytest.mark.requirement("RPC-4")
async def test_a_call_that_is_sent_twice_is_applied_once_also_across_a_kill(
    client: Client, daemon: DaemonProcess
) -> None:
    session = await client.session("s", agent="a")
    first = await session.user("once", op_id="op-1")
    await daemon.kill()
    await daemon.start()
    again = await session.user("once", op_id="op-1")
    assert again == first
    assert (await session.chat()).turn_count == 1
