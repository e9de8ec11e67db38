"""OBJ: a tool call has one version, and an id that no other session's is mistaken for."""

from pathlib import Path
from typing import Any

import pytest

from ctxd_client import SyncClient, SyncSession
from ctxd_protocol.session_types import Message
from tests.spec.refusal import refused
from tests.spec.sessions import said


@pytest.mark.requirement("OBJ-8")
def test_an_equal_tool_call_changes_nothing_and_another_payload_is_refused(s: SyncSession, client: SyncClient) -> None:
    id = f"call-{s.id}"
    given: dict[str, Any] = {"tool": "bash", "content": "a\n", "args": {"x": 1, "y": 2}}
    assert s.record(id, **given).outcome == "created"
    before, first = s.view(), client.object_get(id)
    again = s.record(id, **{**given, "args": {"y": 2, "x": 1}})
    assert (again.object, again.outcome, again.receipt) == (id, "unchanged", None)
    for change in ({"content": "b\n"}, {"tool": "sh"}, {"args": {}}, {"status": "fail"}, {"args_display": ""}):
        with refused("toolcall_conflict"):
            s.record(id, **{**given, **change})
    assert client.object_get(id) == first
    assert len(client.object_history(id, corrections=True).versions) == 1
    assert s.view() == before


@pytest.mark.requirement("OBJ-9")
def test_a_tool_call_id_of_another_session_gets_an_id_of_its_own(start, client: SyncClient) -> None:
    one, two = start(), start()
    id = f"call_{one.id}|fc"
    assert one.record(id, "bash", "one\n").object == id
    theirs = two.record(id, "bash", "two\n")
    assert (theirs.object, theirs.outcome) == (f"toolcall:{two.id}:{id}", "created")
    assert two.record(id, "bash", "two\n").outcome == "unchanged"
    assert one.view().session.session_index == (id,)
    assert two.view().session.session_index == (theirs.object,)
    assert client.object_get(id).object.payload["content"] == "one\n"
    assert client.object_get(theirs.object).object.payload["content"] == "two\n"
    two.append([Message(role="toolcall", toolcall=id)])
    assert client.object_get(f"chat:{two.id}").object.payload["toolcall_refs"] == [theirs.object]
    assert two.deactivate(id).object == theirs.object
    assert one.view().session.active_set == (id,)


@pytest.mark.requirement("OBJ-9")
@pytest.mark.parametrize("form", ["chat:{}", "session:{}", "system_prompt:{}", "segment:{}#0000000000", "file id"])
def test_a_tool_call_id_that_looks_like_another_kind_of_id_gets_one_of_its_own(
    s: SyncSession, client: SyncClient, tree: Path, form: str
) -> None:
    (tree / "a.py").write_text("x")
    id = s.read("a.py").object if form == "file id" else form.format(s.id)
    before = None if form.startswith("segment") else client.object_get(id)
    recorded = s.record(id, "bash", "mine\n")
    assert recorded.object == f"toolcall:{s.id}:{id}"
    assert client.object_get(recorded.object).object.payload["content"] == "mine\n"
    if before is not None and not form.startswith("session"):
        assert client.object_get(id) == before


@pytest.mark.requirement("OBJ-9")
@pytest.mark.requirement("SES-17")
def test_a_tool_call_and_a_file_with_one_id_are_never_confused(s: SyncSession, client: SyncClient, tree: Path) -> None:
    (tree / "a.py").write_text("in the file\n")
    file = s.read("a.py").object
    call = s.record(file, "bash", "from the call\n").object
    assert (call, s.record(file, "bash", "from the call\n").outcome) == (f"toolcall:{s.id}:{file}", "unchanged")
    s.user("x")
    client.session_append(s.id, [Message(role="toolcall", toolcall=file)])
    assert said(s)[-1][1][-1] == ("toolcall", call)
    refs = client.toolcall_record(s.id, f"refs-{s.id}", "bash", "out", file_refs=[file, call])
    assert refs.unresolved == (call,)
    for id, type, content in ((file, "file", "in the file\n"), (call, "toolcall", "from the call\n")):
        assert (s.pin(id).object, s.deactivate(id).object, s.activate(id).object) == (id, id, id)
        shown = client.object_get(id, session=s.id).object
        assert (shown.id, shown.type, shown.payload["content"]) == (id, type, content)
        assert client.object_history(id, session=s.id).versions[0].content_hash == shown.content_hash
        assert id in [row.object for row in client.object_list(session=s.id, type=type).objects]
        assert content in s.assemble().text
    client.object_purge(call)
    assert client.object_get(file).object.payload["content"] == "in the file\n"
    assert client.object_get(call).object.state == "purged"


