"""SES: the trash: what removing a session hides and refuses, and what restoring one brings back."""

import json
import random
import subprocess
from collections.abc import Callable
from pathlib import Path

import anyio
import pytest

from ctxd_client import Conflict, InvalidCall, SyncClient, SyncSession, connect_sync
from ctxd_protocol.sandbox_types import SandboxView
from ctxd_protocol.session_types import SessionStatus
from tests.client.running import Running
from tests.crash.daemon import daemon_process
from tests.crash.wire import Gone, Refused, Wire
from tests.spec.refusal import refused
from tests.spec.sandboxes import inside
from tests.spec.sessions import call, said, sets
from tests.spec.test_commands import ctx
from tests.spec.test_durability import ctxd
from tests.spec.test_resuming import WRITES


def listed(client: SyncClient, state: SessionStatus | None = None) -> set[str]:
    return {row.session for row in client.session_list(state=state, limit=1000).sessions}


@pytest.mark.own_daemon
@pytest.mark.requirement("SES-23")
def test_a_removed_session_is_hidden_refuses_every_write_and_stays_readable(
    s: SyncSession, client: SyncClient, tree: Path
) -> None:
    for name in ("a.py", "b.py"):
        (tree / name).write_text(name)
    s.user("Hello.")
    id = s.read("a.py").object
    shown = s.assemble()
    removed = s.remove()
    assert removed.session.state == "removed"
    assert s.id not in listed(client) | listed(client, "active") | listed(client, "closed")
    assert listed(client, "removed") == {s.id}
    before, written = s.view(), client.daemon_status().store.head_seq
    calls = {**WRITES, **{name: lambda s, id, name=name: getattr(s, name)() for name in ("pause", "resume", "close")}}
    for what, write in calls.items():
        with refused("session_removed") as error:
            write(s, id)
            pytest.fail(f"{what} was taken")
        assert "session.restore" in error.value.hint
    assert s.remove().receipt is None, "it is in the trash already"
    assert client.daemon_status().store.head_seq == written
    assert s.view() == before
    assert said(s) == [(1, [("user", "Hello.")])]
    assert s.show(number=shown.number).text == shown.text
    assert client.context_current().session is None, "a session in the trash is nobody's default"
    with pytest.raises(Conflict, match=r"trash.*session\.restore"):
        client.session(s.id, agent="spec")


@pytest.mark.requirement("SES-23")
def test_a_removed_session_takes_no_commit_until_it_is_restored(client: SyncClient, s: SyncSession) -> None:
    first = client.commit_checkpoint("claude-code-v1", '{"n":1}\n', session=s.id, op_id=f"{s.id}-1").commit
    s.remove()
    with refused("session_removed"):
        client.commit_checkpoint("claude-code-v1", '{"n":2}\n', session=s.id, parent=first.commit)
    again = client.commit_checkpoint("claude-code-v1", '{"n":1}\n', session=s.id, op_id=f"{s.id}-1").commit
    assert again == first, "a resend gets its answer"
    assert client.commit_annotate(first.commit, "read").commit.summary == "read", "its commits stay"
    s.restore()
    made = client.commit_checkpoint("claude-code-v1", '{"n":2}\n', session=s.id, parent=first.commit).commit
    assert made.parent == first.commit


@pytest.mark.requirement("SES-23")
def test_a_removal_records_who_removed_the_session_when_and_through_which_connection(
    s: SyncSession, client: SyncClient
) -> None:
    s.pause()
    receipt = s.remove().receipt
    assert receipt is not None
    removal = s.view().session.removed
    assert removal is not None
    assert (removal.by, removal.state, removal.idle) == (s.view().session.principal, "paused", False)
    assert removal.via.startswith("host connection ")
    assert abs(removal.at - receipt.vt) < 60_000
    row = next(row for row in client.session_list(state="removed", limit=1000).sessions if row.session == s.id)
    assert row.removed == removal
    s.restore()
    assert s.view().session.removed is None
    then = client.session_get(s.id, tx=receipt.seq).session
    assert (then.state, then.removed) == ("removed", removal), "history keeps the removal"


@pytest.mark.requirement("SES-24")
@pytest.mark.parametrize("state", ["active", "paused", "closed"])
def test_a_restored_session_has_the_state_sets_and_chat_that_it_had(s: SyncSession, tree: Path, state: str) -> None:
    (tree / "a.py").write_text("a\n")
    s.user("Hello.")
    s.pin(s.read("a.py").object)
    if state != "active":
        getattr(s, {"paused": "pause", "closed": "close"}[state])()
    before = s.view().session, sets(s), said(s)
    s.remove()
    back = s.restore()
    assert back.session.state == state
    assert s.restore().receipt is None, "it is not in the trash"
    assert (before[0].labels, sets(s), said(s)) == (before[0].labels, *before[1:])
    if state == "active":
        s.user("And on.")


@pytest.mark.requirement("SES-23")
def test_a_sandbox_removes_and_restores_no_session_not_even_its_own(
    start: Callable[..., SyncSession], boxed: Callable[..., SandboxView]
) -> None:
    own, other = start(filesystem_id="box"), start()
    with inside(boxed(own, mounts=())) as client:
        for method in ("session_remove", "session_restore"):
            for session in (own, other):
                with pytest.raises(InvalidCall, match="method_not_found|no method"):
                    getattr(client, method)(session.id)
    assert (own.view().session.state, other.view().session.state) == ("active", "active")


