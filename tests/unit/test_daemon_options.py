"""Options of a daemon, from its configuration."""

import grp
import os
from pathlib import Path

import pytest

from ctxd.config import load
from ctxd.daemon_options import options_of, with_passed_socket
from ctxd.errors import StateDirError
from ctxd.secrets.scanner import Scanner


@pytest.mark.requirement("BOX-13")
@pytest.mark.parametrize(("uid", "allowed", "refused"), [(0, False, True), (0, True, False), (1000, False, False)])
def test_a_root_daemon_opens_its_socket_to_a_group_only_if_configured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, uid: int, allowed: bool, refused: bool
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: uid)
    config = tmp_path / "ctxd.toml"
    group = next(each for each in grp.getgrall() if each.gr_gid != 0)
    flag = "true" if allowed else "false"
    base = f"socket = '{tmp_path}/c.sock'\nstate_dir = '{tmp_path}/state'\nsocket_group_as_root = {flag}\n"
    handed = tmp_path / "handed.sock"
    handed.touch()
    handed.chmod(0o660)
    os.chown(handed, -1, group.gr_gid)
    config.write_text(f"{base}socket_group = '{group.gr_name}'\n")
    named = load({}, {"HOME": str(tmp_path)}, file=config)
    config.write_text(base)
    plain = load({}, {"HOME": str(tmp_path)}, file=config)
    options = options_of(plain, Scanner(), ephemeral=True)
    for make in (
        lambda: options_of(named, Scanner(), ephemeral=True),
        lambda: with_passed_socket(options, str(handed), plain),
    ):
        if refused:
            with pytest.raises(StateDirError, match="socket_group_as_root"):
                make()
        else:
            assert make().socket_gid == group.gr_gid
