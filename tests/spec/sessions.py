"""Steps and reads shared by the tests of sessions."""

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ctxd_client import CallFailed, SyncSession

MOVES = ("activate", "deactivate", "pin", "unpin", "pool_add", "pool_remove")


def sets(s: SyncSession) -> tuple[tuple[str, ...], ...]:
    """Index, pool, active and pinned set, in order of entry."""
    view = s.view().session
    return view.session_index, view.metadata_pool, view.active_set, view.pinned_set


def said(s: SyncSession) -> list[tuple[int, list[tuple[str, str]]]]:
    """The chat: turn numbers, and each message's role with its text or the object it stands for."""
    turns = s.client.session_chat(s.id).turns
    messages = [(turn["number"], turn["messages"]) for turn in turns]
    return [(number, [(m["role"], m.get("content") or m.get("toolcall", "")) for m in all]) for number, all in messages]


def call(s: SyncSession, name: str = "call", output: str = "ok\n") -> str:
    """A fresh tool call; its id."""
    return s.record(f"{name}-{s.id}", "bash", output).object


def whole(s: SyncSession) -> tuple[Any, ...]:
    """Everything that belongs to one session alone: context, settings and sets, chat, system prompt."""
    text = s.assemble().text
    return text, s.view(), said(s), s.client.object_get(f"system_prompt:{s.id}").object


def walk(s: SyncSession, tree: Path, rng: random.Random, steps: int) -> list[tuple[tuple[str, ...], ...]]:
    """The sets after each of so many random moves, refused ones included."""
    seen = []
    for number in range(steps):
        known = s.view().session.session_index
        name = f"{rng.randrange(12)}.py"
        step: list[Callable[[], Any]] = [
            lambda number=number: call(s, f"call{number}"),
            lambda: s.user("next"),
            lambda name=name: s.discover([name]),
            lambda name=name: s.read(name),
            lambda name=name, number=number: s.edited(name, content=f"{number}\n"),
        ]
        if known:
            step += [lambda move=move, known=known: getattr(s, move)(rng.choice(known)) for move in MOVES] * 2
        try:
            rng.choice(step)()
        except CallFailed as failure:
            assert failure.code in ("not_active", "not_pinned", "not_in_pool", "content_unavailable"), failure
        seen.append(sets(s))
    return seen
