"""HOK: a session that hooks, ``ctx capture`` and ``ctx import`` all see, in any order: each event is there once."""

import json
import os
import subprocess
import sys
import sysconfig
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from ctxd_client import connect_sync
from ctxd_client.sync import SyncClient
from tests import programs
from tests.client.running import Running

SCRIPTS = Path(sysconfig.get_path("scripts"))

Record = dict[str, Any]


class Session:
    """A session of Claude Code: its hooks, and the transcript that it writes beside them."""

    def __init__(self, daemon: Running, folder: Path) -> None:
        self.daemon = daemon
        self.native = str(uuid4())
        self.id = f"claude-code-{self.native}"
        self.file = folder / "sources" / f"{self.native}.jsonl"
        self.file.parent.mkdir(parents=True)
        self.last: str | None = None
        self.written = "2026-01-02T03:04:05.000Z"
        self.environ = {
            "PATH": os.environ["PATH"],
            "HOME": str(folder),
            "CTXD_SOCKET": daemon.socket,
            "CTXD_HOOK_SECONDS": "30",
        }

    def hook(self, event: str, **members: Any) -> None:
        record = {
            "session_id": self.native, "transcript_path": str(self.file), "cwd": "/", "hook_event_name": event,
            **members,
        }  # fmt: skip
        words = [SCRIPTS / "ctx-hook", "claude"]
        subprocess.run(words, input=json.dumps(record).encode(), timeout=60, env=self.environ, check=True)

    def write(
        self, kind: str, *content: Record, text: str | None = None, stop: str | None = None, **members: Any
    ) -> None:
        parent, self.last = self.last, str(uuid4())
        record = {
            "type": kind, "uuid": self.last, "parentUuid": parent, "sessionId": self.native,
            "timestamp": self.written, "cwd": "/",
            "message": {"role": kind, "content": list(content) if text is None else text, "stop_reason": stop},
            **members,
        }  # fmt: skip
        with self.file.open("ab") as file:
            file.write(json.dumps(record, separators=(",", ":")).encode() + b"\n")

    def turn(self, name: str, *, hooked: bool = True) -> None:
        """One turn: a prompt, a text before the call, a thought and a call in one record, its output, a text between,
        and an answer."""
        call = {"type": "tool_use", "id": f"call-{name}", "name": "Bash", "input": {"command": f"run {name}"}}
        if hooked:
            self.hook("UserPromptSubmit", prompt=f"prompt {name}", prompt_id=f"p-{name}")
        self.write("user", text=f"prompt {name}")
        self.write("assistant", {"type": "text", "text": f"before {name}"})
        self.write("assistant", {"type": "thinking", "thinking": f"thought {name}", "signature": "x"}, call)
        if hooked:
            self.hook("PreToolUse", tool_name="Bash", tool_use_id=f"call-{name}", tool_input=call["input"])
            self.hook(
                "PostToolUse", tool_name="Bash", tool_use_id=f"call-{name}", tool_input={"command": f"run {name}"},
                tool_response=f"output {name}",
            )  # fmt: skip
        self.write("user", {"type": "tool_result", "tool_use_id": f"call-{name}", "content": f"output {name}"})
        self.write("assistant", {"type": "text", "text": f"between {name}"})
        self.write("assistant", {"type": "text", "text": f"answer {name}"}, stop="end_turn")
        if hooked:
            self.hook("Stop", prompt_id=f"p-{name}", last_assistant_message=f"answer {name}")

    def ctx(self, *words: str) -> str:
        done = programs.run("ctx", words, env=self.environ)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def imported(self) -> Record:
        found: Record = json.loads(self.ctx("import", "claude", str(self.file.parent), "--json"))
        return found


FORMAT = "claude-code-v1"
NAMES = ("prompt", "before", "thought", "run", "output", "between", "answer")


def held(client: SyncClient, session: str | None) -> Counter[str]:
    """How often each event is in the deltas of all commits of a session; of all sessions for None."""
    found = Counter[str]()
    for commit in client.commit_list(session=session, limit=1000).commits:
        delta = str(client.commit_materialize(commit.commit, stop=commit.commit, format=FORMAT).content)
        delta = delta.replace('": "', '":"')
        for label in "abcde":
            for name in NAMES:
                # The text of an output that a hook recorded is in an object.
                sought = f'"tool_use_id":"call-{label}"' if name == "output" else f"{name} {label}"
                found[f"{name} {label}"] += delta.count(sought)
    return +found


