"""Import of a transcript file: its conversation as a chain of commits, and a chain for each sub-agent.

Operation ids are derived from the content and its times, not from the clock, so that an import can be repeated: nothing
is stored twice.
"""

from collections.abc import Iterator, Set
from hashlib import blake2b
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from ctxd.capture.event_chains import EventChains, PlannedCommit
from ctxd.capture.stream_checkpoints import Trigger
from ctxd.cli.commit_delivery import Chain, queued_commit
from ctxd.cli.common_options import Invocation
from ctxd.cli.transcript import opened
from ctxd.clock import SystemClock
from ctxd.formatting import count
from ctxd.transcripts.claude_sidecars import AGENT_FILES
from ctxd_client.errors import Conflict
from ctxd_protocol.event_types import Event

if TYPE_CHECKING:
    from ctxd_client.sync import SyncClient


def import_transcript(run: Invocation, file: Path, wanted: Chain, policy: Set[Trigger], every: int) -> None:
    """Commit everything in ``file``, and report the outcome. Raises: Stop, CallFailed."""
    ids: dict[int | None, str | None] = {None: wanted.parent}
    newest: dict[str | None, str] = {}
    now = SystemClock().wall_ms()
    with run.client() as client:
        for planned in EventChains(policy, every=every).commits(_events(file)):
            ids[planned.number] = newest[planned.sidechain] = _committed(
                client, planned, ids[planned.parent], wanted, now
            )
    if run.screen.as_json:
        run.screen.document({"commits": len(ids) - 1, "newest": newest.get(None), "sub_agents": _named(newest)})
        return
    made = f"{count(len(ids) - 1, 'commit')}, the newest is {newest.get(None)}"
    run.screen.note(f"ctx capture: {made}; {count(len(_named(newest)), 'chain')} of sub-agents")


def _named(newest: dict[str | None, str]) -> dict[str, str]:
    return {name: commit for name, commit in newest.items() if name is not None}


def _events(file: Path) -> Iterator[Event]:
    agents = sorted(file.with_suffix("").glob(AGENT_FILES))
    return chain.from_iterable(map(_events_of, (file, *agents)))


def _events_of(file: Path) -> Iterator[Event]:
    with opened(file) as (_, entries):
        for entry in entries:
            yield entry.event


def _committed(client: "SyncClient", planned: PlannedCommit, parent: str | None, wanted: Chain, now: int) -> str:
    arguments = queued_commit(planned.checkpoint, wanted, parent).arguments(parent)
    arguments["valid_time"] = planned.at
    digest = blake2b(msgspec.json.encode((planned.number, arguments)), digest_size=16).hexdigest()

    def sent(valid_time: int | None) -> str:
        given = {**arguments, "valid_time": valid_time, "op_id": f"import-{digest}"}
        return client.commit_checkpoint("events-v1", **given).commit.commit

    # A time in the future, from a clock that was ahead, must not end the import.
    is_past = planned.at is not None and planned.at < now
    try:
        return sent(planned.at if is_past else None)
    except Conflict as error:
        if error.code != "idempotency_mismatch" or planned.at is None:
            raise
        # By the clock of an earlier run it was the other way round.
        return sent(None if is_past else planned.at)
