"""Sessions by prefix or by default, objects by path, times by age; numbers and times in formatting."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ctxd.cli import formatting
from ctxd.cli.context import BAR_COLUMNS, bar
from ctxd.cli.resolve import moment_ms
from ctxd.command_line import Stop
from ctxd_protocol.context import SectionSize
from tests.fakes.daemon import Refusal, smallest


def summaries(*names):
    from ctxd_protocol.sessions import SessionSummary

    return [smallest(SessionSummary, session=name) for name in names]


@pytest.fixture
def sessions(daemon):
    """The scripted daemon's sessions; a test may change them."""
    names = ["alpha-1", "alpha-2", "beta-1"]

    def get(seen):
        from ctxd_protocol.methods import SessionResult

        if seen.params["session"] not in names:
            raise Refusal("session_not_found", f"there is no session {seen.params['session']}")
        return smallest(SessionResult, session=seen.params["session"])

    def page(seen):
        start = int(seen.params["cursor"] or 0)
        size = min(seen.params["limit"], 2)
        rest = start + size < len(names)
        return {"sessions": summaries(*names[start : start + size]), "next_cursor": str(start + size) if rest else None}

    daemon.script["session.get"] = get
    daemon.script["session.list"] = page
    return names


def meant(scripted, daemon, *words):
    """Which session a command took, or how it ended."""
    ran = scripted("session", "pause", *words)
    asked = daemon.of("session.pause")
    return asked[-1].params["session"] if asked else (ran.code, ran.err)


def test_a_session_is_taken_by_its_id_or_a_unique_prefix_of_it(scripted, daemon, sessions):
    assert meant(scripted, daemon, "alpha-2") == "alpha-2"
    assert meant(scripted, daemon, "b") == "beta-1", "found on the second page"


def test_a_prefix_that_fits_several_is_a_conflict_and_one_that_fits_none_is_not_found(scripted, daemon, sessions):
    assert meant(scripted, daemon, "alpha") == (4, "ctx: 'alpha' fits alpha-1, alpha-2; type more of it\n")
    assert meant(scripted, daemon, "gamma") == (3, "ctx: there is no session gamma\n")


def test_without_a_session_the_variable_says_it_and_then_there_must_be_only_one(
    scripted, daemon, sessions, monkeypatch
):
    code, line = meant(scripted, daemon)
    assert code == 2
    assert line == "ctx: there are several sessions: alpha-1, alpha-2; name one, or set CTXD_SESSION\n"
    monkeypatch.setenv("CTXD_SESSION", "beta")
    assert meant(scripted, daemon) == "beta-1"
    monkeypatch.delenv("CTXD_SESSION")
    sessions[:] = ["only"]
    assert meant(scripted, daemon) == "only"


def test_without_any_session_that_is_said_with_how_to_make_one(scripted, daemon, sessions):
    sessions.clear()
    assert meant(scripted, daemon) == (3, "ctx: there is no session; make one: ctx session new AGENT\n")


def test_on_a_socket_that_may_not_list_sessions_its_own_is_taken(scripted, daemon):
    def no_list(seen):
        raise Refusal("method_not_found")

    daemon.script["session.list"] = no_list
    daemon.script["context.current"] = lambda seen: {"context_id": None, "session": "mine", "turn": 0, "assembly": 0}
    assert meant(scripted, daemon) == "mine"


def test_an_object_may_be_named_by_its_path(scripted, daemon, sessions, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    daemon.script["file.resolve"] = lambda seen: {
        "object": "f" * 64, "canonical_path": "/", "filesystem_id": "h", "display_path": "/", "known": True,
    }  # fmt: skip
    assert scripted("activate", "./a.py", "3f9a01bc", "-s", "beta-1").code == 0
    assert daemon.of("file.resolve")[0].params == {"session": "beta-1", "path": str(tmp_path / "a.py")}
    assert [seen.params["object"] for seen in daemon.of("session.activate")] == ["f" * 64, "3f9a01bc"]


def test_a_path_without_a_session_is_a_usage_error(scripted, daemon, sessions):
    ran = scripted("object", "cat", "/workspace/a.py")
    assert (ran.code, ran.err) == (
        2, "ctx: '/workspace/a.py' is a path, and paths belong to a session; name one with -s SESSION\n",
    )  # fmt: skip


NOW = 1_800_000_000_000


@pytest.mark.parametrize(
    ("text", "ms"),
    [
        ("1700000000123", 1_700_000_000_123),
        ("90s", NOW - 90_000),
        ("1.5h", NOW - 5_400_000),
        ("2 d ago", NOW - 172_800_000),
        ("250ms", NOW - 250),
        ("2026-05-01T12:00:00Z", 1_777_636_800_000),
        ("2026-05-01T12:00:00.250+02:00", 1_777_629_600_250),
    ],
)
def test_a_point_in_time_is_a_number_an_age_or_a_date(text, ms):
    assert moment_ms(text, NOW) == ms


@pytest.mark.parametrize(
    "text",
    [
        "",
        "yesterday",
        "2x",
        "-3h",
        "2026-13-01",
        "9" * 20,
        "9" * 5000,
        "99999999999w",
        "9" * 400 + "w",
        "²",
        "0001-01-01",
    ],
)
def test_anything_else_is_no_point_in_time(text):
    with pytest.raises(Stop, match="no point in time"):
        moment_ms(text, NOW)


def sizes(tokens):
    sections = ("system_prompt", "metadata_pool", "chat", "active_content")
    return tuple(
        SectionSize(section=section, bytes=count, tokens=count, entries=1)
        for section, count in zip(sections, tokens, strict=True)
    )


@given(st.lists(st.integers(0, 10**7), min_size=4, max_size=4))
def test_the_bar_is_full_to_scale_and_shows_every_section_that_is_not_empty(tokens):
    drawn = dict(bar(sizes(tokens)))
    assert set(drawn) == {each.section for each in sizes(tokens) if each.tokens}
    if not drawn:
        return
    assert sum(drawn.values()) == BAR_COLUMNS
    for each in sizes(tokens):
        if each.tokens:
            exact = each.tokens * BAR_COLUMNS / sum(tokens)
            assert drawn[each.section] >= 1
            assert drawn[each.section] - exact < 1 or drawn[each.section] == 1
            assert exact - drawn[each.section] <= 3, "three sections at most take a column they have no right to"


def test_numbers_and_times_in_words():
    assert [formatting.count(number) for number in (None, 0, 1204)] == ["", "0", "1,204"]
    assert formatting.moment(1_777_636_800_250) == "2026-05-01 12:00:00.250Z"
    assert [formatting.age(NOW - ms, NOW) for ms in (-5, 59_999, 60_000, 7_200_000, 200_000_000)] == [
        "0s ago", "59s ago", "1m ago", "2h ago", "2d ago",
    ]  # fmt: skip
    assert [formatting.span(seconds) for seconds in (0.4, 61, 3_600, 90_061)] == ["0s", "1m 1s", "1h 0m", "1d 1h"]
    assert [formatting.size(number) for number in (0, 1023, 1024)] == ["0 B", "1,023 B", "1.0 KiB"]
    assert formatting.size(5 * 2**30) == "5.0 GiB"
    assert formatting.short("ab" * 32) == "abababababab"
    assert formatting.short("call_" + "1" * 59) == "call_" + "1" * 59
