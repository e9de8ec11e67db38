"""Sandboxes: what exists inside, and what shows there of the host and of other sessions."""

import json
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from ctxd_client import CallFailed
from ctxd_client.sync import SyncClient, SyncSession
from ctxd_protocol.methods import GRANTS, METHODS
from ctxd_protocol.methods.declaration import Method
from ctxd_protocol.sandbox_types import GRANTS_DEFAULT, SandboxView
from tests.spec.sandboxes import BOX, ROOMY, inside, sample, wire


def test_every_method_of_a_session_is_granted_in_one_way() -> None:
    names = [name for names in GRANTS.values() for name in names]
    assert sorted(names) == sorted(method.name for method in METHODS.values() if method.capability == "session")


@pytest.mark.requirement("BOX-2")
def test_methods_that_are_not_granted_do_not_exist(boxed: Callable[..., SandboxView]) -> None:
    for grants in ((), ("record",), GRANTS_DEFAULT):
        may = {"hello", "rpc.discover", "context.current"}.union(*(GRANTS[grant] for grant in grants))
        box = boxed(grants=grants)
        with inside(box) as agent:
            said = agent.hello()
            assert set(said.methods) == may
            assert said.limits.frame_bytes == 1024 * 1024
        with wire(box) as call:
            for method in [*METHODS, "no.such.method"]:
                answer = call(method, {})
                assert (answer.get("error", {}).get("code") == -32601) == (method not in may), method


@pytest.mark.requirement("BOX-3")
def test_every_method_treats_another_session_as_missing(
    boxed: Callable[..., SandboxView], s: SyncSession, tree: Path
) -> None:
    (tree / "a.py").write_text("text")
    s.user("secret")
    s.record("theirs", "bash", "secret")
    box = boxed(grants=tuple(GRANTS))
    own, missing = box.sessions[0], f"{s.id[:-1]}z"
    tried = 0
    with wire(box) as call:
        for method in METHODS.values():
            if method.capability == "host" or not any(
                field.name == "session" for field in msgspec.structs.fields(method.params)
            ):
                continue
            tried += 1
            answers = [
                json.dumps(call(method.name, sample(method, session)), sort_keys=True).replace(session, "?")
                for session in (s.id, missing)
            ]
            assert answers[0] == answers[1], method.name
            assert json.loads(answers[0])["error"]["data"]["code"] == "session_not_found", method.name
            mine = call(method.name, sample(method, own))
            assert mine.get("error", {}).get("data", {}).get("code") != "session_not_found", method.name
    assert tried >= 20


@pytest.mark.requirement("BOX-3")
@pytest.mark.parametrize("id", ["session:{}", "chat:{}", "system_prompt:{}", "segment:{}#0000000001", "toolcall:{}:x"])
def test_objects_of_another_session_are_reported_as_missing(
    boxed: Callable[..., SandboxView], s: SyncSession, id: str
) -> None:
    s.user("secret")
    missing = f"{s.id[:-1]}z"
    with wire(boxed()) as call:
        for method, field in (("object.get", "object"), ("object.history", "object"), ("object.bulk", "objects")):
            answers = []
            for session in (s.id, missing):
                named = id.format(session)
                answer = call(method, {field: [named] if field == "objects" else named})
                answers.append(json.dumps(answer, sort_keys=True).replace(session, "?"))
            assert answers[0] == answers[1], method


@pytest.mark.requirement("BOX-3")
def test_every_method_treats_another_sessions_object_as_missing(
    boxed: Callable[..., SandboxView], s: SyncSession, tree: Path
) -> None:
    """The sandbox names its own session: what it may not name is in no set of it."""
    (tree / "a.py").write_text("secret")
    foreign = [s.read("a.py").object, s.record(f"{s.id}-theirs", "bash", "secret").object]
    box = boxed(grants=tuple(GRANTS))
    tried = 0
    with wire(box) as call:

        def answered(method: Method, field: str, id: str) -> str:
            named = {field: [id] if field == "objects" else id, "session": box.sessions[0]}
            answer = call(method.name, sample(method, box.sessions[0]) | named)
            return json.dumps(answer, sort_keys=True).replace(id, "?")

        for method in METHODS.values():
            fields = {"object", "objects"} & {each.name for each in msgspec.structs.fields(method.params)}
            if method.capability == "host" or not fields:
                continue
            tried += 1
            (field,) = fields
            for id in (*foreign, foreign[0][:12]):
                missing = id[:-1] + ("0" if id[-1] != "0" else "1")
                told = [answered(method, field, each) for each in (id, missing)]
                assert told[0] == told[1], method.name
                assert "secret" not in told[0], method.name
    assert tried >= 9


