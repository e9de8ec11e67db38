"""A complete agent on Anthropic's Messages API: ctxd makes each request, the model works and arranges its context.

Needs a running daemon, ``pip install anthropic`` and ``$ANTHROPIC_API_KEY``:
``python -m ctxd.examples.anthropic_agent "Why does the test fail?"``
"""

import os
import sys
from subprocess import STDOUT

import anyio
from anthropic import AsyncAnthropic
from anthropic.types import Message, ToolUseBlock

from ctxd_client import MODEL_TOOLS, Session, connect
from ctxd_protocol.context_types import ToolDeclaration
from ctxd_protocol.event_types import Event, ResponseEvent, ThinkingEvent, ToolCallEvent
from ctxd_protocol.object_types import ToolcallStatus

MODEL = "claude-sonnet-5"
COMMAND = {"type": "object", "properties": {"command": {"type": "string"}}, "required": ["command"]}
TOOLS = (ToolDeclaration(name="bash", description="Run a shell command.", input_schema=COMMAND), *MODEL_TOOLS.values())


def events_of(reply: Message) -> list[Event]:
    """The parts of ``reply`` as events of the chat."""
    events: list[Event] = []
    for part in reply.content:
        match part.type:
            case "text":
                events.append(ResponseEvent(text=part.text, message=reply.id, model=reply.model))
            case "thinking":
                events.append(ThinkingEvent(text=part.thinking, signature=part.signature, message=reply.id))
            case "tool_use":
                events.append(ToolCallEvent(call=part.id, tool=part.name, args=part.input, message=reply.id))
    return events


async def run_tool(session: Session, call: ToolUseBlock) -> None:
    """Run ``call`` and record it, including errors, so that the model sees them."""
    output: str | Exception
    status: ToolcallStatus | None = None
    if call.name in MODEL_TOOLS:
        output = await session.handle(call.name, call.input)
    else:
        try:
            done = await anyio.run_process(["sh", "-c", str(call.input["command"])], stderr=STDOUT, check=False)
            output, status = done.stdout.decode(errors="replace"), "fail" if done.returncode else "ok"
        except (OSError, KeyError, ValueError) as error:
            output = error
    await session.tool(call.name, call.input, output=output, status=status, id=call.id, in_chat=True)


async def turn(session: Session, api: AsyncAnthropic, prompt: str) -> Message:
    """Work on ``prompt`` until the model calls no more tools; return its last reply."""
    await session.user(prompt)
    while True:
        made = await session.assemble(format="anthropic-messages", model=MODEL, tools=TOOLS)
        reply: Message = await api.messages.create(**(made.request or {}))
        await session.usage(reply.usage.model_dump(exclude_none=True), context_id=made.context_id, model=reply.model)
        if events := events_of(reply):
            await session.append(events=events)
        calls = [part for part in reply.content if part.type == "tool_use"]
        for call in calls:
            await run_tool(session, call)
        if not calls:
            return reply


async def main() -> None:
    """Answer the question on the command line."""
    async with connect() as client, AsyncAnthropic() as api:
        session = await client.session(agent="anthropic-agent", system_prompt="Be brief.", workdir=os.getcwd())
        reply = await turn(session, api, " ".join(sys.argv[1:]) or "Which files are here?")
        print(*(part.text for part in reply.content if part.type == "text"), sep="\n")


if __name__ == "__main__":
    anyio.run(main)
