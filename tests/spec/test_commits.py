"""Context commits: chains, listings, and the contexts that they materialise to."""

import json
from base64 import b64decode, b64encode
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import cbor2
import pytest

from ctxd_client import connect_sync
from ctxd_client.sync import SyncClient, SyncSession
from ctxd_protocol.methods.commits import Commit
from ctxd_protocol.sandbox_types import SandboxView
from tests.client.running import Running
from tests.spec.refusal import refused
from tests.spec.sandboxes import BOX, inside, wire
from tests.spec.secrecy import TOKEN

LINES = "claude-code-v1"
EVENTS = "events-v1"
KEY = "AKIAIOSFODNN7EXAMPLQ"

Start = Callable[..., SyncSession]
Boxed = Callable[..., SandboxView]


def line(text: str) -> str:
    """One line of a transcript."""
    return json.dumps({"type": "user", "message": {"content": text}}) + "\n"


def commit(client: SyncClient, text: str, **fields: Any) -> Commit:
    """A commit with one message."""
    return client.commit_checkpoint(LINES, delta=line(text), **fields).commit


def chain(client: SyncClient, *texts: str, **fields: Any) -> list[Commit]:
    """Commits that each continue the one before."""
    made: list[Commit] = []
    for text in texts:
        parent = made[-1].commit if made else None
        made.append(commit(client, text, parent=parent, **fields))
    return made


def context(client: SyncClient, tip: str, **params: Any) -> list[str]:
    """The messages of a context."""
    content = client.commit_materialize(commit=tip, **params).content or ""
    return [json.loads(each)["message"]["content"] for each in content.splitlines()]


@pytest.mark.requirement("CMT-3")
def test_a_commit_keeps_given_fields_and_gets_provenance_from_the_daemon(client: SyncClient, s: SyncSession) -> None:
    root = commit(client, "one")
    given: dict[str, Any] = {
        "commit_type": "compaction",
        "checkpoint": "compaction",
        "template": "bureau/template:reviewer",
        "ticket_id": "tkt-1",
        "thread_id": "$t",
        "summary": "The parser drops the last line.",
        "message_count": 7,
        "token_count": 40,
    }
    made = client.commit_checkpoint(LINES, delta=line("sum"), session=s.id, parent=root.commit, **given).commit
    assert {name: getattr(made, name) for name in given} == given
    assert (made.format, made.parent, made.session, made.depth) == (LINES, root.commit, s.id, 1)
    assert made.principal.startswith("uid:")
    assert made.machine
    assert (made.version, made.tags) == (1, ())
    assert client.commit_show(made.commit).commit == made
    assert client.commit_show(root.commit).children == (made.commit,)
    assert (root.message_count, root.parent, root.session) == (1, None, None)
    assert root.token_count > 0


@pytest.mark.requirement("CMT-2")
def test_the_same_commit_twice_in_a_second_is_one(client: SyncClient) -> None:
    times = {"valid_time": 1_700_000_000_123}
    first = client.commit_checkpoint(LINES, delta=line("twice"), **times)
    again = client.commit_checkpoint(LINES, delta=line("twice"), valid_time=1_700_000_000_987)
    assert again.commit.commit == first.commit.commit
    assert first.receipt is not None
    assert again.receipt is None
    later = client.commit_checkpoint(LINES, delta=line("twice"), valid_time=1_700_000_001_000)
    assert later.commit.commit != first.commit.commit


@pytest.mark.requirement("CMT-1")
def test_a_commit_whose_id_is_taken_gets_a_longer_one_and_replaces_nothing(client: SyncClient) -> None:
    """Also many agents that start together with one prompt."""
    at = 1_700_000_100_000
    made = [
        client.commit_checkpoint(LINES, line("clash"), valid_time=at, thread_id=f"$t{number}").commit
        for number in range(12)
    ]
    ids = [each.commit for each in made]
    assert [len(id) - len("ctx-") for id in ids[:3]] == [8, 12, 16]
    assert all(longer.startswith(shorter) for shorter, longer in pairwise(ids[:3]))
    assert len(set(ids)) == 12
    assert [client.commit_show(id).commit.thread_id for id in ids] == [each.thread_id for each in made]
    again = client.commit_checkpoint(LINES, line("clash"), valid_time=at + 9, thread_id="$t11")
    assert (again.commit.commit, again.receipt) == (ids[11], None)