def once(*labels: str) -> Counter[str]:
    return Counter(f"{name} {label}" for name in NAMES for label in labels)


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[Running]:
    with Running(tmp_path, keep_state=True) as running:
        yield running


@pytest.fixture
def session(daemon: Running, tmp_path: Path) -> Session:
    return Session(daemon, tmp_path / "home")


@pytest.fixture
def client(daemon: Running) -> Iterator[SyncClient]:
    with connect_sync(daemon.socket) as client:
        yield client


@pytest.mark.requirement("HOK-14")
def test_an_import_after_hooks_adds_only_unrecorded_events(session: Session, client: SyncClient) -> None:
    session.turn("a")
    session.turn("b")
    session.hook("SessionEnd", reason="other")
    before = client.context_current(session=session.id).context_id
    assert session.imported()["recorded"] == 8
    assert held(client, session.id) == once("a", "b")
    # What the session goes on from is as it was.
    found = client.commit_resolve(session=session.id).commit
    assert found is not None and found.commit == before
    assert session.imported()["commits"] == 0


OPENED = "<ide_opened_file>The user opened a.go.</ide_opened_file>"


@pytest.mark.requirement("HOK-14", "IMP-20")
@pytest.mark.parametrize("prompt", [f"{OPENED}\nprompt a", "prompt a"], ids=["with the notice", "without"])
def test_a_prompt_in_an_editor_is_there_once_whether_or_not_its_hook_has_the_notice(
    session: Session, client: SyncClient, prompt: str
) -> None:
    session.hook("UserPromptSubmit", prompt=prompt, prompt_id="p-a")
    session.write("user", {"type": "text", "text": OPENED}, {"type": "text", "text": "prompt a"})
    session.write("assistant", {"type": "text", "text": "answer a"}, stop="end_turn")
    session.hook("Stop", prompt_id="p-a", last_assistant_message="answer a")
    session.hook("SessionEnd", reason="other")
    assert client.session_get(session.id).session.title == "prompt a"
    session.imported()
    assert held(client, session.id) == Counter({"prompt a": 1, "answer a": 1})
    assert session.imported()["commits"] == 0


@pytest.mark.requirement("HOK-14", "IMP-21")
@pytest.mark.parametrize("source", ["system", None])
def test_a_message_in_a_person_s_place_is_there_once_whether_or_not_its_hook_names_the_source(
    session: Session, client: SyncClient, source: str | None
) -> None:
    session.hook("UserPromptSubmit", prompt="prompt a", prompt_id="p-a", source="user")
    session.write("user", text="prompt a")
    session.hook("UserPromptSubmit", prompt="prompt b", prompt_id="p-b", **({"source": source} if source else {}))
    session.write("user", text="prompt b", origin={"kind": "auto-continuation"}, promptSource="system")
    session.write("assistant", {"type": "text", "text": "answer b"}, stop="end_turn")
    session.hook("Stop", prompt_id="p-b", last_assistant_message="answer b")
    session.hook("SessionEnd", reason="other")
    session.imported()
    assert held(client, session.id) == Counter({"prompt a": 1, "prompt b": 1, "answer b": 1})
    assert session.imported()["commits"] == 0


@pytest.mark.requirement("HOK-14")
def test_hooks_continue_an_import_and_a_reimport_adds_only_unrecorded_events(
    session: Session, client: SyncClient
) -> None:
    session.turn("a", hooked=False)
    assert session.imported()["recorded"] == 0
    assert held(client, session.id) == once("a")
    session.turn("b")
    # The same prompt as one that was imported.
    session.hook("UserPromptSubmit", prompt="prompt a", prompt_id="p-again")
    session.write("user", text="prompt a")
    session.hook("SessionEnd", reason="other")
    assert session.imported()["recorded"] == 5
    session.turn("c", hooked=False)
    session.imported()
    assert held(client, session.id) == once("a", "b", "c") + Counter({"prompt a": 1})
    now = client.context_current(session=session.id).context_id
    whole = str(client.commit_materialize(now, stop="root", format=FORMAT).content)
    assert [whole.count(f"answer {label}") for label in "abc"] == [1, 1, 1]


