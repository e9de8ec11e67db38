"""Search for secrets in artifacts that sandboxes put, under the strictest policy of their sessions.

The address of an artifact is its hash, so it cannot be redacted: under ``redact``, one with a secret is refused.
"""

from functools import partial, reduce
from typing import Any, BinaryIO, NamedTuple

from blake3 import blake3

from ctxd.commits.commit_reads import CommitViewer
from ctxd.commits.scan_process import DELTA_BYTES_MIN, FileInMemory, SandboxProcesses
from ctxd.errors import CtxdError
from ctxd.secrets.policy import stricter, to_payload
from ctxd.secrets.redaction import Capture
from ctxd.sessions.registry import Sessions
from ctxd.sessions.secret_redaction import off_loop
from ctxd_protocol.secret_types import SecretPolicy


class SearchedArtifact(NamedTuple):
    """The address of the searched bytes, and the payload's fields for the secrets in them, empty without secrets."""

    address: str
    marks: dict[str, Any]


class SecretInArtifact(CtxdError):
    """An artifact was refused because it contains a secret."""


class ArtifactSecrets:
    """Search of sandboxes' artifacts. ``policy``: that of a sandbox without a session."""

    def __init__(self, sessions: Sessions, policy: SecretPolicy) -> None:
        self._sessions = sessions
        self._policy = policy
        self._processes = SandboxProcesses()

    def close(self) -> None:
        """End the processes that search. Blocks until they have ended."""
        self._processes.close()

    async def search(self, viewer: CommitViewer, given: bytes | BinaryIO) -> SearchedArtifact | None:
        """Search bytes, or a file of any size. Returns: None if the policy of ``viewer``'s sessions is ``off``.

        Raises: SecretInArtifact, code ``unsupported``; CtxdError ``internal_error`` of the process that searches.
        Cancel: waits for the search.
        """
        sessions = [one for one in viewer.sessions or () if one not in self._sessions.emptied]
        policies = [self._sessions.catalog.settings(session).secrets for session in sessions]
        policy = reduce(stricter, policies) if policies else self._policy
        if policy == "off":
            return None
        # A sandbox's secrets get tags of their own: see ``Guard.by``.
        sandbox = viewer.actor.principal
        capture = Capture(self._sessions.guard.by(sandbox), policy)
        if not isinstance(given, bytes):
            async with self._processes.of(sandbox) as process:
                address, first = await process.searched(capture, given.fileno())
        elif len(given) < DELTA_BYTES_MIN:
            address = blake3(given).hexdigest()
            first = await off_loop(len(given), partial(capture.search, (given,)), sandbox=sandbox)
        else:
            async with self._processes.of(sandbox) as process:
                with await off_loop(len(given), partial(FileInMemory, (given,)), sandbox=sandbox) as memory:
                    address, first = await process.searched(capture, memory.descriptor)
        if first is not None and policy == "redact":
            message = f"the artifact has a secret, {first.rule} at byte {first.start:,}, and cannot be redacted"
            hint = "Remove the secret and upload again. The rejected upload was deleted."
            raise SecretInArtifact("unsupported", message, hint=hint, outcome="not_applied")
        return SearchedArtifact(address, {} if first is None else to_payload(capture.secrets))
