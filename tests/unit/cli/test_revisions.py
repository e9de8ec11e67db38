"""The grammar of revisions, and the sessions, assemblies and times that they name through a scripted daemon."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from ctxd.cli.revisions import REVISION_CHARS_MAX, Revision, moment_ms, parse
from ctxd.click_support import Stop
from ctxd_protocol.methods.sessions import SessionResult
from tests.fakes.daemon import Refusal, smallest

NOW = 1_800_000_000_000
HOUR = 3_600_000


@pytest.mark.requirement("REV-1")
@pytest.mark.parametrize(
    ("text", "revision"),
    [
        ("", Revision()),
        ("@", Revision()),
        ("s1", Revision(session="s1", literal=True)),
        ("s1@", Revision(session="s1", literal=True)),
        ("@12", Revision(turn=12)),
        ("s1@12", Revision(session="s1", turn=12, literal=True)),
        ("s1@0", Revision(session="s1", turn=0, literal=True)),
        ("@~2", Revision(back=2)),
        ("@~", Revision(back=1)),
        ("@~0", Revision(back=0)),
        ("s1@~1", Revision(session="s1", back=1)),
        ("s1@12~2", Revision(session="s1", turn=12, back=2)),
        ("@{2 hours ago}", Revision(valid_time=NOW - 2 * HOUR)),
        ("@{now}~1", Revision(back=1)),
        ("s1@{1700000000123}", Revision(session="s1", valid_time=1_700_000_000_123)),
        ("ctx-1a2b3c4d", Revision(context="ctx-1a2b3c4d", literal=True)),
        ("ctx-1a2b3c4d5e6f7a8b", Revision(context="ctx-1a2b3c4d5e6f7a8b", literal=True)),
        ("ctx-nothex00", Revision(session="ctx-nothex00", literal=True)),
        ("user@host", Revision(session="user@host", literal=True)),
        ("user@host@3", Revision(session="user@host", turn=3, literal=True)),
        ("user@host@3~0", Revision(session="user@host", turn=3, back=0)),
        ("a/b:c.d-e@7", Revision(session="a/b:c.d-e", turn=7, literal=True)),
    ],
)
def test_a_revision_is_a_session_and_a_moment(text: str, revision: Revision) -> None:
    assert parse(text, NOW) == revision


@pytest.mark.requirement("REV-2")
@pytest.mark.parametrize(
    "text",
    [
        "~1", "s1~1", "s1@{2h", "s1@2h}", "@{}", "@{tomorrow}", "@-1", "s1@~-1", "s1@1~2~3", "s1@@@{x}",
        "ctx-1a2b3c4d~1", " s1", "s1 @1", "\x1b[2J", "s1@1\n", "s1@{\n}", "@" * 600, "@{" * 200, "{" * 500, "9" * 129,
        "@" + "9" * 10, "@~" + "9" * 10, "é", "@\u0663", "x" * 5000,
    ],
)  # fmt: skip
def test_other_text_is_refused_with_its_remedy_in_one_line(scripted, daemon, text: str) -> None:
    with pytest.raises(Stop) as stopped:
        parse(text, NOW)
    assert stopped.value.code == 2 and stopped.value.hint
    ran = scripted("context", "--", text)
    assert (ran.code, ran.out, ran.err.count("\n")) == (2, "", 1)
    assert daemon.of("context.assemble") == []


@pytest.mark.requirement("REV-2")
@given(st.one_of(st.text(max_size=40), st.text(alphabet="@{}~s1ctx-0a 2h", max_size=24)))
@example("@{99999999999w}")
@example("@{0001-01-01}")
def test_any_text_is_a_revision_or_refused(text: str) -> None:
    try:
        found = parse(text, NOW)
    except Stop as stop:
        assert stop.code == 2 and stop.hint
        return
    assert len(text) <= REVISION_CHARS_MAX
    assert found.turn is None or found.valid_time is None
    assert found.context is None or found == Revision(context=text, literal=True)
    if found.session is not None:
        assert text.startswith(found.session)


SESSIONS = st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._:/-]{0,20}", fullmatch=True)


@pytest.mark.requirement("REV-1")
@given(
    st.none() | SESSIONS,
    st.none() | st.integers(0, 10**9 - 1) | st.sampled_from(["now", "2 hours ago", "1700000000000"]),
    st.none() | st.integers(0, 10**9 - 1),
)
def test_a_written_revision_is_read_as_it_was_meant(
    session: str | None, at: int | str | None, back: int | None
) -> None:
    moment = "" if at is None else str(at) if isinstance(at, int) else f"{{{at}}}"
    found = parse(f"{session or ''}@{moment}{'' if back is None else f'~{back}'}", NOW)
    assert (found.session, found.back, found.context) == (session, back, None)
    assert found.turn == (at if isinstance(at, int) else None)
    assert found.valid_time == (moment_ms(at, NOW) if isinstance(at, str) and at != "now" else None)
    assert found.is_now == (at in (None, "now") and back is None)


@pytest.fixture
def named(daemon):
    """Sessions that exist by exactly these ids; the default one is ``mine``."""
    ids = {"mine", "s1", "s1@12"}

    def get(seen):
        if seen.params["session"] not in ids:
            raise Refusal("session_not_found", "there is none")
        return smallest(SessionResult, session=seen.params["session"])

    daemon.script["session.get"] = get
    daemon.script["session.list"] = lambda seen: {"sessions": [], "next_cursor": None}
    daemon.script["session.turn"] = lambda seen: {"session": "x", "turn": 4, "turn_count": 9, "tx": 77}
    return ids


@pytest.mark.requirement("REV-2")
def test_a_session_of_exactly_that_id_wins_over_a_turn(scripted, daemon, named) -> None:
    assert scripted("session", "pause", "s1@12").code == 0
    assert daemon.of("session.pause")[-1].params["session"] == "s1@12"
    assert scripted("context", "s1@12~0").code == 0
    assert daemon.of("session.turn")[-1].params | {"session": "s1", "turn": 12, "back": 0} == (
        daemon.of("session.turn")[-1].params
    )
    named.remove("s1@12")
    ran = scripted("session", "pause", "s1@12")
    assert (ran.code, ran.err) == (
        2, "ctx: 's1@12' names a moment, and this command works on the session as it is now; write s1\n",
    )  # fmt: skip


@pytest.mark.requirement("REV-1")
@pytest.mark.parametrize("text", ["@", "", "mine@", "mine"])
def test_a_revision_without_a_moment_is_the_session_as_it_is(scripted, daemon, named, monkeypatch, text: str) -> None:
    monkeypatch.setenv("CTXD_SESSION", "mine")
    for command in ("pause", "close"):
        assert scripted("session", command, text).code == 0
        assert daemon.of(f"session.{command}")[-1].params["session"] == "mine"


@pytest.mark.requirement("REV-4")
def test_a_query_is_as_of_a_revision(scripted, daemon, named, monkeypatch) -> None:
    monkeypatch.setenv("CTXD_SESSION", "mine")
    for words, expected in (
        (("--at", "@~5"), {"tx": 77, "valid_time": None}),
        (("--at", "@{1700000000000}"), {"tx": None, "valid_time": 1_700_000_000_000}),
        (("--at", "1700000000000", "--tx", "5"), {"tx": 5, "valid_time": 1_700_000_000_000}),
        (("--at", "@{1700000000000}", "--tx", "5"), {"tx": 5, "valid_time": 1_700_000_000_000}),
    ):
        assert scripted("query", "{}", *words).code == 0
        sent = daemon.of("object.query")[-1].params
        assert {name: sent[name] for name in expected} == expected
    ran = scripted("query", "{}", "--at", "@~5", "--tx", "5")
    assert (ran.code, "both name a journal sequence" in ran.err) == (2, True)
