"""The output of a purged tool call that is recorded again."""

from pathlib import Path
from typing import Any

import pytest

from ctxd.sessions import toolcall_operations
from ctxd.sessions.secret_redaction import INLINE_CHARS_MAX
from ctxd_protocol.ids import toolcall_alias
from tests.unit.sessions.world import code_of, record, world

pytestmark = pytest.mark.anyio


@pytest.mark.requirement("SEC-8")
async def test_the_output_of_a_purged_call_is_not_stored_while_the_head_of_its_id_is_not_cached(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The call has an alias, because another session has its id."""
    output = "x" * (INLINE_CHARS_MAX + 1)
    async with world(tmp_path) as w:
        for session in ("s1", "s2"):
            await w.call("session.create", agent="a", session=session)
            await record(w, session, "c1", output)
        alias = toolcall_alias("s2", "c1")
        await w.call("object.purge", object=alias)
        off_loop, kept = toolcall_operations.off_loop, list[str]()

        async def evicting(*given: Any, **more: Any) -> Any:
            found = await off_loop(*given, **more)
            w.store._heads._heads.pop("c1", None)
            return found

        async def keep(document: Any) -> Any:
            kept.append(document.id)
            return document

        monkeypatch.setattr(toolcall_operations, "off_loop", evicting)
        monkeypatch.setattr(w.store, "keep", keep)
        assert await code_of(record(w, "s2", "c1", output)) == "purged"
        assert kept == []
