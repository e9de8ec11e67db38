"""What a session that was imported goes on from: its commit, and what a model sees of it."""

import json
from base64 import b64decode
from collections import Counter

from ctxd.formats.delta_formats import DELTA_FORMATS
from ctxd.transcripts.record_decoding import Entry, total_usage
from ctxd_client.sync import SyncClient
from ctxd_protocol.event_types import Usage
from tests.spec.test_import import commits


def head(client: SyncClient, session: str) -> str:
    """The commit that a session goes on from."""
    newest = client.commit_resolve(session=session).commit
    assert newest is not None
    return newest.commit


def window(client: SyncClient, session: str) -> str:
    """The labels of what the model of a session sees next, from the newest compaction on."""
    return window_at(client, head(client, session))


def window_at(client: SyncClient, commit: str) -> str:
    """As ``window``, of the model that goes on from ``commit``."""
    content = str(client.commit_materialize(commit).content)
    return "".join(json.loads(line).get("label", "") for line in content.splitlines())


def narrative(client: SyncClient, session: str) -> str:
    """What a model of another harness reads of a session."""
    return str(client.commit_materialize(head(client, session), format="narrative-v1").content)


def kept(client: SyncClient, session: str) -> Counter[bytes]:
    """How often each line is in the commits of a session."""
    deltas = client.commit_deltas(list(commits(client, session))).deltas
    return Counter(line for each in deltas for line in (each.data or b"").splitlines())


def spent(client: SyncClient, session: str, stop: str = "root") -> Usage:
    """The tokens that were billed for what a session goes on from."""
    found = client.commit_materialize(head(client, session), stop=stop, format="events-v1")
    events = DELTA_FORMATS["events-v1"].events([b64decode(found.content_base64 or "")])
    return total_usage(Entry(number, event) for number, event in enumerate(events, 1))
