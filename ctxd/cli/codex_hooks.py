"""Hooks in codex's ``config.toml``: the entries that ``ctx install codex`` adds and removes again. Pure.

codex identifies a handler only by its place: the number of its group among those of the event, and its number in the
group. An entry of ``hooks.state`` named by that place trusts the handler by a hash, or disables it. When a handler of
ours is removed, later handlers get other places, and their entries other names.
"""

import hashlib
import json
import os
import re
import shlex
import tomllib
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

from ctxd.cli.hook_groups import PROGRAM, TIMEOUT_S, UnsuitableFile, handlers, items_of
from ctxd.cli.toml_edits import Edit, Statement, comments, edited, statements

EVENTS: Final = (
    "SessionStart", "UserPromptSubmit", "PreToolUse", "PostToolUse", "SubagentStart", "SubagentStop", "PreCompact",
    "PostCompact", "Stop", "Interrupt", "SessionEnd",
)  # fmt: skip

_MARK: Final = "# Hooks of ctxd: `ctx uninstall codex` removes them."
_TRUST: Final = frozenset({"trusted_hash", "enabled"})
"""Members of an entry that trusts a handler."""

_NOT_ALONE: Final = (
    f"its hooks of ctxd are not tables of their own: remove each handler with {PROGRAM} codex, and its entry in"
    " hooks.state, by hand"
)


class _HookPlace(NamedTuple):
    """A handler: its event, the number of the group, and the number in the group."""

    event: str
    group: int
    handler: int


class _Layout(NamedTuple):
    """The statements of each group apart from its handlers, of each handler, and of each entry of ``hooks.state``."""

    groups: dict[tuple[str, int], list[Statement]]
    handlers: dict[_HookPlace, list[Statement]]
    states: dict[str, list[Statement]]


def add_codex_hooks(text: str, command: str, path: Path) -> str:
    """``text`` of the file at ``path`` with hooks that run ``command``; unchanged if it has them already.

    A handler of ours keeps its place, so that no other handler moves. Raises: UnsuitableFile.
    """
    hooks = _hooks(text)
    if _is_current(hooks, command, path):
        return text
    layout = _layout(text)
    kept: dict[str, _HookPlace] = {}
    for place in _ours(hooks):
        if place.event in EVENTS and set(hooks[place.event][place.group]) == {"hooks"} and place in layout.handlers:
            kept.setdefault(place.event, place)
    hashes = {trust(path, event, 0, 0, command)[1] for event in EVENTS}
    done = _completed(_without(text, path, kept.values(), hashes), command, path)
    try:
        added = _hooks(done)
        # An entry that was left over from a removed handler, in whose place ours is now, has been replaced.
        replaced = {_name(path, place) for place in _ours(added)}
        is_whole = _is_current(added, command, path) and (
            _rest(done, path, hashes, replaced) == _rest(text, path, hashes, replaced)
        )
    except UnsuitableFile:
        is_whole = False
    if not is_whole:
        raise UnsuitableFile(
            _NOT_ALONE
            if _ours(hooks)
            else "its hooks have a form that no table can be added to: write them as [[hooks.EVENT]] tables"
        )
    return done


def remove_codex_hooks(text: str, path: Path) -> str:
    """``text`` of the file at ``path`` without our hooks, and otherwise unchanged. Raises: UnsuitableFile."""
    if not _ours(_hooks(text)):
        return text
    done = _without_mark(_without(text, path, (), set()))
    try:
        is_whole = not _ours(_hooks(done)) and _rest(done, path) == _rest(text, path)
    except UnsuitableFile:
        is_whole = False
    if not is_whole:
        raise UnsuitableFile(_NOT_ALONE)
    return done


def command(text: str) -> list[str] | None:
    """The command of our hooks in ``text``, as words; None if it has none. Raises: UnsuitableFile."""
    ours = [each["command"] for each in handlers(_events(_hooks(text))) if _is_ours(each)]
    return shlex.split(ours[0]) if ours else None


