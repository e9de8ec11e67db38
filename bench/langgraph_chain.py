"""LangGraph's SQLite checkpointer, for ``bench.commits``: one checkpoint for each message that standard input brings.

Runs in an environment of its own, ``make .venv-langgraph``, and imports nothing of ours. Each line is a message; the
answer is the time of its checkpoint in ms. The first line of the answers is the database's setting ``synchronous``, as
the checkpointer has it. A checkpoint has all messages so far, as a graph's state has.
"""

import json
import sys
import time

from langchain_core.messages import AIMessage, HumanMessage
from langgraph.checkpoint.base import empty_checkpoint
from langgraph.checkpoint.sqlite import SqliteSaver


def main(path: str) -> None:
    with SqliteSaver.from_conn_string(path) as saver:
        saver.setup()
        print(saver.conn.execute("PRAGMA synchronous").fetchone()[0], flush=True)
        config = {"configurable": {"thread_id": "bench", "checkpoint_ns": ""}}
        messages: list[HumanMessage | AIMessage] = []
        for line in sys.stdin:
            text = json.loads(line)
            messages.append(AIMessage(text) if len(messages) % 2 else HumanMessage(text))
            checkpoint = empty_checkpoint()
            checkpoint["channel_values"] = {"messages": messages}
            checkpoint["channel_versions"] = {"messages": len(messages)}
            began = time.perf_counter()
            config = saver.put(
                config, checkpoint, {"source": "loop", "step": len(messages)}, {"messages": len(messages)}
            )
            print(1000 * (time.perf_counter() - began), flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
