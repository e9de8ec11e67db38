"""The vectors that clients in other languages are tested with hold for this daemon."""

import asyncio
import json
from pathlib import Path

import anyio
import msgspec
import pytest

from ctxd_protocol import ids
from ctxd_protocol.context_types import CurrentContext
from tests.fakes.loopback import WAIT_S, serving

VECTORS = Path(__file__).parents[3] / "protocol" / "vectors"


def vectors(name):
    return json.loads((VECTORS / f"{name}.json").read_text())


CASES = [
    pytest.param(case, id=f"{name}: {case['name']}")
    for name in ("framing", "errors", "ids")
    for case in vectors(name)["cases"]
]


@pytest.fixture
def anyio_backend():
    return "asyncio", {"use_uvloop": True}


async def current(caller, params):
    """Answers of a daemon without sessions."""
    return CurrentContext(context_id=None, session=None, turn=0, assembly=0)


def bytes_of(parts):
    for part in parts:
        yield (bytes.fromhex(part["hex"]) if "hex" in part else part["text"].encode()) * part.get("times", 1)


async def exchanged(path, parts):
    """All that comes back for ``parts``, until the server closes."""
    reader, writer = await asyncio.open_unix_connection(path)
    with anyio.fail_after(2 * WAIT_S):
        try:
            for data in bytes_of(parts):
                writer.write(data)
                await writer.drain()
            writer.write_eof()
        except OSError:
            pass  # The server has closed: its answers are still there.
        received = b""
        try:
            while data := await reader.read(65536):
                received += data
        except ConnectionResetError:
            pass
    writer.close()
    return received


@pytest.mark.anyio
@pytest.mark.parametrize("case", CASES)
async def test_the_daemon_answers_byte_for_byte(tmp_path, case):
    async with serving(tmp_path, {"context.current": current}) as server:
        received = await exchanged(server.path, case["send"])
    if "receive" in case:
        assert received.decode() == case["receive"]
    else:
        answer = json.loads(received)
        assert answer["error"].pop("message")
        answer["error"].pop("hint", None)
        assert answer == case["receive_but_message"]


@pytest.mark.parametrize("case", vectors("ids")["context_ids"], ids=lambda case: case["id"])
def test_context_ids_are_the_golden_ones(case):
    made = ids.context_id(case["parent"], case["artifact"], case["created_at"], case["template"], digits=case["digits"])
    assert made == case["id"]


def test_ids_derived_from_a_session():
    for case in vectors("ids")["object_ids"]:
        session = case["session"]
        assert ids.chat_id(session) == case["chat"]
        assert ids.system_prompt_id(session) == case["system_prompt"]
        assert ids.session_object_id(session) == case["session_object"]
        assert ids.toolcall_alias(session, case["toolcall"]) == case["toolcall_alias"]


def fits(text, kind):
    try:
        msgspec.convert(text, kind)
    except msgspec.ValidationError:
        return False
    return True


@pytest.mark.parametrize("text", vectors("ids")["ids"]["accepted"])
def test_valid_ids_are_accepted(text):
    assert fits(text, ids.SessionIdText)


@pytest.mark.parametrize("text", vectors("ids")["ids"]["refused"])
def test_invalid_ids_are_rejected(text):
    assert not fits(text, ids.SessionIdText)


@pytest.mark.parametrize(("text", "accepted"), [("call_1|fc 2", True), ("a\n", False), ("\u202e", False), ("", False)])
def test_tool_call_ids_are_printable(text, accepted):
    assert fits(text, ids.ToolcallIdText) is accepted
