"""Hooks in Claude Code's ``settings.json``: the entries that ``ctx install claude`` adds and removes again. Pure."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

from ctxd.cli import json_edits
from ctxd.cli.hook_groups import PROGRAM, TIMEOUT_S, UnsuitableFile, handlers, of_group

EVENTS: Final = (
    "SessionStart", "UserPromptSubmit", "PreToolUse", "PostToolUse", "PostToolUseFailure", "SubagentStart",
    "SubagentStop", "PreCompact", "PostCompact", "Stop", "SessionEnd",
)  # fmt: skip


def add_claude_hooks(text: str, words: Sequence[str]) -> str:
    """``text`` of the file with hooks that run ``words``; unchanged if it has them already. Raises: UnsuitableFile."""
    if not text.strip():
        text = "{}\n"
    handler = {"type": "command", "command": words[0], "args": list(words[1:]), "timeout": TIMEOUT_S}
    hooks = _hooks(text)
    for event in EVENTS:
        ours = [each for group in hooks.get(event, ()) for each in of_group(group) if _is_ours(each)]
        if ours:
            text = _with_handlers(text, event, handler)
            continue
        at = json_edits.root(text)
        if (found := json_edits.member(text, at, "hooks")) is None:
            text = json_edits.appended(text, at, 1, {}, "hooks")
            found = json_edits.member(text, at, "hooks")
            assert found is not None
        at, group = found.value, {"hooks": [handler]}
        if (listed := json_edits.member(text, at, event)) is None:
            text = json_edits.appended(text, at, 2, [group], event)
        else:
            text = json_edits.appended(text, listed.value, 3, group)
    return text


def remove_claude_hooks(text: str, copy: str | None) -> str:
    """``text`` of the file without our hooks. ``copy`` is the text before them, if there is one. Raises:
    UnsuitableFile."""
    before, empty = text, _empty_entries(copy)
    for event in _hooks(text) if text.strip() else ():
        text = _without_event(text, event, is_list_kept=event in empty)
    at = json_edits.root(text)
    if text != before and not _hooks(text) and "hooks" not in empty:
        text = json_edits.remove_element(text, at, _last(text, at, "hooks"))
    return text


def command(text: str) -> list[str] | None:
    """The command of our hooks in ``text``, as words; None if it has none. Raises: UnsuitableFile."""
    groups = _hooks(text) if text.strip() else {}
    for handler in handlers(groups):
        if _is_ours(handler):
            return [handler["command"], *handler.get("args", ())]
    return None


def is_switched_off(text: str) -> bool:
    """True if Claude Code runs no hooks. Raises: UnsuitableFile."""
    return bool(text.strip()) and _settings(text).get("disableAllHooks") is True


def _is_ours(handler: Mapping[str, Any]) -> bool:
    words = str(handler.get("command", ""))
    return Path(words).name == PROGRAM and isinstance(handler.get("args", []), list)


def _settings(text: str) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except ValueError as error:
        # Claude Code does not accept comments either: it ignores such a file.
        raise UnsuitableFile(f"it is not valid JSON: {error}") from None
    if not isinstance(found, dict):
        raise UnsuitableFile("it is not a JSON object")
    return found


def _hooks(text: str) -> dict[str, Any]:
    hooks = _settings(text).get("hooks", {})
    if not isinstance(hooks, dict) or not all(isinstance(each, list) for each in hooks.values()):
        raise UnsuitableFile('"hooks" must map each event to a list')
    return hooks


def _empty_entries(copy: str | None) -> set[str]:
    """The events whose list was empty before our hooks were added, or ``hooks`` if it had no events: they are kept."""
    try:
        hooks = _settings(copy or "{}").get("hooks")
    except UnsuitableFile:
        return set()
    if not isinstance(hooks, dict):
        return set()
    return {event for event, groups in hooks.items() if groups == []} if hooks else {"hooks"}


class _HandlerPlace(NamedTuple):
    """The place of a handler of ours: item ``position`` of the list at ``handlers``, in the group that is item
    ``number`` of the list at ``groups``, in the hooks at ``hooks``."""

    hooks: int
    groups: int
    number: int
    handlers: int
    position: int
    element: json_edits.Element


def _places(text: str, event: str) -> list[_HandlerPlace]:
    """The places of our handlers of ``event``."""
    hooks = json_edits.member(text, json_edits.root(text), "hooks")
    listed = None if hooks is None else json_edits.member(text, hooks.value, event)
    if hooks is None or listed is None:
        return []
    return [
        _HandlerPlace(hooks.value, listed.value, number, inner.value, index, each)
        for number, group in enumerate(json_edits.elements(text, listed.value))
        if text[group.value] == "{" and (inner := json_edits.member(text, group.value, "hooks")) is not None
        if text[inner.value] == "["
        for index, each in enumerate(json_edits.elements(text, inner.value))
        if isinstance(handler := json.loads(text[each.value : each.end]), dict) and _is_ours(handler)
    ]


def _with_handlers(text: str, event: str, handler: Mapping[str, Any]) -> str:
    """``text`` with ``handler`` in place of our handlers of ``event``."""
    for place in reversed(_places(text, event)):
        at, end = place.element.value, place.element.end
        if json.loads(text[at:end]) != handler:
            text = text[:at] + json_edits.piece(text, handler, 5) + text[end:]
    return text


def _without_event(text: str, event: str, *, is_list_kept: bool) -> str:
    """``text`` without our handlers of ``event``, and without containers that they leave empty, except the event's list
    if it is kept."""
    while places := _places(text, event):
        at = places[0]
        if len(json_edits.elements(text, at.handlers)) > 1:
            text = json_edits.remove_element(text, at.handlers, at.position)
        elif is_list_kept or len(json_edits.elements(text, at.groups)) > 1:
            text = json_edits.remove_element(text, at.groups, at.number)
        else:
            text = json_edits.remove_element(text, at.hooks, _last(text, at.hooks, event))
    return text


def _last(text: str, at: int, key: str) -> int:
    """The number of the member ``key`` of the object at ``at``; of equal keys the last one, as in JSON parsers."""
    return max(number for number, each in enumerate(json_edits.elements(text, at)) if each.key == key)
