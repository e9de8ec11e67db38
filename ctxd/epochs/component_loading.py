"""Loading of a session's components: each is loaded once, concurrently with the others, under the secrets policy.

Owns the stored form of texts (``component_text:{session}#{address}``). Equal texts are stored once. The address of a
text is a keyed hash, so that a purged text cannot be guessed from it.
"""

import hashlib
from collections import OrderedDict
from collections.abc import Iterable, Mapping
from typing import Any, Final

import anyio
import msgspec

from ctxd.epochs.component import Component, FileVersion, Loaded, Provider, UnavailableComponent, combined
from ctxd.epochs.component_changes import Components
from ctxd.epochs.environment_and_date import DATE_KEY, ENVIRONMENT_KEY
from ctxd.epochs.epoch_state import ComponentText
from ctxd.epochs.instruction_files import PREFIX as INSTRUCTIONS_PREFIX
from ctxd.epochs.skills import KEY as SKILLS_KEY
from ctxd.errors import CtxdError
from ctxd.objects.document import Content, Document, Stored, document_without_source, require_text
from ctxd.objects.generated_ids import component_text_id
from ctxd.objects.hashing import source_hash
from ctxd.objects.version_state import is_purged
from ctxd.secrets.redaction import Capture, Guard
from ctxd.sessions.live_session import LiveSession, WriteRequest
from ctxd.sessions.secret_redaction import off_loop
from ctxd.sessions.session_objects import entries
from ctxd.store.version_store import VersionStore
from ctxd.task_groups import task_group
from ctxd_protocol.session_types import ComponentName

LOAD_S: Final = 5.0
"""Seconds after which a component that is still loading is unavailable: the session's other calls wait for it."""

_LATE: Final = UnavailableComponent(f"it could not be read within {LOAD_S:g} s")

CLEAN_VALUES_MAX: Final = 4_096
"""Maximum values remembered as free of secrets, about 200 bytes each."""

ENTRY_PREFIX: Final = "api/"
"""Prefix of the keys of entries."""

_KEYS: Final[Mapping[ComponentName, str]] = {
    "environment": ENVIRONMENT_KEY,
    "date": DATE_KEY,
    "instructions": INSTRUCTIONS_PREFIX,
    "skills": SKILLS_KEY,
}
"""Key, or prefix of the keys, of the components for each name."""


class LateComponent(Component[Any]):
    """Component ``key``, or all with this prefix, whose provider exceeded the time limit."""

    async def load(self) -> UnavailableComponent:
        """See ``Component``."""
        return _LATE

    def baseline(self, value: Any) -> str:  # noqa: ANN401 - it has no value
        """See ``Component``."""
        raise AssertionError("it is never available")

    def update(self, previous: Any, current: Any) -> str:  # noqa: ANN401 - it has no value
        """See ``Component``."""
        raise AssertionError("it is never available")


class EntryValue(msgspec.Struct, frozen=True):
    """Value of an entry: any JSON."""

    value: Any


class EntryComponent(Component[EntryValue]):
    """Entry that a client set, see ``session.set_entry``."""

    value_type = EntryValue

    def __init__(self, name: str, head: Stored, text: str) -> None:
        super().__init__(f"{ENTRY_PREFIX}{name}")
        self._name = name
        source = FileVersion(path=name, object=head.document.id, tx=head.tx, content_hash=head.document.content_hash)
        self._loaded = Loaded(EntryValue(msgspec.json.decode(text)), (source,))

    async def load(self) -> Loaded[EntryValue] | UnavailableComponent:
        """See ``Component``: the value was read with the other entries."""
        return self._loaded

    def baseline(self, value: EntryValue) -> str:
        """See ``Component``."""
        return f"{self._name}: {_shown(value)}"

    def update(self, previous: EntryValue, current: EntryValue) -> str:
        """See ``Component``."""
        return f"{self._name} is now: {_shown(current)}"

    def removal(self, previous: EntryValue) -> str | None:
        """See ``Component``."""
        return f"{self._name} no longer applies."


def _shown(value: EntryValue) -> str:
    """A string unchanged, any other value as JSON."""
    return value.value if isinstance(value.value, str) else msgspec.json.encode(value.value).decode()


