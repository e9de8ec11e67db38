"""The catalog's pages against a plain search through all sessions, for any schedule of changes and filters."""

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ctxd.sessions.project_match import ProjectFilter
from ctxd.sessions.session_catalog import Catalog, Filters, summary_of
from ctxd.sessions.session_settings import SessionSettings
from ctxd.sessions.stored_session import SessionHead
from ctxd_protocol.methods.session_list import SessionListParams
from ctxd_protocol.session_types import Project, RecordedSession, Removal

REMOVED = Removal(at=1, by="p", via="host", state="closed")
PROJECTS = (
    None,
    Project(directory="/p"),
    Project(directory="/p/deep/er"),
    Project(directory="/p", remotes=("h/o/p",), roots=("a" * 40,)),
    Project(directory="/q", path="packages/one/src", remotes=("h/o/p",), roots=("a" * 40, "b" * 40)),
    Project(directory="/fork", remotes=("h/me/p", "h/o/p"), roots=("a" * 40,)),
    Project(directory="/alone", path="packages/one", roots=("a" * 40,)),
    Project(directory="/shallow", remotes=("h/o/p",)),
)

heads = st.builds(
    lambda agent, state, harness, team, project, archived, began, preview: SessionHead(
        settings=SessionSettings(
            agent=agent, principal="p", created_at=5, ordinal=0, filesystem_id="f", state=state,
            labels={name: value for name, value in (("harness", harness), ("team", team)) if value},
            project=project, archived=archived, removed=REMOVED if state == "removed" else None,
            recorded=None if began is None else RecordedSession(began_at=began, ended_at=began + 2),
        ),
        preview=preview,
    ),
    st.sampled_from(["cat", "dog"]), st.sampled_from(["active", "paused", "closed", "removed"]),
    st.sampled_from([None, "codex", "pi"]), st.sampled_from([None, "red", "blue"]), st.sampled_from(PROJECTS),
    st.booleans(), st.sampled_from([None, 0, 3, 9]), st.sampled_from(["", "fix Parser"]),
)  # fmt: skip
changes = st.lists(
    st.tuples(st.integers(0, 9), st.integers(0, 12), st.one_of(st.none(), heads, heads, heads)), max_size=40
)
params = st.builds(
    SessionListParams,
    state=st.sampled_from([None, None, "active", "closed", "removed"]),
    agent=st.sampled_from([None, None, "cat", "none"]),
    harness=st.sampled_from([None, None, "codex"]),
    label=st.sampled_from([None, None, "team=red"]),
    text=st.sampled_from([None, None, "parser", "s1"]),
    since=st.sampled_from([None, None, 0, 4]),
    until=st.sampled_from([None, None, 3, 11]),
    archived=st.booleans(),
    limit=st.integers(1, 5),
)
filters = st.one_of(
    st.none(),
    st.builds(lambda at: ProjectFilter(at), st.sampled_from([*PROJECTS[1:], Project(directory="/")])),
    st.builds(
        lambda at, path: ProjectFilter(msgspec.structs.replace(at, path=path)),
        st.sampled_from(PROJECTS[3:]),
        st.sampled_from(["", "packages", "packages/one", "pack"]),
    ),
    st.builds(
        lambda name: ProjectFilter(name=name), st.sampled_from(["p", "o/p", "git@h:o/p.git", "a" * 7, "er", "z"])
    ),
)
knowing = st.one_of(st.none(), st.frozensets(st.sampled_from([f"s{n}" for n in range(11)])))


