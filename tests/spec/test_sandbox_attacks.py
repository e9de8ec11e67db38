"""Sandboxes: attacks from inside, through the sandbox's own socket, with restarts of the daemon in between."""

import hashlib
import json
import os
import re
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from blake3 import blake3

from ctxd_client import CallFailed, connect_sync
from ctxd_client.sync import SyncClient, SyncSession
from ctxd_protocol.methods import GRANTS, METHODS
from ctxd_protocol.sandbox_types import SandboxView
from ctxd_protocol.session_types import Mount
from tests.client.running import Running
from tests.spec.sandboxes import BOX, ROOMY, inside, sample, wire

SECRET = "the host's own secret"


@pytest.fixture
def host(kept: Running) -> Iterator[SyncClient]:
    """A client of the host of a daemon that can be restarted."""
    with connect_sync(kept.socket) as connected:
        yield connected


def mount(agent: str, place: Path) -> Mount:
    """``place`` of the host at ``agent``."""
    return Mount(agent_prefix=agent, canonical_prefix=str(place))


def places(tmp_path: Path, *names: str) -> list[Path]:
    """Fresh directories of the host, by canonical path."""
    made = [tmp_path.resolve() / "host" / name for name in names]
    for place in made:
        place.mkdir(parents=True)
    return made


def session_in(client: SyncClient, name: str, *mounts: Mount) -> str:
    """A session with ``mounts`` and a filesystem of its own."""
    made = client.session_create("spec", session=name, filesystem_id=BOX, mounts=mounts, workdir=mounts[0].agent_prefix)
    return made.session.session


def register(client: SyncClient, session: str, **settings: Any) -> SandboxView:
    """A sandbox with every grant for ``session`` that lasts beyond a restart."""
    settings = {"ttl_s": 600, "quota": ROOMY, "grants": tuple(GRANTS), **settings}
    return client.sandbox_register([session], **settings).sandbox


def refused(call: Callable[[], Any]) -> str | None:
    """The code with which ``call`` is refused; ``None`` if it is not."""
    try:
        call()
    except CallFailed as error:
        return error.code
    return None


@pytest.mark.requirement("BOX-7", "BOX-9")
def test_a_file_indexed_under_an_earlier_mount_is_not_read_once_that_mount_is_gone(
    host: SyncClient, tmp_path: Path
) -> None:
    w, cache = places(tmp_path, "w", "cache")
    for name in ("x", "y"):
        (cache / name).write_text("before")
    session = session_in(host, "moved", mount("/w", w), mount("/cache", cache))
    x = host.file_index(session, "/cache/x").object
    (y,) = (found.object for found in host.file_discover(session, ["/cache/y"]).objects)
    assert y is not None
    host.session_configure(session, mounts=(mount("/w", w),))
    for name in ("x", "y"):
        (cache / name).write_text(SECRET)
    with inside(register(host, session)) as agent:
        assert refused(lambda: agent.session_activate(session, y)) == "source_unreachable"
        refused(lambda: agent.session_activate(session, x))
        agent.context_assemble(session)
        told = [
            agent.context_assemble(session).text,
            *(refused(lambda id=id: agent.object_get(id, session=session)) or "" for id in (x, y)),
            *(str(each) for each in agent.object_bulk([x, y], session=session, content=True).objects),
            str(agent.object_list(session=session)),
            str(agent.session_notices(session)),
        ]
    for answer in told:
        assert SECRET not in answer
        assert str(cache) not in answer


@pytest.mark.requirement("BOX-7", "BOX-9")
def test_a_file_swapped_for_a_symlink_is_not_read_after_a_restart_with_other_mounts(
    kept: Running, tmp_path: Path
) -> None:
    w, elsewhere, outside = places(tmp_path, "w", "elsewhere", "outside")
    (outside / "secret").write_text(SECRET)
    (w / "evil").write_text("harmless")
    with connect_sync(kept.socket) as client:
        session = session_in(client, "swapped", mount("/w", w))
        box = register(client, session)
        with inside(box) as agent:
            (evil,) = (found.object for found in agent.file_discover(session, ["evil"]).objects)
            assert evil is not None
        (w / "evil").unlink()
        (w / "evil").symlink_to(outside / "secret")
        client.sandbox_release(box.sandbox)
        client.session_configure(session, mounts=(mount("/w", elsewhere),))
    kept.kill()
    kept.start()
    with connect_sync(kept.socket) as client:
        box = register(client, session)
        with wire(box) as call:
            answers = [
                call("session.activate", {"session": session, "object": evil}),
                call("object.get", {"session": session, "object": evil}),
                call("object.history", {"session": session, "object": evil}),
                call("object.list", {"session": session}),
                call("context.assemble", {"session": session}),
                call("session.notices", {"session": session}),
            ]
    assert answers[0]["error"]["data"]["code"] == "source_unreachable"
    for answer in answers:
        assert SECRET not in json.dumps(answer)
        assert str(tmp_path) not in json.dumps(answer)