def whole(client: SyncClient, session: str, stop: str = "compaction") -> Counter[str]:
    """How often each event is in the context of the newest commit of a session."""
    found = client.commit_resolve(session=session).commit
    assert found is not None
    text = str(client.commit_materialize(found.commit, stop=stop, format="narrative-v1").content)
    return +Counter({f"{name} {label}": text.count(f"{name} {label}") for label in "abcde" for name in NAMES})


@pytest.mark.requirement("HOK-18")
def test_an_import_after_a_resume_completes_a_session_that_was_older_than_its_hooks(
    session: Session, client: SyncClient
) -> None:
    session.turn("a", hooked=False)
    session.hook("SessionStart", source="resume")
    session.turn("b")
    session.hook("SessionEnd", reason="other")
    assert whole(client, session.id)["answer a"] == 0
    found = session.imported()
    assert (found["recorded"], found["events"]["prompt"]) == (0, 2)
    spoken = ("prompt", "answer", "output")
    for stop in ("compaction", "root"):
        has = whole(client, session.id, stop)
        assert [has[f"{name} {label}"] for name in spoken for label in "ab"] == [1] * 6, has
    assert session.imported()["commits"] == 0
    # It goes on from there: hooked, and not.
    session.hook("SessionStart", source="resume")
    session.turn("c")
    session.hook("SessionEnd", reason="other")
    assert session.imported()["recorded"] == 4
    session.written = datetime.now(UTC).isoformat()
    session.turn("d", hooked=False)
    session.imported()
    has = whole(client, session.id)
    assert [has[f"{name} {label}"] for name in spoken for label in "abcd"] == [1] * 12, has
    text = session.ctx("materialize", session.id, "--format", "narrative-v1")
    assert [text.index(f"answer {label}") for label in "abcd"] == sorted(
        text.index(f"answer {each}") for each in "abcd"
    )
    # What hooks had recorded before the import is in their own commits too.
    assert held(client, session.id) == once("a", "b", "c", "d") + Counter(
        f"{name} b" for name in ("prompt", "before", "run", "output", "answer")
    )


@pytest.mark.requirement("HOK-18")
def test_a_fork_recorded_by_hooks_is_completed_with_the_history_of_its_origin(
    session: Session, client: SyncClient
) -> None:
    session.turn("a", hooked=False)
    session.imported()
    before, origin = session.id, session.native
    session.native = str(uuid4())
    session.id, text = f"claude-code-{session.native}", session.file.read_text()
    session.file = session.file.with_name(f"{session.native}.jsonl")
    session.file.write_text(text.replace(origin, session.native))
    session.hook("SessionStart", source="fork")
    session.turn("b")
    session.hook("SessionEnd", reason="other")
    assert session.imported()["copied"] > 0
    has = whole(client, session.id)
    assert [has[f"{name} {label}"] for name in ("prompt", "answer", "output") for label in "ab"] == [1] * 6, has
    assert whole(client, before)["answer b"] == 0


@pytest.mark.requirement("HOK-18")
def test_an_import_removes_rewound_turns_from_the_context(session: Session, client: SyncClient) -> None:
    def in_context() -> list[str]:
        session.hook("SessionEnd", reason="other")
        session.imported()
        has = whole(client, session.id)
        assert all(
            has[f"{name} {label}"] == has[f"prompt {label}"] < 2 for name in ("answer", "output") for label in "abcde"
        )
        return [label for label in "abcde" if has[f"prompt {label}"]]

    session.turn("a")
    after_a = session.last
    session.turn("b")
    session.last = after_a
    session.turn("c")
    after_c = session.last
    assert in_context() == ["a", "c"]
    assert session.imported()["commits"] == 0
    session.hook("SessionStart", source="resume")
    session.turn("d")
    assert in_context() == ["a", "c", "d"]
    # Back behind turns of the imported chain, and behind one that hooks recorded after it.
    session.hook("SessionStart", source="resume")
    session.last = after_c
    session.turn("e")
    assert in_context() == ["a", "c", "e"]
    assert held(client, session.id)["answer e"] == 2, "of the hooks, and of the whole transcript"


def prompts_after_import(session: Session, client: SyncClient) -> list[str]:
    """The prompts in the context once the transcript is imported, and a second import has made nothing."""
    session.imported()
    assert session.imported()["commits"] == 0
    has = whole(client, session.id)
    return [label for label in "abcde" if has[f"prompt {label}"]]