def is_switched_off(text: str) -> bool:
    """True if codex runs no hooks. Raises: UnsuitableFile."""
    features = _settings(text).get("features")
    return isinstance(features, dict) and features.get("hooks") is False


def disabled(text: str, path: Path) -> list[str]:
    """The events whose hook of ours is disabled in ``hooks.state``. Raises: UnsuitableFile."""
    hooks = _hooks(text)
    return [place.event for place in _ours(hooks) if _state(hooks, _name(path, place)).get("enabled") is False]


def trust(path: Path, event: str, group: int, handler: int, command: str) -> tuple[str, str]:
    """The key and the hash by which codex trusts our handler of ``event``, at its place in the file at ``path``.

    The hash is over codex's own form of the definition, as canonical JSON (codex 0.169.0, ``hooks/list``).
    """
    definition = {"async": False, "command": command, "timeout": TIMEOUT_S, "type": "command"}
    form = json.dumps({"event_name": _snake(event), "hooks": [definition]}, separators=(",", ":"), ensure_ascii=False)
    return _name(path, _HookPlace(event, group, handler)), f"sha256:{hashlib.sha256(form.encode()).hexdigest()}"


def _name(path: Path, place: _HookPlace) -> str:
    # codex resolves dots here, but no symbolic links.
    return f"{os.path.normpath(path)}:{_snake(place.event)}:{place.group}:{place.handler}"


def _snake(event: str) -> str:
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", event).lower()


def _settings(text: str) -> dict[str, Any]:
    try:
        # Floats as text, since nan is not equal to itself.
        return tomllib.loads(text, parse_float=str)
    except ValueError as error:
        raise UnsuitableFile(f"it is not valid TOML: {error}") from None


def _hooks(text: str) -> dict[str, Any]:
    hooks = _settings(text).get("hooks", {})
    if not isinstance(hooks, dict):
        raise UnsuitableFile("its hooks are not a table")
    return hooks


def _events(hooks: Mapping[str, Any]) -> dict[str, list[Any]]:
    """The groups of each event."""
    return {event: groups for event, groups in hooks.items() if event != "state" and isinstance(groups, list)}


def _state(hooks: Mapping[str, Any], name: str) -> dict[str, Any]:
    """The entry ``name`` of ``hooks.state``; empty without one."""
    states = hooks.get("state")
    found = states.get(name) if isinstance(states, dict) else None
    return found if isinstance(found, dict) else {}


def _is_ours(handler: Any) -> bool:  # noqa: ANN401 - any value of a settings file
    try:
        words = shlex.split(str(handler.get("command", ""))) if isinstance(handler, dict) else []
    except ValueError:
        return False
    return len(words) > 1 and Path(words[0]).name == PROGRAM and words[1] == "codex"


def _ours(hooks: Mapping[str, Any]) -> list[_HookPlace]:
    return [
        _HookPlace(event, number, index)
        for event, groups in _events(hooks).items()
        for number, group in enumerate(groups)
        for index, handler in enumerate(items_of(group))
        if _is_ours(handler)
    ]


def _definition(command: str) -> dict[str, Any]:
    return {"type": "command", "command": command, "timeout": TIMEOUT_S}


def _is_current(hooks: Mapping[str, Any], command: str, path: Path) -> bool:
    ours = _ours(hooks)
    if sorted(place.event for place in ours) != sorted(EVENTS):
        return False
    for place in ours:
        group = hooks[place.event][place.group]
        if set(group) != {"hooks"} or group["hooks"][place.handler] != _definition(command):
            return False
        name, digest = trust(path, *place, command)
        if not _is_trusted(_state(hooks, name), digest):
            return False
    return True


def _is_trusted(state: Mapping[str, Any], digest: str) -> bool:
    return state.get("trusted_hash") == digest and state.get("enabled") is not False