@pytest.mark.requirement("BOX-7")
def test_a_link_allowed_in_one_sandbox_is_not_followed_in_another(client: SyncClient, tmp_path: Path) -> None:
    shared, data = places(tmp_path, "shared", "data")
    (data / "secret").write_text(SECRET)
    (shared / "link").symlink_to("/data/secret")
    mine = session_in(client, "narrow", mount("/w", shared))
    theirs = session_in(client, "wide", mount("/w", shared), mount("/data", data))
    boxes = [register(client, session) for session in (theirs, mine)]
    with inside(boxes[1]) as agent:
        assert refused(lambda: agent.file_index(mine, "link")) == "path_escapes_mount"
    for box in boxes:
        client.sandbox_release(box.sandbox)


@pytest.mark.requirement("BOX-12")
def test_an_empty_value_grants_no_access(client: SyncClient, tmp_path: Path) -> None:
    (w,) = places(tmp_path, "w")
    session = session_in(client, "empty", mount("/w", w))
    with pytest.raises(CallFailed, match="different mounts from the sandbox") as none:
        register(client, session, mounts=())
    assert none.value.code == "invalid_params"
    for bad in ("", "\n", "a\n", "a\u202eb", "a b", "\x00"):
        with pytest.raises(CallFailed) as create:
            client.session_create("spec", filesystem_id=bad)
        assert create.value.code == "invalid_params", repr(bad)
        mounts = (Mount(agent_prefix="/w", canonical_prefix=str(w), filesystem_id=bad),)
        for call in (
            lambda mounts=mounts: client.session_create("spec", filesystem_id=BOX, mounts=mounts),
            lambda mounts=mounts: client.session_configure(session, mounts=mounts),
        ):
            assert refused(call) == "invalid_params", repr(bad)
        for call in (
            lambda bad=bad: client.session_create("spec", session=bad),
            lambda bad=bad: register(client, session, principal=bad),
        ):
            assert refused(call) == "invalid_params", repr(bad)
    assert os.listdir(w) == []


def as_nobody(client: SyncClient, session: str, place: Path) -> SandboxView:
    """A sandbox for ``session`` whose user is nobody; skips where the daemon cannot have one."""
    for above in (place, *place.parents):
        if above.stat().st_uid == os.geteuid() and above != Path("/"):
            above.chmod(above.stat().st_mode | 0o055)
    try:
        return register(client, session, uid=65534)
    except CallFailed as error:
        pytest.skip(f"needs root, or access control lists: {error}")


@pytest.mark.requirement("BOX-9", "BOX-11")
def test_history_hides_versions_captured_with_rights_the_sandbox_lacks(
    client: SyncClient, start: Callable[..., SyncSession], tree: Path
) -> None:
    (tree / ".env").write_text(SECRET)
    (tree / ".env").chmod(0o600)
    theirs = start()
    secret = theirs.read(".env")
    before = client.object_get(secret.object).object
    session = start(filesystem_id=BOX, mounts=(mount("/workspace", tree),), workdir="/workspace").id
    box = as_nobody(client, session, tree)
    (tree / ".env").rename(tree / "x")
    (tree / ".env").write_text("mine")
    with inside(box) as agent:
        (found,) = agent.file_discover(session, [".env"]).objects
        assert found.outcome == "created"
        assert found.object == secret.object
        answers = [
            agent.object_get(secret.object, session=session, content=True),
            agent.object_bulk([secret.object], session=session, content=True),
            agent.object_history(secret.object, session=session, corrections=True),
            agent.object_list(session=session),
            agent.file_index(session, ".env"),
            agent.object_history(secret.object, session=session),
            agent.context_assemble(session).text,
        ]
        for times in ({"valid_time": before.valid_time}, {"tx": before.tx}):
            assert refused(lambda times=times: agent.object_get(secret.object, session=session, **times)) == (
                "object_not_found"
            )
            assert not agent.object_bulk([secret.object], session=session, **times).objects
            assert refused(lambda times=times: agent.object_history(secret.object, session=session, **times))
    for answer in answers:
        assert SECRET not in str(answer)
        assert before.content_hash not in str(answer)
        assert str(before.source_hash) not in str(answer)
    client.sandbox_release(box.sandbox)


