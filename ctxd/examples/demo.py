"""The demonstration: two agents on one working tree, a daemon killed in the middle of a turn, and the same bytes after.

Exits with 1 if a claim does not hold. Everything is real: the daemon is a separate process with its state on disk, the
tools are commands on a working tree, and the daemon is killed by ``kill -9``. It leaves nothing behind. ``python -m
ctxd.examples.demo``.
"""

import hashlib
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterable, Iterator
from contextlib import contextmanager
from pathlib import Path

import anyio

from ctxd.examples.agent_loop import SYSTEM_PROMPT, Agent
from ctxd.examples.demo_output import Teller
from ctxd.examples.scripted import CHECK, FIX, GLANCE, LOOK, READ, ModelStep, make_tree, scripted
from ctxd.worker_threads import in_thread
from ctxd_client import Client, connect
from ctxd_protocol.session_types import Notice

WAIT_S_MAX = 20.0
"""Maximum seconds for any single wait. The whole demonstration takes a tenth of that."""

SANDBOX = "/workspace"
"""The second agent's path of the working tree, as in a container that mounts it there."""


class DemoDaemon:
    """``ctxd run`` as a separate process, whose state outlives it."""

    def __init__(self, place: Path) -> None:
        self.socket = place / "ctxd.sock"
        self._state = place / "state"
        self._log = place / "daemon.log"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start the process; clients wait until it accepts calls."""
        command = [sys.executable, "-m", "ctxd", "run", "--state-dir", str(self._state), "--socket", str(self.socket)]
        environ = {**os.environ, "CTXD_CACHE_DIR": str(self._state.with_name("cache"))}
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environ)

    async def end(self, signum: int) -> int:
        """Send ``signum`` and return the exit code."""
        assert self._process is not None, "the daemon was started"
        process = self._process
        os.kill(process.pid, signum)
        return await in_thread(lambda: process.wait(WAIT_S_MAX))

    def clean_up(self) -> None:
        """Kill the process if it still runs."""
        if self._process is not None and self._process.poll() is None:
            self._process.kill()
            self._process.wait()


@contextmanager
def daemon_in(place: Path) -> Iterator[DemoDaemon]:
    """A started daemon with its state below ``place``."""
    daemon = DemoDaemon(place)
    daemon.start()
    try:
        yield daemon
    finally:
        daemon.clean_up()


async def main() -> int:
    """Run the demonstration and return the exit code."""
    began = time.monotonic()
    teller = Teller()
    with tempfile.TemporaryDirectory(prefix="ctxd-demo-") as made:
        place = Path(made)
        tree = make_tree(place)
        with daemon_in(place) as daemon:
            async with connect(daemon.socket, wait_s=WAIT_S_MAX, client="demo") as client:
                await story(client, daemon, tree, teller)
            code = await daemon.end(signal.SIGTERM)
            teller.holds("the daemon shuts down cleanly", code == 0, f"exit code {code}")
    teller.end(time.monotonic() - began)
    return 1 if teller.failed else 0


async def story(client: Client, daemon: DemoDaemon, tree: Path, teller: Teller) -> None:
    """Play the four scenes, one after the other."""
    builder = Agent(
        await client.session("builder", agent="builder", system_prompt=SYSTEM_PROMPT, workdir=str(tree)),
        scripted(
            (LOOK, READ, ModelStep("The cart ignores quantities."), FIX, CHECK, ModelStep("Fixed: the tests pass."))
        ),
        tree,
    )
    reviewer = Agent(
        await client.session("reviewer", agent="reviewer", workdir=SANDBOX, mounts={SANDBOX: str(tree)}),
        scripted((LOOK, GLANCE, ModelStep("I wait for the change."))),
        tree,
        view=SANDBOX,
    )
    await two_agents(client, builder, reviewer, tree, teller)
    await a_change(client, builder, reviewer, teller)
    await a_kill(client, daemon, builder, teller)
    await the_rest(client, builder, teller)


async def two_agents(client: Client, builder: Agent, reviewer: Agent, tree: Path, teller: Teller) -> None:
    """Both agents read the same file, each under its own path."""
    teller.scene("Two agents, one working tree", f"builder works in {tree}, reviewer sees it as {SANDBOX}")
    await builder.turn("A test fails. Why?")
    context = await reviewer.turn("Review the cart.")
    mine = await builder.session.resolve(f"{tree}/shop/cart.py")
    theirs = await reviewer.session.resolve(f"{SANDBOX}/shop/cart.py")
    teller.holds("one file is one object, whatever it is called", mine.object == theirs.object, mine.object[:12])
    teller.holds("each agent sees its own paths", str(tree) not in context.text, f"path={theirs.display_path}")
    teller.context("What the reviewer's model sees", context)


async def a_change(client: Client, builder: Agent, reviewer: Agent, teller: Teller) -> None:
    """The builder changes a file that the reviewer has read; the reviewer is notified and sees the new text."""
    teller.scene("One changes what the other has read")
    await builder.session.user("Fix it.")
    after = (await client.daemon_status()).store.head_seq
    async with client.follow(reviewer.session.id, after=after) as notices:
        began = time.monotonic()
        await builder.step()
        notice = await first(notices)
    text = f"{notice.path} {notice.change} by {notice.by_session}, {(time.monotonic() - began) * 1e3:.0f} ms after"
    is_notified = notice.path == f"{SANDBOX}/shop/cart.py" and notice.by_session == builder.session.id
    teller.holds("the other gets a notice with its own path", is_notified, text)
    seen = await reviewer.session.assemble(blocks=False)
    teller.holds("and its model sees the new text", "price(n) * q" in seen.text, f"assembly {seen.number}")


async def first(notices: AsyncIterable[Notice]) -> Notice:
    """The next notice, at most ``WAIT_S_MAX`` seconds later."""
    with anyio.fail_after(WAIT_S_MAX):
        async for notice in notices:
            return notice
    raise EOFError("the notices ended")


async def a_kill(client: Client, daemon: DemoDaemon, builder: Agent, teller: Teller) -> None:
    """The daemon is killed in the middle of the builder's turn and started again."""
    teller.scene("kill -9 in the middle of a turn")
    before = await builder.session.assemble()
    await daemon.end(signal.SIGKILL)
    began = time.monotonic()
    daemon.start()
    resumed = await builder.session.resume()
    after = await builder.session.assemble()
    seconds = time.monotonic() - began
    teller.compare(before, after, seconds)
    teller.holds("the context is byte-equal", before.text == after.text and before.sha256 == after.sha256, after.sha256)
    files = resumed.reconciled
    quiet = not (files.updated or files.deleted or files.orphaned)
    teller.holds("no file changed meanwhile", quiet, f"{files.unchanged} checked")
    status = await client.daemon_status()
    teller.holds(
        "another daemon responds", status.incarnation > 1, f"incarnation {status.incarnation}, {seconds:.2f} s"
    )


async def the_rest(client: Client, builder: Agent, teller: Teller) -> None:
    """The turn continues where it was interrupted, and the past can be read."""
    teller.scene("The turn continues")
    _, step = await builder.step()
    context, last = await builder.step()
    teller.say(f"builder: {step.text} ... {last.text}")
    teller.holds("the tests pass on the real tree", "\nOK" in context.text, f"turn {context.turn}")
    shown = await builder.session.show(number=1)
    recorded = (await builder.session.assemblies()).assemblies[0]
    same = hashlib.sha256(shown.text.encode()).hexdigest() == recorded.sha256
    evidence = f"{shown.context_id}, {shown.bytes} bytes"
    teller.holds("the first context of the model can be shown again", same, evidence)
    teller.context("What the builder's model sees", context)


if __name__ == "__main__":
    sys.exit(anyio.run(main))
