"""A store that refuses says what helps."""

from collections.abc import Callable

import pytest

from ctxd.errors import CtxdError
from ctxd.store.health import Health


@pytest.mark.parametrize(
    ("befall", "code", "remedy"),
    [
        (lambda health: health.fill("no space left"), "disk_full", "Free space on the filesystem of the state"),
        (lambda health: health.lose("the journal ends early"), "data_loss", "restore a backup"),
        (lambda health: health.fail("input/output error"), "store_failed", "Check the disk"),
        (lambda health: health.drain(), "draining", "Reconnect once"),
    ],
)
def test_a_refused_write_names_the_remedy(befall: Callable[[Health], None], code: str, remedy: str) -> None:
    health = Health(lambda code: None)
    health.require_writable()
    befall(health)
    with pytest.raises(CtxdError) as caught:
        health.require_writable()
    assert (caught.value.code, caught.value.outcome) == (code, "not_applied")
    assert remedy in caught.value.hint


def test_a_remedy_of_the_place_comes_before_that_of_the_code() -> None:
    assert CtxdError("store_failed", "a write was lost", hint="Send it again.").hint == "Send it again."


def test_each_change_is_reported_once() -> None:
    reported: list[str | None] = []
    health = Health(reported.append)
    health.fill("no space left")
    health.fill("no space left")
    health.resume()
    health.resume()
    health.lose("the journal ends early")
    health.lose("an index is damaged")
    assert reported == ["disk_full", None, "data_loss"]
