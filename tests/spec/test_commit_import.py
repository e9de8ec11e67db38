"""IMP: ``commit.import``: many commits in a call, each once however the import is cut."""

import re
import sys
from base64 import b64encode
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest

from ctxd_client.sync import SyncClient
from ctxd_protocol.methods.commits import Commit, CommitImportResult, ImportedDelta
from tests.crash.daemon import DaemonProcess, daemon_process
from tests.crash.wire import Gone, Wire
from tests.spec.refusal import refused
from tests.spec.secrecy import TOKEN

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

LINES = "claude-code-v1"


def line(text: str) -> bytes:
    return f'{{"type":"user","message":{{"content":"{text}"}}}}\n'.encode()


def sent(client: SyncClient, session: str, *texts: str, at: int | None = 1_000) -> CommitImportResult:
    """A chain of deltas, one for each text."""
    contents = [line(text) for text in texts]
    deltas = [
        ImportedDelta(size=len(content), after=number - 1 if number else None, valid_time=at)
        for number, content in enumerate(contents)
    ]
    return client.commit_import(session, LINES, b"".join(contents), deltas)


def all_of(client: SyncClient, session: str) -> dict[str, Commit]:
    return {commit.commit: commit for commit in client.commit_list(session=session, limit=1000).commits}


@pytest.fixture
def session(client: SyncClient) -> str:
    return client.session_create("a").session.session


@pytest.mark.requirement("IMP-10")
def test_the_deltas_of_a_call_are_commits_that_continue_each_other(client: SyncClient, session: str) -> None:
    contents = [line(text) for text in "abcd"]
    before = client.commit_checkpoint(LINES, "{}\n", session=session).commit.commit
    deltas = [
        ImportedDelta(
            size=len(contents[0]), parent=before, valid_time=5, summary="sum", message_count=7, token_count=9
        ),
        ImportedDelta(size=len(contents[1]), after=0, commit_type="compaction", checkpoint="compaction"),
        ImportedDelta(size=len(contents[2]), after=0, thread_id="agent"),
        ImportedDelta(size=len(contents[3])),
    ]
    made = client.commit_import(session, LINES, b"".join(contents), deltas)
    assert made.made == 4 and made.receipt is not None
    found = all_of(client, session)
    a, b, c, d = (found[commit] for commit in made.commits)
    assert [each.parent for each in (a, b, c, d)] == [before, a.commit, a.commit, None]
    assert [each.depth for each in (a, b, c, d)] == [1, 2, 2, 0]
    assert (a.created_at_ms, a.summary, a.message_count, a.token_count) == (5, "sum", 7, 9)
    assert (b.commit_type, b.message_count, c.thread_id) == ("compaction", 1, "agent")
    assert (
        client.commit_materialize(c.commit, stop="root").content == "{}\n" + contents[0].decode() + contents[2].decode()
    )


@pytest.mark.requirement("IMP-10")
def test_commits_are_there_once_however_the_calls_are_cut_and_whenever_they_come(
    client: SyncClient, session: str
) -> None:
    first = sent(client, session, "a", "b", at=None)
    again = sent(client, session, "a", "b", "c", "a", at=2_000)
    assert (again.made, again.commits[:2]) == (2, first.commits)
    third = sent(client, session, "a", "b", "c", "a", at=None)
    assert (third.made, third.receipt, third.commits) == (0, None, again.commits)
    client.commit_annotate(first.commits[0], "noted since")
    assert sent(client, session, "a", at=3_000).commits == first.commits[:1]
    assert len(all_of(client, session)) == 4
    twice = line("z") * 2
    one = ImportedDelta(size=len(line("z")))
    same = client.commit_import(session, LINES, twice, [one, one])
    assert same.made == 1 and len(set(same.commits)) == 1, "the same delta after the same parent"


