"""Lines that a commit repeats: from which source they are read, and how often a source is looked for."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest

from ctxd.imports.commit_batches import Parent
from ctxd.imports.plan_types import PlannedDelta, Repeated, Start
from ctxd.imports.repeated_lines import RepeatedLines
from ctxd.imports.source_reading import PlannedSource
from ctxd.transcripts.discovery import Transcript, transcripts
from ctxd.transcripts.transcript_files import Skipped

pytestmark = [pytest.mark.anyio, pytest.mark.requirement("IMP-4")]

LINE = b'{"type":"thread.started","thread_id":"%s"}\n'


class LookedFor:
    """The sources of earlier imports, in place of ``ChangedSources``. ``paths``: those that were looked for."""

    def __init__(self) -> None:
        self.paths: list[str] = []

    def find_again(self, path: str) -> Transcript | None:
        self.paths.append(path)
        (found,) = transcripts("codex", Path(path))
        return None if isinstance(found, Skipped) else found


@pytest.fixture
def source(tmp_path: Path) -> Callable[[str], Transcript]:
    def write(name: str) -> Transcript:
        path = tmp_path / f"{name}.jsonl"
        path.write_bytes(LINE % name.encode())
        (found,) = transcripts("codex", path)
        assert not isinstance(found, Skipped)
        return found

    return write


def planned(source: Transcript) -> PlannedSource:
    unused = cast(Any, None)
    return PlannedSource(source, unused, unused, unused, None)


async def test_lines_are_read_from_planned_sources_and_another_source_is_looked_for_once_in_a_run(
    source: Callable[[str], Transcript], tmp_path: Path
) -> None:
    own, origin, earlier = planned(source("own")), planned(source("origin")), source("earlier")
    gone = str(tmp_path / "gone.jsonl")
    sources = LookedFor()
    lines = RepeatedLines(cast(Any, None), cast(Any, sources), {origin.source.path: origin})
    wanted = tuple(Repeated(path, 0) for path in (earlier.path, origin.source.path, gone, own.source.path))
    delta = PlannedDelta(1, Start(repeated=wanted), "", "explicit", b"new\n", False, "", None, None)
    for _ in range(3):
        content = await lines.content(own, delta, Parent(), dry_run=True)
        assert content == b"".join([*(LINE % name for name in (b"earlier", b"origin", b"own")), b"new\n"])
    assert sources.paths == [earlier.path, gone]
    lines.begin_run()
    await lines.content(own, delta, Parent(), dry_run=True)
    assert sources.paths == [earlier.path, gone] * 2
