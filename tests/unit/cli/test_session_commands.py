"""``ctx session``: the session of a title and of labels, and the lists of sessions."""

import json
import os

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
    forgotten = real("session", "title", other)
    assert (forgotten.code, forgotten.err) == (2, "ctx: Missing argument 'TITLE'; see ctx session title --help\n")
    assert session.view().session.title == "Mine"


@pytest.mark.requirement("LST-10")
def test_titles_and_labels_reach_a_terminal_without_control_characters(real, session):
    session.client.session_annotate(session.id, labels={"theirs": "\x1b[31m"})
    assert real("session", "title", "\x1b[31mred").out == f"{session.id}: \\x1b[31mred\n"
    assert real("session", "label", "a=b").out == f"{session.id}: theirs=\\x1b[31m a=b\n"


@pytest.mark.requirement("SES-6")
def test_with_json_the_objects_that_were_moved_before_an_error_are_printed(real, session):
    id = real("object", "ls", "--type", "file", "-q").out.strip()
    ran = real("deactivate", id, "nosuch", "--json")
    assert ran.code == 3 and [each["object"] for each in ran.json["items"]] == [id]
    assert json.loads(ran.err)["error"]["exit"] == 3


@pytest.mark.requirement("CLI-2")
def test_an_argument_that_is_not_utf_8_is_named(real, own, tmp_path, monkeypatch):
    ran = real("search", "x", "--project", "/bad\udcff")
    assert (ran.code, ran.out) == (2, "")
    assert ran.err.startswith("ctx: /bad\\udcff is not UTF-8; write it in UTF-8, and rename a file")
    here = tmp_path / os.fsdecode(b"bad\xff")
    here.mkdir()
    monkeypatch.chdir(here)
    for words in (("resume",), ("session", "new", "demo")):
        assert real(*words).err.startswith(f"ctx: {tmp_path}/bad\\udcff is not UTF-8; "), words


@pytest.mark.requirement("SES-22")
def test_a_transcript_whose_name_is_not_utf_8_is_imported(real, tmp_path):
    file = tmp_path / os.fsdecode(b"bad\xff.jsonl")
    file.write_text('{"type": "user", "sessionId": "S", "message": {"content": "hi"}}\n')
    made = real("session", "import", str(file), "--json")
    assert (made.code, made.json["events"]) == (0, 1), made.err
    assert real("session", "show", made.json["session"], "--json").json["labels"]["transcript"] == "bad\ufffd.jsonl"


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