@pytest.mark.requirement("BOX-9", "BOX-11")
def test_versions_captured_between_two_registrations_are_hidden_after_the_second(kept: Running, tree: Path) -> None:
    """Nor is it after a restart: what a sandbox may see is derived from what is stored."""
    (tree / "f").write_text("world-readable")
    with connect_sync(kept.socket) as client:
        session = session_in(client, "again", mount("/w", tree))
        box = as_nobody(client, session, tree)
        with inside(box) as agent:
            read = agent.file_index(session, "f").object
        client.sandbox_release(box.sandbox)
        (tree / "f").write_text(SECRET)
        (tree / "f").chmod(0o600)
        client.session_create("spec", session="theirs", workdir=str(tree))
        assert client.file_index("theirs", "f").object == read
        newest = client.object_get(read).object
        box = as_nobody(client, session, tree)
    for _ in range(2):
        with connect_sync(kept.socket) as client, inside(box) as agent:
            assert len(client.object_history(read).versions) == 2
            answers = [
                agent.object_get(read, session=session, content=True),
                agent.object_history(read, session=session),
                agent.object_list(session=session),
                agent.context_assemble(session).text,
                agent.session_notices(session),
            ]
            assert refused(lambda agent=agent: agent.session_activate(session, read)) == "source_unreachable"
            assert refused(lambda agent=agent: agent.file_index(session, "f", cause="check")) is None
            answers.append(agent.file_index(session, "f", cause="check"))
        for answer in answers:
            assert SECRET not in str(answer)
            assert newest.content_hash not in str(answer)
            assert str(newest.source_hash) not in str(answer)
        assert "world-readable" in str(answers[0])
        kept.kill()
        kept.start()


@pytest.mark.requirement("BOX-9", "NOT-1")
def test_responses_do_not_depend_on_other_sessions_knowledge_of_a_file(
    client: SyncClient, start: Callable[..., SyncSession], boxed: Callable[..., SandboxView], tree: Path
) -> None:
    theirs = start()
    for name in ("known", "alone", "known-name", "alone-name"):
        (tree / name).write_text("one")
    for text in ("two", "three"):
        for name in ("known", "known-name"):
            (tree / name).write_text(text)
            theirs.read(name)
    box = boxed(grants=tuple(GRANTS))
    own = box.sessions[0]
    shown: dict[str, Any] = {}
    with inside(box) as agent:
        for name in ("known", "alone"):
            checked = agent.file_index(own, name, cause="check")
            (found,) = agent.file_discover(own, [f"{name}-name"]).objects
            read = agent.file_index(own, name)
            rows = agent.object_history(read.object, session=own).versions
            shown[name] = [
                (checked.outcome, checked.receipt is None),
                found.outcome,
                read.outcome,
                [row.valid_time > box.created_at for row in rows],
                refused(lambda read=read: agent.object_get(read.object, session=own, tx=1)),
            ]
        agent.context_assemble(own)
        for context in (agent.context_assemble(own), agent.context_show(own)):
            times = [block.valid_time for block in context.blocks if block.object == read.object or block.valid_time]
            assert times and min(times) > box.created_at
        after = agent.session_notices(own).next_after
        (tree / "known").write_text("four")
        theirs.read("known")
        (notice,) = agent.session_notices(own, after=after).notices
        assert (notice.change, notice.by_session) == ("updated", None)
    assert shown["known"] == shown["alone"]
    assert shown["known"][:2] == [("created", True), "created"]
    assert shown["known"][2] == "created"