@pytest.mark.requirement("BOX-3")
def test_a_sandbox_of_several_sessions_sees_the_objects_of_each_and_of_no_other(
    client: SyncClient, boxed: Callable[..., SandboxView], start: Callable[..., SyncSession], s: SyncSession
) -> None:
    foreign = s.record("theirs", "bash", "secret").object
    box = boxed()
    mounts = client.session_get(box.sessions[0]).session.mounts
    second = start(filesystem_id=BOX, mounts=mounts, workdir="/workspace")
    client.sandbox_release(box.sandbox)
    both = client.sandbox_register([box.sessions[0], second.id], grace_s=0, quota=ROOMY).sandbox
    with inside(both) as agent:
        made = [agent.toolcall_record(session, "c", "bash", "x").object for session in both.sessions]
        for session, own, other in zip(both.sessions, made, made[::-1], strict=True):
            found = agent.object_bulk([own, other, foreign], session=session)
            assert [one.id for one in found.objects] == [own]
            assert set(found.missing) == {other, foreign}
        assert [one.id for one in agent.object_bulk(made).objects] == made[:1], "the first is meant unless one is named"
        with pytest.raises(CallFailed) as refused:
            agent.object_bulk(made, session=s.id)
        assert refused.value.code == "session_not_found"


@pytest.mark.requirement("BOX-9")
def test_responses_do_not_reveal_another_sessions_tool_calls_or_files(
    boxed: Callable[..., SandboxView], s: SyncSession, tree: Path
) -> None:
    (tree / "known.py").write_text("x")
    (tree / "new.py").write_text("x")
    s.read("known.py")
    taken, free = f"{s.id}-call", f"{s.id}-free"
    s.record(taken, "bash", "secret")
    box = boxed()
    with inside(box) as agent:
        own = box.sessions[0]
        kept = [agent.toolcall_record(own, id, "bash", "x").object.replace(id, "?") for id in (taken, free)]
        assert kept[0] == kept[1]
        assert [agent.file_resolve(own, name).known for name in ("known.py", "new.py")] == [False, False]
        read = agent.file_index(own, "known.py")
        assert agent.file_resolve(own, "known.py").known
        assert read.object == s.resolve("known.py").object, "a file that the daemon reads is one for all"


@pytest.mark.requirement("BOX-9")
def test_no_answer_names_a_path_of_the_host(boxed: Callable[..., SandboxView], tree: Path) -> None:
    (tree / "a.py").write_text("x")
    box = boxed(grants=tuple(GRANTS))
    own = box.sessions[0]
    with wire(box) as call:
        read = call("file.index", {"session": own, "path": "a.py"})["result"]["object"]
        call("file.discover", {"session": own, "paths": ["a.py"]})
        (tree / "gone.py").write_text("x")
        stub = call("file.discover", {"session": own, "paths": ["gone.py"]})["result"]["objects"][0]["object"]
        (tree / "gone.py").unlink()
        asked = {"object": read, "session": own}
        for method, params in [
            ("session.get", {"session": own}),
            ("object.get", asked),
            ("object.get", {"object": f"session:{own}"}),
            ("object.bulk", {"objects": [read]}),
            ("object.history", asked),
            ("object.list", {"session": own}),
            ("file.resolve", {"session": own, "path": "a.py"}),
            ("file.index", {"session": own, "path": "none.py"}),
            ("session.activate", {"session": own, "object": stub}),
            ("context.assemble", {"session": own}),
            ("context.show", {"session": own}),
            ("session.notices", {"session": own}),
        ]:
            assert str(tree) not in json.dumps(call(method, params)), method