@pytest.mark.requirement("CMT-4")
@pytest.mark.parametrize(
    ("params", "code"),
    [
        ({}, "invalid_params"),
        ({"delta": "{}\n", "delta_base64": "e30K"}, "invalid_params"),
        ({"delta": ""}, "invalid_params"),
        ({"delta_base64": "***"}, "invalid_params"),
        ({"delta": "not JSON\n"}, "invalid_params"),
        ({"delta": "[1]\n"}, "invalid_params"),
        ({"delta_base64": b64encode(b"\xff\xfe").decode()}, "invalid_params"),
        ({"format": EVENTS, "delta": "{}"}, "invalid_params"),
        ({"format": EVENTS, "delta_base64": b64encode(b"\x81").decode()}, "invalid_params"),
        ({"format": EVENTS, "delta_base64": b64encode(b"\x80\x80").decode()}, "invalid_params"),
        ({"format": EVENTS, "delta_base64": b64encode(b"\xa0").decode()}, "invalid_params"),
        ({"format": EVENTS, "delta_base64": b64encode(b"\x9b" + b"\x7f" * 8).decode()}, "invalid_params"),
        ({"format": "", "delta": "x"}, "invalid_params"),
        ({"delta": "{}\n", "parent": "ctx-00000000"}, "commit_not_found"),
        ({"delta": "{}\n", "parent": "HEAD"}, "invalid_params"),
        ({"delta": "{}\n", "session": "nowhere"}, "session_not_found"),
        ({"delta": "{}\n", "commit_type": "merge"}, "invalid_params"),
        ({"delta": "{}\n", "checkpoint": "sometimes"}, "invalid_params"),
        ({"delta": "{}\n", "principal": "somebody"}, "invalid_params"),
        ({"delta": "{}\n", "valid_time": 2**50}, "invalid_params"),
        ({"delta": "{}\n", "message_count": -1}, "invalid_params"),
    ],
)
def test_a_commit_that_breaks_a_rule_is_refused(
    daemon: Running, client: SyncClient, params: dict[str, Any], code: str
) -> None:
    before = client.commit_list(limit=1)
    with wire(daemon) as call:
        answer = call("commit.checkpoint", {"format": LINES, **params})
    assert answer["error"]["data"]["code"] == code
    assert client.commit_list(limit=1) == before


@pytest.mark.requirement("CMT-5")
def test_an_acknowledged_commit_is_there_after_a_kill_and_a_resend_is_the_same_commit(kept: Running) -> None:
    large = line("x" * 3_000_000)
    with connect_sync(kept.socket) as client:
        root = client.commit_checkpoint(LINES, delta=line("small"), op_id="one").commit
        tip = client.commit_checkpoint(LINES, delta=large, parent=root.commit, op_id="two").commit
    kept.kill()
    kept.start()
    with connect_sync(kept.socket) as client:
        assert client.commit_checkpoint(LINES, delta=line("small"), op_id="one").commit == root
        with refused("idempotency_mismatch"):
            client.commit_checkpoint(LINES, delta=line("other"), op_id="one")
        assert client.commit_history(tip.commit).commits == (tip, root)
        assert client.commit_materialize(commit=tip.commit).content == line("small") + large
        assert len(client.commit_list().commits) == 2


@pytest.mark.requirement("CMT-6")
def test_history_goes_back_to_the_root_in_pages(client: SyncClient) -> None:
    made = chain(client, *map(str, range(25)))
    found: list[str] = []
    next_commit: str | None = made[-1].commit
    while next_commit is not None:
        page = client.commit_history(next_commit, depth=7)
        found += [each.commit for each in page.commits]
        next_commit = page.next_commit
    assert found == [each.commit for each in reversed(made)]
    assert [each.depth for each in made] == list(range(25))