@pytest.mark.requirement("BOX-9")
def test_a_check_does_not_reveal_other_content(
    client: SyncClient, start: Callable[..., SyncSession], tree: Path
) -> None:
    theirs = start()
    for name in ("locked-known", "locked", "gone-known", "gone"):
        (tree / name).write_text(SECRET)
        (tree / name).chmod(0o600)
        if name.endswith("known"):
            theirs.read(name)
        if name.startswith("gone"):
            (tree / name).unlink()
    session = start(filesystem_id=BOX, mounts=(mount("/workspace", tree),), workdir="/workspace").id
    box = as_nobody(client, session, tree)
    with wire(box) as call:
        for kind in ("locked", "gone"):
            answers = [
                json.dumps(call("file.index", {"session": session, "path": name, "cause": "check"})).replace(name, "?")
                for name in (f"{kind}-known", kind)
            ]
            assert answers[0] == answers[1]
            assert "error" in json.loads(answers[0])
    client.sandbox_release(box.sandbox)


@pytest.mark.requirement("BOX-9")
def test_contexts_from_before_a_sandbox_show_it_no_version_that_is_hidden_from_it(
    client: SyncClient, start: Callable[..., SyncSession], tmp_path: Path
) -> None:
    w, cache = places(tmp_path, "w", "cache")
    (cache / "a.txt").write_text("first")
    session, theirs = f"{tmp_path.name}-own", start(workdir=str(cache))
    session_in(client, session, mount("/w", w), mount("/cache", cache))
    known = client.file_index(session, "/cache/a.txt").object
    client.session_append(session, [{"role": "user", "content": "hi"}])
    request: dict[str, Any] = {"format": "anthropic-messages", "model": "claude-sonnet-4-5"}
    client.context_assemble(session, **request)
    (cache / "a.txt").write_text(SECRET)
    theirs.read("a.txt")
    client.session_activate(session, known)
    made = client.context_assemble(session), client.context_assemble(session, **request)
    assert SECRET in made[0].text and SECRET in json.dumps(made[1].request)
    client.session_configure(session, mounts=(mount("/w", w),))
    box = register(client, session)
    with inside(box) as agent, wire(box) as call:
        assert "first" in json.dumps(agent.context_show(session, number=1).request)
        for each in made:
            assert refused(lambda each=each: agent.context_show(session, number=each.number)) == "assembly_not_found"
        for params in ({}, {"layout": "append", "format": "text"}, request):
            answer = json.dumps(call("context.assemble", {"session": session, **params}))
            assert "result" in json.loads(answer) and SECRET not in answer and "hi" in answer
        assert SECRET not in json.dumps(call("context.show", {"session": session}))
    assert SECRET in client.context_show(session, number=made[0].number).text, "the host sees it"
    client.sandbox_release(box.sandbox)


@pytest.mark.requirement("BOX-9")
def test_no_answer_of_any_method_names_the_host_or_another_session(kept: Running, tmp_path: Path) -> None:
    """Every method that a sandbox reaches is called in two states: mounted, and with the mounts moved elsewhere."""
    w, cache = places(tmp_path, "w", "cache")
    for place in (w, cache):
        (place / "a.py").write_text("text")
        (place / "b.py").write_text("text")
    (w / "link").symlink_to(cache / "a.py")
    session = "own"
    with connect_sync(kept.socket) as client:
        client.session_create("spec", session="foreign-name", workdir=str(w))
        session_in(client, session, mount("/w", w), mount("/cache", cache))
        known = [client.file_index(session, path).object for path in ("/w/a.py", "/cache/a.py")]
        known += [each.object or "" for each in client.file_discover(session, ["/w/b.py", "/cache/b.py"]).objects]
        called = client.toolcall_record("foreign-name", "theirs", "bash", "x").object
        commits = [
            client.commit_checkpoint("claude-code-v1", '{"n":1}\n', session=owner).commit.commit
            for owner in (session, "foreign-name")
        ]
        client.session_append(session, [{"role": "user", "content": "hi"}])
        client.context_assemble(session, format="anthropic-messages", model="claude-sonnet-4-5")
        box = register(client, session)
        succeeded: set[str] = set()
        forbidden = [str(tmp_path.resolve()), "foreign-name", kept.socket, box.directory]

        def exercise() -> None:
            (w / "a.py").write_text((w / "a.py").read_text() + "!")
            client.file_index("foreign-name", str(w / "a.py"))
            forbidden.append(client.object_get(known[0]).object.content_hash if moved else "foreign-name")
            notified: list[Any] = []
            with wire(box, notified) as call:
                call("events.subscribe", {"session": session, "after": 0})
                for method in METHODS.values():
                    if method.capability == "host":
                        continue
                    base = sample(method, session)
                    variants = [base]
                    variants += [{**base, "object": id} for id in (*known, called) if "object" in base]
                    variants += [{**base, "commit": id} for id in commits if "commit" in base]
                    variants += [{**base, "objects": known}] if "objects" in base else []
                    variants += [{**base, "commits": [id]} for id in commits if "commits" in base]
                    paths = ("a.py", "/w/link", "/cache/a.py", "/none", str(w / "a.py"), "../../etc/passwd")
                    variants += [{**base, "path": path} for path in paths if "path" in base]
                    variants += [{**base, "paths": list(paths)}] if "paths" in base else []
                    variants += [{"data": "eA=="}] if method.name == "artifact.put" else []
                    variants += [{"artifact": blake3(b"x").hexdigest()}] if method.name == "artifact.get" else []
                    for params in variants:
                        answer = call(method.name, params)
                        if "result" in answer:
                            succeeded.add(method.name)
                        written = {text for text in forbidden if text in json.dumps(params)}
                        for text in set(forbidden) - written:
                            assert text not in json.dumps(answer), (method.name, params)
            assert notified or moved
            for notification in notified:
                assert not any(text in json.dumps(notification) for text in forbidden)

        moved = False
        exercise()
        reached = {method.name for method in METHODS.values() if method.capability != "host"}
        never = {"hello", "events.unsubscribe", "session.deactivate", "session.pin", "session.unpin"}
        assert reached - succeeded <= never, "each method was seen to succeed"
        client.sandbox_release(box.sandbox)
        client.session_configure(session, mounts=(mount("/w", cache),))
        box = register(client, session)
        forbidden.append(box.directory)
        moved = True
        exercise()