@pytest.mark.requirement("HOK-18")
@pytest.mark.parametrize("is_hooked", [True, False])
def test_returning_to_an_abandoned_branch_continues_it(session: Session, client: SyncClient, is_hooked: bool) -> None:
    def after(parent: str | None, label: str) -> list[str]:
        if is_hooked:
            session.hook("SessionStart", source="resume")
        session.last, session.written = parent, datetime.now(UTC).isoformat()
        session.turn(label, hooked=is_hooked)
        if is_hooked:
            session.hook("SessionEnd", reason="other")
        return prompts_after_import(session, client)

    session.turn("a")
    after_a = session.last
    session.turn("b")
    after_b = session.last
    session.hook("SessionEnd", reason="other")
    assert after(after_a, "c") == ["a", "c"]
    after_c = session.last
    assert after(after_b, "d") == ["a", "b", "d"]
    # Both branches are in the imported part now.
    assert after(after_c, "e") == ["a", "c", "e"]


@pytest.mark.requirement("IMP-17")
@pytest.mark.parametrize("is_hooked", [True, False])
def test_a_rewind_before_the_next_prompt_takes_turns_of_hooks_out_of_the_context(
    session: Session, client: SyncClient, is_hooked: bool
) -> None:
    session.turn("a")
    after_a = session.last
    session.turn("b")
    marker = {"type": "last-prompt", "leafUuid": after_a, "explicit": True, "sessionId": session.native}
    with session.file.open("a") as file:
        file.write(json.dumps(marker) + "\n")
    session.hook("SessionEnd", reason="other")
    assert prompts_after_import(session, client) == ["a"]
    session.last, session.written = after_a, datetime.now(UTC).isoformat()
    if is_hooked:
        session.hook("SessionStart", source="resume")
    session.turn("c", hooked=is_hooked)
    if is_hooked:
        session.hook("SessionEnd", reason="other")
    assert prompts_after_import(session, client) == ["a", "c"]


@pytest.mark.requirement("HOK-14")
def test_turns_after_a_return_are_in_one_commit_and_so_are_those_before_hooks(
    session: Session, client: SyncClient
) -> None:
    session.turn("a", hooked=False)
    session.last = None
    session.turn("b", hooked=False)
    session.imported()
    for label in "cd":
        session.hook("SessionStart", source="resume")
        session.turn(label)
        session.hook("SessionEnd", reason="other")
        session.imported()
    assert held(client, session.id) == once("a", "b", "c", "d")
    assert [label for label in "abcd" if whole(client, session.id)[f"answer {label}"]] == ["b", "c", "d"]


@pytest.mark.requirement("HOK-18")
@pytest.mark.parametrize("hooked", ["hh-", "h-h-", "h-h-h", "hh--h"])
def test_turns_with_and_without_hooks_are_all_in_the_context(session: Session, client: SyncClient, hooked: str) -> None:
    for label, by in zip("abcde", hooked, strict=False):
        if by == "h":
            session.hook("SessionStart", source="resume")
        session.written = datetime.now(UTC).isoformat()
        session.turn(label, hooked=by == "h")
        if by == "h":
            session.hook("SessionEnd", reason="other")
        session.imported()
        has = whole(client, session.id)
        seen = [each for each in "abcde" if has[f"answer {each}"] == has[f"prompt {each}"] == 1]
        assert "".join(seen) == "abcde"[: "abcde".index(label) + 1]


@pytest.mark.requirement("HOK-18")
@pytest.mark.parametrize(
    "parts", ["h-", "hh--", "h--h", "-h-", "-h-h", "h h", "h- -h", "h - -", "- -h", "h-h-", "-", "- -", "- h"]
)
def test_turns_of_several_modes_before_an_import_are_all_in_the_context(
    session: Session, client: SyncClient, parts: str
) -> None:
    """``h``: a turn with hooks, ``-``: one without, a space: an import in between. The session ends after the last."""
    labels = iter("abcde")
    for each in f"{parts} ":
        if each != " ":
            session.written = datetime.now(UTC).isoformat()
            session.turn(next(labels), hooked=each == "h")
            continue
        session.hook("SessionEnd", reason="other")
        session.imported()
    turns = "abcde"[: len(parts.replace(" ", ""))]
    assert prompts_after_import(session, client) == [*turns]
    text = session.ctx("materialize", session.id, "--format", "narrative-v1", "--stop", "root")
    for name in ("prompt", "answer"):
        assert [text.count(f"{name} {label}") for label in turns] == [1] * len(turns)
    assert sorted(turns, key=lambda label: text.index(f"answer {label}")) == [*turns]


