"""Artifacts in sandboxes: attacks from inside, through the sandbox's own socket."""

import base64
import itertools
from pathlib import Path

import pytest
from blake3 import blake3
from msgspec import structs

from ctxd_client import CallFailed
from ctxd_client.sync import SyncClient
from ctxd_protocol.methods import GRANTS
from ctxd_protocol.sandbox_types import Quota
from ctxd_protocol.secret_types import SecretPolicy
from tests.spec.sandboxes import ROOMY, inside, pending
from tests.spec.test_sandbox_attacks import host, mount, places, refused, register, session_in
from tests.waiting import block_until

__all__ = ["host"]


def sha(text: str) -> str:
    """The address of ``text`` as an artifact."""
    return blake3(text.encode()).hexdigest()


@pytest.mark.requirement("BOX-5")
@pytest.mark.parametrize(("calls", "uploaded"), [(8, False), (5, True)], ids=["in threads", "in processes"])
def test_a_sandbox_waits_for_one_search_of_another(
    host: SyncClient, tmp_path: Path, calls: int, *, uploaded: bool
) -> None:
    w, o = places(tmp_path, "w", "o")
    slow, other = (register(host, session_in(host, at.name, mount("/w", at))) for at in (w, o))
    # Such text takes a thousand times as long to search as any other.
    crafted = [b"pwd='aaaaaaaa' " * 4000 + str(number).encode() for number in range(calls)]
    puts = [("artifact.put", {"data": base64.b64encode(data).decode()}) for data in crafted]
    if uploaded:
        with inside(slow) as agent:
            for number, data in enumerate(crafted):
                agent.artifact_upload(f"u{number}", offset=0, data=data)
        puts = [("artifact.put", {"upload": f"u{number}"}) for number in range(calls)]
    with inside(other) as agent:
        agent.artifact_upload("u", offset=0, data=b"plain")
        with pending(slow, puts) as answered:
            block_until(lambda: answered() >= 1)
            if uploaded:
                agent.artifact_put(upload="u")
            else:
                agent.session_append("o", messages=[{"role": "user", "content": "hi"}])
            assert answered() <= calls - 2
            block_until(lambda: answered() == calls)


@pytest.mark.requirement("ART-11")
def test_a_put_of_a_sandbox_under_a_wrong_address_removes_the_upload(host: SyncClient, tmp_path: Path) -> None:
    (w,) = places(tmp_path, "w")
    with inside(register(host, session_in(host, "own", mount("/w", w)))) as agent:
        agent.artifact_upload("u", offset=0, data=b"whole")
        assert refused(lambda: agent.artifact_put(upload="u", blake3="0" * 64)) == "artifact_mismatch"
        assert agent.artifact_upload("u").offset == 0
        agent.artifact_upload("u", offset=0, data=b"whole")
        assert agent.artifact_put(upload="u", blake3=sha("whole")).size == 5


@pytest.mark.requirement("BOX-7", "ART-11")
def test_a_sandbox_reads_the_artifacts_of_its_own_sessions_and_learns_nothing_of_others(
    host: SyncClient, tmp_path: Path
) -> None:
    w, other = places(tmp_path, "w", "other")
    session, foreign = session_in(host, "own", mount("/w", w)), session_in(host, "foreign", mount("/o", other))
    own_output, foreign_output, put_by_host = (f"{name} output\n" * 100_000 for name in ("own", "foreign", "host"))
    put_by_host = put_by_host[:500_000]
    host.toolcall_record(session, "call-1", "bash", own_output)
    host.toolcall_record(foreign, "call-1", "bash", foreign_output)
    host.toolcall_record(foreign, "call-2", "bash", "short foreign output")
    (other / "file").write_text("a file of the host")
    host.file_index(foreign, "/o/file")
    host.artifact_put(data=put_by_host.encode(), policy="pin", media_type="text/x-host")
    host.artifact_tag("of-host", artifact=sha(put_by_host))
    host.artifact_tag("of-own", artifact=sha(own_output))
    missing, similar = sha("nothing has this"), dict[str, str]()
    for number in itertools.count():
        # Two of the host with the same beginning: an abbreviation of theirs would be ambiguous.
        if (other_one := similar.setdefault(sha(f"similar {number}")[:4], f"similar {number}")) != f"similar {number}":
            break
    for text in (other_one, f"similar {number}"):
        host.artifact_put(data=text.encode())
    with inside(register(host, session)) as agent, inside(register(host, foreign)) as neighbour:
        mine = agent.artifact_put(data=b"put inside", op_id="one").artifact
        agent.artifact_upload("u", offset=0, data=b"a part")
        assert neighbour.artifact_upload("u").offset == 0, "an upload is its sandbox's own"
        assert agent.artifact_put(upload="u").artifact == sha("a part")
        assert agent.artifact_get(mine).data == b"put inside" == agent.artifact_get(mine, offset=0, limit=100).data
        assert agent.artifact_get(sha(own_output), limit=11).data == b"own output\n"
        assert agent.artifact_get("tag:of-own", limit=3).data == b"own"
        answers = set()
        for given in (
            sha(foreign_output), sha("short foreign output"), sha("a file of the host"), sha(put_by_host), missing,
        ):  # fmt: skip
            for name in (given, given[:12], f"art-{given}", given.upper()):
                with pytest.raises(CallFailed) as failed:
                    agent.artifact_get(name)
                answers.add((failed.value.code, failed.value.message.replace(name, "…"), failed.value.hint))
        for name in (sha(other_one)[:4], "tag:of-host", "tag:no-such-tag", mine[:12]):
            with pytest.raises(CallFailed) as failed:
                agent.artifact_get(name)
            answers.add((failed.value.code, failed.value.message.replace(name, "…"), failed.value.hint))
        assert len(answers) == 1, answers
        assert refused(lambda: neighbour.artifact_get(mine)) == "artifact_not_found"
        # Bytes that others have put are put as if they were new, and change nothing of theirs.
        new, known = (agent.artifact_put(data=text.encode()) for text in ("never seen", put_by_host))
        assert (new.policy, known.policy) == ("default", "default") and known.receipt is not None
        for text in ("never seen", put_by_host):
            again = agent.artifact_put(data=text.encode(), policy="ephemeral", media_type="x/y")
            assert again.policy == "ephemeral" and again.receipt is not None
            assert agent.artifact_put(data=text.encode(), media_type="x/z").receipt is None
        assert agent.artifact_get(sha(put_by_host), limit=4).data == b"host"
        assert refused(lambda: agent.artifact_put(data=b"mine", policy="pin")) == "invalid_params"
        for call in (agent.artifact_list, agent.artifact_gc, agent.artifact_fsck, lambda: agent.artifact_stat(mine)):
            assert refused(call) == "method_not_found"
    kept = host.artifact_stat(sha(put_by_host))
    assert (kept.policy, kept.media_type) == ("pin", "text/x-host")
    assert host.artifact_put(data=put_by_host.encode()).receipt is None


