"""Pages of the list of 10,000 sessions, over a bare indexed query for the same page, and the growth with the number.

The bare query reads the same rows from an SQLite table with an index on what is filtered by, newest first, and decodes
them as the client does. The page of a project is asked for by the project's name, as of the bare query; the detail has
the time of the page by the project's directory too, which the daemon looks up first. The daemon is started anew before
each measurement; for the growth, two daemons with few and many sessions reply in turn. Expected order of growth: O(1)
in the number of sessions, for a page reads what it shows.
"""

import sqlite3
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import msgspec

from bench.figures import Figure
from bench.running import daemon, folder, quick
from ctxd_client import connect_sync
from ctxd_client.sync import SyncClient
from ctxd_protocol.session_types import SessionSummary

SESSIONS = (500, 1_000) if quick() else (1_000, 10_000)
PROJECTS = 20
PAGE = 100
ROUNDS = 200
GOAL = 3.0
GROWTH_MAX = 1.5
MEMORY_KB_MAX = 4.0

PAGES: dict[str, dict[str, str]] = {
    "all": {},
    "project": {"project": "p7"},
    "harness": {"harness": "codex"},
    "label": {"label": "team=t3"},
}
_rows = msgspec.json.Decoder(SessionSummary)


def resident_kb(pid: int) -> float:
    """The resident memory of a process."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(float(line.split()[1]) for line in lines if line.startswith("VmRSS"))


def fill(client: SyncClient, root: Path, first: int, end: int) -> None:
    """Sessions in the directories of some projects, with a prompt each."""
    for number in range(first, end):
        session = f"s{number}"
        client.session_create(
            "claude-code" if number % 3 else "codex",
            session=session,
            workdir=str(root / f"p{number % PROJECTS}"),
            labels={"harness": "claude-code" if number % 3 else "codex", "team": f"t{number % 10}"},
        )
        client.session(session).user(f"Mend the parser, part {number}, and tell which files had to change for it")


def bare(path: Path, rows: list[SessionSummary]) -> sqlite3.Connection:
    """A table with the same rows, and an index for each filter."""
    table = sqlite3.connect(path)
    table.execute("CREATE TABLE sessions (began INTEGER PRIMARY KEY, project, harness, label, row BLOB)")
    for name in ("project", "harness", "label"):
        table.execute(f"CREATE INDEX by_{name} ON sessions ({name}, began)")
    for number, row in enumerate(reversed(rows)):
        project = "" if row.project is None else row.project.directory.rpartition("/")[2]
        label = f"team={row.labels['team']}"
        values = (number, project, row.harness, label, msgspec.json.encode(row))
        table.execute("INSERT INTO sessions VALUES (?, ?, ?, ?, ?)", values)
    table.commit()
    return table


def queried(table: sqlite3.Connection, filters: dict[str, str]) -> list[SessionSummary]:
    """A page by the bare query."""
    where = "".join(f"WHERE {name} = ? " for name in filters)
    found = table.execute(f"SELECT row FROM sessions {where}ORDER BY began DESC LIMIT {PAGE}", [*filters.values()])
    return [_rows.decode(row) for (row,) in found]


def seconds(call: Callable[[], object]) -> float:
    """How long a call takes."""
    began = time.perf_counter()
    call()
    return time.perf_counter() - began


def every(client: SyncClient) -> list[SessionSummary]:
    """All rows, newest first."""
    rows: list[SessionSummary] = []
    cursor: str | None = None
    while True:
        page = client.session_list(limit=1000, cursor=cursor)
        rows += page.sessions
        if (cursor := page.next_cursor) is None:
            return rows


def run() -> Iterator[Figure]:
    """Both figures, and the memory of a session in the list."""
    few, many = SESSIONS
    with folder() as root:
        socket = root / "ctxd.sock"
        for number in range(PROJECTS):
            (root / f"p{number}").mkdir()
        for state, number in (("few", few), ("many", many)):
            with daemon(socket, root / state), connect_sync(str(socket)) as client:
                fill(client, root, 0, number)
        with daemon(socket, root / "many") as process, connect_sync(str(socket)) as client:
            # Begun anew, the daemon has the list and no session in memory.
            table = bare(root / "bare.db", every(client))
            kb = resident_kb(process.pid)
            ratios, details = [], []
            for name, filters in PAGES.items():
                ours, theirs = [], []
                page = client.session_list(limit=PAGE, **filters).sessions
                assert [row.session for row in page] == [row.session for row in queried(table, filters)], name
                for _ in range(ROUNDS):
                    ours.append(seconds(lambda: client.session_list(limit=PAGE, **filters)))  # noqa: B023
                    theirs.append(seconds(lambda: queried(table, filters)))  # noqa: B023
                took, least = statistics.median(ours), statistics.median(theirs)
                ratios.append(took / least)
                details.append(f"{name} {took * 1e6:.0f} over {least * 1e6:.0f} us")
            place = str(root / PAGES["project"]["project"])
            looked_up = statistics.median(
                seconds(lambda: client.session_list(limit=PAGE, project=place)) for _ in range(ROUNDS)
            )
            details.append(f"project by its directory {looked_up * 1e6:.0f} us")
            detail = f"{many:,} sessions, pages of {PAGE}: {', '.join(details)}; {kb / 1024:.0f} MiB resident"
            yield Figure(name="session_ls", value=max(ratios), goal=GOAL, better="lower", detail=detail)
        first, last = grown(root)
        detail = f"{first * 1e6:.0f} us of {few:,} sessions, {last * 1e6:.0f} us of {many:,}, in turn"
        yield Figure(name="session_ls_growth", value=last / first, goal=GROWTH_MAX, better="lower", detail=detail)


def grown(root: Path) -> tuple[float, float]:
    """Median seconds of a page of the few sessions and of the many, from two daemons that reply in turn."""
    times: dict[str, list[float]] = {"few": [], "many": []}
    with ExitStack() as stack:
        clients = {}
        for state in times:
            socket = root / f"{state}.sock"
            stack.enter_context(daemon(socket, root / state))
            clients[state] = stack.enter_context(connect_sync(str(socket)))
            clients[state].session_list(limit=PAGE)
        for _ in range(ROUNDS):
            for state, client in clients.items():
                times[state].append(seconds(lambda: client.session_list(limit=PAGE)))  # noqa: B023
    return statistics.median(times["few"]), statistics.median(times["many"])