@pytest.mark.requirement("CMT-7", "CMT-16")
def test_commits_are_filtered_and_listed_newest_first(client: SyncClient, s: SyncSession) -> None:
    root = commit(client, "root", session=s.id, summary="begun")
    left = commit(client, "left", session=s.id, parent=root.commit)
    right = commit(client, "right", session=s.id, parent=root.commit)
    end = commit(client, "end", session=s.id, parent=right.commit)
    commit(client, "elsewhere")

    def ids(**wanted: Any) -> list[str]:
        return [each.commit for each in client.commit_list(**wanted).commits]

    assert ids(session=s.id) == [end.commit, right.commit, left.commit, root.commit]
    assert ids(parent=root.commit) == [right.commit, left.commit]
    assert ids(session=s.id, tips=True) == [end.commit, left.commit]
    assert ids(session=s.id, without_summary=True) == [end.commit, right.commit, left.commit]
    assert ids(session=s.id, principal=root.principal) == ids(session=s.id)
    assert ids(session=s.id, principal="nobody") == []
    assert context(client, left.commit) == ["root", "left"]
    assert context(client, end.commit) == ["root", "right", "end"]
    paged: list[str] = []
    cursor: str | None = None
    while page := client.commit_list(session=s.id, limit=1, cursor=cursor):
        paged += [each.commit for each in page.commits]
        if (cursor := page.next_cursor) is None:
            break
    assert paged == ids(session=s.id)
    with refused("invalid_params"):
        client.commit_list(cursor="yesterday")
    with refused("session_not_found"):
        client.commit_list(session="nowhere")
    with refused("commit_not_found"):
        client.commit_list(parent="ctx-00000000")


@pytest.mark.requirement("CMT-8")
def test_a_summary_changes_and_everything_else_stays(client: SyncClient, s: SyncSession) -> None:
    made = commit(client, "one", session=s.id, summary="first")
    changed = client.commit_annotate(made.commit, "second", op_id=f"{s.id}-a").commit
    assert changed == client.commit_show(made.commit).commit
    assert changed.summary == "second"
    fields = [name for name in made.__struct_fields__ if getattr(made, name) != getattr(changed, name)]
    assert fields == ["summary", "tx"]
    assert client.commit_show(made.commit, tx=made.tx).commit == made
    with refused("commit_not_found"):
        client.commit_show(made.commit, tx=made.tx - 1)
    assert client.commit_annotate(made.commit, "second").receipt is None
    assert client.commit_annotate(made.commit, "second", op_id=f"{s.id}-a").commit == changed
    assert client.commit_annotate(made.commit, "").commit.summary == ""
    assert [each.commit for each in client.commit_list(session=s.id, without_summary=True).commits] == [made.commit]
    assert context(client, made.commit) == ["one"]
    with refused("commit_not_found"):
        client.commit_annotate("ctx-00000000", "x")


@pytest.mark.requirement("CMT-9")
def test_a_tag_is_on_one_commit_and_moves_if_it_is_where_it_is_expected(client: SyncClient, s: SyncSession) -> None:
    one, two = chain(client, "one", "two", session=s.id)
    other = commit(client, "no session")
    client.commit_tag(other.commit, "good")
    assert client.commit_tag(one.commit, "good", expected="").commit.tags == ("good",)
    assert client.commit_tag(one.commit, "better").commit.tags == ("better", "good")
    with refused("tag_conflict"):
        client.commit_tag(two.commit, "good", expected="")
    with refused("tag_conflict"):
        client.commit_tag(two.commit, "good", expected=other.commit)
    assert client.commit_tag(two.commit, "good", expected=one.commit).commit.tags == ("good",)
    assert client.commit_show(one.commit).commit.tags == ("better",)
    assert [each.commit for each in client.commit_list(session=s.id, tag="good").commits] == [two.commit]
    assert client.commit_tag(one.commit, "good", remove=True).receipt is None
    assert client.commit_tag(two.commit, "good", remove=True).commit.tags == ()
    assert client.commit_list(session=s.id, tag="good").commits == ()
    assert client.commit_show(other.commit).commit.tags == ("good",)


