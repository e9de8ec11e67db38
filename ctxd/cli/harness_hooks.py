"""Hooks of each harness in its own settings: what ``ctx install`` adds to a file, and removes from it again. Pure.

Claude Code keeps hooks in ``settings.json``; codex in ``config.toml``, where each needs its hash to be trusted; pi and
opencode load a file of ours from a folder. Text that is not ours stays byte for byte.
"""

import hashlib
import json
import re
import shlex
import tomllib
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple

import ctxd.hook
from ctxd.cli import json_edits
from ctxd_client.context_tools import MODEL_TOOLS
from ctxd_protocol.default_paths import home

HarnessName = Literal["claude", "codex", "pi", "opencode"]
NAMES: Final[tuple[HarnessName, ...]] = ("claude", "codex", "pi", "opencode")

TIMEOUT_S: Final = 10
"""Seconds that a harness gives a hook, which ends itself long before: without it some are killed after one."""

CLAUDE_EVENTS: Final = (
    "SessionStart", "UserPromptSubmit", "PreToolUse", "PostToolUse", "PostToolUseFailure", "SubagentStart",
    "SubagentStop", "PreCompact", "PostCompact", "Stop", "SessionEnd",
)  # fmt: skip
CODEX_EVENTS: Final = (
    "SessionStart", "UserPromptSubmit", "PreToolUse", "PostToolUse", "SubagentStart", "SubagentStop", "PreCompact",
    "PostCompact", "Stop", "Interrupt", "SessionEnd",
)  # fmt: skip

_PROGRAM: Final = "ctx-hook"
_CODEX_MARK: Final = "# Hooks of ctxd: `ctx uninstall codex` removes them.\n"
_FILE_MARK: Final = "// Installed by `ctx install"
_WORDS: Final = "/* command */ []"
_TOOLS: Final = "/* tools */ []"
_COMMAND: Final = re.compile(r"^const COMMAND(?:: string\[\])? = (\[.*\]);$", re.M)


class UnsuitableFile(Exception):
    """The file has a form to which nothing can be added."""


def place(harness: HarnessName, environ: Mapping[str, str]) -> Path:
    """The file that connects ``harness``, as the harness itself finds it."""
    folder = Path(home(environ))
    match harness:
        case "claude":
            return Path(environ.get("CLAUDE_CONFIG_DIR") or folder / ".claude", "settings.json")
        case "codex":
            named = environ.get("CODEX_HOME")
            return Path(Path(named).resolve() if named else folder / ".codex", "config.toml")
        case "pi":
            return Path(environ.get("PI_CODING_AGENT_DIR") or folder / ".pi/agent", "extensions", "ctxd.ts")
        case "opencode":
            return Path(environ.get("XDG_CONFIG_HOME") or folder / ".config", "opencode", "plugin", "ctxd.js")


def installed(harness: HarnessName, text: str, words: Sequence[str], path: Path) -> str:
    """The file's ``text`` with hooks that run ``words``; unchanged if it has these. Raises: UnsuitableFile."""
    match harness:
        case "claude":
            return _claude_installed(text, words)
        case "codex":
            return _codex_installed(text, shlex.join(words), path)
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


def removed(harness: HarnessName, text: str, path: Path) -> str:
    """The file's ``text`` without our hooks; empty for a file that is ours alone. Raises: UnsuitableFile."""
    match harness:
        case "claude":
            return _claude_removed(text)
        case "codex":
            return _codex_removed(text, path)
        case _:
            return "" if text.startswith(_FILE_MARK) else text


def command(harness: HarnessName, text: str) -> list[str] | None:
    """The words that our hooks in ``text`` run; None if it has none. Raises: UnsuitableFile."""
    match harness:
        case "claude":
            groups = _claude_hooks(text) if text.strip() else {}
            for handler in _handlers(groups):
                if _is_claude_ours(handler):
                    return [handler["command"], *handler.get("args", ())]
            return None
        case "codex":
            ours = [handler["command"] for handler in _handlers(_codex_hooks(text)) if _is_codex_ours(handler)]
            return shlex.split(ours[0]) if ours else None
        case _:
            found = (
                re.search(r"^const COMMAND(?:: string\[\])? = (\[.*\]);$", text, re.M)
                if text.startswith(_FILE_MARK)
                else None
            )
            return None if found is None else json.loads(found[1])