@pytest.mark.requirement("HOK-18")
def test_a_transcript_without_hook_recorded_events_does_not_replace_them(session: Session, client: SyncClient) -> None:
    session.turn("a", hooked=False)
    session.turn("b")
    session.hook("UserPromptSubmit", prompt="prompt c", prompt_id="p-c")
    session.hook("SessionEnd", reason="other")
    session.imported()
    has = whole(client, session.id)
    assert has["prompt c"] == 1 and has["answer a"] == 0
    assert held(client, session.id) == once("a", "b") + Counter({"prompt c": 1})


@pytest.mark.requirement("HOK-14")
def test_an_import_skips_a_session_while_hooks_record_it(session: Session, client: SyncClient) -> None:
    session.turn("a")
    found = session.imported()
    assert (found["commits"], len(found["skipped"])) == (0, 1) and "once it is paused" in found["skipped"][0]["reason"]
    session.turn("b")
    session.hook("SessionEnd", reason="other")
    assert session.imported()["recorded"] == 8
    # A session that is resumed.
    session.hook("SessionStart", source="resume")
    session.turn("c")
    assert session.imported()["commits"] == 0
    session.hook("SessionEnd", reason="other")
    session.imported()
    assert held(client, session.id) == once("a", "b", "c")


@pytest.mark.requirement("HOK-14")
def test_an_imported_continuation_survives_later_hook_records(session: Session, client: SyncClient) -> None:
    session.turn("a")
    session.hook("SessionEnd", reason="other")
    session.imported()
    session.written = datetime.now(UTC).isoformat()
    session.turn("b", hooked=False)
    session.imported()
    session.turn("c")
    session.hook("SessionEnd", reason="other")
    session.imported()
    assert held(client, session.id) == once("a", "b", "c")
    has = whole(client, session.id)
    assert [has[f"answer {label}"] for label in "abc"] == [1, 1, 1]


@pytest.mark.requirement("HOK-14")
def test_events_that_wait_are_delivered_before_an_import(session: Session, client: SyncClient) -> None:
    session.hook("SessionStart", source="startup")
    there = session.environ["CTXD_SOCKET"]
    os.rename(there, f"{there}.away")
    session.turn("a")
    session.hook("SessionEnd", reason="other")
    os.rename(f"{there}.away", there)
    assert session.imported()["recorded"] == 4
    assert held(client, session.id) == once("a")


@pytest.mark.requirement("HOK-14")
def test_an_event_that_a_hook_lost_is_imported(session: Session, client: SyncClient) -> None:
    session.turn("a")
    session.turn("b", hooked=False)
    session.turn("c")
    session.hook("SessionEnd", reason="other")
    assert prompts_after_import(session, client) == ["a", "b", "c"]
    has = whole(client, session.id)
    assert [has[f"answer {label}"] for label in "abc"] == [1, 1, 1]


@pytest.mark.requirement("HOK-18")
@pytest.mark.requirement("HOK-15")
def test_the_output_of_a_call_whose_end_no_hook_saw_is_imported(session: Session, client: SyncClient) -> None:
    """The harness was killed, and wrote the output when it was resumed."""
    session.turn("a")
    session.hook("UserPromptSubmit", prompt="prompt b", prompt_id="p-b")
    session.hook("PreToolUse", tool_name="Bash", tool_use_id="call-b", tool_input={"command": "run b"})
    session.hook("SessionStart", source="resume")
    session.turn("b", hooked=False)
    session.hook("SessionEnd", reason="other")
    client.context_current(session=session.id)
    recorded = held(client, session.id)
    assert recorded["run b"] == 1 and not recorded["output b"]
    session.imported()
    # The transcript is imported whole, and what hooks have recorded is in their own commits too.
    assert held(client, session.id) == once("a", "b") + recorded
    has = whole(client, session.id)
    assert [has[f"{name} {label}"] for name in ("run", "output", "answer") for label in "ab"] == [1] * 6, has
    assert session.imported()["commits"] == 0


