"""Hooks of each harness in its own settings: added to a file by ``ctx install``, and removed from it again. Pure.

Claude Code has hooks in ``settings.json``; codex in ``config.toml`` (``codex_hooks``); pi and opencode load a file of
ours from a folder. All other text is kept byte for byte.
"""

import json
import os
import re
import shlex
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final, NamedTuple

import ctxd.hook
from ctxd.cli import codex_hooks, json_edits
from ctxd.cli.hook_groups import PROGRAM, TIMEOUT_S, UnsuitableFile, handlers, of_group
from ctxd.transcripts.harness_names import HarnessCommand
from ctxd_client.context_tools import MODEL_TOOLS
from ctxd_protocol.default_paths import home

CLAUDE_EVENTS: Final = (
    "SessionStart", "UserPromptSubmit", "PreToolUse", "PostToolUse", "PostToolUseFailure", "SubagentStart",
    "SubagentStop", "PreCompact", "PostCompact", "Stop", "SessionEnd",
)  # fmt: skip

_FILE_MARK: Final = "// Installed by `ctx install"
_WORDS: Final = "/* command */ []"
_TOOLS: Final = "/* tools */ []"
_COMMAND: Final = re.compile(r"^const COMMAND(?:: string\[\])? = (\[.*\]);\r?$", re.M)


def place(harness: HarnessCommand, environ: Mapping[str, str]) -> Path:
    """The file that connects ``harness``, where the harness itself looks for it."""
    folder = Path(home(environ))
    match harness:
        case "claude":
            return Path(environ.get("CLAUDE_CONFIG_DIR") or folder / ".claude", "settings.json")
        case "codex":
            named = environ.get("CODEX_HOME")
            return Path(os.path.realpath(named) if named else folder / ".codex", "config.toml")
        case "pi":
            return Path(environ.get("PI_CODING_AGENT_DIR") or folder / ".pi/agent", "extensions", "ctxd.ts")
        case "opencode":
            return Path(environ.get("XDG_CONFIG_HOME") or folder / ".config", "opencode", "plugin", "ctxd.js")


def add_hooks(harness: HarnessCommand, text: str, words: Sequence[str], path: Path) -> str:
    """The file's ``text`` with hooks that run ``words``; unchanged if it has them already. Raises: UnsuitableFile."""
    match harness:
        case "claude":
            return _claude_installed(text, words)
        case "codex":
            return codex_hooks.add_codex_hooks(text, shlex.join(words), path)
        case _:
            if text and not text.startswith(_FILE_MARK):
                raise UnsuitableFile("it is not a file of ctxd: move it away")
            folder = Path(ctxd.hook.__path__[0])
            source = (folder / {"pi": "pi.ts", "opencode": "opencode.js"}[harness]).read_text()
            return source.replace(_WORDS, json.dumps(list(words))).replace(_TOOLS, json.dumps(_tools()))


def _tools() -> list[dict[str, Any]]:
    """The declarations of the tools of ``ctx mcp`` in the form of pi; none without the package that it needs."""
    if find_spec("mcp") is None:
        return []
    return [
        {"name": each.name, "description": each.description, "parameters": each.input_schema}
        for each in MODEL_TOOLS.values()
    ]


def remove_hooks(harness: HarnessCommand, text: str, path: Path, copy: str | None) -> str:
    """The file's ``text`` without our hooks; empty for a file that is ours alone. ``copy`` is the text before them, if
    there is one. Raises: UnsuitableFile."""
    match harness:
        case "claude":
            return _claude_removed(text, copy)
        case "codex":
            return codex_hooks.remove_codex_hooks(text, path)
        case _:
            return "" if text.startswith(_FILE_MARK) else text


def command(harness: HarnessCommand, text: str) -> list[str] | None:
    """The command of our hooks in ``text``, as words; None if it has none. Raises: UnsuitableFile."""
    match harness:
        case "claude":
            groups = _claude_hooks(text) if text.strip() else {}
            for handler in handlers(groups):
                if _is_claude_ours(handler):
                    return [handler["command"], *handler.get("args", ())]
            return None
        case "codex":
            return codex_hooks.command(text)
        case _:
            found = _COMMAND.search(text) if text.startswith(_FILE_MARK) else None
            return None if found is None else json.loads(found[1])


class SwitchOff(NamedTuple):
    """A setting that disables hooks, or some of ours, and the remedy."""

    found: str
    remedy: str


def switch_off(harness: HarnessCommand, text: str, path: Path) -> SwitchOff | None:
    """The setting in ``text`` that disables hooks of ours; None without one. Raises: UnsuitableFile."""
    if harness == "claude" and text.strip() and _claude_settings(text).get("disableAllHooks") is True:
        return SwitchOff("disableAllHooks switches all hooks off", "remove that setting")
    if harness == "codex":
        if codex_hooks.is_switched_off(text):
            return SwitchOff("features.hooks = false switches all hooks off", "remove that setting")
        if events := codex_hooks.disabled(text, path):
            whose = "all its hooks" if len(events) >= len(codex_hooks.EVENTS) else f"its hooks of {', '.join(events)}"
            return SwitchOff(f"enabled = false in hooks.state switches off {whose}", "run ctx install codex")
    return None


def _is_claude_ours(handler: Mapping[str, Any]) -> bool:
    words = str(handler.get("command", ""))
    return Path(words).name == PROGRAM and isinstance(handler.get("args", []), list)


def _claude_settings(text: str) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except ValueError as error:
        # Claude Code does not accept comments either: it ignores such a file.
        raise UnsuitableFile(f"it is not valid JSON: {error}") from None
    if not isinstance(found, dict):
        raise UnsuitableFile("it is not a JSON object")
    return found


def _claude_hooks(text: str) -> dict[str, Any]:
    hooks = _claude_settings(text).get("hooks", {})
    if not isinstance(hooks, dict) or not all(isinstance(each, list) for each in hooks.values()):
        raise UnsuitableFile("its hooks are not lists by event")
    return hooks


def _claude_installed(text: str, words: Sequence[str]) -> str:
    if not text.strip():
        text = "{}\n"
    handler = {"type": "command", "command": words[0], "args": list(words[1:]), "timeout": TIMEOUT_S}
    hooks = _claude_hooks(text)
    for event in CLAUDE_EVENTS:
        ours = [each for group in hooks.get(event, ()) for each in of_group(group) if _is_claude_ours(each)]
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


def _claude_removed(text: str, copy: str | None) -> str:
    before, empty = text, _empty_entries(copy)
    for event in _claude_hooks(text) if text.strip() else ():
        text = _without_event(text, event, is_list_kept=event in empty)
    at = json_edits.root(text)
    if text != before and not _claude_hooks(text) and "hooks" not in empty:
        text = json_edits.remove_element(text, at, _last(text, at, "hooks"))
    return text


def _empty_entries(copy: str | None) -> set[str]:
    """The events whose list was empty before our hooks were added, or ``hooks`` if it had no events: they are kept."""
    try:
        hooks = _claude_settings(copy or "{}").get("hooks")
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
        if isinstance(handler := json.loads(text[each.value : each.end]), dict) and _is_claude_ours(handler)
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
