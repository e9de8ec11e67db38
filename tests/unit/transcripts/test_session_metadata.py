"""Facts of transcripts: those of each harness, and whatever else stands in a file."""

import os
from pathlib import Path

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ctxd.transcripts.discovery import lines_of, transcripts
from ctxd.transcripts.session_metadata import SessionFacts
from ctxd.transcripts.transcript_files import Skipped
from ctxd_protocol.session_types import RecordedSession

pytestmark = pytest.mark.requirement("LST-11")

TRANSCRIPTS = Path(os.environ.get("CTXD_TRANSCRIPTS", "../shared/data/transcripts"))


def facts(format, *records, before=None):
    found = SessionFacts(format)
    for record in records:
        found.add(record)
    return found.recorded(before)


def claude(text, at, **more):
    stamp = f"2026-11-01T10:00:{at:02d}.000Z"
    return {
        "type": "user",
        "uuid": f"u{at}",
        "sessionId": "S",
        "timestamp": stamp,
        "message": {"content": text},
        **more,
    }


BEGAN = 1_793_527_200_000


def test_claude_code():
    found = facts(
        "claude-code",
        {"type": "permission-mode", "permissionMode": "plan", "sessionId": "S"},
        claude("<system-reminder>x</system-reminder>", 0, isMeta=True),
        claude("Mend it", 1, permissionMode="default"),
        {"type": "ai-title", "aiTitle": "Mending", "sessionId": "S"},
        claude("inside", 2, isSidechain=True, permissionMode="bypassPermissions"),
        claude("Go on", 3, permissionMode="acceptEdits"),
        {"type": "summary", "summary": "Old title", "leafUuid": "u1"},
    )
    assert found == RecordedSession(
        title="Mending", prompt="Mend it", began_at=BEGAN, ended_at=BEGAN + 3000,
        permissions={"permission_mode": "acceptEdits"},
    )  # fmt: skip
    own, others = (
        {"type": "summary", "summary": text, "leafUuid": leaf} for text, leaf in (("Own", "u1"), ("No", "u9"))
    )
    said = {**claude("Mend it", 0), "uuid": "u1"}
    assert facts("claude-code", own, others, said).title == facts("claude-code", said, others, own).title == "Own"
    assert facts("claude-code", others, said).title == "", "a summary of another session"
    begun = facts("claude-code", others)
    assert begun.title == "No", "its messages are not written yet"
    assert facts("claude-code", others, said, before=begun).title == "", "the first message names other leaves"
    assert facts("claude-code", own, said, before=facts("claude-code", own)).title == "Own"
    named = facts("claude-code", {"type": "ai-title", "aiTitle": "A"}, {"type": "custom-title", "customTitle": "B"})
    assert named.title == "B"


def test_the_directory_of_claude_code_is_the_last_one_to_which_it_moved_the_session():
    found = SessionFacts("claude-code")
    found.add(claude("Mend it", 1, cwd="/srv/app"))
    assert found.directory == ""
    for place in ("/srv/first", "/srv/second", "", 7):
        found.add({"type": "relocated", "relocatedCwd": place, "sessionId": "S"})
    assert found.directory == "/srv/second"


def test_a_sub_agent_has_only_times():
    found = SessionFacts("claude-code", is_agent=True)
    found.add({"type": "ai-title", "aiTitle": "Named", "permissionMode": "plan"})
    for at in (1, 3):
        found.add(claude("Look", at, permissionMode="plan"))
    assert found.recorded() == RecordedSession(began_at=BEGAN + 1000, ended_at=BEGAN + 3000)
    known = RecordedSession(title="T", prompt="P", began_at=BEGAN, ended_at=BEGAN + 2000, permissions={"p": "x"})
    assert found.recorded(known) == msgspec.structs.replace(known, ended_at=BEGAN + 3000)


def test_the_task_of_a_team_agent_is_its_first_prompt():
    task = '<teammate-message teammate_id="lead" summary="Review">\nReview it.\n</teammate-message>'
    assert facts("claude-code", claude(task, 0), claude(task.replace("it", "all"), 1)).prompt == "Review it."
    assert facts("claude-code", claude(task, 0), claude("Mend it", 1)).prompt == "Mend it"
    headed = f"Another Claude session sent a message:\n{task}"
    assert facts("claude-code", claude(headed, 0)).prompt == "Review it."
    assert facts("claude-code", claude("Check it", 0, origin={"kind": "task-notification"})).prompt == "Check it"


def test_codex():
    turn = {"approval_policy": "on-request", "sandbox_policy": {"type": "workspace-write"}, "model": "m"}
    found = facts(
        "codex",
        {"timestamp": "2026-11-01T10:00:00.000Z", "type": "session_meta", "payload": {"id": "n"}},
        {"timestamp": "2026-11-01T10:00:01.000Z", "type": "turn_context", "payload": turn},
        {"timestamp": "2026-11-01T10:00:02.000Z", "type": "event_msg",
         "payload": {"type": "thread_name_updated", "thread_name": "Named"}},
        {"timestamp": "2026-11-01T10:00:03.000Z", "type": "turn_context", "payload": {"approval_policy": "never"}},
    )  # fmt: skip
    assert found.title == "Named" and found.began_at == BEGAN
    assert found.permissions == {"approval_policy": "never", "sandbox_policy": {"type": "workspace-write"}}


