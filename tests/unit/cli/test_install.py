"""``ctx install`` and ``ctx uninstall`` beside a person who edits the same file."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ctxd.cli import install


@pytest.mark.requirement("HOK-12")
@pytest.mark.parametrize("was_there", [False, True])
def test_a_file_that_is_saved_during_an_uninstall_stays_as_saved(
    ctx: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, was_there: bool
) -> None:
    file = tmp_path / ".claude/settings.json"
    file.parent.mkdir()
    if was_there:
        file.write_text('{"model": "opus"}\n')
    assert ctx("install", "claude", "--socket", str(tmp_path / "s")).code == 0
    assert file.exists()
    restored = install._restored

    def saved(*given: Any) -> str:
        after = restored(*given)
        file.write_text('{"model": "another"}\n')
        return after

    monkeypatch.setattr(install, "_restored", saved)
    done = ctx("uninstall", "claude")
    assert done.code == 1 and "changed meanwhile" in done.err
    assert file.read_text() == '{"model": "another"}\n'