def _layout(text: str) -> _Layout:
    found = _Layout({}, {}, {})
    last: dict[str, _HookPlace] = {}
    for each in statements(text):
        match each.path:
            case ("hooks", "state", name, *_):
                found.states.setdefault(name, []).append(each)
            case ("hooks", event) if each.kind == "array":
                last[event] = _HookPlace(event, last[event].group + 1 if event in last else 0, -1)
                found.groups[event, last[event].group] = [each]
            case ("hooks", event, "hooks") if event in last and each.kind != "array":
                found.groups[event, last[event].group].append(each)
            case ("hooks", event, "hooks", *below) if event in last:
                if not below:
                    last[event] = last[event]._replace(handler=last[event].handler + 1)
                found.handlers.setdefault(last[event], []).append(each)
            case _:
                pass
    return found


class _Removal(NamedTuple):
    """A removal of the handlers at ``gone``: the groups removed with them, and the new names of the entries of
    ``hooks.state``, None for a removed entry."""

    gone: Collection[_HookPlace]
    groups: set[tuple[str, int]]
    names: dict[str, str | None]


def _removal(hooks: Mapping[str, Any], path: Path, kept: Collection[_HookPlace], hashes: Collection[str]) -> _Removal:
    """The removal of our handlers except those at ``kept``, and of the entries that trust them, or trust ``hashes``."""
    ours = _ours(hooks)
    gone = [place for place in ours if place not in kept]
    groups, moved = _moved(_events(hooks), gone)
    digests = {trust(path, *each, hooks[each.event][each.group]["hooks"][each.handler]["command"])[1] for each in ours}
    digests.update(hashes)
    staying = {_name(path, place) for place in kept}
    new = {_name(path, old): _name(path, place) for old, place in moved.items()}
    going = {_name(path, place) for place in gone}
    names: dict[str, str | None] = {}
    states = hooks.get("state")
    for name in states if isinstance(states, dict) else ():
        is_ours = name in going or (_state(hooks, name).get("trusted_hash") in digests and name not in staying)
        # An old entry for an empty place must not apply to a handler that moves there.
        is_stale = name not in new and name in new.values()
        names[name] = None if is_ours or is_stale else new.get(name, name)
    return _Removal(gone, groups, names)


def _moved(
    events: Mapping[str, list[Any]], gone: Collection[_HookPlace]
) -> tuple[set[tuple[str, int]], dict[_HookPlace, _HookPlace]]:
    """The groups removed with the handlers at ``gone``, having nothing else, and the new places of other handlers."""
    groups, moved = set(), {}
    for event, listed in events.items():
        left = 0
        for number, group in enumerate(listed):
            here = [_HookPlace(event, number, index) for index in range(len(items_of(group)))]
            stay = [place for place in here if place not in gone]
            if here and not stay and set(group) == {"hooks"}:
                groups.add((event, number))
                continue
            moved.update({place: _HookPlace(event, left, index) for index, place in enumerate(stay)})
            left += 1
    return groups, moved


def _rest(text: str, path: Path, hashes: Collection[str] = (), replaced: Collection[str] = ()) -> dict[str, Any]:
    """The document without our hooks, the entries ``replaced``, and the tables that they leave empty: no change of ours
    may alter it."""
    settings = _settings(text)
    hooks = settings.pop("hooks", {})
    removal = _removal(hooks, path, (), hashes)
    rest: dict[str, Any] = {event: value for event, value in hooks.items() if event != "state"}
    for event, groups in _events(hooks).items():
        rest[event] = [
            _group_without(group, [each.handler for each in removal.gone if each[:2] == (event, number)])
            for number, group in enumerate(groups)
            if (event, number) not in removal.groups
        ]
    names = {old: new for old, new in removal.names.items() if new is not None and new not in replaced}
    rest["state"] = {new: hooks["state"][old] for old, new in names.items()}
    return {**settings, "hooks": {name: value for name, value in rest.items() if value not in ([], {})}}


def _group_without(group: Any, gone: Collection[int]) -> Any:  # noqa: ANN401 - any value of a settings file
    if not gone:
        return group
    left = [each for index, each in enumerate(group["hooks"]) if index not in gone]
    return {**group, "hooks": left} if left else {name: value for name, value in group.items() if name != "hooks"}


