"""Commands after a purge: ``ctx purge`` reports what is left, and those that show a context name what is gone."""

import pytest

pytestmark = pytest.mark.timeout(120)

MODEL = "claude-sonnet-4-5"

LEFT = "no version of it is left; longer texts that quote it stay: ctx search finds words"


@pytest.fixture
def requested(real, session):
    """The session with a request, its third assembly, that shows ``/w/a.py``."""
    assert real("context", "--record", "--format", "anthropic-messages", "--model", MODEL).code == 0
    return session


@pytest.mark.requirement("CLI-3")
def test_a_session_whose_newest_request_showed_purged_content_has_a_note_in_place_of_its_cost(real, requested):
    assert real("context").out.splitlines()[1].startswith("request       assembly 3 for ")
    assert real("purge", "/w/a.py", "--yes").code == 0
    ran = real("context")
    assert (ran.code, ran.err) == (0, "")
    lines = ran.out.splitlines()
    assert lines[1] == "request       assembly 3 showed /w/a.py, which was purged"
    assert lines[2].startswith("[") and any(line.startswith("SECTION  OBJECT ") for line in lines)


@pytest.mark.requirement("WHY-2")
@pytest.mark.parametrize("purged", ["/w/a.py", "call", "chat"])
def test_an_assembly_that_showed_purged_content_is_refused_with_its_number_and_the_content(real, requested, purged):
    id = {"call": f"call-of-{requested.id}", "chat": f"chat:{requested.id}"}.get(purged, purged)
    assert real("purge", id, "--yes").code == 0
    gone = f"content of {id} that was purged" if purged == "chat" else f"{id}, which was purged"
    for words, number in (("@1", 1), ("@2", 3), (("--assembly", "2"), 2)):
        ran = real("context", *((words,) if isinstance(words, str) else words))
        assert (ran.code, ran.out) == (1, "")
        remedy = "it was destroyed by ctx purge, and cannot be restored from this store"
        assert ran.err == f"ctx: assembly {number} showed {gone}; {remedy}\n"


@pytest.mark.requirement("WHY-1")
def test_why_gives_the_purge_as_the_reason_for_purged_content(real, requested):
    assert real("purge", "/w/a.py", "--yes").code == 0
    out = real("context", "--why", "/w/a.py").out.splitlines()
    assert out[0] == "/w/a.py has a stub in the window, because its content was purged"
    assert len(out) == 2 and out[1].startswith("now active; id ")


@pytest.mark.requirement("SEC-14")
def test_a_purge_names_each_file_that_still_exists_as_its_next_change_is_recorded(real, session, tmp_path):
    file = tmp_path / "tree/a.py"
    copy = tmp_path / "tree/copy.py"
    copy.write_bytes(file.read_bytes())
    session.read("/w/copy.py")
    done = real("purge", "/w/a.py", "--yes")
    assert (done.code, done.out.splitlines()[-1]) == (0, LEFT)
    rest = "still exists: its next change is recorded again, with all of its text; remove the text from the file first"
    assert done.err.splitlines() == [f"{file} {rest}", f"{copy} {rest}"]
    file.write_text("one\ntwo\nthree\n")
    session.assemble()
    assert real("object", "cat", "/w/a.py").out == "one\ntwo\nthree\n", "as the note says"
    copy.unlink()
    assert real("purge", "/w/copy.py", "--yes").err == ""
    assert real("purge", "/w/a.py", "--yes", "--json").json["existing"] == [str(file)]
    assert "If a file still exists" in real("purge", "--help").out


@pytest.mark.requirement("SEC-15")
def test_a_purge_of_a_turn_that_does_not_exist_erases_nothing(real, session):
    before = real("session", "chat", session.id).out
    ran = real("purge", f"chat:{session.id}", "--turn", "1", "--turn", "99", "--yes")
    assert (ran.code, ran.out) == (3, "")
    assert ran.err.startswith(f"ctx: session {session.id} has no turn 99; ")
    assert real("session", "chat", session.id).out == before


@pytest.mark.requirement("SEC-15")
def test_the_json_of_a_purge_counts_the_commits_that_are_left(real, own):
    own.user("hello")
    done = real("purge", f"chat:{own.id}", "--yes", "--json").json
    assert (done["waiting"], done["undelivered"], done["commits_left"]) == (0, 0, 0)
    line = '{"type":"user","uuid":"u","sessionId":"S","message":{"role":"user","content":"hi"}}\n'
    own.client.commit_checkpoint("claude-code-v1", line, session=own.id)
    done = real("purge", f"chat:{own.id}", "--yes", "--json").json
    assert (done["complete"], done["commits_left"]) == (True, 1)


@pytest.mark.requirement("SEC-15")
def test_a_purge_of_a_turn_names_the_tool_calls_whose_outputs_stay(real, session):
    call, chat = f"call-of-{session.id}", f"chat:{session.id}"
    done = real("purge", chat, "--turn", "1", "--yes")
    lines = [LEFT, f"the output of 1 tool call stays: ctx purge {call}"]
    assert (done.code, done.out.splitlines()[1:]) == (0, lines)
    again = real("purge", chat, "--turn", "1", "--yes", "--json").json
    assert (again["outputs_left"], again["outputs"]) == (1, [call])
    assert real("purge", chat, "--turn", "2", "--yes").out.endswith(f"\n{LEFT}\n")
    for number in range(4):
        session.tool("bash", {"command": "ls"}, output=f"{number}\n", command="ls", id=f"{number}-{session.id}")
    named = ", ".join(f"ctx purge {each}" for each in (call, f"0-{session.id}", f"1-{session.id}"))
    out = real("purge", chat, "--yes").out
    assert out.endswith(f"\nthe outputs of 5 tool calls stay: {named}, and 2 more\n")
    for id in (call, *(f"{number}-{session.id}" for number in range(4))):
        assert real("purge", id, "--yes").code == 0
    assert real("purge", chat, "--yes").out.endswith(f"\n{LEFT}\n")
