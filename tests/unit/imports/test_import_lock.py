"""The lock for imports of one harness."""

from pathlib import Path

import anyio
import pytest

from ctxd.clock import SystemClock
from ctxd.imports.import_lock import import_lock

pytestmark = [pytest.mark.anyio, pytest.mark.requirement("IMP-10")]


async def test_an_import_that_cannot_report_its_wait_does_not_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))

    def closed(_: str) -> None:
        raise BrokenPipeError

    async with import_lock("/socket", "claude", SystemClock(), closed):
        with pytest.raises(BrokenPipeError):
            async with import_lock("/socket", "claude", SystemClock(), closed):
                pytest.fail("both imports run at once")
    with anyio.fail_after(5):
        async with import_lock("/socket", "claude", SystemClock(), closed):
            pass


async def test_a_user_without_a_home_directory_imports_without_a_lock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("XDG_STATE_HOME", raising=False)
    monkeypatch.setenv("HOME", "~")
    monkeypatch.chdir(tmp_path)
    async with import_lock("/socket", "claude", SystemClock(), pytest.fail):
        pass
    assert [*tmp_path.iterdir()] == []