@pytest.mark.requirement("CMT-11")
def test_a_context_contains_each_delta_once_for_every_stop_of_the_walk(client: SyncClient) -> None:
    tip, ids = None, {}
    for text, kind in (("A", "delta"), ("B", "delta"), ("SUM", "compaction"), ("D", "delta"), ("SNAP", "snapshot")):
        tip = ids[text] = commit(client, text, parent=tip, commit_type=kind).commit
    tip = commit(client, "F", parent=tip).commit
    assert context(client, tip) == ["SNAP", "F"]
    assert context(client, tip, stop="root") == ["A", "B", "D", "F"]
    assert context(client, tip, stop=ids["SUM"]) == ["SUM", "D", "F"]
    assert context(client, tip, stop=ids["B"]) == ["B", "D", "F"]
    assert context(client, tip, stop=tip) == ["F"]
    assert context(client, ids["D"]) == ["SUM", "D"]
    made = client.commit_materialize(commit=tip, stop="root")
    assert (made.commit_count, made.message_count, made.chain_message_count, made.stop) == (6, 4, 6, ids["A"])
    assert (made.format, made.size) == (LINES, len(made.content or ""))
    empty = client.commit_materialize()
    assert (empty.content, empty.commit_count, empty.size, empty.commit) == ("", 0, 0, None)
    with refused("invalid_params"):
        context(client, ids["A"], stop=tip)
    with refused("invalid_params"):
        context(client, tip, stop="ctx-00000000")
    with refused("commit_not_found"):
        context(client, "ctx-00000000")
    assert client.commit_materialize(tip, format=EVENTS).tier == "fields"


@pytest.mark.requirement("CMT-11")
def test_deltas_in_cbor_are_joined_to_one_array(client: SyncClient) -> None:
    tip, said = None, []
    for size in (3, 30, 300):
        items = [{"type": "response", "response": {"content": f"{size} {n}"}, "timestamp": n} for n in range(size)]
        said += items
        delta = b64encode(cbor2.dumps(items, canonical=True)).decode()
        tip = client.commit_checkpoint(EVENTS, delta_base64=delta, parent=tip).commit.commit
    made = client.commit_materialize(commit=tip)
    assert b64decode(made.content_base64 or "") == cbor2.dumps(said, canonical=True)
    assert (made.message_count, made.content) == (333, None)


@pytest.mark.requirement("CMT-18")
def test_a_chain_of_several_formats_is_translated_and_unknown_ones_are_given_as_they_are(client: SyncClient) -> None:
    items = [{"type": "response", "response": {"content": "done"}, "timestamp": 1}]
    events = b64encode(cbor2.dumps(items, canonical=True)).decode()
    first = commit(client, "asked")
    mixed = client.commit_checkpoint(EVENTS, delta_base64=events, parent=first.commit).commit
    made = client.commit_materialize(mixed.commit)
    assert (made.format, made.tier, made.message_count) == (LINES, "fields", 2)
    read = client.commit_materialize(mixed.commit, format="narrative-v1")
    assert (read.tier, read.content_base64) == ("narrative", None)
    assert "asked" in (read.content or "")
    assert "done" in (read.content or "")
    raw = client.commit_checkpoint("codex-v9", delta="anything", parent=mixed.commit).commit
    made = client.commit_materialize(raw.commit, format="raw-v1")
    assert made.tier == "raw"
    lines = [json.loads(each) for each in (made.content or "").splitlines()]
    assert [each["format"] for each in lines] == [LINES, EVENTS, "codex-v9"]
    assert lines[-1]["text"] == "anything"
    with refused("unsupported"):
        client.commit_materialize(raw.commit, format="no-such-format")


@pytest.mark.requirement("CMT-30")
def test_a_context_of_many_mebibytes_is_read_in_pieces(client: SyncClient) -> None:
    tip: str | None = None
    large = [f"{number}" * 3_000_000 for number in range(1, 8)]
    for text in large:
        tip = client.commit_checkpoint(LINES, line(text), parent=tip).commit.commit
    with refused("too_large"):
        client.commit_materialize(tip)
    content: bytes = b""
    offset: int | None = 0
    while offset is not None:
        made = client.commit_materialize(tip, limit=4 * 1024 * 1024, offset=offset)
        content += b64decode(made.content_base64 or "")
        offset = made.next_offset
    assert content.decode() == "".join(map(line, large))
    assert made.size == len(content)


@pytest.mark.requirement("CMT-12")
def test_a_context_that_was_materialised_before_is_taken_from_the_cache(client: SyncClient) -> None:
    tip = chain(client, "one", "two")[-1].commit
    first = client.commit_materialize(commit=tip)
    again = client.commit_materialize(commit=tip)
    assert (first.cached, again.cached) == (False, True)
    assert again.content == first.content
    assert client.commit_materialize(commit=tip, content=False).content is None
    assert not client.commit_materialize(commit=tip, stop="root").cached


