"""Killed at every named place of a checkpoint or a tag, the daemon has every acknowledged commit, and none without its
delta."""

import json
import shutil
import signal
import socket
from pathlib import Path
from typing import Any

import pytest
from blake3 import blake3

from ctxd import failpoints
from ctxd.store.verify import search
from tests.crash.daemon import DaemonProcess, NotReady, daemon_process
from tests.waiting import until

pytestmark = [pytest.mark.timeout(420), pytest.mark.slow, pytest.mark.anyio]

PLACES = sorted(name for name in failpoints.NAMES if name.startswith(("journal.", "art."))) + ["rpc.reply"]
PURGES = sorted(name for name in failpoints.NAMES if name.startswith("purge."))
UNPASSED = {"art.erase", "art.repack"}
"""Passed only by a removal."""


class Lost(Exception):
    """The daemon ended before it answered."""


class Wire:
    """One connection."""

    def __init__(self, daemon: DaemonProcess) -> None:
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.settimeout(60)
        self._socket.connect(str(daemon.socket))
        self._lines = self._socket.makefile("rb")

    def ask(self, method: str, **params: Any) -> Any:
        """The result of a call. Raises: Lost."""
        reply = self.reply(method, **params)
        assert "result" in reply, reply
        return reply["result"]

    def reply(self, method: str, **params: Any) -> Any:
        """The reply to a call. Raises: Lost."""
        line = json.dumps({"jsonrpc": "2.0", "id": 1, "method": method, "params": params}).encode() + b"\n"
        try:
            self._socket.sendall(line)
            answer = self._lines.readline()
        except OSError as error:
            raise Lost from error
        if not answer.endswith(b"\n"):
            raise Lost
        return json.loads(answer)

    def close(self) -> None:
        self._lines.close()
        self._socket.close()


def delta(text: str) -> str:
    return json.dumps({"type": "user", "message": {"content": text}}) + "\n"