@pytest.mark.requirement("LST-6")
@settings(max_examples=400, deadline=None)
@given(changes, params, filters, knowing)
def test_the_pages_of_a_list_are_the_sessions_that_pass_in_order(changes, params, project, knowing):
    catalog = Catalog()
    known: dict[str, tuple[int, int, SessionHead]] = {}
    for number, (n, at, head) in enumerate(changes):
        name = f"s{n}"
        if head is None:
            catalog.discard(name)
            known.pop(name, None)
            continue
        ordinal = known[name][0] if name in known else number
        head = msgspec.structs.replace(head, settings=msgspec.structs.replace(head.settings, ordinal=ordinal))
        catalog.put(name, head, at)
        assert catalog.summary(name) == summary_of(name, head, at), "also if the row was built of an older head"
        known[name] = (ordinal, at, head)
    wanted = Filters(params, project, knowing)

    def began(name: str) -> tuple[int, int]:
        ordinal, _, head = known[name]
        recorded = head.settings.recorded
        return (5 if recorded is None else recorded.began_at or 0, ordinal)

    expected = [name for name in known if wanted.passes(catalog.summary(name))]
    expected.sort(key=began, reverse=True)
    found, cursor, first = [], None, None
    while True:
        page = catalog.page(wanted, params.limit, cursor)
        first = first or page
        assert len(page.sessions) <= params.limit
        found += page.sessions
        cursor = page.cursor
        if cursor is None:
            break
    assert found == expected
    for group, counted in (("archived", first.archived), ("removed", first.removed)):
        passing = sum(wanted.passes(catalog.summary(name), group) for name in known)
        assert counted == (None if group == wanted.group else passing)
    assert catalog.removed() == {name for name, (_, _, head) in known.items() if head.settings.state == "removed"}
    assert catalog.listed_count == sum(
        head.settings.state != "removed" and not head.settings.archived for _, _, head in known.values()
    )


@pytest.mark.requirement("LST-6")
def test_a_page_visits_only_sessions_of_the_narrowest_filter(monkeypatch):
    catalog = Catalog()
    for n in range(2000):
        project = Project(directory=f"/p{n % 100}", remotes=(f"h/o/p{n % 100}",), roots=(f"{n % 100:040d}",))
        labels = {"harness": "codex" if n % 2 else "pi", "team": f"t{n % 10}"}
        made = SessionSettings(
            agent="a", principal="p", created_at=n, ordinal=n, filesystem_id="f", labels=labels, project=project
        )
        catalog.put(f"s{n}", SessionHead(settings=made), n)
    looked: list[str] = []
    summary = catalog.summary
    monkeypatch.setattr(catalog, "summary", lambda session: looked.append(session) or summary(session))

    def page(project=None, **params):
        looked.clear()
        return catalog.page(Filters(SessionListParams(limit=10, **params), project), 10, None).sessions

    assert len(page()) == 10 and len(looked) <= 11
    here = ProjectFilter(Project(directory="/p7", remotes=("h/o/p7",), roots=(f"{7:040d}",)))
    assert len(page(here, harness="codex", label="team=t7")) == 10 and len(looked) <= 20
    assert page(here, harness="pi") == [] and len(looked) <= 20, "the project has 20 sessions, the harness 1,000"
    assert page(since=1990, label="team=t3") == ["s1993"] and len(looked) <= 10
    assert page(ProjectFilter(name="nothing")) == [] and looked == []


@pytest.mark.requirement("LST-6")
def test_the_row_of_a_session_is_built_once_for_each_head(monkeypatch):
    built: list[str] = []

    def counting(session, *rest, **more):
        built.append(session)
        return summary_of(session, *rest, **more)

    monkeypatch.setattr("ctxd.sessions.session_catalog.summary_of", counting)
    catalog = Catalog()
    made = SessionSettings(agent="a", principal="p", created_at=1, ordinal=1, filesystem_id="f")
    for n in range(3):
        catalog.put(f"s{n}", SessionHead(settings=msgspec.structs.replace(made, ordinal=n)), n)
    for _ in range(4):
        page = catalog.page(Filters(SessionListParams(text="s")), 10, None).sessions
        assert [catalog.summary(session).session for session in page] == ["s2", "s1", "s0"]
    assert sorted(built) == ["s0", "s1", "s2"]
    catalog.put("s1", SessionHead(settings=msgspec.structs.replace(made, title="new")), 9)
    assert [catalog.summary(f"s{n}").title for n in range(3)] == ["", "new", ""]
    assert built.count("s1") == 2 and len(built) == 4


@pytest.mark.requirement("LST-5")
def test_forks_are_counted_beside_a_project():
    catalog = Catalog()
    for n, project in enumerate(PROJECTS):
        made = SessionSettings(agent="a", principal="p", created_at=n, ordinal=n, filesystem_id="f", project=project)
        catalog.put(f"s{n}", SessionHead(settings=made), n)
    page = catalog.page(Filters(SessionListParams(), ProjectFilter(PROJECTS[3])), 100, None)
    assert page.sessions == ["s7", "s6", "s4", "s3", "s2", "s1"], "s1 and s2 are from before it was a repository"
    assert page.forks == 1
    assert catalog.page(Filters(SessionListParams(), ProjectFilter(PROJECTS[1])), 100, None).forks is None