@pytest.mark.requirement("CMT-12")
def test_a_purge_empties_the_cache(client: SyncClient, s: SyncSession) -> None:
    tip = commit(client, "purge elsewhere").commit
    client.commit_materialize(commit=tip)
    call = s.record(f"{s.id}-c", "bash", "secret output", args={}).object
    client.object_purge(call)
    assert not client.commit_materialize(commit=tip).cached


@pytest.mark.requirement("CMT-13")
@pytest.mark.parametrize("policy", ["flag", "redact"])
def test_secrets_in_deltas_are_treated_by_the_policy_of_the_session(
    client: SyncClient, start: Start, policy: Any
) -> None:
    session = start(secrets=policy).id
    data = json.dumps({"token": KEY}).encode()
    events = [{"type": "output", "output": {"raw": data}}, {"type": "prompt", "prompt": {"content": f"use {KEY}"}}]
    cbor = b64encode(cbor2.dumps(events, canonical=True)).decode()
    made = [
        client.commit_checkpoint(LINES, delta=line("plain") + line(f"use {KEY}"), session=session, summary=KEY),
        client.commit_checkpoint(EVENTS, delta_base64=cbor, session=session),
        client.commit_checkpoint("unknown-v1", delta=f"use {KEY}", session=session),
        client.commit_checkpoint("pi-v1", delta=line(f"use {KEY}"), session=session),
    ]
    for each in made:
        shown = client.commit_materialize(commit=each.commit.commit)
        content = (shown.content or "").encode() or b64decode(shown.content_base64 or "")
        assert (KEY.encode() in content) == (policy == "flag")
        assert (b"[REDACTED:" in content) == (policy == "redact")
        if each.commit.format == EVENTS:
            assert len(cbor2.loads(content)) == 2
        if each.commit.format == LINES:
            assert line("plain").encode() in content
            assert (KEY in each.commit.summary) == (policy == "flag")
    odd = b64encode(b"\xff" + KEY.encode()).decode()
    if policy == "redact":
        with refused("unsupported"):
            client.commit_checkpoint("unknown-v1", delta_base64=odd, session=session)
    else:
        client.commit_checkpoint("unknown-v1", delta_base64=odd, session=session)


@pytest.mark.requirement("CMT-14")
def test_a_sandbox_reaches_the_commits_of_its_own_sessions_alone(
    client: SyncClient, start: Start, boxed: Boxed
) -> None:
    own, foreign = start(filesystem_id=BOX, workdir="/workspace"), start()
    theirs = commit(client, "the host's own", session=foreign.id, summary="secret plan")
    loose = commit(client, "of no session")
    across = commit(client, "continues a foreign one", session=own.id, parent=theirs.commit)
    mine = commit(client, "given", session=own.id)
    box = boxed(own, mounts=())
    with inside(box) as agent:
        made = agent.commit_checkpoint(LINES, delta=line("inside"), parent=mine.commit).commit
        assert (made.session, made.principal, made.machine) == (own.id, box.principal, "")
        assert context(agent, made.commit) == ["given", "inside"]
        assert [each.commit for each in agent.commit_history(made.commit).commits] == [made.commit, mine.commit]
        listed = {each.commit for each in agent.commit_list().commits}
        assert listed == {made.commit, mine.commit, across.commit}
        newest = agent.commit_resolve().commit
        assert newest is not None
        assert newest.commit == made.commit
        assert agent.commit_resolve(principal=theirs.principal).commit == agent.commit_show(mine.commit).commit
        attempts: list[Callable[[str], Any]] = [
            agent.commit_show,
            agent.commit_history,
            lambda id: agent.commit_materialize(commit=id),
            lambda id: agent.commit_annotate(id, "mine now"),
            lambda id: agent.commit_tag(id, "mine"),
            lambda id: agent.commit_list(parent=id),
            lambda id: agent.commit_checkpoint(LINES, delta=line("x"), parent=id),
        ]
        for attempt in attempts:
            told = set()
            for id in (theirs.commit, loose.commit, "ctx-00000000"):
                with refused("commit_not_found") as caught:
                    attempt(id)
                told.add((caught.value.message.replace(id, "ID"), caught.value.hint))
            assert len(told) == 1
        reached = agent.commit_history(across.commit)
        assert ([each.commit for each in reached.commits], reached.next_commit) == ([across.commit], None)
        with refused("commit_not_found"):
            agent.commit_materialize(commit=across.commit)
        for call in (agent.commit_list, agent.commit_resolve):
            with refused("session_not_found"):
                call(session=foreign.id)
        with refused("session_not_found"):
            agent.commit_checkpoint(LINES, delta=line("x"), session=foreign.id)
        with refused("invalid_params"):
            agent.commit_checkpoint(LINES, delta=line("x"), valid_time=1)
        # What the host has materialised is not in the sandbox's cache.
    assert context(client, across.commit) == ["the host's own", "continues a foreign one"]
    with inside(box) as agent, refused("commit_not_found"):
        agent.commit_materialize(commit=across.commit)


