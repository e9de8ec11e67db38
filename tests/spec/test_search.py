"""SRC: what a search finds, and what it must not find."""

import json
import random
import shlex
import shutil
import sqlite3
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal

import pytest

from ctxd_client import CallFailed, InvalidCall, NotFound, SyncClient, SyncSession, connect_sync
from ctxd_protocol.event_types import CompactionEvent, ResponseEvent, ThinkingEvent, ToolCallEvent, ToolResultEvent
from ctxd_protocol.methods.search import SearchHit
from ctxd_protocol.sandbox_types import SandboxView
from tests.client.running import Running
from tests.crash.daemon import daemon_process
from tests.spec.sandboxes import inside
from tests.spec.test_commands import ctx
from tests.spec.test_durability import ctxd
from tests.waiting import block_until

WAIT_S = 20.0

LINE = '{"type":"user","uuid":"%s","message":{"role":"user","content":"%s"}}\n'


def level(client: SyncClient) -> None:
    """Wait until the index has all that was written."""
    block_until(lambda: client.daemon_status().search.lag_rows == 0, WAIT_S)


def found(client: SyncClient, query: str, **conditions: Any) -> list[SearchHit]:
    level(client)
    return list(client.search_query(query, **conditions).hits)


def kinds(client: SyncClient, query: str, **conditions: Any) -> set[str]:
    return {hit.kind for hit in found(client, query, **conditions)}


@pytest.mark.requirement("SRC-1")
def test_every_kind_of_text_is_found_and_no_content_of_files(s: SyncSession, client: SyncClient, tree: Path) -> None:
    s.user("quokka1 says the user")
    s.append(
        events=[
            ResponseEvent(text="quokka2 says the model"),
            ThinkingEvent(text="quokka3 thinks the model"),
            ToolCallEvent(call="c", tool="grep", args={"pattern": "quokka4", "paths": ["src/deep.py"]}),
            ToolResultEvent(call="c", text="quokka5 is in line 7"),
            CompactionEvent(summary="quokka6 in short"),
        ]
    )
    client.toolcall_record(s.id, f"{s.id}-c", "bash", "quokka7 printed\n", args={"command": "echo quokka8"})
    labelled = client.session_create("spec", session=f"{s.id}-l", workdir=str(tree), labels={"title": "quokka9 work"})
    client.session_annotate(s.id, title="quokka13 titled")
    delta = LINE % ("u1", "quokka10 was imported")
    client.commit_checkpoint("claude-code-v1", delta, session=s.id, summary="quokka11 summed up")
    (tree / "a.txt").write_text("quokka12 in a file\n")
    s.read("a.txt")
    expected = {
        1: "prompt", 2: "response", 3: "thinking", 4: "tool_call tool_result", 5: "tool_result", 6: "compaction",
        7: "tool_call", 8: "tool_call", 9: "session", 10: "prompt", 11: "summary", 13: "session",
    }  # fmt: skip
    for number, kind in expected.items():
        assert kinds(client, f"quokka{number}") == {*kind.split()}, number
    assert kinds(client, "quokka12") == set()
    assert found(client, "quokka9")[0].session == labelled.session.session


@pytest.mark.requirement("SRC-1")
def test_the_newest_label_of_a_session_and_the_newest_output_of_a_call_count(
    client: SyncClient, s: SyncSession, tree: Path
) -> None:
    client.commit_checkpoint("claude-code-v1", LINE % ("u", "wombat1"), session=s.id, summary="wombat2")
    commit = found(client, "wombat1")[0].commit
    assert commit is not None
    client.commit_annotate(commit, "wombat3")
    assert (found(client, "wombat2"), len(found(client, "wombat3")), len(found(client, "wombat1"))) == ([], 1, 1)