def switch_off(harness: HarnessName, text: str) -> str | None:
    """The setting in ``text`` with which the harness runs no hooks; None without one. Raises: UnsuitableFile."""
    if harness == "claude" and text.strip() and _claude_settings(text).get("disableAllHooks") is True:
        return "disableAllHooks"
    if harness == "codex":
        features = _codex_settings(text).get("features")
        if isinstance(features, dict) and features.get("hooks") is False:
            return "features.hooks = false"
    return None


def _handlers(groups: Mapping[str, Any]) -> list[dict[str, Any]]:
    return [
        handler for event in groups.values() if isinstance(event, list) for group in event for handler in _of(group)
    ]


def _of(group: Any) -> list[dict[str, Any]]:  # noqa: ANN401 - any value of a settings file
    found = group.get("hooks") if isinstance(group, dict) else None
    return [each for each in found if isinstance(each, dict)] if isinstance(found, list) else []


def _is_claude_ours(handler: Mapping[str, Any]) -> bool:
    words = str(handler.get("command", ""))
    return Path(words).name == _PROGRAM and isinstance(handler.get("args", []), list)


def _claude_settings(text: str) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except ValueError as error:
        # Claude Code takes no comments either: it ignores such a file.
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
        ours = [each for group in hooks.get(event, ()) for each in _of(group) if _is_claude_ours(each)]
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


def _claude_removed(text: str) -> str:
    before = text
    for event in _claude_hooks(text) if text.strip() else ():
        text = _without_event(text, event)
    at = json_edits.root(text)
    if text != before and not _claude_hooks(text):
        text = json_edits.removed(text, at, _last(text, at, "hooks"))
    return text


class _HandlerPlace(NamedTuple):
    """A handler of ours: that of ``position`` in the list at ``handlers``, in the group of ``number`` in the list at
    ``groups``, in the hooks at ``hooks``."""

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
    """``text`` with ``handler`` where our handlers of ``event`` are."""
    for place in reversed(_places(text, event)):
        at, end = place.element.value, place.element.end
        if json.loads(text[at:end]) != handler:
            text = text[:at] + json_edits.piece(text, handler, 5) + text[end:]
    return text


def _without_event(text: str, event: str) -> str:
    """``text`` without our handlers of ``event``, and without what they leave empty."""
    while places := _places(text, event):
        at = places[0]
        if len(json_edits.elements(text, at.handlers)) > 1:
            text = json_edits.removed(text, at.handlers, at.position)
        elif len(json_edits.elements(text, at.groups)) > 1:
            text = json_edits.removed(text, at.groups, at.number)
        else:
            text = json_edits.removed(text, at.hooks, _last(text, at.hooks, event))
    return text


def _last(text: str, at: int, key: str) -> int:
    """The number of the member ``key`` of the object at ``at``, the last one as for every reader."""
    return max(number for number, each in enumerate(json_edits.elements(text, at)) if each.key == key)


def _codex_settings(text: str) -> dict[str, Any]:
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise UnsuitableFile(f"it is not valid TOML: {error}") from None


def _codex_hooks(text: str) -> dict[str, Any]:
    hooks = _codex_settings(text).get("hooks", {})
    if not isinstance(hooks, dict):
        raise UnsuitableFile("its hooks are not a table")
    return hooks


def _is_codex_ours(handler: Mapping[str, Any]) -> bool:
    try:
        words = shlex.split(str(handler.get("command", "")))
    except ValueError:
        return False
    return len(words) > 1 and Path(words[0]).name == _PROGRAM and words[1] == "codex"


def trust(path: Path, event: str, group: int, handler: int, command: str) -> tuple[str, str]:
    """The key and the hash by which codex trusts our handler of ``event``, at its place in the file at ``path``.

    The hash is of codex's own form of the definition, as canonical JSON (codex 0.169.0, ``hooks/list``).
    """
    name = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", event).lower()
    definition = {"async": False, "command": command, "timeout": TIMEOUT_S, "type": "command"}
    form = json.dumps({"event_name": name, "hooks": [definition]}, separators=(",", ":"), ensure_ascii=False)
    return f"{path}:{name}:{group}:{handler}", f"sha256:{hashlib.sha256(form.encode()).hexdigest()}"


