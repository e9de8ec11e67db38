"""``ctx session``: the session of a title and of labels, and the lists of sessions."""

import pytest


@pytest.mark.requirement("LST-10")
def test_a_lone_argument_is_the_title_or_the_labels_of_the_default_session(real, session):
    other = real("session", "new", "demo", "-q").out.strip()
    assert real("session", "title", "Mine").out == f"{session.id}: Mine\n"
    assert real("session", "title", other, "Its").out == f"{other}: Its\n"
    assert real("session", "label", "a=b", "c=d").out == f"{session.id}: a=b c=d\n"
    assert real("session", "label", "a=").out == f"{session.id}: c=d\n"
    assert real("session", "label", other, "e=f").out == f"{other}: e=f\n"
    for command, missing in (("title", "TITLE"), ("label", "KEY=[VALUE]...")):
        ran = real("session", command)
        assert (ran.code, ran.err) == (2, f"ctx: Missing argument '{missing}'; see ctx session {command} --help\n")
    assert real("session", "label", other).code == 2


@pytest.mark.requirement("SES-6")
def test_a_pinned_object_that_is_deactivated_is_noted(real, session):
    id = real("object", "ls", "--type", "file", "-q").out.strip()
    assert real("pin", id).err == ""
    ran = real("deactivate", id)
    assert ran.out == f"{id} is inactive, pinned\n"
    assert ran.err == f"{id} is out of the window despite its pin; ctx activate loads it again\n"
    again = real("activate", id)
    assert (again.out, again.err) == (f"{id} is active, pinned\n", "")
    assert real("deactivate", id, "--json").err == ""


@pytest.mark.requirement("SES-40")
def test_a_new_session_that_continues_another_names_it_and_how_to_make_it_the_default(real, session):
    commit = session.client.context_current(session=session.id).context_id
    principal = session.view().session.principal
    for words in (("fork", session.id), ("session", "fork", session.id), ("fork", commit), ("resume", principal)):
        ran = real(*words)
        made = ran.out.split()[0]
        assert (ran.code, ran.err) == (0, f"export CTXD_SESSION={made}\n"), words
        (row,) = (line for line in real("session", "ls").out.splitlines() if line.startswith(made))
        assert "(continues s-" in row, words
    assert f"(continues {session.id})" in real("session", "ls").out
    assert real("fork", session.id, "-q").err == real("fork", session.id, "--json").err == ""


@pytest.mark.requirement("SES-22")
def test_an_import_takes_the_id_of_its_session_as_a_new_session_does(real, tmp_path):
    file = tmp_path / "session.jsonl"
    file.write_text('{"type": "user", "sessionId": "S", "message": {"content": "hi"}}\n')
    for option in ("--id", "--session"):
        id = f"imported{option}"
        assert real("session", "import", str(file), option, id, "--json").json["session"] == id