@pytest.mark.requirement("SRC-2")
def test_a_query_has_only_words_phrases_and_prefixes(s: SyncSession, client: SyncClient) -> None:
    s.user("Édgar's numbat_crossing at src/numbat.py, NOT near OR there: don't")
    for query in (
        "numbat", "NUMBAT", "edgar", "there near", '"numbat crossing"', "numbat_crossing", "numbat_cross*",
        "src/numbat.py", '"src numbat py"', "numb*", '"numbat cross"*', "there: near", "numbat not or",
        "numbat (near) ^src", "don't numbat", "* numbat", "numbat: -src", "{numbat} + py",
    ):  # fmt: skip
        assert len(found(client, query, session=s.id)) == 1, query
    for query in ("numbat elsewhere", '"crossing numbat"', "umbat", "num", "numbat NOT there2", "numbat AND there"):
        assert found(client, query, session=s.id) == [], query
    for query, reason in (
        ('"numbat', "quote at character 1"),
        ("n*", "too short"),
        ("-- ::", "no word"),
        ('""', "no word"),
        (" ".join(f"w{n}" for n in range(33)), "the maximum is 32"),
    ):
        with pytest.raises(InvalidCall, match=reason) as refused:
            client.search_query(query)
        assert refused.value.hint
    for query in ("", "x" * 1001):
        with pytest.raises(InvalidCall):
            client.search_query(query)


@pytest.mark.requirement("SRC-3")
def test_a_search_can_be_limited_in_every_way(s: SyncSession, client: SyncClient, start: Any, tree: Path) -> None:
    other = start()
    other.user("bilby elsewhere")
    s.user("bilby asked")
    client.toolcall_record(s.id, f"{s.id}-1", "bash", "bilby\n", args={"command": "cat src/net.py"}, valid_time=1000)
    client.toolcall_record(s.id, f"{s.id}-2", "read", "bilby\n", args={"path": "/w/src/net.py"}, status="fail")
    s.append(
        events=[
            ToolCallEvent(call="c", tool="bash", args="make"),
            ToolResultEvent(call="c", text="bilby broke", is_error=True),
        ]
    )

    def places(**conditions: Any) -> set[str | None]:
        return {hit.object or hit.kind for hit in found(client, "bilby", session=s.id, **conditions)}

    one, two = f"{s.id}-1", f"{s.id}-2"
    assert places() == {"prompt", "tool_result", one, two}
    assert places(tool="bash") == {one, "tool_result"}
    assert places(file="src/net.py") == places(file="net.py") == {one, two}
    assert places(file="/w/src/net.py") == {two}
    assert places(file="make", kind="tool_result") == {"tool_result"}
    assert places(error=True) == {two, "tool_result"}
    assert places(error=True, tool="read") == {two}
    assert places(until=1000) == {one}
    assert places(since=1001) == {"prompt", "tool_result", two}
    assert places(kind="prompt") == {"prompt"}
    assert places(tool="nothing") == set()
    labelled = start(labels={"harness": "codex"})
    labelled.user("bilby by codex")
    assert {hit.session for hit in found(client, "bilby", harness="codex")} == {labelled.id}
    assert found(client, "bilby", harness="codex", session=s.id) == found(client, "bilby", harness="none") == []
    assert {hit.session for hit in found(client, "bilby", project=str(tree))} == {s.id, other.id, labelled.id}
    assert {hit.session for hit in found(client, "bilby codex", project=tree.name)} <= {labelled.id}
    assert found(client, "bilby", project="/nowhere/else") == []
    with pytest.raises(NotFound):
        client.search_query("bilby", session="no-such")
    with pytest.raises(InvalidCall):
        client.search_query("bilby", file="///")


@pytest.mark.requirement("SRC-3")
def test_pages_contain_every_result_once_while_text_is_added(s: SyncSession, client: SyncClient) -> None:
    for number in range(23):
        s.user(f"dugong{'  dugong' * (number % 5)} number {number}")
    level(client)
    for order in ("best", "newest"):
        seen: list[str] = []
        cursor: str | None = None
        while True:
            page = client.search_query("dugong", session=s.id, order=order, limit=5, cursor=cursor)
            seen += [hit.snippet for hit in page.hits]
            cursor = page.next_cursor
            if cursor is None:
                break
            s.user("dugong dugong dugong, late")
            level(client)
        numbers = [int(text.rsplit(" ", 1)[1]) for text in seen if not text.endswith("late")]
        assert sorted(numbers) == list(range(23)), order
        if order == "newest":
            assert numbers == sorted(numbers, reverse=True)
    scores = [hit.score for hit in found(client, "dugong", session=s.id)]
    assert scores == sorted(scores, reverse=True)
    for cursor in ("x", "1", "1.2.3", "-1.2"):
        with pytest.raises(InvalidCall, match="cursor"):
            client.search_query("dugong", cursor=cursor)


