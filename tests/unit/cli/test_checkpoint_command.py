"""Refusals of ``ctx checkpoint``."""

import pytest


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
