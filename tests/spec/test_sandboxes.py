"""Sandboxes: a socket of their own, and nothing beyond what they were given."""

import json
import os
import secrets
import socket
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import cbor2
import msgspec
import pytest

from ctxd_client import CallFailed, connect_sync
from ctxd_client.sync import SyncClient, SyncSession
from ctxd_protocol.methods import METHODS, Method
from ctxd_protocol.sandboxes import GRANTS, GRANTS_DEFAULT, Quota, SandboxView
from ctxd_protocol.sessions import Mount
from tests.client.running import Running
from tests.suites.sandboxed_paths import OWN, VECTORS, make_tree, placed

BOX = "b" * 64
ROOMY = Quota(requests_per_s=100_000, writes_per_s=100_000)


@pytest.fixture
def boxed(client: SyncClient, start: Callable[..., SyncSession], tree: Path) -> Callable[..., SandboxView]:
    """``boxed(...)`` registers a sandbox for a fresh session that has ``tree`` at /workspace."""

    def boxed(session: SyncSession | None = None, **settings: Any) -> SandboxView:
        mounts = (Mount(agent_prefix="/workspace", canonical_prefix=str(tree)),)
        own = session or start(filesystem_id=BOX, mounts=mounts, workdir="/workspace")
        settings = {"grace_s": 0, "quota": ROOMY, **settings}
        return client.sandbox_register([own.id], **settings).sandbox

    return boxed


@contextmanager
def inside(box: SandboxView) -> Iterator[SyncClient]:
    with connect_sync(box.socket) as connected:
        yield connected


@contextmanager
def wire(box: SandboxView) -> Iterator[Callable[..., Any]]:
    """Raw calls: the whole answer but its id."""
    with socket.socket(socket.AF_UNIX) as raw, raw.makefile("rb") as lines:
        raw.settimeout(20)
        raw.connect(box.socket)

        def call(method: str, params: Any) -> Any:
            message = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
            with suppress(BrokenPipeError):  # Whoever is refused may be so before asking.
                raw.sendall(json.dumps(message).encode() + b"\n")
            return json.loads(lines.readline())

        yield call


# --- registration ---


@pytest.mark.requirement("BOX-1")
def test_a_sandbox_has_a_directory_that_only_it_can_find(boxed: Callable[..., SandboxView]) -> None:
    box, other = boxed(), boxed()
    modes = [stat.S_IMODE(os.stat(path).st_mode) for path in (Path(box.directory).parent, box.directory, box.socket)]
    assert modes == [0o711, 0o711, 0o600]
    assert sorted(os.listdir(box.directory)) == ["ctxd.sock", "current.json"]
    assert len(os.fsencode(box.socket)) <= 107
    assert box.sandbox != other.sandbox
    assert len(box.sandbox) >= 16, "80 bits"


@pytest.mark.requirement("BOX-10")
@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives a file to another user")
def test_a_sandbox_of_another_user_is_that_users(boxed: Callable[..., SandboxView]) -> None:
    box = boxed(uid=12345)
    assert [os.stat(path).st_uid for path in (box.socket, Path(box.directory, "current.json"))] == [12345, 12345]
    assert os.stat(box.directory).st_uid == 0, "it can neither make nor remove anything there"


@pytest.mark.requirement("BOX-1")
def test_what_a_sandbox_is_cannot_be_had_twice_nor_of_sessions_that_see_the_host(
    client: SyncClient, boxed: Callable[..., SandboxView], s: SyncSession
) -> None:
    box = boxed(principal=f"agent-{secrets.token_hex(4)}")
    for code, call in {
        "principal_exists": lambda: boxed(principal=box.principal),
        "session_not_found": lambda: client.sandbox_register(["nobody"]),
        "invalid_params": lambda: client.sandbox_register([s.id]),
    }.items():
        with pytest.raises(CallFailed) as refused:
            call()
        assert refused.value.code == code
    assert client.sandbox_register([s.id], grants=(), grace_s=0).sandbox.grants == (), "it may ask and nothing else"