@pytest.mark.requirement("CMT-6", "CMT-7")
def test_pages_end_early_where_summaries_are_long(client: SyncClient, s: SyncSession) -> None:
    made = chain(client, *map(str, range(20)), session=s.id, summary="x" * 60_000)
    wanted = [each.commit for each in reversed(made)]
    page = client.commit_history(made[-1].commit, depth=20)
    assert 1 < len(page.commits) < 20
    assert page.next_commit == page.commits[-1].parent
    rest = client.commit_history(page.next_commit or "", depth=20 - len(page.commits)).commits
    assert [each.commit for each in (*page.commits, *rest)][:20] == wanted[: len(page.commits) + len(rest)]
    found: list[str] = []
    cursor: str | None = None
    while True:
        listed = client.commit_list(session=s.id, cursor=cursor)
        found += [each.commit for each in listed.commits]
        if (cursor := listed.next_cursor) is None:
            break
    assert found == wanted


@pytest.mark.requirement("CMT-9")
def test_session_commits_do_not_hide_a_tag_on_a_commit_without_session(client: SyncClient, start: Start) -> None:
    loose = commit(client, "loose")
    client.commit_tag(loose.commit, "shared-name")
    for _ in range(3):
        client.commit_tag(commit(client, "of a session", session=start().id).commit, "shared-name")
    other = commit(client, "other loose")
    with refused("tag_conflict"):
        client.commit_tag(other.commit, "shared-name", expected="")
    client.commit_tag(other.commit, "shared-name", expected=loose.commit)
    assert client.commit_show(loose.commit).commit.tags == ()


@pytest.mark.requirement("CMT-19")
@pytest.mark.parametrize("size", [1, 40_000])
def test_a_purged_commit_keeps_its_place_and_loses_its_text(kept: Running, size: int) -> None:
    secret = "the-leaked-value " * size
    with connect_sync(kept.socket) as client:
        session = client.session("s", agent="a")
        one, two, three = chain(client, "one", secret, "three", session="s", summary="the-leaked-value is in it")
        text = client.commit_checkpoint("plain", f"shared {secret}", session="s", parent=three.commit).commit
        after = commit(client, "after", session="s", parent=text.commit)
        client.commit_materialize(two.commit)
        proof = client.object_purge(f"commit:{two.commit}")
        assert (proof.objects, proof.complete) == ((f"commit:{two.commit}",), True)
        call = session.record("call", "bash", f"shared {secret}").object
        client.object_purge(call)
        for each in (two, text):
            shown = client.commit_show(each.commit).commit
            assert (shown.artifact_ref, shown.summary, shown.parent) == (None, "", each.parent)
            with refused("purged"):
                client.commit_materialize(each.commit)
        assert context(client, after.commit, stop=after.commit) == ["after"]
        assert context(client, one.commit) == ["one"]
        assert len(client.commit_history(after.commit).commits) == 5
        client.commit_annotate(one.commit, "")
        client.commit_annotate(three.commit, "")
        assert client.commit_annotate(two.commit, "purged").commit.artifact_ref is None
        commit(client, "goes on", session="s", parent=two.commit)
    kept.kill()
    kept.start()
    with connect_sync(kept.socket) as client:
        assert client.commit_show(two.commit).commit.depth == 1
        assert len(client.commit_list(session="s").commits) == 6