@pytest.mark.requirement("SRC-3")
@pytest.mark.parametrize("order", ["best", "newest"])
def test_added_and_changed_texts_move_no_result_to_another_page(
    s: SyncSession, client: SyncClient, order: Literal["best", "newest"]
) -> None:
    chosen = random.Random(7)
    for number in range(240):  # More than are put in order for the first page.
        words = ["dugong"] * chosen.randrange(1, 4) + ["word"] * chosen.randrange(200)
        s.user(f"{' '.join(words)} number {number}")
    made = [client.commit_checkpoint("claude-code-v1", LINE % (n, "x"), session=s.id, summary=f"dugong commit {n}")
            for n in range(10)]  # fmt: skip
    unchanged = [each.commit.commit for each in made[:3]]
    level(client)
    seen: list[str | int | None] = []
    cursor: str | None = None
    while True:
        page = client.search_query("dugong", session=s.id, order=order, limit=40, cursor=cursor)
        seen += [hit.commit or hit.turn for hit in page.hits]
        if (cursor := page.next_cursor) is None:
            break
        if len(made) > 3:
            client.commit_annotate(made.pop().commit.commit, summary="dugong new")
        for _ in range(5):
            s.user("dugong " * chosen.randrange(1, 50) + "new")
        level(client)
    assert len(seen) == len(set(seen)) and set(range(1, 241)) <= set(seen)
    assert set(unchanged) <= set(seen)
    assert not client.search_query("dugong", session=s.id, cursor="100000.1").hits


@pytest.mark.requirement("SRC-2")
def test_a_word_is_found_in_a_long_text_behind_another_word_that_contains_it(
    s: SyncSession, client: SyncClient
) -> None:
    filler = "word " * 5_000
    s.user(f"concatenate bobcat {filler} the\ncat sat {filler}")
    for query in ("cat", '"the cat"', "ca*", "CAT sat"):
        (hit,) = found(client, query, session=s.id)
        assert hit.matches and "cat" in hit.snippet


@pytest.mark.requirement("SRC-4")
def test_each_result_has_a_snippet_and_a_command_that_shows_its_place(
    daemon: Running, s: SyncSession, client: SyncClient, tree: Path
) -> None:
    s.user("first")
    s.user("word " * 3000 + "the pademelon stands here" + " word" * 3000)
    client.toolcall_record(s.id, f"{s.id}-c", "bash", "pademelon printed\n", args={"command": "ls"})
    client.commit_checkpoint("claude-code-v1", LINE % ("u", "pademelon imported"), session=s.id)
    client.session_create("spec", session=f"{s.id}-l", workdir=str(tree), labels={"title": "pademelon work"})
    hits = found(client, "pademelon")
    assert {hit.kind for hit in hits} == {"prompt", "tool_call", "session"}
    assert {(hit.turn, hit.commit is None) for hit in hits} == {(2, True), (None, False), (None, True)}
    for hit in hits:
        assert len(hit.snippet) <= 400
        assert [hit.snippet[start:end] for start, end in hit.matches] == ["pademelon"]
        shown = ctx(daemon, *hit.open[1:])
        assert shown.returncode == 0 and "pademelon" in shown.stdout, hit.open
        assert "first" not in shown.stdout or hit.turn is None, "a turn is shown, not the session"
    printed = ctx(daemon, "search", "pademelon", "-s", s.id)
    assert printed.returncode == 0 and printed.stdout.count("(first)\n") == 3, "the title of the session"
    for hit in hits:
        assert (shlex.join(hit.open) in printed.stdout) == (hit.session == s.id)
    as_json = json.loads(ctx(daemon, "search", "pademelon", "--limit", "2", "--json").stdout)
    assert len(as_json["hits"]) == 2 and as_json["next_cursor"] and as_json["behind"] == 0
    assert ctx(daemon, "search").returncode == ctx(daemon, "search", "a", "--rebuild").returncode == 2
    nothing = ctx(daemon, "search", "no-such-word-anywhere")
    assert (nothing.returncode, nothing.stdout) == (0, "") and "nothing found" in nothing.stderr


@pytest.mark.requirement("SRC-4")
def test_turn_numbers_of_a_fork_continue_those_of_its_parent(s: SyncSession, client: SyncClient) -> None:
    for number in (1, 2, 3):
        s.user(f"tamarin {number}")
    client.session(client.session_fork(s.id).session).user("tamarin fork")
    assert [hit.turn for hit in found(client, "tamarin fork")] == [4]