@pytest.mark.requirement("BOX-7", "ART-11")
def test_an_upload_counts_against_the_bytes_that_a_sandbox_may_write(host: SyncClient, tmp_path: Path) -> None:
    (w,) = places(tmp_path, "w")
    session = session_in(host, "quota", mount("/w", w))
    quota = Quota(**{**structs.asdict(ROOMY), "write_bytes_per_day": 100_000})
    with inside(register(host, session, quota=quota)) as agent:
        agent.artifact_upload("u", offset=0, data=bytes(60_000))
        assert refused(lambda: agent.within(1).artifact_upload("u", offset=60_000, data=bytes(60_000))) in (
            "quota_exceeded", "timeout",
        )  # fmt: skip
        assert agent.artifact_upload("u").offset == 60_000


SECRET = b"AKIA" + b"7QYV3M5N2X4PLRWD"


def filler(size: int) -> bytes:
    return (b"no secret in this line\n" * (size // 23 + 1))[:size]


@pytest.mark.requirement("ART-14")
@pytest.mark.parametrize("policy", ["off", "flag", "redact"])
@pytest.mark.parametrize("size", [100, 400_000, 5_000_000])
def test_an_artifact_of_a_sandbox_with_a_secret_is_flagged_or_refused_by_the_policy(
    host: SyncClient, tmp_path: Path, policy: SecretPolicy, size: int
) -> None:
    (w,) = places(tmp_path, "w")
    session = session_in(host, f"secret-{policy}-{size}", mount("/w", w))
    host.session_configure(session, secrets=policy)
    clean = policy.encode() + b"\xff\x00" + filler(size)
    data = clean + b" " + SECRET + b"\n"
    with inside(register(host, session)) as agent:

        def put(whole: bytes) -> str:
            if len(whole) < 1_000:
                return agent.artifact_put(data=whole).artifact
            for at in range(0, len(whole), 300_000):
                agent.artifact_upload("u", offset=at, data=whole[at : at + 300_000])
            return agent.artifact_put(upload="u").artifact

        assert host.artifact_stat(put(clean)).secrets is None
        if policy == "redact":
            with pytest.raises(CallFailed) as failed:
                put(data)
            assert failed.value.code == "unsupported"
            assert f"aws-access-key at byte {data.index(SECRET):,}" in failed.value.message
            assert SECRET.decode() not in str(failed.value)
            assert refused(lambda: host.artifact_stat(blake3(data).hexdigest())) == "artifact_not_found"
            assert agent.artifact_upload("u").offset == 0
            return
        ref = put(data)
        found = host.artifact_stat(ref).secrets
        assert [(one.rule, one.count) for one in (() if found is None else found.found)] == (
            [("aws-access-key", 1)] if policy == "flag" else []
        )
        # Put once more, also by the host, it is the same.
        assert agent.artifact_get(put(data), limit=len(policy)).data == policy.encode()
        if size < 1_000:
            assert agent.artifact_put(data=data).receipt is None
            host.artifact_put(data=data)
        assert host.artifact_stat(ref).secrets == found


@pytest.mark.requirement("ART-14")
def test_the_strictest_policy_of_the_sessions_of_a_sandbox_holds(host: SyncClient, tmp_path: Path) -> None:
    (w,) = places(tmp_path, "w")
    lax, strict = (session_in(host, name, mount("/w", w)) for name in ("strictest-lax", "strictest-strict"))
    host.session_configure(lax, secrets="off")
    host.session_configure(strict, secrets="redact")
    box = host.sandbox_register([lax, strict], ttl_s=600, quota=ROOMY, grants=tuple(GRANTS)).sandbox
    with inside(box) as agent:
        assert refused(lambda: agent.artifact_put(data=b"token " + SECRET)) == "unsupported"
        assert agent.artifact_put(data=b"no secret").size == 9
