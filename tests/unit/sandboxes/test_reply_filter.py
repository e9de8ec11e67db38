"""What a sandbox is told: paths as its agent knows them, in results and in errors, and none of the host."""

from collections.abc import Sequence
from typing import Any

import pytest

from ctxd.errors import CtxdError
from ctxd.mounts.mapping import UNMOUNTED
from ctxd.rpc.caller import Caller
from ctxd.sandboxes.reply_filter import redact_reply, viewed
from ctxd_protocol.methods import METHODS
from ctxd_protocol.object_types import FilesystemSource, ObjectVersion
from ctxd_protocol.session_types import Mount

pytestmark = pytest.mark.anyio

MOUNTS = {
    "own": (Mount(agent_prefix="/w", canonical_prefix="/srv/own"),),
    "named": (Mount(agent_prefix="/n", canonical_prefix="/srv/named"),),
}


def mounts_of(session: str) -> Sequence[Mount]:
    return MOUNTS[session]


def caller(session: str | None) -> Caller:
    return Caller(principal="p", capability="sandbox", session=session, connection=1, notify=lambda *_: True)


async def refused(session: str | None, /, **named: str) -> CtxdError:
    def fails(*_: Any) -> Any:
        raise CtxdError("file_not_found", "no /srv/own/a, /srv/named/b or /etc/c", hint="see /srv/own/d")

    params = METHODS["session.get" if named else "context.current"].params(**named)
    with pytest.raises(CtxdError) as error:
        await viewed({"m": fails}, mounts_of)["m"](caller(session), params)
    return error.value


async def test_an_error_shows_paths_of_the_session_that_the_call_names_or_of_the_connection() -> None:
    own = await refused("own")
    assert (own.message, own.hint) == (f"no /w/a, {UNMOUNTED} or {UNMOUNTED}", "see /w/d")
    named = await refused("own", session="named")
    assert (named.message, named.hint) == (f"no {UNMOUNTED}, /n/b or {UNMOUNTED}", f"see {UNMOUNTED}")


async def test_an_error_does_not_confirm_a_path_of_the_host_that_the_caller_guessed() -> None:
    def fails(*_: Any) -> Any:
        raise CtxdError("file_not_found", "no /srv/own/a, and no /srv/own/b")

    params = METHODS["file.index"].params(session="own", path="/srv/own/a")
    with pytest.raises(CtxdError) as error:
        await viewed({"m": fails}, mounts_of)["m"](caller("own"), params)
    assert error.value.message == "no /srv/own/a, and no /w/b"


async def test_an_error_of_a_call_for_no_session_shows_no_path_of_the_host() -> None:
    assert (await refused(None)).message == f"no {UNMOUNTED}, {UNMOUNTED} or {UNMOUNTED}"


@pytest.mark.parametrize(("display", "shown"), [("/w/a", "/w/a"), (None, UNMOUNTED)])
def test_a_version_names_its_file_as_the_agent_knows_it(display: str | None, shown: str) -> None:
    version = ObjectVersion(
        id="i", type="file", source=FilesystemSource("f" * 64, "/srv/own/a"), identity_hash="", source_hash=None,
        content_hash="", payload={"content": "x"}, valid_time=1, tx=1, tx_time=1, display_path=display,
    )  # fmt: skip
    found = redact_reply(version)
    assert found.source == FilesystemSource("f" * 64, shown)
    assert found.payload == {"content": "x"}