@pytest.mark.requirement("SRC-5")
def test_the_index_is_complete_after_a_kill_and_rebuilt_when_unusable(tmp_path: Path) -> None:
    running = Running(tmp_path, keep_state=True)
    file = tmp_path / "state" / "search" / "search.db"
    expected = 0

    def garbage() -> None:
        file.write_bytes(b"no database" * 1000)

    def cut() -> None:
        file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])
        Path(f"{file}-wal").unlink(missing_ok=True)

    def schema() -> None:
        with sqlite3.connect(file) as connection:
            connection.execute("PRAGMA user_version=999")

    def ahead() -> None:
        with sqlite3.connect(file) as connection:
            connection.execute("UPDATE meta SET value=1000000 WHERE name='seq'")

    def pages() -> None:
        data = bytearray(file.read_bytes())
        data[4096:] = b"\xa5" * len(data[4096:])
        file.write_bytes(data)
        Path(f"{file}-wal").unlink(missing_ok=True)

    for damage in (lambda: None, file.unlink, garbage, cut, schema, ahead, pages):
        with running, connect_sync(running.socket) as client:
            s = client.session("s", agent="a")
            for _ in range(20):
                s.user("kowari")
                expected += 1
            assert len(found(client, "kowari", limit=100)) == min(100, expected)
            running.kill()
        damage()
    with running, connect_sync(running.socket) as client:
        level(client)
        count, cursor = 0, None
        while True:
            page = client.search_query("kowari", limit=100, cursor=cursor)
            count, cursor = count + len(page.hits), page.next_cursor
            if cursor is None:
                break
        assert count == expected
        done = ctx(running, "search", "--rebuild")
        assert (done.returncode, done.stdout) == (0, "the search index is current\n")
        assert len(found(client, "kowari", limit=100)) == 100
        status = client.daemon_status().search
        assert (status.state, status.reason, status.lag_rows) == ("current", "", 0) and status.bytes > 0
        assert "search" in ctx(running, "status").stdout
        assert ctxd("backup", str(tmp_path / "copy"), "--state-dir", str(tmp_path / "state")).returncode == 0
    assert not list((tmp_path / "copy").glob("search*"))


@pytest.mark.requirement("SRC-5")
def test_the_index_is_in_the_cache_directory_and_its_log_empty_after_a_clean_exit(tmp_path: Path) -> None:
    running, state, files = Running(tmp_path, keep_state=True), tmp_path / "state", []
    for number in range(2):
        with running, connect_sync(running.socket) as client:
            client.session(f"s{number}", agent="a").user("a bandicoot " + "x" * 200_000)
            assert len(found(client, "bandicoot")) == number + 1
            place = Path(client.daemon_status().search.path)
            assert place.name == "search.db" and not place.is_relative_to(state)
            assert f"in {place}" in ctx(running, "status").stdout
        assert not [path for path in state.rglob("*") if path.name.startswith("search.db")]
        wal = Path(f"{place}-wal")
        assert not wal.exists() or wal.stat().st_size == 0
        files.append((place, place.stat().st_ino))
    assert files[0] == files[1], "a restart finds it again"


def words_in(state: Path, *words: str) -> set[str]:
    """The files of the state and of its search index that have one of ``words``, in any case."""
    return {
        path.name
        for path in [*state.rglob("*"), *(state / "search").rglob("*")]
        if path.is_file()
        for data in [path.read_bytes().lower()]
        if any(word.lower().encode() in data for word in words)
    }


GONE = ("Kx7fQw93LmZpVt", "B4hYn2RsDcGj8u")


@pytest.mark.requirement("SRC-6")
@pytest.mark.parametrize("how", ["tool call", "chat", "commit"])
def test_purged_words_are_in_no_search_result_and_no_file(kept: Running, tmp_path: Path, how: str) -> None:
    state = tmp_path / "state"
    with connect_sync(kept.socket) as client:
        s = client.session("s", agent="a")
        for number in range(300):
            s.user(f"filler {number} " + " ".join(f"w{number * n}" for n in range(40)))
        text = " ".join(GONE)
        if how == "tool call":
            client.toolcall_record("s", "c", "bash", text, args={"command": f"echo {GONE[0]}"})
            id = "c"
        elif how == "chat":
            s.user(text)
            id = "chat:s"
        else:
            made = client.commit_checkpoint("claude-code-v1", LINE % ("u", text), session="s", summary=GONE[1])
            id = f"commit:{made.commit.commit}"
        assert len(found(client, GONE[1])) >= 1
        block_until(lambda: "search.db" in {name.removesuffix("-wal") for name in words_in(state, *GONE)}, WAIT_S)
        before = len(found(client, "filler", limit=100))
        done = client.object_purge(id, turns=(301,)) if how == "chat" else client.object_purge(id)
        assert (done.residue, done.complete) == ((), True)
        assert client.search_query(GONE[0]).hits == client.search_query(GONE[1]).hits == ()
        assert words_in(state, *GONE) == set()
        assert len(found(client, "filler", limit=100)) == before, "the rest is still found"


