"""Operations called inside the daemon, without a connection."""

from pathlib import Path

import pytest

from ctxd.errors import CtxdError
from ctxd.sessions.live_session import Actor
from ctxd_protocol.methods.chat import SessionAppendParams
from ctxd_protocol.methods.files import FileIndexParams
from ctxd_protocol.methods.sessions import MembershipParams, SessionCreateParams
from ctxd_protocol.methods.toolcalls import ToolcallRecordParams
from ctxd_protocol.session_types import Message
from tests.unit.sessions.world import world

pytestmark = pytest.mark.anyio

IMPORTER = Actor("importer", "host")


async def test_a_session_is_written_by_operations_alone(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("x = 1\n")
    async with world(tmp_path / "state") as w:
        ops = w.operations
        create = SessionCreateParams(agent="a", session="s", workdir=str(tmp_path))
        made = await (await ops.lifecycle.create(IMPORTER, create)).durable()
        assert (made.session.principal, made.receipt.seq) == ("importer", 1)
        said = SessionAppendParams(session="s", messages=(Message(role="user", content="fix it"),))
        assert (await (await ops.chat.append(IMPORTER, said)).durable()).turn == 1
        read = await (await ops.files.index(IMPORTER, FileIndexParams(session="s", path="a.py"))).durable()
        call = ToolcallRecordParams(session="s", id="c1", tool="bash", content="out", file_refs=(read.object,))
        recorded = await (await ops.toolcalls.record(IMPORTER, call)).durable()
        assert (recorded.object, recorded.outcome) == ("c1", "created")
        pinned = await (await ops.activation.pin(IMPORTER, MembershipParams(session="s", object="c1"))).durable()
        assert pinned.receipt.seq == recorded.receipt.seq + 1
        view = (await w.call("session.get", session="s")).session
        assert (view.session_index, view.pinned_set) == ((read.object, "c1"), ("c1",))


async def test_a_repeated_operation_id_returns_the_result_without_a_write(tmp_path: Path) -> None:
    async with world(tmp_path / "state") as w:
        await w.call("session.create", agent="a", session="s")
        call = ToolcallRecordParams(session="s", id="c1", tool="bash", content="out", op_id="op")
        first = await (await w.operations.toolcalls.record(IMPORTER, call)).durable()
        again = await (await w.operations.toolcalls.record(IMPORTER, call)).durable()
        assert again == first
        assert w.store.head().seq == first.receipt.seq


async def test_an_operation_on_a_closed_session_is_refused(tmp_path: Path) -> None:
    async with world(tmp_path / "state") as w:
        await w.call("session.create", agent="a", session="s")
        await w.call("session.close", session="s")
        call = ToolcallRecordParams(session="s", id="c1", tool="bash", content="out")
        with pytest.raises(CtxdError, match="closed") as refused:
            await w.operations.toolcalls.record(IMPORTER, call)
        assert refused.value.code == "session_closed"


async def test_a_confined_actor_never_learns_whether_an_id_is_taken(tmp_path: Path) -> None:
    async with world(tmp_path / "state") as w:
        await w.call("session.create", agent="a", session="s")
        call = ToolcallRecordParams(session="s", id="c1", tool="bash", content="out")
        box = Actor("box", "session")
        assert (await (await w.operations.toolcalls.record(box, call)).durable()).object == "toolcall:s:c1"