class Writer:
    """The writes of one client, in order; what was not acknowledged is sent again."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, dict[str, Any]]] = []
        self.answered: dict[str, Any] = {}
        self.tip: str | None = None

    def plan(self, place: str) -> None:
        """Add a small commit, a large one, a tag that moves, a summary, and something new in the session."""
        for name, text in (("small", place), ("large", f"{place} word " * 150_000)):
            given = {"format": "claude-code-v1", "session": "s", "delta": delta(text), "op_id": f"{place}-{name}"}
            self.calls.append(("commit.checkpoint", given))
        self.calls.append(("commit.tag", {"tag": "moving", "op_id": f"{place}-tag"}))
        self.calls.append(("commit.annotate", {"summary": f"seen {place}", "op_id": f"{place}-note"}))
        said = [{"role": "user", "content": f"said {place}"}]
        self.calls.append(("session.append", {"session": "s", "messages": said, "op_id": f"{place}-said"}))
        self.calls.append(("context.current", {"session": "s"}))

    def go_on(self, wire: Wire) -> None:
        """Make the calls that are left. Raises: Lost."""
        while self.calls:
            method, params = self.calls[0]
            if method in ("commit.tag", "commit.annotate"):
                params.setdefault("commit", self.tip)
            elif method == "commit.checkpoint":
                params.setdefault("parent", self.tip)
            result = wire.ask(method, **params)
            if method == "commit.checkpoint":
                self.tip = result["commit"]["commit"]
                self.answered[self.tip] = params["delta"]
            elif method == "context.current":
                assert result["context_id"]
            del self.calls[0]


@pytest.mark.requirement("CMT-5")
async def test_no_commit_is_lost_doubled_or_without_its_delta_over_a_kill_at_every_place(tmp_path: Path) -> None:
    writer = Writer()
    with daemon_process(tmp_path) as daemon:
        await daemon.start()
        wire = Wire(daemon)
        wire.ask("session.create", agent="a", session="s")
        wire.close()
        for turn, place in enumerate(name for name in PLACES if name not in UNPASSED):
            await daemon.kill()
            writer.plan(place)
            try:
                await daemon.start(failpoints=f"{place}=kill@{1 + turn % 3}")
            except NotReady:
                assert daemon.exit_code == -signal.SIGKILL, daemon.said()
            else:
                wire = Wire(daemon)
                try:
                    writer.go_on(wire)
                except Lost:
                    assert await daemon.ended() == -signal.SIGKILL, daemon.said()
                wire.close()
            await daemon.kill()
            await daemon.start()
            wire = Wire(daemon)
            writer.go_on(wire)
            judge(wire, writer)
            wire.close()
        await daemon.stop()
        code, report = await daemon.verify()
        assert code == 0, report


def judge(wire: Wire, writer: Writer) -> None:
    """Check the commits of the store against what was acknowledged."""
    commits = wire.ask("commit.list", limit=1000)["commits"]
    made = {each["commit"]: each for each in commits if each["format"] == "claude-code-v1"}
    assert made.keys() == writer.answered.keys(), "each once"
    for id, text in writer.answered.items():
        found = wire.ask("commit.materialize", commit=id, stop=id)
        assert found["content"] == text
        assert made[id]["artifact_ref"] == blake3(text.encode()).hexdigest()
    assert [each["commit"] for each in commits if "moving" in each["tags"]] == [writer.tip]
    own = [each for each in commits if each["format"] == "events-v1"]
    story = ""
    for each in own:
        found = wire.ask("commit.materialize", commit=each["commit"], stop=each["commit"], format="narrative-v1")
        story += found["content"]
    places = [id for id, text in writer.answered.items() if len(text) < 1000]
    assert story.count("said ") == len(places), "each event of the chat once"


class Forker(Writer):
    """A client of a session that is committed soon after its tool calls, and that is forked."""

    def __init__(self) -> None:
        super().__init__()
        self.turns: dict[str, int] = {}

    def plan(self, place: str) -> None:
        """Add a prompt, a tool call, a fork, and sessions from a commit of the session and from a captured one."""
        said = [{"role": "user", "content": f"said {place}"}]
        self.calls.append(("session.append", {"session": "s", "messages": said, "op_id": f"{place}-said"}))
        call = {"session": "s", "id": f"call-{place}", "tool": "bash", "content": "ok", "op_id": f"{place}-call"}
        self.calls.append(("toolcall.record", call))
        self.calls.append(("context.current", {"session": "s"}))
        self.calls.append(("session.fork", {"session": "s", "op_id": f"{place}-fork"}))
        self.calls.append(("session.create", {"op_id": f"{place}-start"}))
        captured = {"format": "claude-code-v1", "delta": delta(place), "template": "a", "op_id": f"{place}-captured"}
        self.calls.append(("commit.checkpoint", captured))
        self.calls.append(("session.create", {"op_id": f"{place}-restore"}))

    def go_on(self, wire: Wire) -> None:
        """Make the calls that are left. Raises: Lost."""
        while self.calls:
            method, params = self.calls[0]
            if method == "session.create":
                params.setdefault("context", {"commit": self.tip})
            result = wire.ask(method, **params)
            if method == "context.current":
                self.tip = result["context_id"]
            elif method == "commit.checkpoint":
                self.tip = result["commit"]["commit"]
            elif method == "session.fork":
                self.turns[result["session"]] = result["turn"]
            elif method == "session.create":
                self.turns[result["session"]["session"]] = result["session"]["turn_count"]
            del self.calls[0]


@pytest.mark.requirement("SES-30")
@pytest.mark.requirement("SES-40")
async def test_no_fork_is_lost_or_doubled_and_no_event_is_committed_twice_over_a_kill_at_every_place(
    tmp_path: Path,
) -> None:
    forker = Forker()
    places = [name for name in PLACES if name.startswith("journal.")] + ["rpc.reply"]
    with daemon_process(tmp_path) as daemon:
        await daemon.start()
        wire = Wire(daemon)
        wire.ask("session.create", agent="a", session="s", checkpoint="tool")
        wire.close()
        for turn, place in enumerate(places):
            await daemon.kill()
            forker.plan(place)
            try:
                await daemon.start(failpoints=f"{place}=kill@{1 + turn % 5}")
            except NotReady:
                assert daemon.exit_code == -signal.SIGKILL, daemon.said()
            else:
                wire = Wire(daemon)
                try:
                    forker.go_on(wire)
                except Lost:
                    assert await daemon.ended() == -signal.SIGKILL, daemon.said()
                wire.close()
            await daemon.kill()
            await daemon.start()
            wire = Wire(daemon)
            forker.go_on(wire)
            judge_forks(wire, forker, turn + 1)
            wire.close()
        await daemon.stop()
        code, report = await daemon.verify()
        assert code == 0, report


def judge_forks(wire: Wire, forker: Forker, rounds: int) -> None:
    """Check the sessions and the chain of the store against what was acknowledged."""
    sessions = {each["session"]: each["turn_count"] for each in wire.ask("session.list", limit=1000)["sessions"]}
    assert sessions.pop("s") == rounds
    assert sessions == forker.turns and len(sessions) == 3 * rounds, "each once, with its chat"
    tip = wire.ask("context.current", session="s")["context_id"]
    chain = wire.ask("commit.history", commit=tip, depth=1000)["commits"]
    own = wire.ask("commit.list", session="s", limit=1000)["commits"]
    assert [each["commit"] for each in chain] == [each["commit"] for each in own], "one chain"
    text = wire.ask("commit.materialize", commit=tip, stop="root", format="narrative-v1")["content"]
    assert text.count("said ") == rounds, "each event once"


# --- snapshots of chains beside a purge ---

CHAINS = 3
SNAPSHOT_COMMITS = 70
"""Commits of a chain of which a snapshot is made."""

PURGED = "the-secret-of-one-commit-3f9a"

AFTER_THE_TRANSACTION = {"journal.postcommit", "journal.ack", "purge.unlink", "purge.snapshot"}
"""Places where the purge stands in the journal, and a file still holds its text."""


async def with_snapshots(folder: Path) -> str:
    """A state directory with a snapshot of each of some chains, the text to purge in all of them. Returns: the commit
    of that text."""
    folder.mkdir()
    with daemon_process(folder) as daemon:
        await daemon.start()
        wire = Wire(daemon)
        shared = None
        for number in range(SNAPSHOT_COMMITS // 2):
            text = f"{PURGED} {number}" if number == 10 else f"shared {number}"
            made = wire.ask("commit.checkpoint", format="claude-code-v1", delta=delta(text), parent=shared)
            shared = made["commit"]["commit"]
            if number == 10:
                target = str(shared)
        for branch in range(CHAINS):
            tip = shared
            for number in range(SNAPSHOT_COMMITS // 2):
                text = f"branch {branch} {number}"
                made = wire.ask("commit.checkpoint", format="claude-code-v1", delta=delta(text), parent=tip)
                tip = made["commit"]["commit"]
            assert PURGED in wire.ask("commit.materialize", commit=tip, stop="root")["content"]
            await until(lambda wanted=branch + 1: len(snapshots_in(daemon.state_dir)) == wanted)  # type: ignore[misc]
        wire.close()
        await daemon.stop()
    return target


def snapshots_in(state: Path) -> list[Path]:
    return sorted((state / "snapshots").glob("*.snapshot"))


def is_purged(wire: Wire, commit: str) -> bool:
    """True once the journal has the purge of a commit."""
    return wire.ask("commit.show", commit=commit)["commit"]["artifact_ref"] is None


@pytest.mark.requirement("CMT-40")
@pytest.mark.requirement("SEC-9")
@pytest.mark.parametrize(
    "place",
    ["journal.precommit", "journal.commit", "journal.postcommit", "journal.ack", *PURGES],
)
async def test_no_snapshot_of_a_chain_outlives_a_purge_that_is_killed(tmp_path: Path, place: str) -> None:
    """Killed at each pass of ``place`` until a purge survives; after the next start no file holds its text."""
    target = await with_snapshots(tmp_path / "made")
    nth = killed = 0
    survived = False
    while not survived:
        nth += 1
        folder = tmp_path / f"{nth}"
        shutil.copytree(tmp_path / "made", folder, ignore=shutil.ignore_patterns("*.sock"))
        with daemon_process(folder) as daemon:
            assert search(daemon.state_dir, [PURGED.encode()], lambda *_: None)
            try:
                await daemon.start(failpoints=f"{place}=kill@{nth}")
            except NotReady:
                assert daemon.exit_code == -signal.SIGKILL, daemon.said()
                continue
            wire = Wire(daemon)
            try:
                wire.ask("object.purge", object=f"commit:{target}")
                survived = True
            except Lost:
                assert await daemon.ended() == -signal.SIGKILL, daemon.said()
            wire.close()
            await daemon.kill()
            left = snapshots_in(daemon.state_dir)
            await daemon.start()
            wire = Wire(daemon)
            if is_purged(wire, target):
                killed += bool(left)
            else:
                assert len(left) == CHAINS and not survived, "a purge that did not happen drops nothing"
                wire.ask("object.purge", object=f"commit:{target}")
            wire.close()
            assert not snapshots_in(daemon.state_dir)
            assert not search(daemon.state_dir, [PURGED.encode()], lambda *_: None)
            await daemon.stop()
        shutil.rmtree(folder)
    assert killed or place not in AFTER_THE_TRANSACTION, "no kill left a file behind"


BY_A_COLLECTION = (
    "trash.begun", "trash.purge", "purge.rewrite", "purge.rewrite@2", "purge.truncate", "art.write",
    "art.fsync", "art.index", "journal.begin@3", "journal.insert@4", "journal.precommit@3", "journal.flush@4",
    "journal.commit@3", "journal.postcommit@4", "journal.ack@4", "rpc.reply",
)  # fmt: skip
"""Places of a collection, and the pass at which it is killed there."""

GONE = "erase me"


class Emptied:
    """A session that is removed, and its commits: those that something reaches stay."""

    def __init__(self, wire: Wire, name: str) -> None:
        self.name = name
        wire.ask("session.create", agent="a", session=name)
        own = [self._said(wire, f"{word} {name}") for word in ("keep me", GONE, GONE)]
        self.unreached = dict(own[1:])
        self.reached = dict(own[:1])
        for of in (None, name):
            text = delta(f"{name} word " * 200_000)
            given = {"format": "claude-code-v1", "parent": own[0][0], "session": of, "delta": text}
            self.reached[wire.ask("commit.checkpoint", **given)["commit"]["commit"]] = text
        wire.ask("session.remove", session=name)

    def _said(self, wire: Wire, text: str) -> tuple[str, str]:
        wire.ask("session.append", session=self.name, messages=[{"role": "user", "content": text}])
        return wire.ask("context.current", session=self.name)["context_id"], text

    def judge(self, wire: Wire, *, is_emptied: bool) -> None:
        """Every commit is whole, save those that nothing reaches, which may be purged, and are once it is emptied."""
        for commit, text in {**self.reached, **self.unreached}.items():
            reply = wire.reply("commit.materialize", commit=commit, stop=commit, format="narrative-v1")
            if commit in self.unreached and (is_emptied or "error" in reply):
                assert reply["error"]["data"]["code"] == "purged", (self.name, reply)
            else:
                words = text if text.startswith(("keep", GONE)) else f"{self.name} word " * 200
                assert words in reply["result"]["content"], (self.name, commit)
            shown = wire.ask("commit.show", commit=commit)["commit"]
            assert (shown.get("artifact_ref") is None) == ("error" in reply)


@pytest.mark.requirement("SES-27")
@pytest.mark.requirement("CMT-5")
async def test_no_commit_that_is_reached_is_collected_over_a_kill_at_every_place_of_a_collection(
    tmp_path: Path,
) -> None:
    made: list[Emptied] = []
    killed: set[str] = set()
    with daemon_process(tmp_path) as daemon:
        await daemon.start()
        for place in BY_A_COLLECTION:
            wire = Wire(daemon)
            made.append(Emptied(wire, place.replace("@", "-")))
            wire.close()
            await daemon.stop()
            name, _, number = place.partition("@")
            await daemon.start(failpoints=f"{name}=kill@{number or 1}")
            wire = Wire(daemon)
            try:
                wire.ask("session.gc", keep_ms=0)
                wire.ask("artifact.gc", grace_ms=0)
                # What is erased in the background.
                wire.ask("artifact.put", data="bmV3")
            except Lost:
                killed.add(place)
                assert await daemon.ended() == -signal.SIGKILL, daemon.said()
            wire.close()
            await daemon.kill()
            await daemon.start()
            wire = Wire(daemon)
            made[-1].judge(wire, is_emptied=False)
            wire.ask("session.gc", keep_ms=0)
            wire.ask("artifact.gc", grace_ms=0)
            assert wire.ask("session.list", state="removed")["sessions"] == []
            made[-1].judge(wire, is_emptied=True)
            wire.close()
        wire = Wire(daemon)
        for each in made:
            each.judge(wire, is_emptied=True)
        wire.close()
        await daemon.stop()
        code, report = await daemon.verify()
        assert code == 0, report
    assert {*BY_A_COLLECTION} - killed == set(), "each place was passed"
    raw = b"".join(path.read_bytes() for path in (tmp_path / "state").rglob("*") if path.is_file())
    assert GONE.encode() not in raw
