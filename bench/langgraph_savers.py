"""LangGraph's SQLite checkpointer and ours, in turns, for ``bench.adapters``: times of puts and of lists.

Runs in the environment of ``make .venv-adapters/.ready``. The state is a list of messages that grows by one with each
checkpoint, as in the graphs of LangGraph's own benchmarks. The answer is one JSON object.
"""

import json
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

from langchain_core.messages import AIMessage, HumanMessage
from langgraph.checkpoint.base import BaseCheckpointSaver, empty_checkpoint
from langgraph.checkpoint.sqlite import SqliteSaver

from ctxd_client.adapters.langgraph import CtxdSaver

Opened = Callable[[], AbstractContextManager[BaseCheckpointSaver[Any]]]


def main(socket: str, database: str, depth: int, puts: int, limit: int, rounds: int) -> dict[str, Any]:
    @contextmanager
    def theirs() -> Iterator[SqliteSaver]:
        with SqliteSaver.from_conn_string(database) as saver:
            saver.setup()
            saver.conn.execute("PRAGMA synchronous=FULL")
            yield saver

    openers: dict[str, Opened] = {"ours": lambda: CtxdSaver.connect(socket), "theirs": theirs}
    times: dict[str, list[float]] = {f"{what} {who}": [] for what in ("put", "list") for who in openers}
    with openers["ours"]() as one, openers["theirs"]() as other:
        savers = {"ours": one, "theirs": other}
        places: dict[str, Any] = dict.fromkeys(savers, {"configurable": {"thread_id": "bench", "checkpoint_ns": ""}})
        messages: list[HumanMessage | AIMessage] = []
        for number, line in zip(range(depth + puts), sys.stdin, strict=False):
            text = json.loads(line)
            messages.append(AIMessage(text) if number % 2 else HumanMessage(text))
            for who, saver in savers.items():
                checkpoint = empty_checkpoint()
                checkpoint["channel_values"] = {"messages": messages}
                checkpoint["channel_versions"] = {"messages": number + 1}
                began = time.perf_counter()
                places[who] = saver.put(
                    places[who], checkpoint, {"source": "loop", "step": number}, {"messages": number + 1}
                )
                if number >= depth:
                    times[f"put {who}"].append(1000 * (time.perf_counter() - began))
    config: Any = {"configurable": {"thread_id": "bench", "checkpoint_ns": ""}}
    for turn in range(rounds):
        states: dict[str, Any] = {}
        for who, opened in [*openers.items()][:: -1 if turn % 2 else 1]:
            with opened() as saver:
                began = time.perf_counter()
                found = [*saver.list(config, limit=limit)]
                times[f"list {who}"].append(1000 * (time.perf_counter() - began))
            states[who] = [each.checkpoint["channel_values"] for each in found] if not turn else None
            # What is there makes the collector of garbage slower for the next one.
            del found
        assert states["ours"] == states["theirs"], "both give the same states"
    return times


if __name__ == "__main__":
    print(json.dumps(main(sys.argv[1], sys.argv[2], *map(int, sys.argv[3:]))))
