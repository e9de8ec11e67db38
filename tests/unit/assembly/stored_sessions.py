"""A store, its sessions and real files, for tests of assemblies and for their bench."""

import json
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import msgspec

from ctxd.assembly.assembler import Assembler
from ctxd.assembly.recorded_assemblies import Archive
from ctxd.assembly.spec_layout import spec
from ctxd.assembly.token_budget import estimate_tokens
from ctxd.clock import Clock, SystemClock
from ctxd.commits.commit_operations import Commits
from ctxd.commits.session_checkpoints import SessionCheckpoints
from ctxd.indexing.file_indexer import Indexer
from ctxd.indexing.stub_discovery import discover
from ctxd.models import BUILT_IN, Models, read_models
from ctxd.objects import document as documents
from ctxd.objects.generated_ids import entry_id
from ctxd.objects.hashing import content_hash, identity_hash
from ctxd.sessions import activation_operations, chat_operations, file_operations, toolcall_operations
from ctxd.sessions.live_session import LiveSession, WriteRequest
from ctxd.sessions.registry import Sessions
from ctxd.sessions.session_settings import SessionSettings
from ctxd.sources.host_files import HostFiles
from ctxd.store.version_store import VersionStore
from ctxd_protocol.context_types import AssembledContext
from ctxd_protocol.event_types import event_of
from ctxd_protocol.ids import chat_id
from ctxd_protocol.session_types import Message, Mount

HOST = "host-filesystem"
_MODEL = read_models().get("claude-sonnet-4-5")
MODELS = Models(
    {
        "m": _MODEL,
        "s": msgspec.structs.replace(_MODEL, system_updates=True),
        "g": msgspec.structs.replace(_MODEL, provider="openai", system_updates=True),
    },
    (BUILT_IN,),
)
"""The models that the tests request: ``m`` and ``s`` of Anthropic, of which ``s`` takes system messages in the
conversation, and ``g`` of OpenAI."""

MODELS_OF = {"anthropic-messages": "m", "openai-responses": "g", "openai-chat": "m"}
"""A model for each format."""


class TestClock:
    """The host's clock, or the wall time that a test sets, in ms."""

    __test__ = False

    def __init__(self) -> None:
        self.wall: int | None = None
        self._host = SystemClock()

    def wall_ms(self) -> int:
        return self._host.wall_ms() if self.wall is None else self.wall

    def monotonic(self) -> float:
        return self._host.monotonic()

    async def sleep(self, seconds: float) -> None:
        await self._host.sleep(seconds)


class Household:
    """All parts below the assembler, and the calls that handlers would make."""

    def __init__(self, store: VersionStore, clock: Clock, files: Path) -> None:
        self.store = store
        self.files = files
        self.sessions = Sessions(store, clock, host_filesystem_id=HOST)
        self.indexer = Indexer(store, HostFiles(clock), HOST)
        self.archive = Archive(store, self.sessions, spec, estimate_tokens, MODELS)
        self.checkpoints = SessionCheckpoints(self.sessions, Commits(self.sessions, clock, machine="m", policy="flag"))
        self.assembler = Assembler(store, self.sessions, self.indexer, self.archive, MODELS, clock, providers={})

    async def create(
        self,
        session: str = "s",
        *,
        prompt: str = "Be brief.",
        mounts: tuple[Mount, ...] = (),
        budget_tokens: int | None = None,
    ) -> LiveSession:
        settings = SessionSettings(
            agent="agent",
            principal="p",
            created_at=0,
            ordinal=0,
            filesystem_id=HOST,
            workdir="/",
            mounts=mounts,
            budget_tokens=budget_tokens,
        )
        made = await self.sessions.create(WriteRequest("session.create", "p"), session, settings, prompt)
        assert isinstance(made, tuple)
        return made[0]

    async def read(self, live: LiveSession, path: Path | str) -> str:
        """Index a file as an agent's read does."""
        found = await self.indexer.index(live.mounts, live.settings.workdir, str(path))
        live.submit(
            WriteRequest("file.index", "p"),
            file_operations.read_delta(live.state, found.object),
            puts=found.puts,
            signatures=found.signatures,
            floor_vt=found.floor_vt,
        )
        return found.object

    async def discover(self, live: LiveSession, paths: Iterable[Path]) -> tuple[str, ...]:
        found = await discover(self.indexer, live.mounts, live.settings.workdir, [str(path) for path in paths])
        ids = tuple(one.object for one in found if one.object is not None)
        puts = tuple(one.document for one in found if one.document is not None)
        live.submit(WriteRequest("file.discover", "p"), file_operations.discover_delta(live.state, ids), puts=puts)
        return ids

    def record(self, live: LiveSession, id: str, output: str, *, say: bool = True) -> str:
        document = documents.toolcall(id, tool="bash", args={}, content=output, chat_ref=chat_id(live.session))
        delta = toolcall_operations.call_delta(live.state, id, live.settings.collapse)
        live.submit(WriteRequest("toolcall.record", "p"), delta, puts=(document,))
        if say:
            self.append(live, Message(role="toolcall", toolcall=id))
        return id

    def append(self, live: LiveSession, *messages: Message) -> None:
        delta = chat_operations.append_delta(
            live.state, live.session, list(map(event_of, messages)), live.settings.collapse
        )
        live.submit(WriteRequest("session.append", "p"), delta)

    async def set_entry(self, live: LiveSession, key: str, value: str | None) -> None:
        """Set an entry to ``value``, or delete it."""
        id, entries = entry_id(live.session, key), dict.fromkeys((*live.settings.entries, key))
        if value is None:
            del entries[key]
        payload, content = {"key": key, "deleted": value is None}, None if value is None else json.dumps(value)
        document = documents.Document(
            id=id,
            type="session_entry",
            identity_hash=identity_hash("session_entry", None, id),
            content_hash=content_hash(payload, content),
            payload=payload,
            content=content,
        )
        head = (await self.store.heads((id,)))[id]
        settings = msgspec.structs.replace(live.settings, entries=tuple(entries))
        floor_vt = 0 if head is None else head.valid_time + 1
        live.submit(WriteRequest("session.set_entry", "p"), puts=(document,), settings=settings, floor_vt=floor_vt)

    def activate(self, live: LiveSession, id: str) -> None:
        live.submit(WriteRequest("session.activate", "p"), activation_operations.activate_delta(live.state, id))

    async def assemble(self, session: str | LiveSession = "s") -> AssembledContext:
        """The context once it is durable."""
        live = await self.sessions.live(session) if isinstance(session, str) else session
        assembled = await self.assembler.assemble(live, WriteRequest("context.assemble", "p"))
        if assembled.pending is not None:
            await assembled.pending.wait()
        return assembled.context


@asynccontextmanager
async def household(root: Path, clock: Clock | None = None) -> AsyncIterator[Household]:
    """The parts on the state directory ``root / "state"``, with files in ``root / "files"``; may be opened again."""
    files = root / "files"
    files.mkdir(exist_ok=True)
    clock = clock or SystemClock()
    store = VersionStore(root / "state", clock)
    async with anyio.create_task_group() as group:
        await group.start(store.run)
        home = Household(store, clock, files)
        await home.sessions.start()
        yield home
        await store.drain()
        group.cancel_scope.cancel()
