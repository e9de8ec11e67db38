"""``ctx checkpoint`` of a delta, and its refusals."""

import pytest

from tests.unit.cli.commit_lines import LINES, line


@pytest.mark.requirement("CLI-2")
def test_a_checkpoint_without_a_readable_delta_names_what_to_do(real, session, tmp_path):
    ran = real("checkpoint", "-s", session.id)
    assert ran.code == 2 and "missing argument 'FILE|-'" in ran.err and "ctx current -s SESSION commits" in ran.err
    assert "missing option '--format'" in real("checkpoint", "delta", "-s", session.id).err
    (tmp_path / "delta").write_text("hello\n")
    assert real("checkpoint", "--format", "events-v1", str(tmp_path / "delta")).err == (
        "ctx: the delta is not events-v1: it is not a CBOR array; "
        "send it as events-v1, or name the format that it has\n"
    )


@pytest.mark.requirement("CMT-17")
def test_a_checkpoint_continues_the_newest_commit_of_the_session(real, own, tmp_path):
    (tmp_path / "a").write_text(line("one"))
    (tmp_path / "b").write_text(line("two"))
    first = real("checkpoint", "--format", LINES, "-m", "begun", str(tmp_path / "a")).out.strip()
    second = real("checkpoint", "--format", LINES, "--json", str(tmp_path / "b")).json
    assert second["parent"] == first
    assert second["session"] == own.id
    rooted = real("checkpoint", "--format", LINES, "--root", "--json", str(tmp_path / "b")).json
    assert rooted["parent"] is None
    third = real("checkpoint", "--format", LINES, "--parent", f"{second['commit']}~1", "--json", str(tmp_path / "b"))
    assert third.json["parent"] == first
    wrong = real("checkpoint", "--format", LINES, "--root", "--parent", first, str(tmp_path / "a"))
    assert (wrong.code, wrong.out) == (2, "")
    missing = real("checkpoint", "--format", LINES, str(tmp_path / "none"))
    assert (missing.code, missing.out) == (2, "")
    assert "none" in missing.err
    (tmp_path / "c").write_text("no JSON")
    assert real("checkpoint", "--format", LINES, str(tmp_path / "c")).code == 2