@pytest.mark.requirement("OBJ-9")
def test_a_tool_call_id_is_as_long_as_providers_make_it_and_serves_everywhere(start, client: SyncClient) -> None:
    one, two = start(), start()
    id = f"call_{one.id}|fc_" + "b64+/=" * 165  # OpenAI's Responses API makes some of more than 450 characters
    assert one.record(id, "bash", "one\n").object == id
    theirs = two.record(id, "bash", "two\n").object
    two.append([Message(role="toolcall", toolcall=id)])
    assert two.pin(theirs).pinned
    assert client.object_get(theirs).object.payload["content"] == "two\n"
    assert theirs in two.assemble().text


@pytest.mark.requirement("SES-18")
def test_a_reference_to_a_file_outside_the_index_is_kept_as_unresolved(
    s: SyncSession, client: SyncClient, tree: Path
) -> None:
    (tree / "a.py").write_text("x")
    known = s.read("a.py").object
    refs = [known[:12], "f" * 64, "nothing"]
    made = client.toolcall_record(s.id, "call-refs", "bash", "out", file_refs=refs)
    assert (made.outcome, made.unresolved) == ("created", ("f" * 64, "nothing"))
    payload = client.object_get(made.object, session=s.id).object.payload
    assert (payload["file_refs"], payload["unresolved_refs"]) == ([known], ["f" * 64, "nothing"])
    again = client.toolcall_record(s.id, "call-refs", "bash", "out", file_refs=refs)
    assert (again.outcome, again.unresolved) == ("unchanged", ("f" * 64, "nothing"))


@pytest.mark.requirement("SES-19")
@pytest.mark.parametrize("status", ["aborted", "unanswered"])
def test_a_tool_call_without_a_result_is_recorded_with_its_status(
    s: SyncSession, client: SyncClient, status: Any
) -> None:
    id = client.toolcall_record(s.id, f"{status}-{s.id}", "bash", "", status=status).object
    assert client.object_get(id).object.payload["status"] == status
    assert f"id={id} type=toolcall tool=bash status={status}" in s.assemble().text


@pytest.mark.requirement("SES-17")
def test_a_tool_call_named_like_an_entity_of_its_own_session_is_found_by_that_name(
    s: SyncSession, client: SyncClient
) -> None:
    for prefix in ("assembly", "segment", "toolcall"):
        name = f"{prefix}:{s.id}"
        id = s.record(name, "bash", prefix).object
        assert s.deactivate(name).object == id
        assert client.object_get(name, session=s.id).object.id == id
        assert len(client.object_history(name, session=s.id).versions) == 1


@pytest.mark.requirement("SES-17")
@pytest.mark.parametrize(
    "name", ["chat:foo", "session:1", "segment:1", "assembly:x#1", "toolcall:a:b", "ctxd/x", "a" * 64]
)
def test_a_tool_call_with_a_reserved_looking_id_is_named_by_it(s: SyncSession, client: SyncClient, name: str) -> None:
    id = s.record(name, "bash", "out").object
    assert id == f"toolcall:{s.id}:{name}"
    assert s.deactivate(name).object == id
    assert s.activate(name).object == id
    s.user("x")
    client.session_append(s.id, [Message(role="toolcall", toolcall=name)])
    assert said(s)[-1][1][-1] == ("toolcall", id)
    assert client.object_get(name, session=s.id).object.id == id
    assert client.object_history(name, session=s.id).versions[0].content_hash


@pytest.mark.requirement("SES-17")
def test_an_error_for_a_reserved_looking_id_names_the_objects_type(s: SyncSession, client: SyncClient) -> None:
    chat = f"chat:{s.id}"
    s.user("x")
    with refused("not_in_index") as wrong:
        client.session_append(s.id, [Message(role="toolcall", toolcall=chat)])
    assert wrong.value.message == f"{chat} is part of the session itself, not a tool call"
    s.record("assembly:x", "bash", "out")
    with refused("toolcall_conflict") as twice:
        s.record("assembly:x", "bash", "other")
    assert twice.value.message == "tool call assembly:x was recorded with another payload"
