"""An exported session as Markdown. Pure: it works record by record, so that no session is too long.

Content is fenced by longer fences than any within it, so that it cannot imitate the transcript's markup.
"""

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

from ctxd.formatting import count, moment
from ctxd.terminal import cell

Record = Mapping[str, Any]

_TICKS: Final = re.compile("`+")


def markdown(records: Iterable[Record]) -> Iterator[str]:
    """The transcript of ``records``, in parts that end with a line feed."""
    turn: object = None
    knows = False
    for record in records:
        kind = record["record"]
        if kind in ("message", "event") and record["turn"] != turn:
            turn = record["turn"]
            yield f"\n## Turn {turn}\n"
        elif kind in ("file", "toolcall") and "turn" not in record and not knows:
            knows = True
            yield "\n## What else the session knows\n\n"
        yield _PARTS.get(kind, _other)(record)


def _session(record: Record) -> str:
    lines = [f"# Session {cell(record['session'])}", ""]
    lines += [f"- {name}: {cell(str(record[name]))}" for name in ("agent", "state", "workdir", "turn_count")]
    lines += [f"- {name}: {moment(record[name])}" for name in ("created_at", "updated_at")]
    lines += [f"- label {_code(key)}: {_code(value)}" for key, value in record["labels"].items()]
    for key, value in record["entries"].items():
        lines.append(f"- entry {_code(key)}: {_code(json.dumps(value, ensure_ascii=False))}")
    return "\n".join(lines) + "\n"


def _system_prompt(record: Record) -> str:
    return f"\n## System prompt\n\n{_fenced(record['content'])}" if record.get("content") else ""


def _message(record: Record) -> str:
    if record.get("toolcall") and not record.get("content"):
        return f"\n### result of {_code(record['toolcall'])}\n"
    attachments = record.get("attachments")
    more = f"\n{_fenced_json(attachments)}" if attachments else ""
    return f"\n### {cell(record['role'])}\n\n{_fenced(record.get('content') or '')}{more}"


def _event(record: Record) -> str:
    parts = [f"\n### {cell(record['event'].replace('_', ' '))}\n"]
    parts += [f"\n{_fenced(record[name])}" for name in ("text", "summary") if record.get(name)]
    rest = {name: value for name, value in record.items() if name not in _SHOWN}
    return "".join([*parts, f"\n{_fenced_json(rest)}"] if rest else parts)


_SHOWN: Final = frozenset({"record", "turn", "event", "text", "summary"})


def _toolcall(record: Record) -> str:
    head = f"\n### tool call {_code(record.get('tool', ''))}, {record.get('status', record['state'])}\n"
    args = record.get("args")
    parts = [head, _code(record["object"]), "\n"]
    if args is not None:
        parts += ["\n", _fenced_json(args)]
    parts += ["\n", _fenced(record["content"]) if record["content"] is not None else f"({record['state']})\n"]
    return "".join(parts)


def _file(record: Record) -> str:
    pinned = ", pinned" if record["pinned"] else ""
    size = count(record["char_count"], "character")
    return f"- {_code(record['path'])}: {record['state']}, {record['level']}{pinned}, {size}\n"


def _other(record: Record) -> str:
    return f"- {_code(record.get('object', ''))}: {cell(str(record.get('state', '')))}\n"


def _fenced(text: str, kind: str = "text") -> str:
    fence = "`" * max(3, 1 + max(map(len, _TICKS.findall(text)), default=0))
    return f"{fence}{kind}\n{text}{'' if text.endswith(chr(10)) else chr(10)}{fence}\n"


def _fenced_json(value: object) -> str:
    return _fenced(json.dumps(value, ensure_ascii=False, indent=1), "json")


def _code(text: object) -> str:
    shown = cell(str(text))
    ticks = "`" * (1 + max(map(len, _TICKS.findall(shown)), default=0))
    return f"{ticks} {shown} {ticks}" if "`" in shown else f"`{shown}`"


_PARTS: Final = {
    "session": _session,
    "system_prompt": _system_prompt,
    "message": _message,
    "event": _event,
    "toolcall": _toolcall,
    "file": _file,
}
