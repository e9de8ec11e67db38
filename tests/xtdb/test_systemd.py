"""The shipped unit of the node under a real systemd, beside the daemon's."""

import json
import sys
from pathlib import Path

import pytest

from tests.e2e.booted import CannotBoot, booted
from tests.xtdb.running import installation

pytestmark = pytest.mark.timeout(180)


@pytest.mark.requirement("SVC-6")
@pytest.mark.requirement("PRJ-1")
@pytest.mark.slow
def test_the_units_of_daemon_and_node_find_each_other(tmp_path: Path) -> None:
    node = installation().directory
    try:
        with booted(tmp_path) as machine:
            machine.run("cp", "-r", f"{node}/.", "/opt/ctxd-xtdb")
            if sys.base_prefix.startswith(("/root/", "/home/")):
                machine.drop_in("home", "[Service]\nProtectHome=read-only\n", "xtdb.service")
            machine.run("systemctl", "start", "xtdb.service")
            machine.run("sh", "-c", "echo 'store = \"xtdb\"' > /etc/ctxd/ctxd.toml")
            machine.run("systemctl", "restart", "ctxd.service")
            create = json.dumps({"agent": "a", "session": "s1"})
            machine.run("ctx", "rpc", "session.create", create)
            machine.until_logged("projection.projecting")
            found = json.loads(machine.run("ctx", "status", "--json"))["store"]["projection"]
            assert (found["state"], found["url"]) == ("projecting", "unix:/run/ctxd/xtdb.sock")
            machine.run("systemctl", "kill", "--signal=KILL", "xtdb.service")
            machine.until("NRestarts", "1", "xtdb.service")
            # It is logged each time: at its start, and after the kill.
            machine.until_logged("ready unix:/run/ctxd/xtdb.sock", "xtdb.service", times=2)
            # The daemon tries again by itself, now and then.
            machine.run("sh", "-c", "for _ in $(seq 100); do ctx doctor && break; sleep 0.1; done >/dev/null")
            assert json.loads(machine.run("ctx", "doctor", "--json"))["failed"] == 0
            machine.run("systemctl", "stop", "xtdb.service")
            assert machine.show("Result", "xtdb.service") == "success"
            machine.run("ctx", "rpc", "session.create", json.dumps({"agent": "a", "session": "s2"}))
    except CannotBoot as reason:
        pytest.skip(f"no systemd can be booted here: {reason}")
