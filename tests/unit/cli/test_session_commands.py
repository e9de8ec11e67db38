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
