"""Owners and heads of thousands of sessions are read in requests of bounded size, each with a deadline of its own."""

from collections.abc import Iterable
from typing import Any, cast

import pytest

from ctxd.backends.stored_version import Version
from ctxd.backends.xtdb.documents import FIXED_VALID_TIME, to_doc
from ctxd.backends.xtdb.messages import Doc, PutDoc, Unknown
from ctxd.objects.document import encode_document
from ctxd.projection import owner_record
from ctxd.projection.owner_record import Owner
from ctxd.sharing.shared_log import SESSIONS_PER_REQUEST, SharedLog
from tests.fakes.node import MemoryNode
from tests.unit.store.documents import document

pytestmark = [pytest.mark.anyio, pytest.mark.requirement("HST-2")]

OWNER = Owner(writer="a" * 32, token=1)
SESSIONS = [f"s{number:05d}" for number in range(2 * SESSIONS_PER_REQUEST + 10)]


class Loaded(MemoryNode):
    """A node that takes longer than a caller waits for a request of more than ``SESSIONS_PER_REQUEST`` entities."""

    async def entities(self, ids: Iterable[str], *, valid_time: int, tx_id: int | None = None) -> dict[str, Doc]:
        ids = list(ids)
        if len(ids) > SESSIONS_PER_REQUEST:
            raise Unknown("no response in time")
        return await super().entities(ids, valid_time=valid_time, tx_id=tx_id)

    async def ids(self, prefix: str, *, limit: int | None = None, **rest: Any) -> list[str]:
        if limit is None or limit > SESSIONS_PER_REQUEST:
            raise Unknown("no response in time")
        return await super().ids(prefix, limit=limit, **rest)


@pytest.fixture
async def node() -> Loaded:
    made = Loaded()
    await made.submit([PutDoc(owner_record.to_doc(session, OWNER), FIXED_VALID_TIME) for session in SESSIONS])
    return made


@pytest.fixture
def log(node: Loaded) -> SharedLog:
    return SharedLog(cast(Any, node), cast(Any, None))


async def test_owners_and_heads_of_thousands_of_sessions_are_read(node: Loaded, log: SharedLog) -> None:
    bodies = [encode_document(document(f"session:{session}", type="session")) for session in SESSIONS]
    versions = [Version(f"session:{session}", 1, 1, 1, body) for session, body in zip(SESSIONS, bodies, strict=True)]
    await node.submit([PutDoc(to_doc(version, "a" * 32), 1) for version in versions])
    assert await log.owners() == dict.fromkeys(SESSIONS, OWNER)
    assert await log.owners([*SESSIONS, "unknown"], newest=True) == dict.fromkeys(SESSIONS, OWNER)
    assert [*await log.heads(SESSIONS)] == SESSIONS


async def test_all_owners_are_read_also_if_the_last_request_is_full(log: SharedLog, monkeypatch) -> None:
    monkeypatch.setattr("ctxd.sharing.shared_log.SESSIONS_PER_REQUEST", len(SESSIONS) // 5)
    assert [*await log.owners()] == SESSIONS
