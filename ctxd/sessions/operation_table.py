"""Table of the operations on sessions, by method: writes of clients and of other parts of the daemon.

The operations that concern other hosts too are called by ``ctxd.rpc.handlers.shared_sessions``: they are not in the
table. ``ctxd.daemon`` adds ``session.usage``.

It imports the module of every topic, and those do not import each other.
"""

from ctxd.indexing.file_indexer import Indexer
from ctxd.sessions.activation_operations import ActivationOperations
from ctxd.sessions.chat_operations import ChatOperations
from ctxd.sessions.entry_operations import EntryOperations
from ctxd.sessions.file_operations import FileOperations
from ctxd.sessions.fork_operations import ForkOperations
from ctxd.sessions.hook_operations import HookOperations
from ctxd.sessions.lifecycle_operations import LifecycleOperations
from ctxd.sessions.operation_admission import Operation
from ctxd.sessions.registry import Sessions
from ctxd.sessions.toolcall_operations import ToolcallOperations
from ctxd_protocol.secret_types import SecretPolicy
from ctxd_protocol.session_types import Collapse


class Operations:
    """The operations on the sessions of one store. ``collapse`` and ``policy`` are defaults for new sessions."""

    def __init__(self, sessions: Sessions, indexer: Indexer, collapse: Collapse, policy: SecretPolicy) -> None:
        self.sessions = sessions
        self.lifecycle = LifecycleOperations(sessions, indexer, collapse, policy)
        self.forks = ForkOperations(sessions, indexer)
        self.chat = ChatOperations(sessions, indexer)
        self.entries = EntryOperations(sessions, indexer)
        self.activation = ActivationOperations(sessions, indexer)
        self.toolcalls = ToolcallOperations(sessions, indexer)
        self.files = FileOperations(sessions, indexer)
        self.hooks = HookOperations(sessions, self.lifecycle, self.chat, self.toolcalls)

    def by_method(self) -> dict[str, Operation]:
        """Return the operations that handle the method of their name, by method."""
        return {
            "session.configure": self.lifecycle.configure,
            "session.annotate": self.lifecycle.annotate,
            "session.close": self.lifecycle.close,
            "session.remove": self.lifecycle.remove,
            "session.restore": self.lifecycle.restore,
            "session.append": self.chat.append,
            "session.set_system_prompt": self.chat.set_system_prompt,
            "session.set_entry": self.entries.set_entry,
            "session.delete_entry": self.entries.delete_entry,
            "session.activate": self.activation.activate,
            "session.deactivate": self.activation.deactivate,
            "session.pin": self.activation.pin,
            "session.unpin": self.activation.unpin,
            "session.pool_add": self.activation.pool_add,
            "session.pool_remove": self.activation.pool_remove,
            "session.hook": self.hooks.hook,
            "toolcall.record": self.toolcalls.record,
            "file.index": self.files.index,
            "file.discover": self.files.discover,
            "tool.observe": self.files.observe,
        }