@pytest.mark.requirement("SEC-1")
def test_a_redacted_secret_is_not_found_by_guessing(client: SyncClient, tmp_path: Path) -> None:
    (w,) = places(tmp_path, "w")
    guess = "password = 'correct-horse-battery-9'\n"
    session = client.session_create(
        "spec", session="guessed", filesystem_id=BOX, mounts=(mount("/w", w),), workdir="/w", secrets="redact"
    ).session.session
    given = client.toolcall_record(session, "given", "bash", guess).object
    (w / "guess.env").write_text(guess)
    box = register(client, session)
    with inside(box) as agent:
        agent.session_append(session, [{"role": "user", "content": guess}])
        agent.session_set_system_prompt(session, guess)
        objects = [
            agent.toolcall_record(session, "recorded", "bash", guess).object,
            agent.file_index(session, "guess.env").object,
            agent.file_index(session, "said.env", content=guess).object,
            f"system_prompt:{session}",
        ]
        secret = agent.object_get(given, session=session).object
        tags = set(re.findall(r"\[REDACTED:[^\]]*\]", str(secret.payload["content"])))
        assert tags
        guesses = [agent.object_get(id, session=session).object for id in objects]
        assert all("[REDACTED:" in str(found.payload["content"]) for found in guesses)
        told = [*map(str, guesses), str(agent.session_chat(session))]
        for answer in told:
            assert not any(tag in answer for tag in tags)
            assert secret.content_hash not in answer
    client.sandbox_release(box.sandbox)


@pytest.mark.requirement("BOX-7")
def test_no_special_file_or_kernel_path_is_read_through_a_mount(client: SyncClient, tmp_path: Path) -> None:
    (w,) = places(tmp_path, "w")
    os.mkfifo(w / "fifo")
    targets = (
        "/proc/self/environ",
        "/proc/1/root/etc/passwd",
        "/dev/zero",
        "/proc/self/fd/0",
        "../../../../etc/passwd",
    )
    for number, target in enumerate(targets):
        (w / f"link{number}").symlink_to(target)
    (w / "dir").symlink_to("/proc/self/root")
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(w / "sock"))
    session = session_in(client, "special", mount("/w", w))
    box = register(client, session)
    names = ["fifo", "sock", "dir/etc/passwd", "dir", "/proc/self/environ", "/W/fifo", "."]
    names += [f"link{number}" for number in range(len(targets))]
    with inside(box) as agent, listener:
        for name in names:
            assert refused(lambda name=name: agent.file_index(session, name)) in (
                "unsupported",
                "path_escapes_mount",
                "source_unreachable",
                "file_not_found",
            ), name
        assert {found.outcome for found in agent.file_discover(session, names).objects} == {"ignored"}
    client.sandbox_release(box.sandbox)