def test_opencode_and_pi():
    rules = [{"permission": "*", "pattern": "*", "action": "deny"}]
    row = {"id": "s", "title": "Real", "permission": msgspec.json.encode(rules).decode()}
    assert facts("opencode", {"session": row}) == RecordedSession(title="Real", permissions={"permission": rules})
    untitled = facts("opencode", {"session": {"id": "s", "title": "New session - 2026-07-26T13:22:40.476Z"}})
    assert untitled.title == ""
    assert facts("opencode", {"session": {"permission": "{no json"}}).permissions == {"permission": "{no json"}
    assert facts("pi", {"type": "session_info", "id": "1", "name": "Named"}).title == "Named"


def test_numbers_that_no_double_holds_are_text_in_a_grant():
    facts = SessionFacts("codex")
    facts.add({"type": "turn_context", "payload": {"sandbox_policy": {"limit": 2**60, "low": -5}}})
    assert facts.recorded().permissions == {"sandbox_policy": {"limit": str(2**60), "low": -5}}


@pytest.mark.parametrize("levels", [60, 400])
@pytest.mark.requirement("IMP-6")
def test_a_grant_of_many_levels_fits_into_a_call(levels):
    grant = "x"
    for _ in range(levels):
        grant = [grant]
    found = facts("codex", {"type": "turn_context", "payload": {"sandbox_policy": grant}}).permissions
    (kept,) = found.values()
    for _ in range(32):
        (kept,) = kept
    assert kept == "[" * (levels - 32) + '"x"' + "]" * (levels - 32)


def test_a_long_grant_is_named_and_a_long_text_cut():
    found = facts("codex", {"type": "turn_context", "payload": {"sandbox_policy": {"roots": ["/x" * 9000]}}})
    assert found.permissions["sandbox_policy"].endswith("bytes, in the transcript]")
    assert len(facts("claude-code", claude("x" * 9000, 1)).prompt) == 200


def test_another_transcript_of_the_session_adds_to_the_first():
    later = facts("claude-code", claude("Later", 30, permissionMode="plan"))
    earlier = facts("claude-code", claude("Earlier", 1), {"type": "ai-title", "aiTitle": "T"}, before=later)
    assert earlier == RecordedSession(
        title="T", prompt="Earlier", began_at=BEGAN + 1000, ended_at=BEGAN + 30_000,
        permissions={"permission_mode": "plan"},
    )  # fmt: skip
    assert facts("claude-code", claude("Later", 30), before=earlier) == earlier


values = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(-(2**53), 2**53), st.text(max_size=8)),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=8), inner, max_size=3)),
    max_leaves=8,
)
names = st.sampled_from(
    ["type", "payload", "session", "permissionMode", "aiTitle", "customTitle", "title", "permission", "timestamp",
     "approval_policy", "message", "name", "thread_name"]
)  # fmt: skip
kinds = st.sampled_from(["user", "ai-title", "custom-title", "turn_context", "event_msg", "session_info", "message"])


# A machine that does other work is slow at making examples.
@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    st.sampled_from(["claude-code", "codex", "pi", "opencode"]),
    st.lists(st.dictionaries(names, st.one_of(values, kinds), max_size=6), max_size=5),
)
def test_no_record_fails_and_all_facts_can_be_stored(format, records):
    found = facts(format, *records)
    assert msgspec.convert(msgspec.to_builtins(found), RecordedSession) == found


@pytest.mark.skipif(not TRANSCRIPTS.is_dir(), reason="CTXD_TRANSCRIPTS names no folder")
def test_facts_of_real_transcripts():
    read = titled = prompted = granted = 0
    for harness, folder, suffix in (("claude", "claude-code", "*.jsonl"), ("codex", "codex", "*.jsonl")):
        for path in sorted((TRANSCRIPTS / folder).rglob(suffix))[:60]:
            for source in transcripts(harness, path):
                if isinstance(source, Skipped) or path.stat().st_size > 2_000_000:
                    continue
                found = SessionFacts(source.format)
                for line in lines_of(source):
                    if line.record is not None:
                        found.add(line.record)
                recorded = found.recorded()
                read += 1
                titled += bool(recorded.title)
                prompted += bool(recorded.prompt)
                granted += bool(recorded.permissions)
                assert (recorded.began_at or 0) <= (recorded.ended_at or 0)
    assert read > 20 and prompted > 10 and granted > 5 and titled > 2, (read, titled, prompted, granted)


def test_a_transcript_without_times_has_that_of_its_last_change():
    found = SessionFacts("claude-code")
    found.add({"type": "summary", "summary": "A title", "leafUuid": "u1"})
    assert found.recorded(None, 5000) == RecordedSession(title="A title", began_at=5000, ended_at=5000)
    known = RecordedSession(began_at=1000, ended_at=2000)
    assert found.recorded(known, 5000) == msgspec.structs.replace(known, title="A title")
    found.add(claude("Mend it", 1))
    assert found.recorded(None, 5000).ended_at == BEGAN + 1000
