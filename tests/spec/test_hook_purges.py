"""Purges of objects that events quote which wait for the daemon."""

import os

import pytest

from ctxd.cli import spool_maintenance
from tests import programs
from tests.spec.test_hooks import NATIVE, Harness, ctx, events, texts


@pytest.mark.requirement("HOK-6")
def test_a_purge_erases_the_events_that_wait(harness: Harness) -> None:
    harness.tool("toolu_known", "known")
    harness.daemon.kill()
    harness.tool("toolu_known", "SECRET one")
    harness.tool("toolu_other", "SECRET two")
    harness.hook("UserPromptSubmit", prompt="three", prompt_id="p3")
    harness.daemon.start()
    assert ctx(harness, "purge", "toolu_known", "-s", harness.session, "--yes").returncode == 0
    assert not any(b"SECRET one" in path.read_bytes() for path in harness.waiting())
    assert len(harness.waiting()) == 2
    assert ctx(harness, "purge", "toolu_other", "-s", harness.session, "--yes").returncode == 0
    assert not any(b"SECRET" in path.read_bytes() for path in harness.waiting())
    harness.hook("UserPromptSubmit", prompt="four", prompt_id="p4")
    assert texts(events(harness)) == ["three", "four"]


@pytest.mark.requirement("HOK-6")
def test_a_purge_that_the_daemon_refuses_erases_no_waiting_event(harness: Harness) -> None:
    harness.tool("toolu_known", "known")
    harness.daemon.kill()
    harness.tool("toolu_known", "one")
    harness.daemon.start()
    assert ctx(harness, "purge", f"session:{harness.session}", "--yes").returncode != 0
    assert ctx(harness, "purge", f"system_prompt:{NATIVE}", "--yes").returncode != 0
    assert len(harness.waiting()) == 1


@pytest.mark.requirement("HOK-6")
def test_no_hook_delivers_an_event_between_the_purge_and_its_erasure(
    harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The events are erased after the daemon has replied; until then they are locked, and they stay if it fails."""
    monkeypatch.setenv("HOME", str(harness.home))
    monkeypatch.delenv("XDG_STATE_HOME", raising=False)
    harness.tool("toolu_known", "known")
    harness.daemon.kill()
    harness.tool("toolu_known", "SECRET one")
    harness.daemon.start()
    harness.environ["CTXD_HOOK_SECONDS"] = "0.5"
    with spool_maintenance.hold(harness.daemon.socket) as held:
        harness.hook("UserPromptSubmit", prompt="two", prompt_id="p2")
        assert len(harness.waiting()) == 2 and texts(events(harness)) == []
        assert held.erase(["toolu_known"]) == 1
    harness.environ["CTXD_HOOK_SECONDS"] = "30"
    harness.hook("UserPromptSubmit", prompt="three", prompt_id="p3")
    assert texts(events(harness)) == ["two", "three"]


@pytest.mark.requirement("HOK-6")
def test_a_purge_erases_a_half_written_event_of_a_killed_hook(harness: Harness) -> None:
    harness.daemon.kill()
    harness.tool("toolu_1", "SECRET")
    (waiting,) = harness.waiting()
    draft = waiting.with_suffix(".draft")
    draft.write_bytes(waiting.read_bytes()[:-40])
    harness.daemon.start()
    assert ctx(harness, "purge", "toolu_1", "-s", harness.session, "--yes").returncode == 0
    assert not waiting.exists() and not draft.exists()


@pytest.mark.requirement("HOK-6")
def test_a_purge_erases_the_events_that_wait_for_other_sockets(harness: Harness) -> None:
    harness.tool("toolu_known", "known")
    there = harness.environ
    for elsewhere in (
        {"CTXD_SOCKET": str(harness.home / "other.sock")},
        {"CTXD_SOCKET": "/nowhere.sock", "XDG_STATE_HOME": str(harness.home / "state")},
    ):
        harness.environ = {**there, **elsewhere}
        harness.tool("toolu_known", "SECRET one")
        harness.hook("UserPromptSubmit", prompt="two", prompt_id="p2")
    # A directory that others may write to is left alone, and the rest is erased first.
    odd = harness.waiting()[0].parent.with_name("%2Fa.sock")
    odd.mkdir(mode=0o777)
    odd.chmod(0o777)
    places = {"HOME": str(harness.home), "XDG_STATE_HOME": str(harness.home / "state")}
    environ = {**os.environ, **places, "CTXD_SOCKET": harness.daemon.socket}
    failed = programs.run("ctx", ("purge", "toolu_known", "-s", harness.session, "--yes"), env=environ)
    assert failed.returncode == 1 and str(odd) in failed.stderr
    found = [*harness.waiting(), *harness.home.glob("state/ctx-hook/*/*.event")]
    assert len(found) == 2 and not any(b"SECRET" in path.read_bytes() for path in found)


@pytest.mark.requirement("HOK-6")
@pytest.mark.parametrize("object", ["toolu_known", "toolu_other"])
def test_a_dry_run_erases_no_event_that_waits(harness: Harness, object: str) -> None:
    harness.tool("toolu_known", "known")
    harness.daemon.kill()
    harness.tool(object, "SECRET one")
    harness.daemon.start()
    ctx(harness, "purge", object, "-s", harness.session, "--yes", "--dry-run")
    assert any(b"SECRET one" in path.read_bytes() for path in harness.waiting())
