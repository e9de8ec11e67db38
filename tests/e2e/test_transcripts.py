"""Sessions that really happened, of four harnesses, go through the daemon and come back whole.

Takes the transcripts below ``$CTXD_TRANSCRIPTS``, by default a folder beside the checkout; skipped, and said so, where
there are none.
"""

import hashlib
import os
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from ctxd_client import SyncClient, connect_sync
from ctxd_protocol.context_types import AssembledContext
from ctxd_protocol.session_types import Message
from tests.client.running import Running
from tests.e2e.transcripts import Ran, Said, steps
from tests.unit.assembly.parsing import parse
from tests.unit.assembly.reference import render

ROOT = Path(os.environ.get("CTXD_TRANSCRIPTS") or Path(__file__).resolve().parents[3] / "shared/data/transcripts")
ASSEMBLIES_MAX = 15
"""Assemblies of one transcript: enough for every kind of change between two turns."""

FILES = sorted(path for path in ROOT.rglob("*") if path.suffix in {".jsonl", ".json", ".db"})

pytestmark = pytest.mark.skipif(not FILES, reason=f"no transcripts below {ROOT}: set CTXD_TRANSCRIPTS")


@pytest.fixture(
    scope="module", params=[pytest.param(3, id="a third"), pytest.param(1, id="all", marks=pytest.mark.slow)]
)
def files(request: pytest.FixtureRequest) -> Sequence[Path]:
    """Every third transcript, so some of each harness, or every one."""
    return FILES[:: request.param]


@pytest.fixture(scope="module")
def daemon(files: Sequence[Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """A daemon for the sessions of ``files``."""
    with Running(tmp_path_factory.mktemp("daemon"), keep_state=True) as running:
        yield running


@pytest.fixture(scope="module")
def replayed(daemon: Running, files: Sequence[Path]) -> dict[str, AssembledContext]:
    """Every transcript's session, and its last assembly."""
    last: dict[str, AssembledContext] = {}
    with connect_sync(daemon.socket) as client:
        for number, path in enumerate(files):
            session = f"transcript-{number}"
            found = replay(client, session, path)
            if found is not None:
                last[session] = found
    return last


def replay(client: SyncClient, session: str, path: Path) -> AssembledContext | None:
    """Have ``session`` live through ``path``. Its last assembly, null if nothing happened in it."""
    taken = steps(path)
    if not taken:
        return None
    client.session_create(path.relative_to(ROOT).parts[0], session=session, workdir="/", labels={"file": path.name})
    every = max(1, len(taken) // ASSEMBLIES_MAX)
    for number, step in enumerate(taken):
        if isinstance(step, Said):
            client.session_append(session, [Message(role=step.role, content=step.text)])  # type: ignore[arg-type]
        else:
            record(client, session, number, step)
        if number % every == 0:
            check(client, client.context_assemble(session))
    return client.context_assemble(session)


def record(client: SyncClient, session: str, number: int, step: Ran) -> None:
    # A transcript may show one call twice, with another output: then it is another call.
    id = f"{step.id or 'call'}#{number}"
    made = client.toolcall_record(
        session, id, step.tool, step.output, args=step.args, status="fail" if step.failed else "ok"
    )
    client.session_append(session, [Message(role="toolcall", toolcall=made.object)])
    if step.command is not None:
        client.tool_observe(session, step.command, step.output, cwd=step.cwd)
    assert client.object_get(made.object, session=session).object.payload["content"] == step.output


def check(client: SyncClient, context: AssembledContext) -> None:
    assert hashlib.sha256(context.text.encode()).hexdigest() == context.sha256
    assert render(parse(context.text)) == context.text
    assert "".join(block.text for block in context.blocks).replace("\n", "") == context.text.replace("\n", "")


def test_every_transcript_is_replayed(replayed: dict[str, AssembledContext]) -> None:
    assert replayed


def test_every_assembly_of_every_transcript_renders_again(
    daemon: Running, replayed: dict[str, AssembledContext]
) -> None:
    with connect_sync(daemon.socket) as client:
        for session in replayed:
            for record in client.context_list(session).assemblies:
                shown = client.context_show(session, number=record.number, blocks=False)
                assert hashlib.sha256(shown.text.encode()).hexdigest() == record.sha256


def test_after_a_kill_every_session_resumes_to_the_same_bytes(
    daemon: Running, replayed: dict[str, AssembledContext]
) -> None:
    daemon.kill()
    daemon.start()
    with connect_sync(daemon.socket) as client:
        for session, before in replayed.items():
            client.session_resume(session)
            after = client.context_assemble(session)
            assert (after.sha256, after.text) == (before.sha256, before.text)
