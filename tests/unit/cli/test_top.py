"""``ctx top`` on a small terminal, a real one of the kernel's."""

import fcntl
import os
import pty
import signal
import struct
import subprocess
import sys
import termios

import pytest

from ctxd_client import connect_sync

COLUMNS, ROWS = 40, 12


@pytest.fixture
def boxes(running):
    with connect_sync(running.socket) as client:
        made = []
        for _ in range(ROWS + 5):
            session = client.session_create("a", filesystem_id="b" * 64).session.session
            made.append(client.sandbox_register([session], ttl_s=600).sandbox.sandbox)
        yield made
        for each in made:
            client.sandbox_release(each)


@pytest.mark.requirement("CLI-8")
def test_top_fits_a_small_terminal_and_an_interrupt_ends_it(running, boxes):
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
    command = [sys.executable, "-m", "ctxd.cli.main", "top", "--interval", "0.1"]
    environ = {**os.environ, "TERM": "xterm", "CTXD_SOCKET": str(running.socket), "NO_COLOR": "1"}
    with subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=subprocess.PIPE, env=environ) as child:
        os.close(theirs)
        written = b""
        while written.count(b"\x1b[H\x1b[J") < 3:
            written += os.read(ours, 65536)
        child.send_signal(signal.SIGINT)
        assert child.wait(20) == 130
    os.close(ours)
    frame = written.decode().split("\x1b[H\x1b[J")[1].replace("\r", "")
    lines = frame.split("\n")
    assert len(lines) == ROWS, "nothing is scrolled away"
    assert max(map(len, lines)) == COLUMNS
    assert lines[4].startswith("files ")
    assert sum(line[:16] in boxes for line in lines) == ROWS - 8, (
        "beside five lines, one that is empty, header and cursor"
    )