@pytest.mark.requirement("HOK-14")
def test_a_session_that_is_closed_or_in_the_trash_is_imported_or_listed(session: Session, client: SyncClient) -> None:
    session.turn("a")
    session.ctx("session", "rm", session.id)
    found = session.imported()
    assert (found["commits"], found["sessions"]) == (0, []) and "ctx session restore" in found["skipped"][0]["reason"]
    session.ctx("session", "restore", session.id)
    session.ctx("session", "close", session.id)
    assert session.imported()["recorded"] == 4
    assert held(client, session.id) == once("a")


AGENT = """
import json, subprocess, sys
native, *steps = json.loads(sys.argv[1])
for kind, value in steps:
    if kind == "hook":
        words = [sys.argv[2], "claude"]
        subprocess.run(words, input=json.dumps({"session_id": native, "cwd": "/", **value}).encode(), check=True)
    else:
        print(json.dumps({"session_id": native, **value}), flush=True)
"""


def agent(session: Session, *, hooked: bool) -> list[str]:
    """The command of an agent with one turn, which prints it, and whose hooks report it."""
    call = {"type": "tool_use", "id": "call-a", "name": "Bash", "input": {"command": "run a"}}
    result = {"type": "tool_result", "tool_use_id": "call-a", "content": "output a"}
    steps: list[Any] = [
        ("hook", {"hook_event_name": "UserPromptSubmit", "prompt": "prompt a", "prompt_id": "p"}),
        ("line", {"type": "system", "subtype": "init", "tools": [], "model": "m"}),
        ("line", {"type": "assistant", "message": {"id": "m", "role": "assistant", "content": [call]}}),
        ("hook", {"hook_event_name": "PostToolUse", "tool_name": "Bash", "tool_use_id": "call-a",
                  "tool_input": {"command": "run a"}, "tool_response": "output a"}),
        ("line", {"type": "user", "message": {"role": "user", "content": [result]}}),
        ("hook", {"hook_event_name": "Stop", "prompt_id": "p", "last_assistant_message": "answer a"}),
        ("line", {"type": "assistant", "message": {"id": "n", "role": "assistant",
                                                   "content": [{"type": "text", "text": "answer a"}]}}),
        ("hook", {"hook_event_name": "SessionEnd", "reason": "other"}),
    ]  # fmt: skip
    wanted = [session.native, *(step for step in steps if hooked or step[0] == "line")]
    return [sys.executable, "-c", AGENT, json.dumps(wanted), str(SCRIPTS / "ctx-hook")]


@pytest.mark.requirement("HOK-14")
def test_a_capture_leaves_the_session_that_hooks_record_to_them(session: Session, client: SyncClient) -> None:
    session.turn("a", hooked=False)
    session.ctx("capture", "--", *agent(session, hooked=True))
    session.imported()
    assert held(client, None) == once("a")
    # Without hooks, and for a session that the caller names, it records.
    for options, hooked in (((), False), (("--session", "mine"), True)):
        if options:
            client.session_create("claude-code", session="mine")
        session.ctx("capture", *options, "--", *agent(session, hooked=hooked))
    made = Counter(commit.session for commit in client.commit_list(limit=1000).commits)
    assert made[None] > 0 and made["mine"] > 0


@pytest.mark.requirement("HOK-14")
def test_commits_of_a_capture_that_wait_are_left_to_the_hooks_too(session: Session, client: SyncClient) -> None:
    there = session.environ["CTXD_SOCKET"]
    os.rename(there, f"{there}.away")
    session.ctx("capture", "--wait", "0", "--", *agent(session, hooked=True))
    os.rename(f"{there}.away", there)
    session.ctx("capture", "--", sys.executable, "-c", "")
    assert held(client, None) == Counter({f"{name} a": 1 for name in ("prompt", "run", "output", "answer")})


@pytest.mark.requirement("HOK-14")
def test_a_command_without_a_response_between_turns_with_hooks_needs_no_whole_import(
    session: Session, client: SyncClient
) -> None:
    session.turn("a")
    session.write("user", text="<command-name>/model</command-name>\n<command-args></command-args>")
    session.write("user", text="<local-command-stdout>Set model to x</local-command-stdout>")
    session.turn("b")
    session.hook("SessionEnd", reason="other")
    session.imported()
    assert held(client, session.id) == once("a", "b")
    assert session.imported()["commits"] == 0
