"""Forks and the removal of sessions: growth of a fork with its parent, and of a removal with the number of sessions.

Expected order of growth: O(1) for a fork, whose writes are a head, the prompt and the entries; O(1) for each removed
session, of which all have one size. Both are medians of a real daemon, the smaller and the larger size in turn, so that
what else the machine does concerns both.
"""

import statistics
import time
from collections.abc import Iterator
from pathlib import Path

from bench.figures import Figure
from bench.running import daemon, folder, quick
from ctxd_client import connect_sync
from ctxd_client.sync import SyncClient

CALLS = (100, 2_000 if quick() else 10_000)
FORKS = 100
REMOVED = (30, 100 if quick() else 300)
CALLS_OF_REMOVED = 10
GROWTH_MAX = 1.5


def lived(client: SyncClient, session: str, calls: int) -> None:
    """A session with ``calls`` tool calls, a turn for each 20."""
    client.session_create("bench", session=session)
    for number in range(calls):
        if number % 20 == 0:
            client.session(session).user(f"turn {number}")
        client.toolcall_record(session, f"{session}-{number}", "bash", f"output {number} of {session}")


def forks(client: SyncClient) -> Figure:
    """The time of a fork of a long session over that of a short one."""
    for calls in CALLS:
        lived(client, f"parent-{calls}", calls)
    took: dict[int, list[float]] = {calls: [] for calls in CALLS}
    for _ in range(FORKS):
        for calls in CALLS:
            began = time.perf_counter()
            client.session_fork(f"parent-{calls}")
            took[calls].append(time.perf_counter() - began)
    small, large = (statistics.median(took[calls]) for calls in CALLS)
    detail = f"p50 {small * 1000:.2f} ms of {CALLS[0]} tool calls, {large * 1000:.2f} ms of {CALLS[1]:,}"
    return Figure(name="fork_growth", value=large / small, goal=GROWTH_MAX, better="lower", detail=detail)


def removals(root: Path) -> Figure:
    """The time that each removed session takes to be emptied among many, over that among few."""
    each: list[float] = []
    for number in REMOVED:
        state, socket = root / f"state-{number}", root / f"{number}.sock"
        with daemon(socket, state), connect_sync(str(socket)) as client:
            for n in range(number):
                lived(client, f"s{n}", CALLS_OF_REMOVED)
                client.session_remove(f"s{n}")
            began, emptied = time.perf_counter(), 0
            cursor: str | None = None
            while True:
                page = client.session_gc(0, force=True, cursor=cursor)
                emptied += sum(one.action == "emptied" for one in page.sessions)
                if (cursor := page.next_cursor) is None:
                    break
            each.append((time.perf_counter() - began) / emptied)
            assert emptied == number, f"{emptied} of {number} sessions were emptied"
    small, large = each
    detail = f"{small * 1000:.2f} ms a session of {REMOVED[0]}, {large * 1000:.2f} ms of {REMOVED[1]}"
    return Figure(name="removal_growth", value=large / small, goal=GROWTH_MAX, better="lower", detail=detail)


def run() -> Iterator[Figure]:
    """Both figures."""
    with folder() as root:
        socket = root / "ctxd.sock"
        with daemon(socket, root / "state"), connect_sync(str(socket)) as client:
            yield forks(client)
        yield removals(root)
