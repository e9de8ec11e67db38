"""A daemon on a host whose clock jumps by hours and years, both ways, while it runs and while it does not."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path

import pytest

from ctxd_client import connect_sync
from ctxd_client.sync import SyncClient
from ctxd_protocol.session_types import Message
from tests.programs import run, start

HOUR_MS = 3_600_000
YEAR_MS = 365 * 24 * HOUR_MS
JUMPS = (-HOUR_MS, 20 * YEAR_MS, 3 * HOUR_MS, -30 * YEAR_MS, 21 * YEAR_MS, 0)
"""How far the clock is ahead, in turn."""


@contextmanager
def daemon(place: Path, end: signal.Signals) -> Iterator[SyncClient]:
    """A daemon on the state in ``place``, whose clock is ahead by what the file ``ahead`` holds; ended by ``end``."""
    words = [place / "ahead", "run", "--state-dir", place / "state", "--socket", place / "ctxd.sock"]
    with (place / "log").open("ab") as log:
        process = start("ctxd-elsewhere", words, stdout=log, stderr=log)
    try:
        with connect_sync(str(place / "ctxd.sock"), wait_s=30) as client:
            yield client
    finally:
        process.send_signal(end)
        process.wait(30)


@pytest.mark.requirement("VER-4")
def test_nothing_is_lost_doubled_or_out_of_order_when_the_clock_jumps(tmp_path: Path) -> None:
    file = tmp_path / "notes.txt"
    receipts, calls, said = [], [], []
    versions: list[tuple[int, int, str]] = []
    ahead = tmp_path / "ahead"
    ahead.write_text("0")
    with daemon(tmp_path, signal.SIGTERM) as client:
        client.session_create("a", session="s", workdir=str(tmp_path))
    # Each jump happens once while no daemon runs and once while one does.
    for number, jump in enumerate(JUMPS):
        ahead.write_text(str(jump))
        with daemon(tmp_path, signal.SIGKILL if number % 2 else signal.SIGTERM) as client:
            for step, moment in enumerate((jump, JUMPS[-1 - number])):
                ahead.write_text(str(moment))
                id = f"call-{number}-{step}"
                recorded = client.toolcall_record("s", id, "bash", f"output of {id}", op_id=id)
                appended = client.session_append("s", [Message(role="user", content=id)])
                file.write_text(id)
                object = client.file_index("s", str(file)).object
                found = client.object_get(object).object
                assert found.payload["content"] == id, "the newest version is the one written last"
                again = client.toolcall_record("s", id, "bash", f"output of {id}", op_id=id)
                assert again.receipt == recorded.receipt
                assert id in client.context_assemble("s", blocks=False).text
                receipts += [recorded.receipt, appended.receipt]
                calls.append(id)
                said.append(id)
                versions.append((found.valid_time, found.tx, id))
    with daemon(tmp_path, signal.SIGTERM) as client:
        assert [id for id in client.session_get("s").session.session_index if id.startswith("call")] == calls
        assert [event.event["text"] for event in client.session_events("s").events] == said
        rows = client.object_history(object).versions
        assert [(row.valid_time, row.tx) for row in rows] == [(time, tx) for time, tx, _ in versions]
        for time, _, text in versions:
            assert client.object_get(object, valid_time=time).object.payload["content"] == text
    assert all(one.seq < next.seq and one.vt <= next.vt for one, next in pairwise(receipts) if one and next)


@pytest.mark.requirement("CLI-11", "REV-1")
def test_now_includes_everything_recorded_before_the_clock_was_set_back(tmp_path: Path) -> None:
    (tmp_path / "ahead").write_text(str(2 * HOUR_MS))
    file = tmp_path / "notes.txt"
    with daemon(tmp_path, signal.SIGTERM) as client:
        client.session_create("a", session="s", workdir=str(tmp_path))
        for text in ("first", "second"):
            client.session_append("s", [Message(role="user", content=text)])
            file.write_text(text)
            client.file_index("s", str(file))
            newest = client.context_current(session="s").context_id
        (tmp_path / "ahead").write_text("0")

        def printed(*words: str) -> str:
            ran = run("ctx", (*words, "--socket", str(tmp_path / "ctxd.sock")))
            assert ran.returncode == 0, ran.stderr
            return ran.stdout

        assert printed("resolve", "@now").strip() == printed("log", "s@now", "-q").split()[0] == newest
        assert printed("object", "as-of", str(file), "now", "-s", "s") == "second"
        assert "turns     2\n" in printed("session", "show", "s@{now}")
        assert "turns     2\n" in printed("session", "show", "s@{ Now }")
