"""Sandboxes: what is refused beyond a quota, and what the daemon's status counts."""

from collections.abc import Callable
from typing import Any

import pytest

from ctxd_client.sync import SyncClient, SyncSession
from ctxd_protocol.methods import METHODS
from ctxd_protocol.sandbox_types import Quota, SandboxView
from tests.spec.sandboxes import at_once, sample, wire


@pytest.mark.own_daemon
@pytest.mark.requirement("BOX-5")
def test_daemon_status_aggregates_all_sandboxes(client: SyncClient, boxed: Callable[..., SandboxView]) -> None:
    none = client.daemon_status().sandboxes
    assert (none.registered, none.connections, none.requests, none.refused) == (0, 0, 0, 0)
    assert (none.oldest, none.next_end) == (None, None)
    box = boxed(ttl_s=600, quota=Quota(objects=1))
    later = boxed(ttl_s=1200)
    with wire(box) as call, wire(later) as call_later:
        for number in range(4):
            call("toolcall.record", {"session": box.sessions[0], "id": f"c{number}", "tool": "bash", "content": "x"})
        call_later("context.current", {})
        found = client.daemon_status().sandboxes
    assert (found.registered, found.connections, found.requests, found.refused) == (2, 2, 5, 3)
    assert (found.oldest, found.next_end) == (box.created_at, box.expires_at)
    client.sandbox_release(box.sandbox)
    left = client.daemon_status().sandboxes
    assert (left.registered, left.oldest, left.next_end) == (1, later.created_at, later.expires_at)


def code_of(answer: Any) -> str | None:
    return answer.get("error", {}).get("data", {}).get("code")


@pytest.mark.requirement("BOX-5")
def test_calls_beyond_the_rate_are_refused_with_the_time_to_wait(
    boxed: Callable[..., SandboxView], s: SyncSession, client: SyncClient
) -> None:
    box = boxed(quota=Quota(requests_per_s=5, writes_per_s=1))
    write = ("session.append", sample(METHODS["session.append"], box.sessions[0]))
    answers = at_once(box, [write] * 3 + [("context.current", {})] * 20)
    codes = [code_of(answer) for answer in answers]
    assert codes[:3] == [None, None, "quota_exceeded"]
    data = answers[2]["error"]["data"]
    assert 0 < data["retry_after_ms"] <= 1000
    assert (data["retryable"], data["outcome"]) == (True, "not_applied")
    assert "quota_exceeded" in codes[3:]
    s.user("a neighbour is not refused")
    (listed,) = [each for each in client.sandbox_list().sandboxes if each.sandbox == box.sandbox]
    assert listed.refused >= 2


@pytest.mark.requirement("BOX-5")
def test_bytes_objects_and_connections_have_bounds(boxed: Callable[..., SandboxView]) -> None:
    box = boxed(quota=Quota(write_bytes_per_day=1000, objects=1))
    own = box.sessions[0]
    with wire(box) as call:
        first = {"session": own, "id": "c1", "tool": "bash", "content": "x" * 200}
        assert code_of(call("toolcall.record", first)) is None
        second = call("toolcall.record", {**first, "id": "c2"})
        assert "1 object" in second["error"]["message"]
        assert code_of(call("session.append", {"session": own, "messages": [{"role": "assistant"}]})) is None
        long = {"session": own, "messages": [{"role": "user", "content": "x" * 900}]}
        assert "bytes" in call("session.append", long)["error"]["message"]
    narrow = boxed(quota=Quota(connections=1))
    with wire(narrow) as call:
        call("context.current", {})
        with wire(narrow) as refused:
            assert code_of(refused("context.current", {})) == "quota_exceeded"


@pytest.mark.requirement("BOX-5")
def test_a_line_of_a_sandbox_has_at_most_a_mebibyte(boxed: Callable[..., SandboxView]) -> None:
    with wire(boxed()) as call:
        assert code_of(call("context.current", {"session": "x" * 1024 * 1024})) == "frame_too_large"