@pytest.mark.requirement("SRC-6")
@pytest.mark.anyio
@pytest.mark.parametrize("point", ["search.rewrite", "search.rewritten"])
async def test_a_kill_while_the_index_forgets_leaves_nothing_behind(tmp_path: Path, point: str) -> None:
    with daemon_process(tmp_path) as daemon:
        await daemon.start(failpoints=f"{point}=kill")
        with connect_sync(str(daemon.socket), deadline_s=5) as client, suppress(CallFailed):
            s = client.session("s", agent="a")
            s.user("a filler")
            client.toolcall_record("s", "c", "bash", " ".join(GONE))
            assert len(found(client, GONE[0])) == 1
            client.object_purge("c")
        await daemon.ended()
        await daemon.start()
        with connect_sync(str(daemon.socket)) as client:
            assert client.search_query(GONE[0]).hits == ()
            again = client.object_purge("c")
            assert (again.versions, again.residue) == (0, ())
            assert words_in(daemon.state_dir, *GONE) == set()
            assert len(found(client, "filler")) == 1


@pytest.mark.requirement("SRC-6")
def test_a_purge_during_an_index_rebuild_leaves_nothing_behind(kept: Running, tmp_path: Path) -> None:
    with connect_sync(kept.socket) as client:
        s = client.session("s", agent="a")
        client.toolcall_record("s", "c", "bash", " ".join(GONE))
        for number in range(400):
            s.user(f"filler {number} " + "more words " * 50)
        level(client)
        client.search_rebuild()
        done = client.object_purge("c")
        assert done.residue == ()
        assert words_in(tmp_path / "state", *GONE) == set()
        assert found(client, GONE[0]) == []
        assert words_in(tmp_path / "state", *GONE) == set()
        assert len(found(client, "filler", limit=100)) == 100


@pytest.mark.requirement("SRC-5")
def test_a_rebuild_that_cannot_make_the_file_ends_with_an_error(kept: Running) -> None:
    with connect_sync(kept.socket) as client:
        client.session("s", agent="a").user("kowari")
        level(client)
        file = Path(client.daemon_status().search.path)
        file.unlink()
        (file / "in the way").mkdir(parents=True)
        with pytest.raises(CallFailed, match="directory"):
            client.search_rebuild()
        shutil.rmtree(file)
        block_until(lambda: client.daemon_status().search.state == "current", WAIT_S)
        assert len(found(client, "kowari")) == 1


@pytest.mark.requirement("SRC-7")
def test_sessions_in_the_trash_are_found_again_once_they_are_restored(s: SyncSession, client: SyncClient) -> None:
    s.user("bettong")
    client.toolcall_record(s.id, f"{s.id}-c", "bash", "bettong")
    assert len(found(client, "bettong")) == 2
    s.remove()
    assert found(client, "bettong") == found(client, "bettong", session=s.id) == []
    s.restore()
    assert len(found(client, "bettong")) == 2


@pytest.mark.own_daemon
@pytest.mark.requirement("SRC-7")
def test_a_session_that_was_emptied_leaves_nothing_to_find(client: SyncClient, s: SyncSession) -> None:
    s.user("kultarr")
    client.toolcall_record(s.id, "c", "bash", "kultarr")
    assert len(found(client, "kultarr")) == 2
    s.remove()
    assert [each.action for each in client.session_gc(keep_ms=0, force=True).sessions] == ["emptied"]
    assert found(client, "kultarr") == []