@pytest.mark.requirement("BOX-7")
def test_renames_between_check_and_read_lead_to_no_file_outside(client: SyncClient, tmp_path: Path) -> None:
    w, outside = places(tmp_path, "w", "outside")
    (outside / "f").write_text(SECRET)
    for name in ("good", "evil"):
        (w / name).mkdir()
    (w / "good/f").write_text("harmless")
    (w / "evil").rmdir()
    (w / "evil").symlink_to(outside)
    session = session_in(client, "raced", mount("/w", w))
    box = register(client, session)
    stop = threading.Event()

    def swap() -> None:
        while not stop.is_set():
            (w / "good").rename(w / "kept")
            (w / "evil").rename(w / "good")
            (w / "good").rename(w / "evil")
            (w / "kept").rename(w / "good")

    swapping = threading.Thread(target=swap)
    swapping.start()
    try:
        with inside(box) as agent:
            for _ in range(300):
                try:
                    read = agent.file_index(session, "good/f")
                except CallFailed:
                    continue
                assert SECRET not in str(agent.object_get(read.object, session=session))
            for row in agent.object_list(session=session).objects:
                assert SECRET not in str(agent.object_get(row.object, session=session))
            assert SECRET not in agent.context_assemble(session).text
    finally:
        stop.set()
        swapping.join()
    client.sandbox_release(box.sandbox)


@pytest.mark.requirement("BOX-3")
def test_nothing_of_another_connection_or_an_earlier_sandbox_can_be_taken_over(
    client: SyncClient, tmp_path: Path
) -> None:
    """Subscriptions, operation ids of a principal of the same name, object ids guessed by content, and cursors."""
    (w,) = places(tmp_path, "w")
    (w / "a").write_text("guessable")
    first, second = (session_in(client, name, mount("/w", w)) for name in ("taken-1", "taken-2"))
    box = register(client, first, principal="agent-x")
    with wire(box) as call:
        assert "result" in call("events.subscribe", {"session": first})
        with wire(box) as other:
            assert other("events.unsubscribe", {"subscription": 1})["error"]["data"]["code"] == "subscription_not_found"
        recorded = {"id": "c", "tool": "bash", "content": SECRET, "op_id": "op"}
        assert "result" in call("toolcall.record", {"session": first, **recorded})
        read = call("file.index", {"session": first, "path": "a"})["result"]
        cursor = call("object.list", {"session": first, "limit": 1})["result"]["next_cursor"]
    client.sandbox_release(box.sandbox)
    box = register(client, second, principal="agent-x")
    with wire(box) as call:
        answers = [
            call("toolcall.record", {"session": second, **recorded, "content": "other"}),
            call("object.get", {"object": hashlib.sha256(b"guessable").hexdigest()}),
            call("object.get", {"object": read["object"]}),
            call("object.get", {"object": read["source_hash"]}),
            call("object.list", {"session": second, "cursor": cursor}),
            call("object.bulk", {"objects": [read["object"], read["source_hash"]]}),
        ]
    assert [answer["error"]["data"]["code"] for answer in answers[1:4]] == ["object_not_found"] * 3
    assert answers[5]["result"]["objects"] == []
    for answer in answers:
        assert SECRET not in json.dumps(answer)
        assert first not in json.dumps(answer)
    client.sandbox_release(box.sandbox)


@pytest.mark.requirement("BOX-7")
def test_concurrent_mount_change_and_registration_never_both_succeed(kept: Running, tmp_path: Path) -> None:
    """Both calls are in flight at once, on connections of their own; never are both done."""
    w, other = places(tmp_path, "w", "other")
    with connect_sync(kept.socket) as one, connect_sync(kept.socket) as two:
        for number in range(20):
            session = session_in(one, f"both-{number}", mount("/w", w))
            codes: list[str | None] = []
            configure = threading.Thread(
                target=lambda session=session, codes=codes: codes.append(
                    refused(lambda: two.session_configure(session, mounts=(mount("/w", other),)))
                )
            )
            configure.start()
            registered = refused(lambda session=session: register(one, session, mounts=(mount("/w", w),)))
            configure.join()
            assert (registered, codes[0]) in ((None, "session_in_sandbox"), ("invalid_params", None))
            (found,) = {one.session_get(session).session.mounts[0].canonical_prefix}
            assert found == str(w if registered is None else other)
