"""Component of a context epoch: one part of the system context, such as the date or an instruction file.

A component has a key, a value with its codec, a load function, and the texts that show the value to the model: the
baseline, an update, a removal. The texts are pure functions of values; they are rendered once and stored, so that a
change of the code changes nothing that was sent. Modelled on the instructions of opencode 2.0 and pi's system messages.
"""

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, ClassVar, Final, Generic, TypeVar

import msgspec

from ctxd.errors import CtxdError
from ctxd.objects.hashing import canonical
from ctxd.sessions.live_session import LiveSession, WriteRequest

V = TypeVar("V", bound=msgspec.Struct)

KEY_CHARS_MAX: Final = 1_024
"""Maximum characters of a key."""


class FileVersion(msgspec.Struct, frozen=True, array_like=True):
    """The version of a file that a value was read from. ``path``: as the agent knows it; ``object``: the file's id;
    ``tx``: the transaction that wrote the version; ``content_hash``: the version's own."""

    path: str
    object: str
    tx: int
    content_hash: str


class Loaded(msgspec.Struct, Generic[V], frozen=True):
    """The current value of a component, and the file versions that it was read from."""

    value: V
    sources: tuple[FileVersion, ...] = ()


class UnavailableComponent(msgspec.Struct, frozen=True):
    """A component that cannot be read now. ``reason``: one line, without any text of the component."""

    reason: str


class Component(ABC, Generic[V]):
    """One component of one session, made for one observation.

    ``key`` is stable and namespaced: ``core/environment``, ``core/date``, ``instructions/{path}``, ``skills``. A
    component that no longer exists is left out by its provider, and is removed thereby. A key that ends with ``/`` is
    for a component that is always unavailable, such as a directory that cannot be listed: every known component whose
    key begins with it is unavailable too. ``value_type`` is a struct of JSON values.
    """

    value_type: ClassVar[type[Any]]

    def __init__(self, key: str) -> None:
        self.key = key

    @abstractmethod
    async def load(self) -> Loaded[V] | UnavailableComponent:
        """Read the value. Raises only errors of the store. Cancel: safe."""

    @abstractmethod
    def baseline(self, value: V) -> str:
        """The text in a baseline, and the text of a component that is new within an epoch."""

    @abstractmethod
    def update(self, previous: V, current: V) -> str:
        """The text for a changed value: the current state, complete without the earlier text."""

    def removal(self, previous: V) -> str | None:
        """The text once the component is gone; None to keep the old text in force without an update."""
        return None

    def encode(self, value: V) -> bytes:
        """The canonical JSON of ``value``. Raises: ValueError for a value without one."""
        return canonical(msgspec.to_builtins(value))

    def decode(self, data: bytes) -> V:
        """Undo ``encode``. Raises: msgspec.DecodeError, also for a value of another version of the type."""
        value: V = msgspec.json.decode(data, type=self.value_type)
        return value


Provider = Callable[[LiveSession, WriteRequest], Awaitable[Iterable[Component[Any]]]]
"""Finds the components of one kind for a session; the caller holds its lock. File versions that it writes are committed
to the session with the request, which has no operation id."""


def combined(*groups: Iterable[Component[Any]]) -> dict[str, Component[Any]]:
    """The components of all ``groups`` by key, in order. Raises: CtxdError corrupt for a repeated or invalid key, which
    is a fault of a provider."""
    found: dict[str, Component[Any]] = {}
    for group in groups:
        for component in group:
            if component.key in found or not 0 < len(component.key) <= KEY_CHARS_MAX:
                raise CtxdError(
                    "corrupt",
                    f"the component key {component.key[:100]!r} is duplicated or malformed",
                    hint="Report this as a fault of ctxd: each provider has a namespace of its own.",
                    outcome="not_applied",
                )
            found[component.key] = component
    return found