def _without(text: str, path: Path, kept: Collection[_HookPlace], hashes: Collection[str]) -> str:
    """``text`` without our handlers except those at ``kept``, if they are tables of their own."""
    hooks, layout = _hooks(text), _layout(text)
    removal = _removal(hooks, path, kept, hashes)
    edits = [_gone(each) for group in removal.groups for each in layout.groups.get(group, ())]
    edits += [_gone(each) for place in removal.gone for each in layout.handlers.get(place, ())]
    for name, new in removal.names.items():
        found = layout.states.get(name, ())
        if new is None:
            _refuse_others(_state(hooks, name), name)
            edits += [_gone(each) for each in found]
        elif new != name:
            parts = [part for each in found if (part := each.part(2)) is not None]
            edits += [Edit(part.start, part.end, json.dumps(new, ensure_ascii=False)) for part in parts]
    return edited(text, edits)


def _gone(statement: Statement) -> Edit:
    return Edit(statement.start, statement.end)


def _refuse_others(state: Mapping[str, Any], name: str) -> None:
    """Raise UnsuitableFile for an entry of ours with other members: they would be removed with it."""
    if others := sorted(set(state) - _TRUST):
        raise UnsuitableFile(
            f'its table [hooks.state."{name}"] is of ctxd, and has {", ".join(others)} too: move that away from there'
        )


def _completed(text: str, command: str, path: Path) -> str:
    """``text``, which may have handlers of ours, with the right handlers for all events."""
    hooks, layout = _hooks(text), _layout(text)
    ours = {place.event: place for place in _ours(hooks)}
    edits: list[Edit] = []
    groups, states = [], []
    for event in EVENTS:
        listed = hooks.get(event, [])
        if not isinstance(listed, list):
            raise UnsuitableFile(f"its hooks.{event} is not a list of tables")
        place = ours.get(event)
        header = f"[[hooks.{event}.hooks]]\n"
        handler = f'{header}type = "command"\ncommand = {json.dumps(command)}\ntimeout = {TIMEOUT_S}\n'
        if place is None:
            place = _HookPlace(event, len(listed), 0)
            groups.append(f"[[hooks.{event}]]\n{handler}")
        elif items_of(listed[place.group])[place.handler] != _definition(command):
            edits += _replaced(text, layout.handlers.get(place, []), handler)
        name, digest = trust(path, *place, command)
        if _is_trusted(_state(hooks, name), digest):
            continue
        entry = f'[hooks.state.{json.dumps(name)}]\ntrusted_hash = "{digest}"\nenabled = true\n'
        _refuse_others(_state(hooks, name), name)
        there = layout.states.get(name, [])
        if there and there[0].kind == "table":
            edits += _replaced(text, there, entry)
        else:
            edits += map(_gone, there)
            states.append(entry)
    return _appended(edited(text, edits), "".join([*groups, *states]))


def _replaced(text: str, there: list[Statement], new: str) -> list[Edit]:
    """Edits that replace the table of the statements ``there`` with ``new``, keeping its line endings."""
    if not there:
        return []
    first = there[0]
    if text[first.start : first.end].endswith("\r\n"):
        new = new.replace("\n", "\r\n")
    return [Edit(first.start, first.end, new), *map(_gone, there[1:])]


def _appended(text: str, tables: str) -> str:
    if not tables:
        return text
    if comments(text, _MARK):
        return f"{text}{tables}" if text.endswith("\n") else f"{text}\n{tables}"
    # Always with a line feed, so that the removal of the mark removes only the lines that were added with it.
    apart = "\n" if text else ""
    return f"{text}{apart}{_MARK}\n{tables}"


def _without_mark(text: str) -> str:
    for start, end in reversed(comments(text, _MARK)):
        before, behind = text[:start], text[end:]
        # The line feed before the mark was added with it; it stays only if it separates other lines.
        bare = re.sub(r"\r?\n\Z", "", before)
        is_needed = bool(behind.strip()) and bare and not bare.endswith("\n")
        text = (before if is_needed else bare) + behind
    return text