def _codex_installed(text: str, command: str, path: Path) -> str:
    if _codex_is_current(_codex_hooks(text), command, path):
        return text
    text = _codex_removed(text, path)
    hooks = _codex_hooks(text)
    lines, states = [], []
    for event in CODEX_EVENTS:
        groups = hooks.get(event, [])
        if not isinstance(groups, list):
            raise UnsuitableFile(f"its hooks.{event} is not a list of tables")
        key, digest = trust(path, event, len(groups), 0, command)
        definition = (
            f'[[hooks.{event}.hooks]]\ntype = "command"\ncommand = {json.dumps(command)}\ntimeout = {TIMEOUT_S}\n'
        )
        lines.append(f"[[hooks.{event}]]\n{definition}")
        states.append(f'[hooks.state.{json.dumps(key)}]\ntrusted_hash = "{digest}"\nenabled = true\n')
    # A line feed in any case: what is removed with the mark is what came with it.
    apart = "\n" if text else ""
    done = text + apart + _CODEX_MARK + "".join(lines) + "".join(states)
    try:
        is_current = _codex_is_current(_codex_hooks(done), command, path)
    except UnsuitableFile:
        is_current = False
    if not is_current:
        raise UnsuitableFile(
            "its hooks have a form that no table can be added to: write them as [[hooks.EVENT]] tables"
        )
    return done


def _codex_is_current(hooks: Mapping[str, Any], command: str, path: Path) -> bool:
    states = hooks.get("state", {})
    for event in CODEX_EVENTS:
        places = _codex_places(hooks, event)
        if len(places) != 1:
            return False
        key, digest = trust(path, event, *places[0], command)
        listed = hooks[event][places[0][0]]
        if listed != {"hooks": [{"type": "command", "command": command, "timeout": TIMEOUT_S}]}:
            return False
        if not isinstance(states, dict) or states.get(key, {}).get("trusted_hash") != digest:
            return False
    return True


def _codex_places(hooks: Mapping[str, Any], event: str) -> list[tuple[int, int]]:
    """The places of our handlers of ``event``: number of the group, number in the group."""
    groups = hooks.get(event, [])
    if not isinstance(groups, list):
        return []
    return [
        (number, index)
        for number, group in enumerate(groups)
        for index, handler in enumerate(_of(group))
        if _is_codex_ours(handler)
    ]


def _codex_removed(text: str, path: Path) -> str:
    hooks = _codex_hooks(text)
    keys = {
        trust(path, event, *each, "")[0] for event in hooks if event != "state" for each in _codex_places(hooks, event)
    }
    if not keys:
        return text
    kept: list[str] = []
    for chunk in re.split(r"(?m)^(?=[ \t]*\[)", text):
        if not _is_our_chunk(chunk, keys):
            kept.append(chunk)
            continue
        # A handler comes after the header of its group, which has nothing else in ours.
        if kept and chunk.lstrip().startswith("[[") and re.match(r"\s*\[\[hooks\.\w+\]\][^=]*\Z", kept[-1]):
            kept[-1] = _behind(kept[-1])
        kept.append(_behind(chunk))
    before, mark, behind = "".join(kept).rpartition(_CODEX_MARK)
    # The line feed before the mark came with it, and stays where it ends a line before others.
    is_needed = bool(behind.strip()) and before.endswith("\n") and before[-2:-1] not in ("", "\n")
    done = (before if is_needed or not mark else before.removesuffix("\n")) + behind
    left = _codex_hooks(done)
    if any(_codex_places(left, event) for event in left if event != "state"):
        raise UnsuitableFile("its hooks of ctxd are not tables of their own: remove them by hand")
    return done


def _behind(chunk: str) -> str:
    """Blank lines and comments at the end of a table: they belong to the file."""
    lines = chunk.splitlines(keepends=True)
    while lines and not lines[0].lstrip().startswith("#") and lines[0].strip():
        lines.pop(0)
    return "".join(lines)


def _is_our_chunk(chunk: str, keys: set[str]) -> bool:
    """True for a table of the file, header and lines, that holds one of our handlers or the trust in one."""
    try:
        hooks = tomllib.loads(chunk).get("hooks", {})
    except tomllib.TOMLDecodeError:
        return False
    if not isinstance(hooks, dict) or len(hooks) != 1:
        return False
    ((name, value),) = hooks.items()
    if name == "state":
        return isinstance(value, dict) and bool(value) and set(value) <= keys
    handlers = value.get("hooks") if isinstance(value, dict) else None
    return isinstance(handlers, list) and len(handlers) == 1 and _is_codex_ours(handlers[0])