class ComponentObserver:
    """Observes the components of sessions. ``providers``: of the components that the settings of a session can name."""

    def __init__(self, store: VersionStore, guard: Guard, providers: Mapping[ComponentName, Provider]) -> None:
        self._store = store
        self._guard = guard
        self._providers = providers
        # Values without secrets, by the session whose tags apply, policy and digest, oldest first.
        self._clean: OrderedDict[tuple[str, str, bytes], None] = OrderedDict()

    async def observe(self, live: LiveSession, call: WriteRequest, *, confined: bool) -> Components:
        """The current components of ``live``; the caller holds its lock. ``call``: for file versions written meanwhile.
        ``confined``: the session belongs to a sandbox.

        Raises: CtxdError unsupported for a component without a provider, corrupt, store_failed. Cancel: safe.
        """
        groups: list[Iterable[Component[Any]]] = []
        for name in live.settings.components:
            if name not in self._providers:
                hint = "Take it out of the session's components: session.configure."
                raise CtxdError("unsupported", f"this ctxd has no component {name}", hint=hint, outcome="not_applied")
            found_here: Iterable[Component[Any]] = (LateComponent(_KEYS[name]),)
            with anyio.move_on_after(LOAD_S):
                found_here = await self._providers[name](live, call)
            groups.append(found_here)
        if live.settings.entries:
            groups.append(await self._entries(live))
        components = combined(*groups)
        if not components:
            return {}
        found: dict[str, Loaded[Any] | UnavailableComponent] = {}

        async def load(component: Component[Any]) -> None:
            with anyio.move_on_after(LOAD_S):
                found[component.key] = await self._captured(live, confined, component, await component.load())

        async with task_group() as loading:
            for component in components.values():
                loading.start_soon(load, component)
        return {key: (component, found.get(key, _LATE)) for key, component in components.items()}

    async def _captured(
        self, live: LiveSession, confined: bool, component: Component[Any], loaded: Loaded[Any] | UnavailableComponent
    ) -> Loaded[Any] | UnavailableComponent:
        """``loaded`` with its secrets treated as the session's policy requires."""
        if isinstance(loaded, UnavailableComponent):
            return loaded
        guard = self._guard.by(live.session) if confined else self._guard
        plain, capture = msgspec.to_builtins(loaded.value), Capture(guard, live.settings.secrets)
        encoded = component.encode(loaded.value)
        key = (live.session if confined else "", live.settings.secrets, hashlib.sha256(encoded).digest())
        if key in self._clean:
            self._clean.move_to_end(key)
            return loaded
        kept = await off_loop(len(encoded), lambda: capture.value(plain), sandbox=live.session if confined else None)
        if kept == plain:
            self._clean[key] = None
            if len(self._clean) > CLEAN_VALUES_MAX:
                self._clean.popitem(last=False)
            return loaded
        return Loaded(msgspec.convert(kept, component.value_type), loaded.sources)

    async def _entries(self, live: LiveSession) -> list[Component[Any]]:
        found = await entries(self._store, live.session, live.settings.entries)
        return [EntryComponent(name, head, text) for name, (head, text) in found.items()]

    def address(self, text: ComponentText) -> str:
        """The address of ``text``."""
        return self._guard.keyed_hash(source_hash(msgspec.json.encode(text)))

    async def documents(
        self, session: str, texts: Mapping[str, ComponentText | None]
    ) -> tuple[tuple[Document, ...], int]:
        """The documents of those ``texts`` that ``session`` has not stored yet, and the least valid time for them.

        Raises: CtxdError corrupt, store_failed. Cancel: safe.
        """
        if not texts:
            return (), 0
        heads = await self._store.heads([component_text_id(session, address) for address in texts])
        new: list[Document] = []
        floor_vt = 0
        for (address, text), head in zip(texts.items(), heads.values(), strict=True):
            if text is not None and (head is None or is_purged(head.document)):
                payload = {"key": text.key, "sources": [source.object for source in text.sources]}
                content = msgspec.json.encode(text).decode()
                new.append(
                    document_without_source(component_text_id(session, address), "component_text", payload, content)
                )
                floor_vt = max(floor_vt, 0 if head is None else head.valid_time + 1)
        return tuple(new), floor_vt


def read_text(stored: Stored, contents: Mapping[str, Content]) -> ComponentText | None:
    """The text in a version, None for a purged one. Raises: CtxdError corrupt."""
    if is_purged(stored.document) or stored.content_ref is None:
        return None
    try:
        return msgspec.json.decode(require_text(contents[stored.content_ref]), type=ComponentText)
    except msgspec.DecodeError as error:
        raise CtxdError("corrupt", f"{stored.document.id} cannot be read") from error