@pytest.mark.requirement("SES-23")
@pytest.mark.requirement("SES-24")
def test_rm_and_restore_take_several_sessions_and_change_none_if_one_is_unknown(
    daemon: Running, start: Callable[..., SyncSession], client: SyncClient
) -> None:
    one, two = start(), start()
    assert ctx(daemon, "session", "rm", one.id, "nobody").returncode == 3
    assert {one.id, two.id} <= listed(client)
    done = ctx(daemon, "session", "rm", one.id, two.id)
    assert done.stdout.splitlines() == [f"{one.id} is removed", f"{two.id} is removed"]
    assert not {one.id, two.id} & listed(client)
    shown = ctx(daemon, "session", "show", one.id).stdout
    assert "host connection" in shown and "it was active" in shown
    late = ctx(daemon, "session", "pause", one.id)
    assert (late.returncode, late.stderr) == (
        1,
        f"ctx: session {one.id} is in the trash; run ctx session restore first\n",
    )
    back = ctx(daemon, "session", "restore", one.id, two.id, "--json")
    assert [each["session"]["state"] for each in json.loads(back.stdout)["sessions"]] == ["active", "active"]


def collected(done: subprocess.CompletedProcess[str]) -> dict[str, str]:
    """The action on each session in the JSON of ``ctxd gc``."""
    return {each["session"]: each["action"] for each in json.loads(done.stdout)["sessions"]}


@pytest.mark.requirement("SES-25")
def test_gc_dry_run_reports_the_sessions_that_gc_then_empties(kept: Running) -> None:
    with connect_sync(kept.socket) as client:
        s = client.session("gone", agent="a")
        s.user("a question")
        call(s, output=random.Random(1).randbytes(12_000).hex())
        made = client.commit_checkpoint("claude-code-v1", '{"n":1}\n', session="gone").commit
        s.assemble()
        s.remove()
        none = "0 sessions erased (0 B), 0 moved to the trash, the rest are newer\n"
        assert ctxd("gc", "--socket", kept.socket).stdout == none
        words = ("gc", "--keep", "0s", "--socket", kept.socket)
        planned = ctxd(*words, "--dry-run", "--json")
        assert collected(planned) == {"gone": "emptied"}
        size = json.loads(planned.stdout)["bytes"]
        assert size > 10_000
        assert "gone (a question): would be erased, " in ctxd(*words, "--dry-run").stdout
        for number in range(21):
            client.session(f"idle{number:02}", agent="a").close()
        listed = ctxd(*words, "--dry-run").stdout.splitlines()
        assert listed[20].startswith("idle19: would be moved to the trash, idle for ")
        assert listed[21] == "1 more would be moved to the trash; --json lists them"
        done = ctxd(*words, "--json")
        assert (collected(done).pop("gone"), json.loads(done.stdout)["bytes"]) == ("emptied", size)
        with refused("session_not_found"):
            s.restore()
        for at in ({}, {"number": 1}, {"turn": 1}):
            with refused("session_not_found"):
                client.context_show("gone", **at)
        with refused("session_not_found"):
            client.context_list("gone")
        assert client.commit_show(made.commit).commit.summary == made.summary, "commits stay"
        assert client.commit_annotate(made.commit, "still there").commit.summary == "still there"
        assert client.commit_materialize(made.commit).content == '{"n":1}\n'
    bad = ctxd("gc", "--keep", "ninety", "--socket", kept.socket)
    assert (bad.returncode, "such as 90d" in bad.stderr) == (64, True)
    away = ctxd("gc", "--socket", f"{kept.socket}-none")
    assert away.returncode == 69 and away.stderr.startswith("ctxd: ")


@pytest.mark.anyio
@pytest.mark.requirement("SES-27")
@pytest.mark.parametrize(
    "place",
    [
        pytest.param("journal.precommit@2", marks=pytest.mark.slow),
        "journal.precommit@3",
        "trash.begun",
        "purge.rewrite",
        pytest.param("trash.purge", marks=pytest.mark.slow),
        "trash.purge@2",
        "purge.truncate",
    ],
)
async def test_a_session_killed_while_emptied_is_whole_or_gone_and_the_next_gc_succeeds(
    tmp_path: Path, place: str
) -> None:
    name, _, number = place.partition("@")
    with daemon_process(tmp_path) as process:
        await process.start()
        async with await Wire.open(process.socket) as wire:
            await wire.call("session.create", agent="a", session="gone", system_prompt="prompt-of-gone")
            for n in range(150):
                await wire.call(
                    "toolcall.record", session="gone", id=f"c{n}", tool="bash", content=f"output-of-gone {n}"
                )
            await wire.call("session.remove", session="gone")
        await process.stop()
        await process.start(failpoints=f"{name}=kill@{number or 1}")
        with pytest.raises(Gone):
            async with await Wire.open(process.socket) as wire:
                await wire.call("session.gc", keep_ms=0)
                await wire.call("daemon.status")
                await anyio.sleep_forever()
        await process.ended()
        await process.start()
        async with await Wire.open(process.socket) as wire:
            found = (await wire.call("session.list", state="removed"))["sessions"]
            if found:
                view = (await wire.call("session.get", session="gone"))["session"]
                assert len(view["session_index"]) == 150
                assert (await wire.call("object.get", object="c7"))["object"]["payload"][
                    "content"
                ] == "output-of-gone 7"
            else:
                with pytest.raises(Refused, match="session_not_found"):
                    await wire.call("session.restore", session="gone")
            again = (await wire.call("session.gc", keep_ms=0))["sessions"]
            assert [each["session"] for each in again] in (["gone"], [])
            assert (await wire.call("session.gc", keep_ms=0))["sessions"] == []
        await process.stop()
        report = ctxd("verify", "--state-dir", process.state_dir, "--json")
        assert report.returncode == 0, report.stdout
        raw = b"".join(path.read_bytes() for path in process.state_dir.rglob("*") if path.is_file())
        assert b"output-of-gone" not in raw and b"prompt-of-gone" not in raw