@pytest.mark.requirement("BOX-1")
@pytest.mark.parametrize(
    "root", ["/", "/proc/1/root", "/run", "/dev", "/sys/kernel", "//proc", "/home/../run/x", "/var/run"]
)
def test_a_sandbox_is_not_given_the_host(client: SyncClient, start: Callable[..., SyncSession], root: str) -> None:
    wide = start(filesystem_id=BOX, mounts=(Mount(agent_prefix="/host", canonical_prefix=root),), workdir="/host")
    with pytest.raises(CallFailed) as refused:
        client.sandbox_register([wide.id])
    assert refused.value.code == "invalid_path"


@pytest.mark.requirement("BOX-1")
def test_a_registered_sandboxs_mounts_stay_as_they_are(client: SyncClient, boxed: Callable[..., SandboxView]) -> None:
    box = boxed()
    with pytest.raises(CallFailed) as refused:
        client.session_configure(box.sessions[0], mounts=())
    assert refused.value.code == "session_in_sandbox"
    client.sandbox_release(box.sandbox)
    assert client.session_configure(box.sessions[0], mounts=()).session.mounts == ()


@pytest.mark.requirement("BOX-4")
def test_a_sandbox_ends_with_the_connection_that_holds_it(daemon: Running, boxed: Callable[..., SandboxView]) -> None:
    with connect_sync(daemon.socket) as harness:
        box = boxed()
        lasting = boxed(ttl_s=600)
        for each in (box, lasting):
            harness.sandbox_renew(each.sandbox)
        guest = socket.socket(socket.AF_UNIX)
        guest.settimeout(20)
        guest.connect(box.socket)
    with guest:
        assert guest.recv(1) == b"", "its connections end with it"
    with connect_sync(daemon.socket) as harness:
        left = {each.sandbox for each in harness.sandbox_list().sandboxes}
        assert box.sandbox not in left
        assert lasting.sandbox in left
        assert harness.session_get(box.sessions[0]).session.state == "active", "its sessions stay"
        harness.sandbox_release(lasting.sandbox)
        assert not Path(lasting.directory).exists()


@pytest.mark.requirement("BOX-4")
def test_a_lease_by_time_ends_unless_it_is_renewed(client: SyncClient, boxed: Callable[..., SandboxView]) -> None:
    box = boxed(ttl_s=1)
    assert box.expires_at is not None
    with socket.socket(socket.AF_UNIX) as guest:
        guest.settimeout(20)
        guest.connect(box.socket)
        renewed = client.sandbox_renew(box.sandbox).sandbox
        assert renewed.expires_at is not None
        assert renewed.expires_at >= box.expires_at
        assert guest.recv(1) == b"", "ended by the daemon"
    with pytest.raises(CallFailed) as refused:
        client.sandbox_renew(box.sandbox)
    assert refused.value.code == "sandbox_not_found"


# --- what exists inside ---


def test_every_method_of_a_session_is_granted_in_one_way() -> None:
    names = [name for names in GRANTS.values() for name in names]
    assert sorted(names) == sorted(method.name for method in METHODS.values() if method.capability == "session")


@pytest.mark.requirement("BOX-2")
def test_what_is_not_granted_does_not_exist(boxed: Callable[..., SandboxView]) -> None:
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


SAMPLES: dict[str, Any] = {
    "object": "0" * 64,
    "objects": ["0" * 64],
    "messages": [{"role": "user", "content": "x"}],
    "content": "x",
    "tool": "bash",
    "command": "ls",
    "output": "a.py",
    "path": "a.py",
    "paths": ["a.py"],
    "subscription": 1,
    "id": "call-1",
}


def sample(method: Method, session: str) -> dict[str, Any]:
    """Parameters that the method takes, with ``session`` in them. Fails for a field that has no sample yet."""
    fields = msgspec.structs.fields(method.params)
    given = {field.name: SAMPLES[field.name] for field in fields if field.required and field.name != "session"}
    return {**given, "session": session} if any(field.name == "session" for field in fields) else given


