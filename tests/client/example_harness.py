"""An agent's harness as a user writes it: type-checked strictly against the installed client, and run against a daemon.

Each ``assert_type`` fails the check where a result is ``Any``.
"""

from typing import assert_type

from ctxd_client import CallFailed, Client, Collapse, Message, Mount, Session, connect, connect_sync
from ctxd_protocol.context_types import AssembledContext
from ctxd_protocol.methods.chat import SessionAppendResult
from ctxd_protocol.methods.sessions import SessionResult
from ctxd_protocol.object_types import ObjectVersion
from ctxd_protocol.session_types import Notice, SessionView


async def turn(s: Session, prompt: str) -> str:
    """One turn: the prompt, a tool call, the answer; returns the context."""
    assert_type(await s.user(prompt), SessionAppendResult)
    ran = await s.tool("bash", {"command": "ls"}, output="a.py\n", command="ls", cwd="/workspace")
    await s.append([Message(role="toolcall", toolcall=ran.record.object)])
    await s.assistant("Done.", meta={"model": "m-1", "usage": {"input": 3}})
    context = assert_type(await s.assemble(blocks=False), AssembledContext)
    return assert_type(context.text, str)


async def run(path: str, folder: str) -> str:
    """A session with one turn."""
    async with connect(path, deadline_s=30, client="harness") as client:
        assert_type(client, Client)
        mounts = [Mount(agent_prefix="/workspace", canonical_prefix=folder)]
        s = await client.session(agent="demo", mounts=mounts, collapse=Collapse(per_turn=3), labels={"task": "t"})
        try:
            return await turn(s, "fix the bug")
        except CallFailed as error:
            assert_type(error.code, str)
            raise


async def first_notice(client: Client, session: str) -> Notice:
    """The next notice to a session."""
    async with client.follow(session) as notices:
        async for notice in notices:
            return notice
    raise AssertionError("notices do not end")


def state(path: str) -> tuple[SessionView, ObjectVersion | None]:
    """The newest session and its first object, without a loop."""
    with connect_sync(path) as client:
        newest = client.session_list(limit=1).sessions[0].session
        found = assert_type(client.session_get(newest), SessionResult)
        first = next(iter(found.session.session_index), None)
        return found.session, None if first is None else client.object_get(first, session=newest).object
