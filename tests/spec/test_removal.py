"""SES: the trash: what removing a session hides and refuses, and what restoring one brings back."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from ctxd_client import Conflict, InvalidCall, SyncClient, SyncSession
from ctxd_protocol.sandbox_types import SandboxView
from ctxd_protocol.session_types import SessionStatus
from tests.client.running import Running
from tests.spec.refusal import refused
from tests.spec.sandboxes import inside
from tests.spec.sessions import said, sets
from tests.spec.test_commands import ctx
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
