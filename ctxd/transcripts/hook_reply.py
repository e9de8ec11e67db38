"""The text that a hook prints for its harness: the output of a tool as the model sees it, shortened to its beginning,
its end and the id of the whole.

Separate: only this module makes output of a hook, in the form in which each harness accepts one.
"""

import msgspec

from ctxd.transcripts.hook_events import HookInput
from ctxd.transcripts.record_decoding import record_of
from ctxd_protocol.session_types import Harness


def hook_reply(harness: Harness, found: HookInput, chars: int) -> str | None:
    """Return the text that a hook of ``harness`` prints to cut an output of more than ``chars`` characters for the
    model, with the id of the whole; None for a shorter output, one with attachments, a failed call, or a form that
    cannot be replaced."""
    call = found.call
    if call is None or call.attachments or call.status != "ok" or len(call.text) <= chars:
        return None
    note = f"\n[… {len(call.text) - chars:,} characters are left out; all of it: ctx object cat {call.call} …]\n"
    text = call.text[: chars // 2] + note + call.text[len(call.text) - chars // 2 :]
    if harness == "codex":
        return _json({"decision": "block", "reason": text})
    if harness != "claude-code":
        return _json({"text": text})
    # Claude Code only accepts the form of the tool's own output.
    updated: object
    match found.response:
        case {"stdout": str()}:
            updated = {**record_of(found.response), "stdout": text, "stderr": ""}
        case {"file": {"content": str()}}:
            whole = record_of(found.response)
            updated = {**whole, "file": {**record_of(whole["file"]), "content": text}}
        case str() | [*_]:
            updated = text  # Tools of MCP servers.
        case _:
            return None
    return _json({"hookSpecificOutput": {"hookEventName": "PostToolUse", "updatedToolOutput": updated}})


def _json(value: object) -> str:
    return msgspec.json.encode(value).decode()