@pytest.mark.requirement("BOX-3")
def test_another_session_is_answered_by_every_method_as_one_that_does_not_exist(
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
def test_another_sessions_objects_are_answered_as_ones_that_do_not_exist(
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


@pytest.mark.requirement("BOX-5")
def test_the_daemons_status_tells_of_all_sandboxes_together(
    client: SyncClient, boxed: Callable[..., SandboxView]
) -> None:
    before = client.daemon_status().sandboxes
    box = boxed(ttl_s=600, quota=Quota(requests_per_s=1, connections=3))
    with wire(box) as call:
        for _ in range(5):
            call("context.current", {})
        found = client.daemon_status().sandboxes
    assert (found.registered, found.connections) == (before.registered + 1, before.connections + 1)
    assert (found.requests - before.requests, found.refused - before.refused) == (5, 3)
    assert found.oldest is not None
    assert found.oldest <= box.created_at
    assert found.next_end is not None
    assert box.expires_at is not None
    assert found.next_end <= box.expires_at
    client.sandbox_release(box.sandbox)
    assert client.daemon_status().sandboxes.registered == before.registered


@pytest.mark.requirement("BOX-9")
def test_whether_another_session_has_a_tool_call_or_a_file_does_not_show(
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


# --- files ---


@pytest.mark.requirement("BOX-7")
def test_no_path_has_the_daemon_read_what_the_sandbox_has_not_mounted(
    client: SyncClient, start: Callable[..., SyncSession], boxed: Callable[..., SandboxView], tmp_path: Path
) -> None:
    root = tmp_path.resolve() / "host"
    mounts = make_tree(root)
    box = boxed(start(filesystem_id=OWN, mounts=mounts, workdir="/workspace"))
    own = box.sessions[0]
    assert len(VECTORS) >= 60
    with inside(box) as agent:
        for vector in VECTORS:
            path = placed(vector["path"], root)
            if "reads" in vector:
                read = agent.file_index(own, path)
                assert agent.object_get(read.object, session=own).object.payload["content"] == vector["reads"], path
                continue
            assert refusal(agent, own, path) == vector["refused"], path
        named = [placed(vector["path"], root) for vector in VECTORS if vector.get("refused") not in ("invalid_params",)]
        for found in agent.file_discover(own, named).objects:
            assert found.outcome == "ignored" or found.object is not None
        assert "SECRET" not in agent.context_assemble(own).text


def refusal(agent: SyncClient, session: str, path: str) -> str | None:
    """The code with which reading is refused; null if it is not."""
    try:
        agent.file_index(session, path)
    except CallFailed as error:
        assert "SECRET" not in str(error)
        return error.code
    return None


@pytest.mark.requirement("BOX-11")
def test_a_sandbox_of_another_user_reads_no_file_that_this_user_may_not(
    boxed: Callable[..., SandboxView], client: SyncClient, s: SyncSession, tree: Path
) -> None:
    for name, mode in (("open", 0o644), ("secret", 0o600)):
        (tree / name).write_text(name)
        (tree / name).chmod(mode)
    tree.chmod(0o755)
    os.link(tree / "secret", tree / "linked")
    try:
        box = boxed(uid=65534)
    except CallFailed as refused:
        pytest.skip(f"needs root, or access control lists: {refused}")
    own = box.sessions[0]
    assert client.file_index(own, "open").kind == "text"
    for name in ("secret", "linked"):
        with pytest.raises(CallFailed) as unread:
            client.file_index(own, name)
        assert unread.value.code == "source_unreachable"
    assert [found.outcome for found in client.file_discover(own, ["secret", "linked"]).objects] == ["ignored"] * 2
    client.sandbox_release(box.sandbox)
    assert s.read("secret").kind == "text", "nobody is kept from it any more"


@pytest.mark.requirement("BOX-8")
def test_what_a_sandbox_says_a_shared_file_holds_is_its_observation_only(
    client: SyncClient, boxed: Callable[..., SandboxView], s: SyncSession, tree: Path
) -> None:
    (tree / "a.py").write_text("true\n")
    shared = s.read("a.py").object
    box = boxed()
    own = box.sessions[0]
    with inside(box) as agent:
        said = agent.file_index(own, "a.py", content="false\n")
        assert said.object != shared
        seen = agent.object_get(said.object, session=own).object
        assert (seen.payload["content"], seen.display_path) == ("false\n", "/workspace/a.py")
        agreed = agent.file_index(own, "a.py", content="true\n")
        assert (agreed.object, agreed.outcome) == (shared, "unchanged"), "what the daemon reads too is the file"
        agent.file_index(own, "none.py", content="made up\n")
    assert client.object_get(shared).object.payload["content"] == "true\n"
    assert len(client.object_history(shared).versions) == 1
    assert "false" not in s.assemble().text
    assert "made up" not in s.assemble().text


# --- quotas ---


def code_of(answer: Any) -> str | None:
    return answer.get("error", {}).get("data", {}).get("code")


@pytest.mark.requirement("BOX-5")
def test_calls_beyond_the_rate_are_refused_with_the_time_to_wait(
    boxed: Callable[..., SandboxView], s: SyncSession, client: SyncClient
) -> None:
    box = boxed(quota=Quota(requests_per_s=5, writes_per_s=1))
    with wire(box) as call:
        writes = [call("session.append", sample(METHODS["session.append"], box.sessions[0])) for _ in range(3)]
        assert [code_of(answer) for answer in writes] == [None, None, "quota_exceeded"]
        data = writes[2]["error"]["data"]
        assert 0 < data["retry_after_ms"] <= 1000
        assert (data["retryable"], data["outcome"]) == (True, "not_applied")
        reads = [code_of(call("context.current", {})) for _ in range(20)]
        assert "quota_exceeded" in reads
    s.user("a neighbour is not refused")
    (listed,) = [each for each in client.sandbox_list().sandboxes if each.sandbox == box.sandbox]
    assert listed.refused >= 2


@pytest.mark.requirement("BOX-5")
def test_bytes_objects_and_connections_have_bounds(boxed: Callable[..., SandboxView]) -> None:
    box = boxed(quota=Quota(write_bytes_per_day=1000, objects=1))
    own = box.sessions[0]
    with wire(box) as call:
        first = {"session": own, "id": "c1", "tool": "bash", "content": "x" * 200}
        assert code_of(call("toolcall.record", first)) is None
        second = call("toolcall.record", {**first, "id": "c2"})
        assert "1 objects" in second["error"]["message"]
        assert code_of(call("session.append", {"session": own, "messages": [{"role": "user"}]})) is None
        long = {"session": own, "messages": [{"role": "user", "content": "x" * 900}]}
        assert "bytes" in call("session.append", long)["error"]["message"]
    narrow = boxed(quota=Quota(connections=1))
    with wire(narrow) as call:
        call("context.current", {})
        with wire(narrow) as refused:
            assert code_of(refused("context.current", {})) == "quota_exceeded"


@pytest.mark.requirement("BOX-5")
def test_a_line_of_a_sandbox_has_at_most_a_mebibyte(boxed: Callable[..., SandboxView]) -> None:
    with wire(boxed()) as call:
        assert code_of(call("context.current", {"session": "x" * 1024 * 1024})) == "frame_too_large"


# --- the current context ---


@pytest.mark.requirement("BOX-6")
def test_the_current_context_is_one_answer_however_it_is_asked_for(
    client: SyncClient, boxed: Callable[..., SandboxView]
) -> None:
    box = boxed()
    own = box.sessions[0]
    for _ in range(2):
        client.session_append(own, [{"role": "user", "content": "x"}])  # type: ignore[list-item]
        assembled = client.context_assemble(own).context_id
        with inside(box) as agent:
            assert agent.context_current().context_id == assembled
        assert json.loads(Path(box.directory, "current.json").read_text())["context_id"] == assembled
        assert asked_in_cbor(box, b"\xa1\x66action\x6fcurrent-context") == {
            "ok": True,
            "data": {"context_id": assembled},
        }


@pytest.mark.requirement("BOX-6")
@pytest.mark.parametrize("question", [{"action": "other"}, {}, {"action": 1}, {"x": "y" * 2000}])
def test_another_question_in_cbor_is_refused(boxed: Callable[..., SandboxView], question: Any) -> None:
    box = boxed()
    assert asked_in_cbor(box, cbor2.dumps({"action": "current-context"})) == {"ok": True, "data": {"context_id": ""}}
    assert asked_in_cbor(box, cbor2.dumps(question))["ok"] is False
    assert asked_in_cbor(box, b"\xa1\xff")["ok"] is False


def asked_in_cbor(box: SandboxView, question: bytes) -> Any:
    """The answer to a question that comes in two pieces."""
    with socket.socket(socket.AF_UNIX) as raw:
        raw.settimeout(20)
        raw.connect(box.socket)
        raw.sendall(question[:1])
        raw.sendall(question[1:])
        return cbor2.loads(b"".join(iter(lambda: raw.recv(4096), b"")))
