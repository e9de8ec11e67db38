"""Hooks of each harness in its own settings: added to a file by ``ctx install``, and removed from it again. Pure.

Claude Code has hooks in ``settings.json`` (``claude_hooks``); codex in ``config.toml`` (``codex_hooks``); pi and
opencode load a file of ours from a folder. All other text is kept byte for byte.
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
from ctxd.cli import claude_hooks, codex_hooks
from ctxd.cli.hook_groups import UnsuitableFile
from ctxd.transcripts.harness_names import HarnessCommand
from ctxd_client.context_tools import MODEL_TOOLS
from ctxd_protocol.default_paths import home

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
            return claude_hooks.add_claude_hooks(text, words)
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
            return claude_hooks.remove_claude_hooks(text, copy)
        case "codex":
            return codex_hooks.remove_codex_hooks(text, path)
        case _:
            return "" if text.startswith(_FILE_MARK) else text


def command(harness: HarnessCommand, text: str) -> list[str] | None:
    """The command of our hooks in ``text``, as words; None if it has none. Raises: UnsuitableFile."""
    match harness:
        case "claude":
            return claude_hooks.command(text)
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
    if harness == "claude" and claude_hooks.is_switched_off(text):
        return SwitchOff("disableAllHooks switches all hooks off", "remove that setting")
    if harness == "codex":
        if codex_hooks.is_switched_off(text):
            return SwitchOff("features.hooks = false switches all hooks off", "remove that setting")
        if events := codex_hooks.disabled(text, path):
            whose = "all its hooks" if len(events) >= len(codex_hooks.EVENTS) else f"its hooks of {', '.join(events)}"
            return SwitchOff(f"enabled = false in hooks.state switches off {whose}", "run ctx install codex")
    return None
