"""A complete harness loop: copy it, and replace the scripted model by a real one.

Owns the loop: assemble the context, call the model with it, run the model's tools, record every step. ``ctxd`` decides
on the content of the window. With a daemon running: ``python -m ctxd.examples.agent_loop``. It creates its own working
tree, runs real commands on it, and needs neither a key nor a network.
"""

import sys
import tempfile
from pathlib import Path

import anyio

from ctxd.examples.scripted import CHECK, FIX, LOOK, READ, Model, ModelStep, ToolCall, make_tree, scripted
from ctxd_client import CallFailed, Session, connect
from ctxd_protocol.context_types import AssembledContext

SYSTEM_PROMPT = "You fix small Python projects. Look before you change, and run the tests afterwards."


class Agent:
    """One agent at work in ``tree``. ``view``: the agent's own path of that directory, as in a container."""

    def __init__(self, session: Session, model: Model, tree: Path, *, view: str | None = None) -> None:
        self.session = session
        self._model = model
        self._tree = tree
        self._view = view or str(tree)
        self._calls = 0

    async def turn(self, prompt: str) -> AssembledContext:
        """Work on ``prompt`` until the model calls no more tools; return the context of its last answer."""
        await self.session.user(prompt)
        while True:
            context, step = await self.step()
            if not step.calls:
                return context

    async def step(self) -> tuple[AssembledContext, ModelStep]:
        """Get one answer of the model and run its tools; everything is recorded. Returns the context and the answer."""
        context = await self.session.assemble()
        step = self._model(context.text)
        await self.session.assistant(step.text)
        for call in step.calls:
            await self._run(call)
        return context, step

    async def _run(self, call: ToolCall) -> None:
        done = await anyio.run_process(["sh", "-c", f"{call.command} 2>&1"], cwd=self._tree, check=False)
        output = done.stdout.decode(errors="replace")
        self._calls += 1
        await self.session.tool(
            call.tool,
            {"command": call.command},
            id=f"{self.session.id}/call-{self._calls}",
            output=output,
            status="ok" if done.returncode == 0 else "fail",
            command=call.command,
            cwd=self._view,
        )
        if call.path is not None and call.tool == "read":
            await self.session.read(f"{self._view}/{call.path}")
        elif call.path is not None and call.tool == "edit":
            await self.session.edited(f"{self._view}/{call.path}")


async def main() -> None:
    """Run one agent through two turns and print the last context of its model."""
    with tempfile.TemporaryDirectory(prefix="ctxd-example-") as place:
        tree = make_tree(Path(place))
        async with connect() as client:
            session = await client.session(agent="example", system_prompt=SYSTEM_PROMPT, workdir=str(tree))
            model = scripted((LOOK, READ, ModelStep("The cart ignores quantities."), FIX, CHECK, ModelStep("Fixed.")))
            agent = Agent(session, model, tree)
            await agent.turn("A test fails. Why?")
            context = await agent.turn("Fix it.")
    print(context.text)
    print(
        f"\n{context.context_id}: {context.tokens} tokens, turn {context.turn}, sha256 {context.sha256}",
        file=sys.stderr,
    )


if __name__ == "__main__":
    try:
        anyio.run(main)
    except CallFailed as error:
        sys.exit(str(error))
