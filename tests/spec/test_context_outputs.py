"""CMT-53: outputs of tool calls in the contexts of a session's own commits, which only refer to them."""

import json
from base64 import b64decode, b64encode
from collections.abc import Callable

import cbor2
import pytest

from ctxd.formats import events_v1
from ctxd_client.sync import SyncClient, SyncSession
from ctxd_protocol.event_types import PromptEvent, ToolResultEvent
from ctxd_protocol.sandbox_types import SandboxView
from tests.spec.sandboxes import BOX, inside

LINES = "claude-code-v1"
EVENTS = "events-v1"

Start = Callable[..., SyncSession]
Boxed = Callable[..., SandboxView]


def outputs_of(client: SyncClient, tip: str) -> list[str]:
    """The outputs of tool calls in a context as messages."""
    content = client.commit_materialize(commit=tip, format=LINES, stop="root").content or ""
    records = [json.loads(each)["message"]["content"] for each in content.splitlines()]
    blocks = [block for record in records if isinstance(record, list) for block in record]
    return [json.dumps(block["content"]) for block in blocks if block["type"] == "tool_result"]


@pytest.mark.requirement("CMT-53")
def test_a_context_has_the_outputs_that_the_commits_of_a_session_refer_to(
    client: SyncClient, start: Start, boxed: Boxed
) -> None:
    own, foreign = start(filesystem_id=BOX, workdir="/workspace"), start()
    calls = [own.tool("bash", {"n": n}, output=f"output {n}").record.object for n in range(40)]
    secret = foreign.tool("bash", {}, output="what others did").record.object
    tip = client.context_current(session=own.id).context_id
    assert tip is not None
    expected = [f"output {n}" for n in range(40)]
    assert [text in found for text, found in zip(expected, outputs_of(client, tip), strict=True)] == [True] * 40
    assert "output 39" in (client.commit_materialize(commit=tip, format="narrative-v1").content or "")
    kept = client.commit_materialize(commit=tip, format=EVENTS).content_base64
    assert kept is not None and b"output 39" not in b64decode(kept)

    box = boxed(own, mounts=())
    refers = [events_v1.item_of(ToolResultEvent(call="c", object=id)) for id in (secret, calls[0], f"session:{own.id}")]
    forged = b64encode(cbor2.dumps(refers, canonical=True)).decode()
    with inside(box) as agent:
        assert len(outputs_of(agent, tip)) == 40 and "output 0" in outputs_of(agent, tip)[0]
        made = agent.commit_checkpoint(EVENTS, delta_base64=forged, session=own.id).commit.commit
        told = agent.commit_materialize(commit=made, format="narrative-v1").content or ""
        assert told.count("## Tool result") == 3 and "output 0" in told
        assert "others" not in told and "workspace" not in told

    client.object_purge(calls[0])
    assert "output 0" not in json.dumps(outputs_of(client, tip)) and "purged" in outputs_of(client, tip)[0]


@pytest.mark.requirement("CMT-53")
def test_a_sandbox_sees_no_other_objects_and_gets_bounded_output(
    client: SyncClient, start: Start, boxed: Boxed
) -> None:
    own, foreign = start(filesystem_id=BOX, workdir="/workspace"), start()
    secret = foreign.tool("bash", {}, output="what others did").record.object
    large = own.tool("bash", {}, output="y" * 900_000).record.object

    def committed(agent: SyncClient, *objects: str) -> str:
        items = [events_v1.item_of(PromptEvent(text="Look."))]
        items += [events_v1.item_of(ToolResultEvent(call="c", object=id)) for id in objects]
        items[-1].setdefault("ctxd", {})["object"] = objects[-1]
        delta = b64encode(cbor2.dumps(items, canonical=True)).decode()
        return agent.commit_checkpoint(EVENTS, delta_base64=delta, session=own.id).commit.commit

    with inside(boxed(own, mounts=())) as agent:
        told = set()
        for id in (secret, "no-such-call", f"session:{foreign.id}", ""):
            told.add(agent.commit_materialize(committed(agent, id), format="narrative-v1").content)
        assert len(told) == 1
        for format in (LINES, "bureau-agent-v1"):
            made = agent.commit_materialize(committed(agent, *[large] * 100), format=format, content=False)
            assert 10_000_000 < made.size < 40_000_000
