"""Commits at an instant: those of a principal, and those of a session with the chain that it continues."""

from typing import Any

import pytest

from ctxd_client import connect_sync
from ctxd_client.sync import SyncClient
from ctxd_protocol.methods.commits import StartContext
from tests.client.running import Running
from tests.spec.refusal import refused
from tests.spec.test_commits import commit


@pytest.mark.requirement("CMT-10")
def test_a_session_has_the_chain_that_it_continues_at_an_instant_before_its_own_commits(client: SyncClient) -> None:
    noon = 1_767_268_800_000  # 2026-01-01T12:00:00Z
    made: list[str] = []
    for number in range(150):
        parent = made[-1] if made else None
        made.append(commit(client, f"text {number}", parent=parent, valid_time=noon + 1000 * number).commit)
    session = client.session_create(agent="a", context=StartContext(commit=made[-1])).session.session
    own = commit(client, "own", parent=made[-1], session=session).commit

    def at(text: str | None, **wanted: Any) -> str | None:
        found = client.commit_resolve(session=session, at=text, **wanted).commit
        return None if found is None else found.commit

    assert at(None) == own
    assert [at(f"2026-01-01T12:0{text}Z") for text in ("2:29", "2:28", "0:01", "0:00")] == [
        made[number] for number in (149, 148, 1, 0)
    ]
    assert at("2026-01-01T11:59:59Z") is None
    assert at("2026-01-01T12:00:01Z", template="another") is None


@pytest.mark.requirement("CMT-10")
def test_an_instant_resolves_to_the_newest_commit_at_or_before_it(kept: Running) -> None:
    noon = 1_767_268_800_000  # 2026-01-01T12:00:00Z
    with connect_sync(kept.socket) as client:
        times = {"early": noon - 60_000, "noon": noon, "twin": noon, "late": noon + 1_500}
        made = {text: commit(client, text, valid_time=at, template=text[0]) for text, at in times.items()}
    kept.kill()
    kept.start()
    with connect_sync(kept.socket) as client:

        def at(text: str, **wanted: Any) -> str | None:
            found = client.commit_resolve(at=text, **wanted).commit
            return None if found is None else found.commit

        assert at("2026-01-01T12:00:00Z") == made["twin"].commit
        assert at("2026-01-01T13:00:00+01:00") == made["twin"].commit
        assert at("2026-01-01T12:00:01.499Z") == made["twin"].commit
        assert at("2026-01-01T12:00:01.500Z") == made["late"].commit
        assert at("2026-01-01T11:59:59.999999Z") == made["early"].commit
        assert at("2026-01-01T13:00:00+02:00") is None
        assert at("2026-01-01T12:00:00Z", template="n") == made["noon"].commit
        assert at("2026-01-01T12:00:00Z", principal="nobody") is None
        newest = client.commit_resolve().commit
        assert newest is not None
        assert newest.commit == made["late"].commit
        for text in ("garbage", "2026-01-01T12:00:00", "2026-01-01", "-1", "9999-99-99T00:00:00Z"):
            with refused("invalid_params"):
                at(text)
