"""Commands after a purge: ``ctx purge`` reports what is left, and those that show a context name what is gone."""

import pytest

pytestmark = pytest.mark.timeout(120)

MODEL = "claude-sonnet-4-5"


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
    assert out[0] == "/w/a.py has a stub in the window: its content was purged"
    assert len(out) == 2 and out[1].startswith("now active; id ")
