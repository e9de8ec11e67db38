"""Sessions by prefix or by default, objects by path, times by age; numbers and times in formatting."""

from datetime import datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ctxd import formatting
from ctxd.cli.context import BAR_COLUMNS, bar
from ctxd.cli.revisions import moment_ms
from ctxd.click_support import Stop
from ctxd.formatting import count
from ctxd_protocol.context_types import AssembledContext, SectionSize
from tests.fakes.daemon import Refusal, smallest


class Sessions(list):
    """Session names in the order of the listing; a test may change them."""

    def __init__(self, *names):
        super().__init__(names)
        self.closed = set()
        self.workdirs = {}

    def summaries(self, state):
        from ctxd_protocol.session_types import SessionSummary

        open_state = "closed" if state == "closed" else "active"
        wanted = [name for name in self if state is None or (name in self.closed) == (state == "closed")]
        wanted = [] if state == "paused" else wanted
        return [
            {**smallest(SessionSummary, session=name, state=open_state), "workdir": self.workdirs.get(name, "/")}
            for name in wanted
        ]


@pytest.fixture
def sessions(daemon):
    names = Sessions("alpha-1", "alpha-2", "beta-1")

    def get(seen):
        from ctxd_protocol.methods.sessions import SessionResult

        if seen.params["session"] not in names:
            raise Refusal("session_not_found", f"there is no session {seen.params['session']}")
        return smallest(SessionResult, session=seen.params["session"])

    def page(seen):
        start = int(seen.params["cursor"] or 0)
        size = min(seen.params["limit"], 2)
        rows = names.summaries(seen.params["state"])
        rest = start + size < len(rows)
        return {"sessions": rows[start : start + size], "next_cursor": str(start + size) if rest else None}

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
    assert meant(scripted, daemon, "alpha") == (4, "ctx: ambiguous prefix 'alpha': alpha-1, alpha-2; add characters\n")
    assert meant(scripted, daemon, "gamma") == (
        3, "ctx: no such session: gamma; ctx session ls lists them\n",
    )  # fmt: skip


@pytest.mark.requirement("CLI-10")
def test_without_a_session_the_variable_names_it_and_then_the_only_open_one_is_taken(
    scripted, daemon, sessions, monkeypatch
):
    code, line = meant(scripted, daemon)
    assert code == 2
    assert (
        line == "ctx: several sessions are open: alpha-1, alpha-2, beta-1; name one, or export CTXD_SESSION=alpha-1\n"
    )
    monkeypatch.setenv("CTXD_SESSION", "beta")
    assert meant(scripted, daemon) == "beta-1"
    monkeypatch.delenv("CTXD_SESSION")
    sessions[:] = ["only"]
    assert meant(scripted, daemon) == "only"


def test_a_closed_session_is_never_the_default(scripted, daemon, sessions):
    sessions.closed.add("alpha-1")
    sessions.closed.add("beta-1")
    assert meant(scripted, daemon) == "alpha-2"


@pytest.mark.requirement("CLI-10")
def test_the_open_session_at_the_current_directory_is_the_default(scripted, daemon, sessions, tmp_path, monkeypatch):
    (tmp_path / "work" / "inner").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "work" / "inner")
    sessions.workdirs |= {"alpha-1": str(tmp_path), "alpha-2": str(tmp_path / "work"), "beta-1": str(tmp_path / "wor")}
    assert meant(scripted, daemon) == "alpha-2"


def test_without_an_open_session_the_remedy_starts_one(scripted, daemon, sessions):
    sessions.clear()
    assert meant(scripted, daemon) == (
        3, "ctx: there is no open session; start one: ctx session new AGENT; ctx session ls lists closed ones\n",
    )  # fmt: skip


def test_on_a_socket_without_session_list_its_own_session_is_used(scripted, daemon):
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


