"""What is written again with every turn has a bound."""

from pathlib import Path
from typing import Any

import msgspec
import pytest

from ctxd.errors import CtxdError
from ctxd.secrets.redaction import Guard
from ctxd.secrets.scanner import Scanner
from ctxd.sessions.session_settings import SessionSettings, normalised
from ctxd_protocol.limits import SETTINGS_BYTES_MAX
from tests.unit.sessions.world import HOST, world

pytestmark = pytest.mark.anyio

TOO_MUCH: tuple[dict[str, Any], ...] = (
    {"labels": {f"name{n}": "value" for n in range(10_000)}},
    {"labels": {"name": "v" * 100_000}},
    {"mounts": [{"agent_prefix": f"/a{n}", "canonical_prefix": f"/c{n}"} for n in range(10_000)]},
)


@pytest.mark.parametrize("settings", TOO_MUCH, ids=["many labels", "a long label", "many mounts"])
async def test_settings_beyond_the_bound_are_refused_and_change_nothing(tmp_path: Path, settings: Any) -> None:
    async with world(tmp_path / "state") as here:
        with pytest.raises(CtxdError) as refused:
            await here.call("session.create", session="s", agent="a", **settings)
        assert (refused.value.code, refused.value.outcome) == ("too_large", "not_applied")
        await here.call("session.create", session="s", agent="a", labels={"kept": "yes"})
        with pytest.raises(CtxdError, match="settings take"):
            await here.call("session.configure", session="s", **settings)
        view = (await here.call("session.get", session="s")).session
        assert (view.labels, view.mounts) == ({"kept": "yes"}, ())


async def test_a_few_hundred_mounts_are_within_the_bound(tmp_path: Path) -> None:
    mounts = [{"agent_prefix": f"/agent/{n}", "canonical_prefix": f"/srv/data/{n}"} for n in range(500)]
    async with world(tmp_path / "state") as here:
        made = await here.call("session.create", session="s", agent="a", mounts=mounts)
        assert len(made.session.mounts) == 500


def test_settings_of_exactly_the_bound_are_kept_and_one_byte_more_is_refused() -> None:
    def sized(size: int) -> SessionSettings:
        bare = SessionSettings(
            agent="a", principal="host", created_at=1, ordinal=1, filesystem_id=HOST, labels={"l": ""}
        )
        return msgspec.structs.replace(bare, labels={"l": "x" * (size - len(msgspec.json.encode(bare)))})

    guard = Guard(Scanner(), bytes(32))
    assert len(msgspec.json.encode(normalised(sized(SETTINGS_BYTES_MAX), guard, HOST))) == SETTINGS_BYTES_MAX
    with pytest.raises(CtxdError) as refused:
        normalised(sized(SETTINGS_BYTES_MAX + 1), guard, HOST)
    assert refused.value.code == "too_large"
