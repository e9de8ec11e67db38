"""Commits at a node: as of earlier times, by query, and after a purge, as in the embedded tables."""

from pathlib import Path

import pytest

from ctxd_client import CallFailed
from tests.xtdb.hosts import Host, hosts, require_namespaces
from tests.xtdb.running import Node

BY_SESSION = '{:find [e] :in [session] :where [[e :session session] [e :type "commit"]]}'


@pytest.mark.requirement("PRJ-7")
def test_commits_are_read_as_of_then_and_found_by_query_and_purged_at_the_node(
    memory_node: Node, tmp_path: Path
) -> None:
    require_namespaces()
    host = Host("solo", memory_node, tmp_path / "solo")
    host.shared = False
    with hosts(host):
        client = host.client
        client.session_create("agent", session="at-a-node")
        chain: list[str] = []
        for n in range(3):
            parent = chain[-1] if chain else None
            made = client.commit_checkpoint("claude-code-v1", f'{{"n":{n}}}\n', session="at-a-node", parent=parent)
            chain.append(made.commit.commit)
        versions = [client.commit_show(chain[1]).commit]
        for summary in ("one", "two"):
            versions.append(client.commit_annotate(chain[1], summary).commit)
        versions.append(client.commit_tag(chain[1], "kept").commit)
        host.level()
        for version in versions:
            assert client.commit_show(chain[1], tx=version.tx).commit == version
        with pytest.raises(CallFailed, match="did not exist at that time"):
            client.commit_show(chain[2], tx=versions[0].tx - 1)
        found = client.object_query(BY_SESSION, args=["at-a-node"]).rows
        assert sorted(row[0] for row in found) == sorted(f"commit:{commit}" for commit in chain)
        host.agrees()
        client.object_purge(f"commit:{chain[1]}")
        host.level()
        host.agrees()
        for version in versions:
            then = client.commit_show(chain[1], tx=version.tx).commit
            assert (then.artifact_ref, then.summary, then.parent) == (None, "", chain[0])
        assert [each.commit for each in client.commit_history(chain[2]).commits] == chain[::-1]
        with pytest.raises(CallFailed) as caught:
            client.commit_materialize(chain[2], stop="root")
        assert caught.value.code == "purged"