def test_a_path_without_a_session_is_a_usage_error(scripted, daemon, sessions, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.py").touch()

    def no_such_id(seen):
        raise Refusal("object_not_found")

    daemon.script["object.get"] = no_such_id
    for path in ("/workspace/a.py", "a.py"):
        ran = scripted("object", "cat", path)
        assert (ran.code, ran.err) == (
            2, f"ctx: '{path}' is a path, and paths belong to a session; name one with -s SESSION\n",
        )  # fmt: skip


NOW = 1_800_000_000_000


@pytest.mark.requirement("CLI-11")
@pytest.mark.parametrize(
    ("text", "ms"),
    [
        ("1700000000123", 1_700_000_000_123),
        ("90s", NOW - 90_000),
        ("1.5h", NOW - 5_400_000),
        ("2 d ago", NOW - 172_800_000),
        ("2 hours ago", NOW - 7_200_000),
        ("1 Hour ago", NOW - 3_600_000),
        ("10 min", NOW - 600_000),
        ("now", NOW),
        ("yesterday", NOW - 86_400_000),
        ("250ms", NOW - 250),
        ("2026-05-01T12:00:00Z", 1_777_636_800_000),
        ("2026-05-01T12:00:00.250+02:00", 1_777_629_600_250),
    ],
)
def test_a_time_is_a_word_a_number_an_age_or_a_date(text, ms):
    assert moment_ms(text, NOW) == ms


@pytest.mark.parametrize(
    "text",
    [
        "",
        "tomorrow",
        "2x",
        "25:00",
        "yesterday 9",
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
def test_anything_else_is_an_invalid_time(text):
    with pytest.raises(Stop, match="invalid time"):
        moment_ms(text, NOW)


@pytest.mark.requirement("CLI-11")
def test_a_time_of_day_is_the_latest_one_that_is_past():
    day = datetime.fromtimestamp(NOW / 1000).replace(hour=13, minute=0, second=0, microsecond=0)
    now_ms = round(day.timestamp() * 1000)
    for text, expected in (
        ("12:59", day - timedelta(minutes=1)),
        ("13:00", day),
        ("13:01", day - timedelta(hours=23, minutes=59)),
        ("yesterday 12:59:30", day - timedelta(days=1, seconds=30)),
    ):
        assert moment_ms(text, now_ms) == round(expected.timestamp() * 1000), text


def sizes(tokens):
    sections = ("system_prompt", "metadata_pool", "chat", "active_content")
    return tuple(
        SectionSize(section=section, bytes=count, tokens=count, entries=1)
        for section, count in zip(sections, tokens, strict=True)
    )


def test_a_section_of_another_layout_is_drawn_with_its_first_letter(scripted, daemon, sessions):
    shown = smallest(AssembledContext, session="alpha-1")
    size = {"section": "notes", "bytes": 8, "tokens": 2, "entries": 1}
    daemon.script["context.show"] = lambda seen: shown | {"sections": [size]}
    ran = scripted("context", "alpha-1", "--turn", "1")
    assert ran.out.splitlines()[2:4] == [f"[{'n' * BAR_COLUMNS}]", "n notes                   2 tokens        1 entry"]


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
    assert [count(number) for number in (None, 0, 1204)] == ["", "0", "1,204"]
    nouns = ("file", "directory", "journal row", "watch", "sandbox", "day", "entry")
    assert [count(1, noun) for noun in nouns] == [f"1 {noun}" for noun in nouns]
    assert [count(2000, noun) for noun in nouns] == [
        "2,000 files", "2,000 directories", "2,000 journal rows", "2,000 watches", "2,000 sandboxes", "2,000 days",
        "2,000 entries",
    ]  # fmt: skip
    assert count(None, "file") == ""
    assert count(0, "file") == "0 files"
    assert formatting.moment(1_777_636_800_250) == "2026-05-01 12:00:00.250Z"
    assert [formatting.age(NOW - ms, NOW) for ms in (-5, 59_999, 60_000, 7_200_000, 200_000_000)] == [
        "0s ago", "59s ago", "1m ago", "2h ago", "2d ago",
    ]  # fmt: skip
    spans = {0.4: "0s", 59: "59s", 61: "1m 1s", 3_599: "59m 59s", 3_600: "1h 0m", 86_399: "23h 59m", 86_400: "1d 0h"}
    assert [formatting.span(seconds) for seconds in (*spans, 90_061)] == [*spans.values(), "1d 1h"]
    assert [formatting.size(number) for number in (0, 1023, 1024)] == ["0 B", "1,023 B", "1.0 KiB"]
    assert formatting.size(5 * 2**30) == "5.0 GiB"
    assert formatting.short("ab" * 32) == "abababababab"
    assert formatting.short("call_" + "1" * 59) == "call_" + "1" * 59


def test_sessions_are_listed_with_their_last_message_or_the_host_that_has_them(daemon, ctx):
    row = {
        "session": "s1", "agent": "a", "state": "paused", "created_at": 1, "updated_at": 1, "turn_count": 2,
        "index_count": 3, "active_count": 4, "preview": "last words", "labels": {},
    }  # fmt: skip
    daemon.script["session.list"] = lambda seen: {
        "sessions": [{**row, "host": "far" if seen.params.get("elsewhere") else None}, {**row, "session": "s2"}],
        "next_cursor": None,
    }

    def cells(*words: str) -> list[tuple[str, ...]]:
        heading, *rows = ctx("--socket", str(daemon.path), "session", "ls", *words).out.splitlines()
        last = heading.split()[-1]
        at = heading.index(last)
        return [(heading[:at].split()[-1], last)] + [
            (*line[:at].partition(" ago")[2].split()[2:], line[at:].strip()) for line in rows
        ]

    assert cells()[1:] == [("2", "4", "3", "last words")] * 2
    assert cells("--elsewhere")[1:] == [("2", "4", "3", "far"), ("2", "4", "3", "")]