@pytest.mark.requirement("SRC-8")
def test_a_snippet_is_one_plain_line_for_any_text(daemon: Running, s: SyncSession, client: SyncClient) -> None:
    s.user(
        "\x1b]0;title\x07\x1b[2J potoroo\r\n\tred\u202e \u2066hidden\u200b \x9b31m \x01\x02\x7f end"
        + "\n" * 50
        + "tail"
    )
    (hit,) = found(client, "potoroo")
    assert hit.snippet.isprintable() and "potoroo" in hit.snippet and "end tail" in hit.snippet
    assert [hit.snippet[start:end] for start, end in hit.matches] == ["potoroo"]
    printed = ctx(daemon, "search", "potoroo").stdout
    assert all(character.isprintable() for character in printed.replace("\n", ""))
    client.toolcall_record(s.id, f"{s.id}-c", "evil\x1b[2Jtool", "potoroo")
    assert "\x1b" not in ctx(daemon, "search", "potoroo").stdout
    s.user("x" * 5000 + " potoroo2 " + "y" * 5000)
    (hit,) = found(client, "potoroo2")
    assert len(hit.snippet) <= 400 and [hit.snippet[a:b] for a, b in hit.matches] == ["potoroo2"]


@pytest.mark.requirement("SRC-9")
def test_a_sandbox_searches_its_own_sessions_only(
    s: SyncSession, client: SyncClient, boxed: Callable[..., SandboxView]
) -> None:
    s.user("boodie outside")
    client.commit_checkpoint("claude-code-v1", LINE % ("u", "boodie committed"))
    box = boxed()
    with inside(box) as within:
        own = SyncSession(within, box.sessions[0])
        own.user("boodie inside")
        own.client.toolcall_record(own.id, "c", "bash", "boodie ran\n")
        level(client)
        assert {hit.snippet for hit in within.search_query("boodie").hits} == {"boodie inside", "boodie ran"}
        assert {hit.session for hit in within.search_query("boodie", session=own.id).hits} == {own.id}
        for name in (s.id, "no-such"):
            with pytest.raises(NotFound) as refused:
                within.search_query("boodie", session=name)
            assert refused.value.code == "session_not_found" and name not in refused.value.message
        with pytest.raises(InvalidCall, match="project"):
            within.search_query("boodie", project="/")
        with pytest.raises(InvalidCall) as unknown:
            within.search_rebuild()
        assert unknown.value.code == "method_not_found"
    with inside(boxed(grants=("record",))) as within, pytest.raises(InvalidCall) as ungranted:
        within.search_query("boodie")
    assert ungranted.value.code == "method_not_found"
    assert len(found(client, "boodie")) == 4


@pytest.mark.requirement("SRC-9")
def test_the_scores_and_the_order_of_a_sandbox_are_independent_of_other_sessions(
    s: SyncSession, client: SyncClient, boxed: Callable[..., SandboxView]
) -> None:
    box = boxed()
    with inside(box) as within:
        own = SyncSession(within, box.sessions[0])
        own.user("wambenger7 kaluta7")
        own.user("wambenger7 wambenger7 kaluta7 of many more words")
        own.user("wambenger7 kaluta7 kaluta7 kaluta7 of many more words")
        level(client)

        def shown() -> list[list[tuple[str, float]]]:
            queries = "wambenger7 kaluta7", "wamb*", "wambenger7", "kaluta7", '"wambenger7 kaluta7"'
            return [[(hit.snippet, hit.score) for hit in within.search_query(query).hits] for query in queries]

        before = shown()
        assert [len(hits) for hits in before] == [3] * 5 and len({score for _, score in before[0]}) > 1
        for number in range(20):
            s.user(f"wambenger7 {'and more of it ' * number}")
        level(client)
        assert shown() == before


@pytest.mark.requirement("SRC-5")
def test_a_search_that_finds_a_damaged_index_rebuilds_it_without_a_write(tmp_path: Path) -> None:
    with Running(tmp_path) as running, connect_sync(running.socket) as client:
        s = client.session("s", agent="a")
        for number in range(300):
            s.user(f"kowari {number} " + " ".join(f"word{number * 7 + each}" for each in range(40)))
        level(client)
        # The index is at rest soon: what it does not touch itself, a search has to find.
        for _ in range(300):
            file = Path(client.daemon_status().search.path)
        with sqlite3.connect(file) as connection:
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
        with file.open("r+b") as opened:
            opened.seek(2 * 4096)
            opened.write(b"\xa5" * (file.stat().st_size - 2 * 4096))

        def is_mended() -> bool:
            with suppress(CallFailed):
                return len(client.search_query("kowari", limit=100).hits) == 100
            return False

        block_until(is_mended)
