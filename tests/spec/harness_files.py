"""Rollouts of codex and session files of pi as the harnesses write them."""

from pathlib import Path
from typing import Any
from uuid import uuid4

from tests.spec.test_import import Codex, Record, here, write


class Thread(Codex):
    """A rollout with the lines that codex writes around each turn; those have no label."""

    def __init__(self, *, hour: int = 3, **meta: Any) -> None:
        self.hour = hour
        super().__init__(originator="codex_cli", cli_version="0.169.0", **{"source": "cli", **meta})

    def add(self, label: str, kind: str = "response_item", **payload: Any) -> None:
        super().add(label, kind, **payload)
        minute, second = divmod(len(self.records), 60)
        self.records[-1]["timestamp"] = f"2026-01-02T{self.hour:02}:{minute:02}:{second:02}.000Z"

    def event(self, kind: str, label: str = "", **payload: Any) -> None:
        self.add(label, "event_msg", type=kind, **payload)

    def begin(self) -> None:
        """The lines before the prompt of a turn."""
        turn = f"turn-{len(self.records)}"
        self.event("task_started", turn_id=turn, model_context_window=400_000)
        self.add("", "turn_context", turn_id=turn, cwd="/srv/app", model="gpt-x", approval_policy="on-request")

    def ask(self, label: str) -> None:
        self.add(label, type="message", role="user", content=[{"type": "input_text", "text": f"text {label}"}])
        self.event("user_message", message=f"text {label}")

    def answer(self, label: str) -> None:
        self.add(label, type="message", role="assistant", content=[{"type": "output_text", "text": f"text {label}"}])
        self.event("agent_message", message=f"text {label}")

    def end(self) -> None:
        self.event("task_complete", last_agent_message="done")

    def turn(self, one: str, other: str) -> None:
        self.begin()
        self.ask(one)
        self.answer(other)
        self.end()

    def compact(self, label: str, prompts: str | None = None) -> None:
        """A compaction, with the history that replaces the one before unless ``prompts`` is None."""
        history = [
            {"type": "message", "role": "user", "content": [{"type": "input_text", "text": f"text {each}"}]}
            for each in prompts or ""
        ]
        more = {} if prompts is None else {"replacement_history": history, "window_number": 2}
        self.add(label, "compacted", message=f"summary {label}", **more)
        self.event("context_compacted")

    def copies(self, origin: Codex, *labels: str) -> None:
        """The lines of ``origin`` that have these labels, as codex copies them."""
        for each in origin.records:
            if each["label"] in labels:
                self.records.append({**each, "timestamp": self.records[-1]["timestamp"], "ordinal": len(self.records)})


class Pi:
    """Entries of a session file of pi, each the child of the one before; the id of each ends with its ``label``."""

    def __init__(self, *, version: int | None = 3, **header: Any) -> None:
        self.native = str(uuid4())
        self.id = here("pi", self.native)
        self.version = version
        self.last: str | None = None
        self.number = 0
        numbered = {} if version is None else {"version": version}
        self.header = {
            "type": "session", **numbered, "id": self.native, "timestamp": self.stamp(), "cwd": "/srv/app",
            "label": "h", **header,
        }  # fmt: skip

    def stamp(self) -> str:
        self.number += 1
        return f"2026-01-02T03:04:{self.number:02}.000Z"

    def entry(self, label: str) -> str:
        """The id of an entry."""
        return f"{self.native[:8]}{label}"

    def __call__(self, label: str, type: str, *, after: str | None = "", **more: Any) -> Record:
        entry = {"timestamp": self.stamp(), "label": label, **more}
        if self.version is None:
            return {"type": type, **entry}
        parent = self.last if after == "" else after and self.entry(after)
        self.last = self.entry(label)
        return {"type": type, "id": self.last, "parentId": parent, **entry}

    def says(self, label: str, role: str = "user", *, after: str | None = "", **more: Any) -> Record:
        message: Record = {"role": role, "content": [{"type": "text", "text": f"text {label}"}], "timestamp": 1, **more}
        if role == "assistant":
            usage = {"input": 9, "output": 4, "cacheRead": 1, "cacheWrite": 2, "totalTokens": 16, "cost": {"total": 1}}
            message = {"provider": "p", "model": "m", "stopReason": "stop", "usage": usage, **message}
        return self(label, "message", after=after, message=message)

    def turn(self, one: str, other: str, *, after: str | None = "") -> list[Record]:
        return [self.says(one, after=after), self.says(other, "assistant")]

    def write(self, folder: Path, *records: Record) -> Path:
        return write(folder / f"2026-01-02T03-04-05-000Z_{self.native}.jsonl", [self.header, *records])
