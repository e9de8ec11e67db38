"""Recorded assemblies: rendered again byte for byte, and repeated without a write."""

import os
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from ctxd_client import connect_sync
from ctxd_client.errors import InvalidCall
from ctxd_client.sync import SyncClient, SyncSession
from ctxd_protocol.context_types import AssembledContext
from tests.client.running import Running
from tests.spec.mounts import mount
from tests.spec.refusal import refused

Start = Callable[..., SyncSession]


@pytest.mark.own_daemon
@pytest.mark.requirement("CTX-4", "CTX-6")
def test_reasons_and_versions_are_current_even_for_unchanged_text(client: SyncClient, start: Start, tree: Path) -> None:
    (tree / "a.py").write_text("one\n")
    s, other = start(), start()
    id = s.read("a.py").object
    first = s.assemble()
    assert [(block.object, block.reason) for block in first.blocks][1:] == [(id, "read")]
    s.pin(id)
    head = client.daemon_status().store.head_seq
    pinned = s.assemble()
    assert [(block.object, block.reason) for block in pinned.blocks][1:] == [(id, "pinned")]
    assert (pinned.number, pinned.text) == (first.number, first.text)
    assert client.daemon_status().store.head_seq == head, "nothing was written"
    other.edited("a.py", content="two\n")
    back = other.edited("a.py", content="one\n").receipt
    assert back is not None
    again = s.assemble()
    assert (again.number, again.text) == (first.number, first.text)
    assert [(block.valid_time, block.tx) for block in again.blocks][1:] == [(back.vt, back.seq)]
    assert s.show(number=first.number).blocks == first.blocks, "the record stays what it was"


@pytest.mark.requirement("CTX-5")
def test_every_assembly_is_reproduced_byte_for_byte_after_later_changes_and_kills(tmp_path: Path, tree: Path) -> None:
    with Running(tmp_path, keep_state=True) as daemon:
        with connect_sync(daemon.socket) as client:
            given = _history_of_a_session(client, tree)
            assert [each.number for each in given] == list(range(1, 9)), "each step changed the context"
            _hold_to(client, given)
            daemon.kill()
            daemon.start()
            _hold_to(client, given)
            s = client.session("s")
            s.resume()
            s.user("life goes on")
            s.assemble()
        daemon.kill()
        daemon.start()
        with connect_sync(daemon.socket) as client:
            _hold_to(client, given)


def _history_of_a_session(client: SyncClient, tree: Path) -> list[AssembledContext]:
    """Assemblies between which each kind of thing changed that a context is made of."""
    for name in ("a.py", "b.py", "big.txt"):
        (tree / name).write_text(f"{name} 1\n")
    s = client.session("s", agent="a", system_prompt="one", workdir="/w", mounts={"/w": str(tree)})
    other = client.session("other", agent="b", workdir=str(tree))
    s.user("first")
    a, b = s.read("a.py").object, s.read("b.py").object
    given = [s.assemble()]
    (tree / "a.py").write_text("a.py 2\n")
    given.append(s.assemble())
    s.set_system_prompt("two")
    other.read("b.py", content="b.py by another\n")
    given.append(s.assemble())
    s.configure(mounts=[mount("/elsewhere", tree)], workdir="/elsewhere")
    given.append(s.assemble())
    (tree / "b.py").unlink()
    (tree / "big.txt").write_text("x" * 2_000_000)
    s.read("big.txt")
    given.append(s.assemble())
    s.configure(budget_tokens=300)
    s.user("second")
    for number in range(7):
        s.record(f"call-{number}", "bash", f"output {number}\n" * 20)
    given.append(s.assemble())
    s.pin("call-5")
    s.deactivate(a)
    s.pool_remove(b)
    given.append(s.assemble())
    s.configure(budget_tokens=0)
    s.activate(a)
    s.user("third")
    given.append(s.assemble())
    return given


def _hold_to(client: SyncClient, given: list[AssembledContext]) -> None:
    for each in given:
        again = client.context_show("s", number=each.number)
        assert again.text == each.text
        assert (again.sha256, again.blocks, again.plan, again.context_id) == (
            each.sha256,
            each.blocks,
            each.plan,
            each.context_id,
        )
    for turn in {each.turn for each in given}:
        newest = [each for each in given if each.turn == turn][-1]
        assert client.context_show("s", turn=turn).text == newest.text
    listed = client.context_list("s").assemblies[: len(given)]
    assert [(each.number, each.sha256) for each in listed] == [(each.number, each.sha256) for each in given]


@pytest.mark.own_daemon
@pytest.mark.requirement("CTX-6")
def test_an_unchanged_repeat_is_the_same_record_and_writes_nothing(
    client: SyncClient, s: SyncSession, tree: Path
) -> None:
    (tree / "a.py").write_text("1\n")
    s.user("go")
    s.read("a.py")
    recorded = s.assemble()
    assert recorded.receipt is not None
    first = msgspec.structs.replace(recorded, receipt=None)
    head = client.daemon_status().store.head_seq
    assert head == recorded.receipt.seq
    assert s.assemble() == first
    os.utime(tree / "a.py")
    assert s.assemble() == first, "a file that was touched and did not change is no change"
    s.notices()
    s.plan(budget_tokens=1)
    assert s.assemble() == first
    assert client.daemon_status().store.head_seq == head
    s.user("more")
    assert s.assemble().number == first.number + 1


@pytest.mark.requirement("CTX-11")
def test_a_repeated_op_id_returns_the_same_unchanged_assembly(s: SyncSession, client: SyncClient) -> None:
    s.user("one")
    recorded = s.assemble()
    first = client.context_assemble(s.id, op_id=f"op-{s.id}")
    assert first.number == recorded.number
    s.user("two")
    assert s.assemble().number == first.number + 1
    again = client.context_assemble(s.id, op_id=f"op-{s.id}")
    assert (again.number, again.text, again.receipt) == (first.number, first.text, first.receipt)
    with refused("idempotency_mismatch"):
        client.context_assemble(s.id, blocks=False, op_id=f"op-{s.id}")


@pytest.mark.requirement("CTX-11")
def test_a_repeated_op_id_returns_the_first_assembly(s: SyncSession, client: SyncClient) -> None:
    s.user("one")
    first = client.context_assemble(s.id, op_id=f"op-{s.id}")
    s.user("two")
    newer = client.context_assemble(s.id, op_id=f"other-{s.id}")
    again = client.context_assemble(s.id, op_id=f"op-{s.id}")
    assert (again.number, again.text, again.receipt) == (first.number, first.text, first.receipt)
    assert first.receipt is not None
    assert newer.number == first.number + 1
    assert [row.number for row in client.context_list(s.id).assemblies] == [first.number, newer.number]
    with refused("idempotency_mismatch"):
        client.context_assemble(s.id, blocks=False, op_id=f"op-{s.id}")


@pytest.mark.requirement("REV-4")
def test_an_assembly_is_found_by_its_id_in_any_session(client: SyncClient, s: SyncSession) -> None:
    s.user("go")
    made = s.assemble()
    client.session(agent="other").user("go")
    assert made.context_id is not None
    fork = client.session_fork(s.id).session
    (found,) = client.context_list(context_id=made.context_id).assemblies
    assert (found.session, found.number) == (s.id, made.number)
    assert client.context_list(context_id="ctx-0000000000000000").assemblies == ()
    assert client.context_list(fork, context_id=made.context_id).assemblies == (found,)
    with pytest.raises(InvalidCall, match="without a session requires a context id"):
        client.context_list()
    client.session_remove(s.id)
    assert client.context_list(context_id=made.context_id).assemblies == (found,)
