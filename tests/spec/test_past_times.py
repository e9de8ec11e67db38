"""VER-6: what is recorded may hold from a past valid time, as imported history does."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ctxd_client.sync import SyncClient, SyncSession
from ctxd_protocol.object_types import VersionRow
from ctxd_protocol.sandbox_types import SandboxView
from tests.client.running import Running
from tests.spec.refusal import refused
from tests.spec.sandboxes import inside

pytestmark = pytest.mark.requirement("VER-6")

T = 1_600_000_000_000
"""A time in 2020, ms since 1970."""

DAY = 86_400_000

Start = Callable[..., SyncSession]


def index(client: SyncClient, s: SyncSession, text: str, day: float, **rest: Any) -> Any:
    return client.file_index(s.id, "a.py", content=text, valid_time=T + int(day * DAY), **rest)


def line(client: SyncClient, id: str, **rest: Any) -> list[tuple[int, int]]:
    """Day and sequence of each version in the history of ``id``."""
    return [((row.valid_time - T) // DAY, row.tx) for row in client.object_history(id, **rest).versions]


@pytest.mark.requirement("VER-3")
def test_history_shows_current_valid_times_and_with_corrections_superseded_ones(
    s: SyncSession, client: SyncClient
) -> None:
    results = [index(client, s, text, day) for text, day in (("c", 3), ("wrong", 1), ("d", 4), ("a", 1), ("b", 2))]
    assert [result.outcome for result in results] == ["created", "created", "updated", "updated", "updated"]
    id = results[0].object
    c, wrong, d, a, b = (result.receipt.seq for result in results)
    assert line(client, id) == [(1, a), (2, b), (3, c), (4, d)]
    assert line(client, id, corrections=True) == [(1, wrong), (1, a), (2, b), (3, c), (4, d)]
    assert line(client, id, corrections=True, order="desc") == [(4, d), (3, c), (2, b), (1, a), (1, wrong)]
    assert line(client, id, tx=d) == line(client, id, tx=d, corrections=True) == [(1, wrong), (3, c), (4, d)]
    assert line(client, id, valid_time=T + 2 * DAY, corrections=True) == [(1, wrong), (1, a), (2, b)]
    pages: list[VersionRow] = []
    cursor = None
    for _ in range(5):
        page = client.object_history(id, corrections=True, limit=1, cursor=cursor)
        pages += page.versions
        cursor = page.next_cursor
    assert cursor is None and [row.tx for row in pages] == [wrong, a, b, c, d]


@pytest.mark.requirement("VER-2")
def test_an_object_is_read_as_of_both_times_and_its_newest_version_has_the_newest_valid_time(
    s: SyncSession, client: SyncClient
) -> None:
    first, second, third = (
        index(client, s, text, day) for text, day in (("two", 2), ("one", 1), ("one, as it was", 1))
    )
    id, basis = first.object, [result.receipt.seq for result in (first, second, third)]

    def text(**at: Any) -> Any:
        return client.object_get(id, **at).object.payload["content"]

    assert text() == "two"
    assert [text(tx=seq) for seq in basis] == ["two"] * 3
    assert [text(valid_time=T + DAY, tx=seq) for seq in basis[1:]] == ["one", "one, as it was"]
    with refused("object_not_found"):
        text(valid_time=T + DAY, tx=basis[0])
    with refused("object_not_found"):
        text(valid_time=T + DAY - 1)
    assert index(client, s, "two", 5).outcome == "unchanged", "it held already, as far as is known"
    assert index(client, s, "three", 3).outcome == "updated" and text() == "three"
    assert client.file_index(s.id, "a.py", content="now").outcome == "updated" and text() == "now"
    index(client, s, "four", 4)
    assert text() == "now" and text(valid_time=T + 4 * DAY) == "four"


def test_tool_calls_stubs_and_system_prompts_hold_from_past_times_and_the_session_does_not(
    s: SyncSession, client: SyncClient, tree: Path
) -> None:
    (tree / "seen.py").write_text("")
    call = client.toolcall_record(s.id, f"call-{s.id}", "bash", "ok\n", valid_time=T)
    (found,) = client.file_discover(s.id, ["seen.py"], valid_time=T + DAY).objects
    (again,) = client.file_discover(s.id, ["seen.py"], valid_time=T).objects
    (named,) = client.tool_observe(s.id, "ls", "seen.py\n", valid_time=T + 2 * DAY).objects
    assert (found.outcome, again.outcome, named.outcome) == ("created", "created", "unchanged")
    client.session_set_system_prompt(s.id, "Be brief.", valid_time=T)
    prompt = f"system_prompt:{s.id}"
    assert found.object is not None
    for id, times in ((call.object, [T]), (found.object, [T, T + DAY]), (prompt, [T])):
        assert [row.valid_time for row in client.object_history(id).versions if row.valid_time <= T + DAY] == times
    with refused("object_not_found"):
        client.object_get(f"session:{s.id}", valid_time=T + 2 * DAY)
    assert call.object in client.object_get(f"session:{s.id}").object.payload["active_set"]
    assert client.toolcall_record(s.id, f"call-{s.id}", "bash", "ok\n").outcome == "unchanged"


def test_a_time_that_is_not_past_and_one_without_content_are_refused(s: SyncSession, client: SyncClient) -> None:
    later = (time.time_ns() // 1_000_000) + DAY
    for valid_time in (later, 2**53 - 1, -1):
        with refused("invalid_params"):
            client.toolcall_record(s.id, "c1", "bash", "ok\n", valid_time=valid_time)
        with refused("invalid_params"):
            client.file_index(s.id, "a.py", content="x", valid_time=valid_time)
    with refused("invalid_params"):
        client.file_index(s.id, "a.py", valid_time=T)
    assert client.object_list(session=s.id).objects == ()


def test_a_sandbox_may_not_name_a_time_and_does_not_see_imported_history(
    client: SyncClient, start: Start, tree: Path, boxed: Callable[..., SandboxView]
) -> None:
    importer = start()
    (tree / "sub").mkdir()
    (tree / "sub" / "a.py").write_text("on disk\n")
    box = boxed()
    (session,) = box.sessions
    with inside(box) as agent:
        for call in (
            lambda: agent.toolcall_record(session, "c1", "bash", "ok\n", valid_time=T),
            lambda: agent.file_index(session, "sub/a.py", content="x", valid_time=T),
            lambda: agent.file_discover(session, ["sub/a.py"], valid_time=T),
            lambda: agent.tool_observe(session, "ls sub", "a.py\n", valid_time=T),
        ):
            with refused("invalid_params"):
                call()
        id = agent.file_index(session, "sub/a.py").object
        seen = agent.object_history(id, session=session).versions
        assert "on disk" in agent.context_assemble(session).text
        # The file cannot be read now, so that what is imported stays the newest.
        (tree / "sub").rename(tree / "elsewhere")
        just_before = time.time_ns() // 1_000_000 - 1
        imported = client.file_index(importer.id, "sub/a.py", content="imported secret\n", valid_time=just_before)
        assert imported.object == id and client.object_get(id).object.payload["content"] == "imported secret\n"
        assert agent.object_history(id, session=session).versions == seen
        assert "imported secret" not in agent.context_assemble(session).text
        assert agent.object_get(id, session=session).object.payload["content"] == "on disk\n"
        assert agent.session_notices(session).notices == ()


@pytest.mark.requirement("NOT-1")
def test_only_a_newest_version_by_valid_time_causes_a_notice(client: SyncClient, start: Start, tree: Path) -> None:
    reader, importer = start(), start()
    id = index(client, reader, "read", 2).object
    index(client, importer, "before", 1)
    newer = index(client, importer, "after", 3)
    index(client, importer, "between", 2.5)
    (notice,) = reader.notices().notices
    assert (notice.object, notice.seq, notice.valid_time) == (id, newer.receipt.seq, T + 3 * DAY)


@pytest.mark.requirement("VER-1")
def test_past_times_survive_a_kill_and_a_purge(kept: Running, tmp_path: Path) -> None:
    from ctxd_client import connect_sync

    with connect_sync(kept.socket) as client:
        s = client.session(agent="spec", workdir=str(tmp_path))
        id = index(client, s, "two\n", 2).object
        index(client, s, "one\n", 1)
        before = client.object_history(id).versions
    kept.kill()
    kept.start()
    with connect_sync(kept.socket) as client:
        assert client.object_history(id).versions == before
        assert client.object_get(id).object.payload["content"] == "two\n"
        client.object_purge(id)
        rows = client.object_history(id).versions
        assert [(row.valid_time, row.tx) for row in rows] == [(row.valid_time, row.tx) for row in before]
        assert client.object_get(id, valid_time=T + DAY).object.payload["content"] is None


@pytest.mark.requirement("SEC-8")
def test_a_purged_file_gets_no_version_at_a_past_time(s: SyncSession, client: SyncClient) -> None:
    id = index(client, s, "the secret", 1).object
    client.object_purge(id)
    for day in (0, 2):
        with refused("purged"):
            index(client, s, "the secret", day)
    assert client.object_history(id).versions[-1].state == "purged"
