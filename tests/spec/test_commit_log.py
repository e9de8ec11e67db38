"""Commits as a log that programs follow: in the order in which they were made, with their deltas, and discarded."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from ctxd.store.verify import search
from ctxd_client import SyncClient, SyncSession, connect_sync
from ctxd_protocol.sandbox_types import SandboxView
from tests.client.running import Running
from tests.spec.refusal import refused
from tests.spec.sandboxes import inside
from tests.spec.test_commits import chain, commit, context, line


@pytest.mark.requirement("CMT-50")
def test_commits_are_listed_oldest_first_and_a_cursor_continues_with_later_ones(
    client: SyncClient, s: SyncSession
) -> None:
    made = [each.commit for each in chain(client, "1", "2", "3", session=s.id)]
    page = client.commit_list(session=s.id, oldest_first=True, limit=2)
    assert ([each.commit for each in page.commits], page.more) == (made[:2], True)
    page = client.commit_list(session=s.id, oldest_first=True, limit=2, cursor=page.next_cursor)
    assert ([each.commit for each in page.commits], page.more) == (made[2:], False)
    nothing = client.commit_list(session=s.id, oldest_first=True, cursor=page.next_cursor)
    assert (nothing.commits, nothing.next_cursor, nothing.more) == ((), None, False)
    later = commit(client, "4", session=s.id, parent=made[0]).commit
    page = client.commit_list(session=s.id, oldest_first=True, cursor=page.next_cursor)
    assert [each.commit for each in page.commits] == [later]
    newest = client.commit_list(session=s.id)
    assert ([each.commit for each in newest.commits], newest.more) == ([later, *reversed(made)], False)


@pytest.mark.requirement("CMT-51")
def test_deltas_of_many_commits_are_read_as_they_were_committed(client: SyncClient, s: SyncSession) -> None:
    texts = [f"message {number} é" for number in range(30)]
    made = [each.commit for each in chain(client, *texts, session=s.id)]
    raw = client.commit_checkpoint("own-v1", delta_base64="/wD+", session=s.id).commit
    found = client.commit_deltas([raw.commit, *reversed(made)]).deltas
    assert [delta.commit for delta in found] == [raw.commit, *reversed(made)]
    assert [delta.data for delta in found] == [b"\xff\x00\xfe", *(line(text).encode() for text in reversed(texts))]
    assert {(delta.format, delta.size == len(delta.data or b"")) for delta in found[1:]} == {("claude-code-v1", True)}
    with refused("commit_not_found"):
        client.commit_deltas([made[0], "ctx-00000000"])


@pytest.mark.requirement("CMT-51")
def test_an_answer_has_deltas_of_4_mib_and_longer_ones_are_read_in_pieces(client: SyncClient, s: SyncSession) -> None:
    long = line("x" * 5_000_000)
    some = [line(f"{number}" * 1_500_000) for number in range(3)]
    made = [client.commit_checkpoint("claude-code-v1", each, session=s.id).commit.commit for each in (long, *some)]
    found = client.commit_deltas(made).deltas
    assert [(delta.commit, delta.size) for delta in found] == [
        (id, len(text)) for id, text in zip(made[:3], (long, *some[:2]), strict=True)
    ]
    assert [delta.data for delta in found] == [None, some[0].encode(), some[1].encode()]
    (last,) = client.commit_deltas(made[3:]).deltas
    assert last.data == some[2].encode()
    assert context(client, made[0], stop=made[0]) == ["x" * 5_000_000]


@pytest.mark.requirement("CMT-51", "CMT-52")
def test_a_sandbox_reads_the_deltas_that_it_sees_and_discards_none(
    client: SyncClient, start: Callable[..., SyncSession], boxed: Callable[..., SandboxView]
) -> None:
    own, other = start(filesystem_id="box"), start()
    mine, foreign = commit(client, "mine", session=own.id).commit, commit(client, "theirs", session=other.id).commit
    with inside(boxed(own, mounts=())) as box:
        assert [delta.data for delta in box.commit_deltas([mine]).deltas] == [line("mine").encode()]
        with refused("commit_not_found"):
            box.commit_deltas([mine, foreign])
        with refused("forbidden", "method_not_found"):
            box.commit_discard([mine])
    assert context(client, mine) == ["mine"]


@pytest.mark.own_daemon
@pytest.mark.requirement("CMT-52")
def test_discarded_commits_keep_their_places_and_nothing_of_their_deltas_is_left(kept: Running, tmp_path: Path) -> None:
    secret = "a text that is discarded"
    with connect_sync(kept.socket) as client:
        client.session_create("spec", session="s")
        made = [each.commit for each in chain(client, "first", secret, "last", session="s")]
        alike = commit(client, "last", session="s").commit
        client.commit_annotate(made[1], f"about {secret}")
        assert client.commit_discard(made[1:]).discarded == 2
        shown = client.commit_show(made[1]).commit
        assert (shown.artifact_ref, shown.summary, shown.parent) == (None, "", made[0])
        assert [(delta.size, delta.data) for delta in client.commit_deltas(made[1:2]).deltas] == [(0, None)]
        assert context(client, made[0]) == ["first"]
        assert context(client, alike) == ["last"], "what another commit has as well stays"
        with refused("purged"):
            client.commit_materialize(commit=made[2], stop="root")
        assert client.commit_discard(made[1:]).discarded == 0
        with refused("commit_not_found"):
            client.commit_discard([made[0], "ctx-00000000"])
        assert context(client, made[0]) == ["first"], "a call that names an unknown commit destroys nothing"
        assert commit(client, "on", session="s", parent=made[2]).depth == 3
    kept.kill()
    assert search(kept.folder / "state", [secret.encode()], lambda *_: None) == []
    kept.start()
    with connect_sync(kept.socket) as client:
        assert client.commit_show(made[1]).commit.artifact_ref is None
        assert json.loads(client.commit_deltas([made[0]]).deltas[0].data or b"")["message"]["content"] == "first"