@pytest.mark.requirement("IMP-10")
def test_a_call_is_written_whole_or_refused_with_its_reason(client: SyncClient, session: str) -> None:
    text = line("a")
    one = ImportedDelta(size=len(text))
    for given, deltas, reason in (
        (text, [ImportedDelta(size=len(text) - 1)], "bytes"),
        (text, [one, one], "bytes"),
        (text, [ImportedDelta(size=len(text), after=0)], r"deltas\[0\].after is 0"),
        (text * 2, [one, ImportedDelta(size=len(text), after=0, parent="ctx-00000000")], "after is 0"),
        (b"x" * len(text), [one], "line 1 is not JSON"),
        (text, [ImportedDelta(size=len(text), valid_time=2**52)], "not in the past"),
    ):
        with refused("invalid_params") as caught:
            client.commit_import(session, LINES, given, deltas)
        assert re.search(reason, caught.value.message)
    with refused("commit_not_found"):
        client.commit_import(session, LINES, text * 2, [one, ImportedDelta(size=len(text), parent="ctx-00000000")])
    with refused("session_not_found"):
        client.commit_import("nobody", LINES, text, [one])
    assert not all_of(client, session)


@pytest.mark.requirement("IMP-10")
def test_the_deltas_of_a_call_may_be_compressed(client: SyncClient, session: str) -> None:
    contents = [line("a"), line("b" * 100_000)]
    deltas = [ImportedDelta(size=len(contents[0])), ImportedDelta(size=len(contents[1]), after=0)]
    packed = zstd.compress(b"".join(contents))
    made = client.commit_import(session, LINES, packed, deltas, compression="zstd")
    assert made.made == 2
    assert client.commit_import(session, LINES, b"".join(contents), deltas).commits == made.commits
    tip = client.commit_materialize(made.commits[1])
    assert str(tip.content).encode() == b"".join(contents)
    bomb = zstd.compress(bytes(100_000_000))
    for content, given, reason in (
        (b"".join(contents), deltas, "not a Zstandard frame"),
        (packed, deltas[:1], "the deltas together"),
        (packed[:-1], deltas, "bytes"),
        (bomb, deltas, "the deltas together"),
        (bomb, [ImportedDelta(size=100_000_000)], "more than 16,777,216"),
    ):
        with refused("invalid_params") as caught:
            client.commit_import(session, LINES, content, given, compression="zstd")
        assert reason in caught.value.message


@pytest.mark.requirement("IMP-10")
def test_large_deltas_and_secrets_are_handled_like_those_of_a_checkpoint(client: SyncClient) -> None:
    session = client.session_create("a", secrets="redact").session.session
    texts = ["small", "x" * 300_000, f"key {TOKEN}", "y" * 2_000_000, f"{'z' * 400_000} {TOKEN}"]
    made = sent(client, session, *texts)
    assert made.made == 5
    found = all_of(client, session)
    for commit, text in zip(made.commits, texts, strict=True):
        content = str(client.commit_materialize(commit, stop=commit).content)
        assert TOKEN not in content and ("[REDACTED:" in content) == (TOKEN in text)
        assert len(content) >= len(text)
    assert [found[one].parent for one in made.commits] == [None, *made.commits[:-1]]
    assert all(one.depth + 1 == other.depth for one, other in pairwise(found[id] for id in made.commits))
    assert sent(client, session, *texts).made == 0


@pytest.fixture
def process(tmp_path: Path) -> Iterator[DaemonProcess]:
    with daemon_process(tmp_path) as process:
        yield process


@pytest.mark.anyio
@pytest.mark.requirement("IMP-10")
@pytest.mark.parametrize("place", ["journal.precommit", "journal.postcommit", "journal.ack"])
async def test_a_call_that_a_kill_cut_short_is_complete_once_it_is_sent_again(
    process: DaemonProcess, place: str
) -> None:
    await process.start(failpoints=f"{place}=kill@3")
    contents = [line(text) for text in "abc"]
    deltas = [{"size": len(each), **({"after": n - 1} if n else {})} for n, each in enumerate(contents)]
    call = {"session": "s", "format": LINES, "content_base64": b64encode(b"".join(contents)).decode(), "deltas": deltas}
    async with await Wire.open(process.socket) as wire:
        await wire.call("session.create", agent="a", session="s")
        with pytest.raises(Gone):
            await wire.call("commit.import", **call)
            await wire.call("session.create", agent="a", session="t")
    await process.ended()
    await process.start()
    async with await Wire.open(process.socket) as wire:
        first = await wire.call("commit.import", **call)
        again = await wire.call("commit.import", **call)
        listed = await wire.call("commit.list", session="s")
    assert (again["commits"], again["made"]) == (first["commits"], 0)
    assert len(listed["commits"]) == 3 and first["made"] in (0, 3), "all or none"
