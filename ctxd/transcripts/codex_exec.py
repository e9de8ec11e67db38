"""codex: the headless output of ``codex exec --json``.

Versions before 0.44 wrote the messages for the user interface, one in the member ``msg`` of each line, after a line
with the prompt; and with ``--experimental-json`` items that name their kind in ``item_type``.
"""

from collections.abc import Iterable, Iterator
from typing import Final

from ctxd.transcripts.codex import TokenCounts, content_of, usage_in
from ctxd.transcripts.record_decoding import Entry, Line, Record, as_text, damaged, opaque, record_of, rest
from ctxd_protocol import event_types as typed

_SAID: Final = ("type", "text", "message")


def read_exec(found: Iterable[Line]) -> Iterator[Entry]:
    """Yield the events of headless output. Incomplete items are opaque, as the completed item follows."""
    counts = TokenCounts(is_whole=True)
    for line in found:
        if line.record is None:
            yield damaged(line)
        elif isinstance(line.record.get("msg"), dict):
            yield from (Entry(line.number, event) for event in _message(record_of(line.record["msg"]), counts))
        else:
            yield from (Entry(line.number, event) for event in _exec_events(line.record, counts))


def _exec_events(record: Record, counts: TokenCounts) -> list[typed.Event]:
    kind = as_text(record.get("type")) or "untyped"
    match kind:
        case "untyped" if isinstance(record.get("prompt"), str):
            return [typed.PromptEvent(text=as_text(record["prompt"]), meta=rest(record, "prompt"))]
        case "item.completed":
            return _completed(record_of(record.get("item")))
        case "turn.completed":
            # The total of the thread, also of the turns before this run.
            return [opaque(kind, record, usage=counts.since(usage_in(record.get("usage"))))]
        case "turn.failed" | "error":
            message = record_of(record.get("error")).get("message", record.get("message"))
            return [typed.SystemEvent(text=as_text(message), kind=kind, meta=rest(record, "type", "message"))]
        case _:
            return [opaque(kind, record)]


def _completed(item: Record) -> list[typed.Event]:
    id = as_text(item.get("id")) or None
    failed = item.get("status") == "failed" or item.get("exit_code") not in (0, None)
    if "item_type" in item:
        item = {"type": item["item_type"], **(rest(item, "item_type") or {})}
    match item.get("type"):
        case "agent_message" | "assistant_message":
            return [typed.ResponseEvent(id=id, text=as_text(item.get("text")), meta=rest(item, "id", "type", "text"))]
        case "reasoning":
            return [typed.ThinkingEvent(id=id, text=as_text(item.get("text")), meta=rest(item, "id", "type", "text"))]
        case "error":
            return [
                typed.SystemEvent(id=id, text=as_text(item.get("message")), kind="error", meta=rest(item, "id", "type"))
            ]
        case "command_execution":
            args = {"command": item.get("command")}
            output = as_text(item.get("aggregated_output", item.get("output")))
            return _ran(item, id, "command_execution", args, output, failed)
        case "file_change":
            return _ran(item, id, "file_change", {"changes": item.get("changes")}, "", failed)
        case "mcp_tool_call":
            text, attachments = content_of(record_of(item.get("result")).get("content"))
            text = text or as_text(record_of(item.get("error")).get("message"))
            tool = f"{as_text(item.get('server'))}.{as_text(item.get('tool'))}"
            return _ran(item, id, tool, item.get("arguments"), text, failed or bool(item.get("error")), attachments)
        case "collab_tool_call":
            states = map(record_of, record_of(item.get("agents_states")).values())
            text = "\n".join(filter(None, (as_text(each.get("message")) for each in states)))
            args = {"prompt": item.get("prompt"), "receiver_thread_ids": item.get("receiver_thread_ids")}
            return _ran(item, id, as_text(item.get("tool")) or "collab_tool_call", args, text, failed)
        case "web_search":
            return _ran(item, id, "web_search", {"query": item.get("query")}, "", failed)
        case kind:
            return [typed.OpaqueEvent(id=id, kind=as_text(kind) or "untyped", data=dict(item))]


def _ran(
    item: Record,
    id: str | None,
    tool: str,
    args: object,
    output: str,
    failed: bool,
    attachments: tuple[typed.Attachment, ...] = (),
) -> list[typed.Event]:
    call = id or tool
    meta = rest(item, "id", "type", "command", "changes", "arguments", "query", "aggregated_output", "output")
    result = typed.ToolResultEvent(id=id, call=call, text=output, attachments=attachments, is_error=failed, meta=meta)
    return [typed.ToolCallEvent(id=id, call=call, tool=tool, args=args), result]


# --- messages, before 0.44 ---


def _message(message: Record, counts: TokenCounts) -> list[typed.Event]:
    kind = as_text(message.get("type")) or "untyped"
    call = as_text(message.get("call_id"))
    match kind:
        case "agent_message":
            return [typed.ResponseEvent(text=as_text(message.get("message")), meta=rest(message, *_SAID))]
        case "agent_reasoning":
            return [typed.ThinkingEvent(text=as_text(message.get("text")), meta=rest(message, *_SAID))]
        case "error":
            return [typed.SystemEvent(text=as_text(message.get("message")), kind=kind, meta=rest(message, *_SAID))]
        case "exec_command_begin" | "patch_apply_begin":
            args = rest(message, "type", "call_id", "parsed_cmd")
            return [typed.ToolCallEvent(call=call, tool=kind.removesuffix("_begin"), args=args)]
        case "mcp_tool_call_begin":
            asked = record_of(message.get("invocation"))
            tool = f"{as_text(asked.get('server'))}.{as_text(asked.get('tool'))}"
            return [typed.ToolCallEvent(call=call, tool=tool, args=asked.get("arguments"))]
        case "web_search_end":
            return [typed.ToolCallEvent(call=call, tool="web_search", args={"query": message.get("query")})]
        case "exec_command_end" | "patch_apply_end":
            return [_output(message, call)]
        case "mcp_tool_call_end":
            return [_mcp_output(message, call)]
        case "token_count":
            return [opaque(kind, message, usage=counts.billed(message))]
        case _:
            return [opaque(kind, message)]


def _output(message: Record, call: str) -> typed.ToolResultEvent:
    used = next((name for name in ("formatted_output", "aggregated_output", "stdout") if message.get(name)), "stdout")
    text = as_text(message.get(used))
    if used == "stdout" and not text:
        used = "stderr"
        text = as_text(message.get(used))
    return typed.ToolResultEvent(
        call=call,
        text=text,
        is_error=message.get("exit_code") not in (0, None) or message.get("success") is False,
        meta=rest(message, "type", "call_id", used),
    )


def _mcp_output(message: Record, call: str) -> typed.ToolResultEvent:
    result = record_of(message.get("result"))
    if "Ok" not in result:
        meta = rest(message, "type", "call_id", "invocation")
        return typed.ToolResultEvent(call=call, text=as_text(result.get("Err")), is_error=True, meta=meta)
    done = record_of(result["Ok"])
    text, attachments = content_of(done.get("content"))
    return typed.ToolResultEvent(
        call=call,
        text=text,
        attachments=attachments,
        is_error=(done.get("isError") or done.get("is_error")) is True,
        meta=rest(message, "type", "call_id", "invocation", "result"),
    )
