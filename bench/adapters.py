"""The LangGraph checkpointer on the daemon, over LangGraph's own SQLite checkpointer: puts and lists.

LangGraph's packages have no benchmark of a checkpointer alone; the graphs that its repository measures keep a list of
messages, and so does the state here, which at depth 1,000 has 1,000 messages of 1.3 KB. Both savers run in one
process, in turns, and are flushed at each put: ours acknowledges after its flush, theirs has ``synchronous=FULL``.
``list`` is of the newest 50 checkpoints with a saver that was opened anew. It needs ``make .venv-adapters/.ready``.

Expected order of growth: theirs writes and reads the whole state for each checkpoint, ours what is new in it.
"""

import itertools
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from statistics import median

from bench.commits import chat
from bench.figures import Figure
from bench.running import daemon, environment, folder, quick

PYTHON = Path(".venv-adapters/bin/python").absolute()
DEPTH = 1_000
LISTED = 50
GOAL = 1.0


def run() -> Iterator[Figure]:
    """See the module."""
    if not PYTHON.exists():
        print("  adapters is left out: make .venv-adapters/.ready installs what it needs", file=sys.stderr)
        return
    puts, rounds = (50, 4) if quick() else (200, 16)
    with folder() as place, daemon(place / "adapters.sock", place / "state"):
        lines = "".join(f"{json.dumps(text)}\n" for text in itertools.islice(chat(), DEPTH + puts))
        words = [place / "adapters.sock", place / "langgraph.db", DEPTH, puts, LISTED, rounds]
        done = subprocess.run(
            [PYTHON, "-m", "bench.langgraph_savers", *map(str, words)],
            input=lines, stdout=subprocess.PIPE, text=True, check=True, env=environment(),
        )  # fmt: skip
        taken = sum(path.stat().st_size for path in (place / "state").rglob("*") if path.is_file())
        theirs = sum(path.stat().st_size for path in place.glob("langgraph.db*"))
    times: dict[str, list[float]] = json.loads(done.stdout)
    for what, amount in (("put", f"depth {DEPTH:,}"), ("list", f"{LISTED} of {DEPTH + puts:,}, opened anew")):
        mine, his = times[f"{what} ours"], times[f"{what} theirs"]
        # Of each turn for itself: what slows the machine for some seconds slows both.
        ratio = median(ours / other for ours, other in zip(mine, his, strict=True))
        detail = f"p50 {median(mine):.2f} ms, LangGraph's SQLite {median(his):.2f} ms; {amount}; flushed both"
        yield Figure(name=f"langgraph_{what}", value=ratio, goal=GOAL, better="lower", detail=detail)
    detail = f"{taken:,} bytes, LangGraph's SQLite {theirs:,}; {DEPTH + puts:,} checkpoints, logs included"
    yield Figure(name="langgraph_bytes", value=taken / theirs, goal=None, better="lower", detail=detail)
