"""A state directory that the first version of the daemon wrote opens with everything in it."""

import json
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

from ctxd_client import connect_sync
from tests.client.running import Running

DATA = Path(__file__).parents[1] / "data" / "state" / "ab26cfa.tar.xz"


@pytest.mark.requirement("DUR-11")
def test_a_state_of_the_first_version_opens_with_everything_in_it(tmp_path: Path) -> None:
    with tarfile.open(DATA) as archive:
        archive.extractall(tmp_path, filter="data")
    state = tmp_path / "state"
    state.chmod(0o700)
    known = json.loads((state / "facts.json").read_text())
    with Running(tmp_path, keep_state=True) as running:
        with connect_sync(running.socket) as client:
            assert client.daemon_status().store.damage == ()
            assert sorted(row.session for row in client.session_list().sessions) == known["sessions"]
            for id, (type, kept, content_hash, versions) in known["objects"].items():
                found = client.object_get(id).object
                assert [found.type, found.state, found.content_hash] == [type, kept, content_hash]
                assert len(client.object_history(id).versions) == versions
            turns = client.session_chat("alpha", limit=90).turns
            assert [message.get("content") for turn in turns for message in turn["messages"]] == known["chat"]
            for session, text in known["contexts"].items():
                assert client.context_show(session, number=1).text == text
            again = client.toolcall_record(
                "alpha", "call-3", "bash", "output 3\n" * 30, args={"command": "echo 3"}, op_id="op-3"
            )
            assert again.receipt is not None and again.receipt.seq == known["op"], "the operation is known"
            assert client.daemon_status().store.head_seq == known["head"]
    command = [sys.executable, "-m", "ctxd", "verify", "--state-dir", str(state), "--json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert json.loads(done.stdout)["problems"] == []
