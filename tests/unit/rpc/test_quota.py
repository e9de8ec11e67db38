"""What a quota lets through, on a clock that the test moves, and that many connections gain a sandbox nothing."""

import msgspec
import pytest

from ctxd.rpc.dispatch import MethodEntry
from ctxd.rpc.sandbox_quota import QuotaMeter
from ctxd_protocol.jsonrpc import Request
from ctxd_protocol.methods import METHODS
from ctxd_protocol.sandbox_types import Quota


class Use:
    """A meter with what it looks at."""

    def __init__(self, **quota):
        self.now = 100.0
        self.objects = 0
        self.in_flight = 0
        self.meter = QuotaMeter(Quota(**quota), objects=lambda: self.objects, now=lambda: self.now)

    def call(self, name, size=2):
        entry = MethodEntry(METHODS[name], lambda caller, params: params) if name in METHODS else None
        request = Request("2.0", name, 1, msgspec.Raw(b"x" * size))
        return self.meter.refuse(request, entry, self.in_flight)

    def passed(self, name, tries, size=2):
        return sum(self.call(name, size) is None for _ in range(tries))


@pytest.mark.requirement("BOX-5")
def test_two_seconds_worth_passes_at_once_and_then_the_average():
    use = Use(requests_per_s=10, writes_per_s=2)
    assert use.passed("context.current", 100) == 20
    use.now += 1.5
    assert use.passed("context.current", 100) == 15
    use.now += 1000
    assert use.passed("session.append", 100) == 4
    assert use.passed("context.current", 100) == 16, "a write is a call too, a refused one is not"


@pytest.mark.requirement("BOX-5")
def test_a_refusal_has_the_time_until_there_is_room():
    use = Use(requests_per_s=10, writes_per_s=1)
    use.passed("session.append", 2)
    assert use.call("session.append").message.endswith("1 write a second")
    use.passed("context.current", 18)
    refused = use.call("context.current")
    assert refused.message.endswith("10 calls a second")
    assert refused.data.code == "quota_exceeded"
    use.now += refused.data.retry_after_ms / 1000
    assert use.call("context.current") is None


@pytest.mark.requirement("BOX-5")
def test_a_method_that_does_not_exist_counts_and_a_cancellation_does_not():
    use = Use(requests_per_s=5)
    assert use.passed("no.such.method", 100) == 10
    assert use.passed("$/cancelRequest", 100) == 100


@pytest.mark.requirement("BOX-5")
def test_bytes_objects_and_open_calls_have_separate_bounds():
    use = Use(requests_per_s=1000, writes_per_s=1000, write_bytes_per_day=86_400, objects=5, in_flight=3)
    assert use.passed("session.append", 100, size=10_000) == 8
    assert use.call("session.chat", 10_000) is None, "what is read is not counted"
    use.now += 10_000
    assert use.passed("session.append", 100, size=10_000) == 1
    use.objects = 5
    assert "5 objects" in use.call("toolcall.record").message
    assert use.call("session.append") is None
    use.in_flight = 3
    assert "3 calls" in use.call("context.current").message
    assert use.meter.refused == 92 + 99 + 2
