"""Severities of log lines in the journal of systemd."""

import errno
import io
import json
import os

import pytest

from ctxd.observe.logs import open_log


@pytest.mark.requirement("SVC-5")
@pytest.mark.parametrize(
    ("method", "priority"), [("critical", 2), ("error", 3), ("warning", 4), ("info", 6), ("debug", 7)]
)
def test_each_level_has_its_priority_in_front(tmp_path, monkeypatch, method, priority):
    with (tmp_path / "log").open("w+") as stream:
        found = os.fstat(stream.fileno())
        monkeypatch.setenv("JOURNAL_STREAM", f"{found.st_dev}:{found.st_ino}")
        getattr(open_log("debug", "json", stream), method)("it.happened")
        stream.seek(0)
        line = stream.read()
    assert line.startswith(f"<{priority}>{{")
    assert json.loads(line[3:])["level"] == method


def test_elsewhere_a_line_is_json_alone():
    stream = io.StringIO()
    open_log("info", "json", stream).info("it.happened")
    assert json.loads(stream.getvalue())["event"] == "it.happened"


class Full(io.StringIO):
    """A log on a full disk."""

    def write(self, text):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def flush(self):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@pytest.mark.requirement("DUR-3")
def test_a_line_that_cannot_be_written_is_dropped_without_an_error():
    open_log("info", "json", Full()).info("it.happened")
