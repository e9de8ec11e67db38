"""What a seed makes of two hosts: calls, moves, kills and standstills in any order lose nothing acknowledged."""

import random
import signal
import time
from contextlib import suppress

import pytest

from ctxd_client import CallFailed
from tests.xtdb.hosts import LEASE_S, TEN_MINUTES_MS, Host, Pair, hosts, shown


class Chance:
    """What a seed makes of two hosts; ``kept`` is what each has acknowledged."""

    def __init__(self, seed: int, all: tuple[Host, Host]) -> None:
        self.rng = random.Random(seed)
        self.all = all
        self.sessions = [f"r{seed}-{n}" for n in range(3)]
        self.kept: dict[str, list[str]] = {host.name: [] for host in all}
        self._calls = 0
        for session in self.sessions:
            self.rng.choice(all).client.session_create("agent", session=session)

    def step(self) -> None:
        host, session = self.rng.choice(self.all), self.rng.choice(self.sessions)
        deeds = ("call",) * 6 + ("say", "assemble", "pause", "resume", "resume", "kill", "stall")
        with suppress(CallFailed):
            getattr(self, self.rng.choice(deeds))(host, session)

    def call(self, host: Host, session: str) -> None:
        self._calls += 1
        id = f"{session}-{self._calls}"
        self.kept[host.name].append(host.client.within(3).toolcall_record(session, id, "bash", f"out {id}").object)

    def say(self, host: Host, session: str) -> None:
        host.client.within(3).session(session).user("go on")

    def assemble(self, host: Host, session: str) -> None:
        host.client.within(3).context_assemble(session)

    def pause(self, host: Host, session: str) -> None:
        host.client.within(3).session_pause(session)

    def resume(self, host: Host, session: str) -> None:
        host.client.within(5).session_resume(session)

    def kill(self, host: Host, _: str) -> None:
        host.kill()
        host.start()

    def stall(self, host: Host, session: str) -> None:
        """Have it stand still for longer than its lease, while the other one tries to take the session over."""
        host.send(signal.SIGSTOP)
        (other,) = (each for each in self.all if each is not host)
        try:
            for _ in range(6):
                with suppress(CallFailed):
                    other.client.within(5).session_resume(session)
                time.sleep(LEASE_S / 4)
        finally:
            host.send(signal.SIGCONT)


@pytest.mark.nightly
@pytest.mark.timeout(600)
@pytest.mark.requirement("HST-4")
@pytest.mark.parametrize("seed", range(12))
def test_whatever_happens_to_two_hosts_nothing_acknowledged_is_lost(pair: Pair, seed: int) -> None:
    ahead = random.Random(seed).choice((0, TEN_MINUTES_MS, -TEN_MINUTES_MS))
    with hosts(*pair((ahead, 0))) as (a, b):
        chance = Chance(seed, (a, b))
        for _ in range(80):
            chance.step()
        known: set[str] = set()
        for host in (a, b):
            host.level()
            for row in host.client.session_list(limit=1000).sessions:
                known.update(host.client.session_get(row.session).session.session_index)
                shown(host.client, row.session)
        for host in (a, b):
            assert set(chance.kept[host.name]) <= known
            host.level()
            host.agrees()
