"""Commands that accept a revision, against the daemon as it is."""

import pytest

pytestmark = pytest.mark.timeout(120)


@pytest.mark.requirement("REV-4")
def test_a_context_is_shown_as_of_a_turn_a_distance_a_time_and_by_its_id(real, session, monkeypatch):
    records = session.assemblies().assemblies
    first, second = (real("context", "--assembly", str(each.number), "--text").out for each in records)
    assert first != second
    begun, last = (each.assembled_at for each in records)
    for revision, expected in (
        (f"{session.id}@1", first),
        ("@1", first),
        ("@2", second),
        ("@~1", first),
        ("@2~1", first),
        ("@~0", second),
        (f"@{{{begun}}}", first),
        (f"{session.id[:-1]}@{{{last}}}", second),
        (f"@{{{last + 1}}}~1", first),
        (records[0].context_id, first),
        (records[1].context_id, second),
    ):
        ran = real("context", revision, "--text")
        assert (ran.code, ran.out) == (0, expected), (revision, ran.err)
    assert real("context", "@1", "--json").json["number"] == 1
    diff = real("context", "--diff", "1", "2").out
    for before, after in (("@1", "@2"), ("@~1", "@"), (records[0].context_id, f"{session.id}@2")):
        assert real("context", session.id, "--diff", before, after).out == diff
    other = session._calls.session(agent="other")
    other.assemble()
    monkeypatch.delenv("CTXD_SESSION")
    across = real("context", "--diff", f"{session.id}@1", f"{other.id}@~0")
    assert across.out.startswith(f"--- {session.id} assembly 1 (turn 1)\n+++ {other.id} assembly 1 (turn 0)\n")
    monkeypatch.setenv("CTXD_SESSION", session.id)
    for missing in ("@7", "@~9", f"@{{{begun - 1}}}", "ctx-00000000"):
        assert real("context", missing).code == 3, missing
    assert real("context", "@1", "--plan").code == 2


@pytest.mark.requirement("REV-4")
def test_a_turn_and_a_time_select_the_models_request_and_not_a_later_text(real, session):
    session.user("more")
    request = session.assemble(format="anthropic-messages", model="claude-sonnet-4-5")
    later = session.assemble()
    assert later.number == request.number + 1
    sent = real("context", "--assembly", str(request.number), "--text").out
    assert '"messages"' in sent
    for revision in ("@3", "@~0", f"@{{{later.assembled_at}}}", f"{session.id}@3"):
        assert real("context", revision, "--text").out == sent, revision
    assert '+  "messages"' in real("context", "--diff", "@2", "@3").out
    session.close()
    closed = real("context", session.id, "--text")
    assert (closed.out, "what its model saw last" in closed.err) == (sent, True)


@pytest.mark.requirement("REV-4")
def test_the_id_of_a_context_means_the_session_that_recorded_it_though_a_fork_inherits_it(real, session):
    records = session.assemblies().assemblies
    fork = session._calls.session(session.fork().session)
    assert [each.session for each in fork.assemblies().assemblies] == [session.id] * len(records)
    (found,) = fork.assemblies(context_id=records[0].context_id).assemblies
    assert found == records[0]
    assert fork.assemblies(context_id="ctx-0000000000000000").assemblies == ()
    read = real("object", "as-of", "/w/a.py", records[0].context_id, "-s", fork.id)
    assert (read.code, read.out) == (0, "one\n"), read.err
    fork.user("Only in the fork.")
    own = fork.assemble()
    assert fork.assemblies(context_id=own.context_id).assemblies[0].session == fork.id
    assert session.assemblies(context_id=own.context_id).assemblies == ()


@pytest.mark.requirement("REV-4")
def test_an_object_is_read_and_compared_as_of_a_revision(real, session):
    file = "/w/a.py"
    records = session.assemblies().assemblies
    for when, expected in (
        ("@1", "one\ntwo\n"),
        ("@", "one\ntwo\n"),
        (records[0].context_id, "one\n"),
        (records[1].context_id, "one\ntwo\n"),
        (f"@{{{records[1].assembled_at + 60_000}}}", "one\ntwo\n"),
    ):
        ran = real("object", "as-of", file, when)
        assert (ran.code, ran.out) == (0, expected), (when, ran.err)
    assert real("object", "as-of", file, "@0").code == 3, "no agent had read it before the first message"
    assert real("object", "as-of", f"chat:{session.id}", "@1", "--json").json["payload"]["turn_count"] == 1
    expected = real("object", "diff", file).out
    assert real("object", "diff", file, records[0].context_id, "@1").out == expected
    assert real("object", "diff", file, records[0].context_id).out == expected
    wrong = real("object", "diff", file, "one")
    assert (wrong.code, "'one' is not a version" in wrong.err) == (2, True)


@pytest.mark.requirement("REV-4")
def test_a_session_is_shown_as_of_a_revision(real, session):
    now = real("session", "show", "--json").json
    assert real("session", "show", "@", "--json").json == now
    first = real("session", "show", f"{session.id}@1", "--json").json
    assert (first["session"], first["turn_count"], now["turn_count"]) == (session.id, 1, 2)
    before = real("session", "show", "@0", "--json").json
    assert (before["turn_count"], before["session_index"]) == (0, [])
    assert "turns     1" in real("session", "show", "@~1").out
    before = real("session", "show", "@{1h}")
    assert (before.code, f"session {session.id} began at 20" in before.err) == (3, True)


@pytest.mark.requirement("CMT-17")
def test_a_bare_at_sign_after_a_session_names_its_newest_commit(real, session):
    commit = session.client.context_current(session=session.id).context_id
    for name in ("@", f"{session.id}@", "HEAD"):
        assert real("show", name, "--json").json["commit"]["commit"] == commit, name
    assert real("show", "nosuch@").err.startswith("ctx: no such session: nosuch; ")


def test_a_name_of_any_length_is_cut_in_the_message(real, session):
    for words in (("show", "x" * 10_000), ("session", "pause", "x" * 5_000)):
        assert len(real(*words).err) < 500, words


@pytest.mark.requirement("REV-4")
def test_the_calls_for_an_id_that_does_not_exist_are_as_many_with_more_sessions(real, session):
    def calls():
        before = session.client.daemon_status().requests
        assert real("show", "ctx-00000000").code == 3
        return session.client.daemon_status().requests - before

    few = calls()
    for _ in range(10):
        session.client.session_create("demo")
    assert calls() == few