@pytest.mark.requirement("CMT-22")
def test_a_delta_of_any_size_is_committed_by_the_address_of_its_artifact(client: SyncClient, s: SyncSession) -> None:
    root = commit(client, "root", session=s.id)
    for text in ("x", "large " * 1_000_000):
        delta = line(text + s.id)
        put = client.artifact_put(data=delta.encode())
        made = client.commit_checkpoint(
            LINES, artifact=put.artifact, session=s.id, parent=root.commit, op_id=text.strip()[:5] + s.id
        )
        assert (made.commit.artifact_ref, made.commit.message_count) == (put.artifact, 1)
        again = client.commit_checkpoint(
            LINES, artifact=put.artifact, session=s.id, parent=root.commit, op_id=text.strip()[:5] + s.id
        )
        assert again.commit == made.commit
        found = client.commit_materialize(commit=made.commit.commit)
        assert found.content == line("root") + delta
        noted = client.commit_annotate(made.commit.commit, "read").commit
        assert (noted.summary, noted.artifact_ref) == ("read", put.artifact)
        assert client.artifact_stat(put.artifact).references == 1, "the commit keeps it"
        assert put.artifact not in client.artifact_gc(grace_ms=0).removed
        assert client.commit_materialize(commit=made.commit.commit).content == line("root") + delta
    for short in (put.artifact[:12], f"art-{put.artifact[:12]}"):
        named = client.commit_checkpoint(LINES, artifact=short, parent=root.commit, thread_id=short).commit
        assert named.artifact_ref == put.artifact, "the whole address is stored"
    for missing in ("0" * 64, "art-000000000000", "tag:no/such"):
        with refused("artifact_not_found"):
            client.commit_checkpoint(LINES, artifact=missing)
    with refused("invalid_params"):
        client.commit_checkpoint(LINES, artifact="no address")
    for given in ({}, {"delta": "x", "artifact": put.artifact}, {"delta": "x", "delta_base64": "eA=="}):
        with refused("invalid_params"):
            client.commit_checkpoint(LINES, **given)
    wrong = client.artifact_put(data=b"no JSON\n" * 200_000)
    with refused("invalid_params"):
        client.commit_checkpoint(LINES, artifact=wrong.artifact)


@pytest.mark.requirement("CMT-22")
@pytest.mark.parametrize("times", [1, 100_000])
def test_a_redacted_copy_of_an_artifact_with_a_secret_is_committed(client: SyncClient, times: int) -> None:
    session = client.session_create("a", secrets="redact").session.session
    put = client.artifact_put(data=line(f"the key is {KEY} " + "word " * times).encode())
    made = client.commit_checkpoint(LINES, artifact=put.artifact, session=session).commit
    assert made.artifact_ref != put.artifact
    content = client.commit_materialize(commit=made.commit).content or ""
    assert KEY not in content
    assert "[REDACTED:" in content


@pytest.mark.requirement("CMT-22")
def test_a_sandbox_commits_no_artifact_of_others(client: SyncClient, boxed: Boxed) -> None:
    box = boxed()
    put = client.artifact_put(data=line("of the host").encode())
    with inside(box) as agent, refused("invalid_params"):
        agent.commit_checkpoint(LINES, artifact=put.artifact)


@pytest.mark.requirement("FMT-7")
def test_a_delta_that_expands_or_hides_a_secret_is_refused_or_redacted(client: SyncClient) -> None:
    hidden = client.session_create("demo", secrets="redact").session.session
    shared, refers = bytes.fromhex("d81c"), bytes.fromhex("d81d")
    levels = [shared + b"\x81\x01", *(shared + b"\x8a" + (refers + bytes([level])) * 10 for level in range(9))]
    bomb = b"\x81" + bytes([0x80 + len(levels)]) + b"".join(levels)
    for content in (bomb, bytes.fromhex("81a2616101616102")):
        with refused("invalid_params"):
            client.commit_checkpoint("events-v1", delta_base64=b64encode(content).decode(), session=hidden)
    for text in (f'{{"a":"{TOKEN}","a":"x"}}', f'{{"type":"user","x":"\\ud83d {TOKEN}"}}'):
        made = client.commit_checkpoint(LINES, text + "\n", session=hidden, template=f"of {TOKEN}").commit
        kept = client.commit_materialize(made.commit, stop=made.commit).content or ""
        assert TOKEN not in kept + made.template and json.loads(kept)
