"""Shell completion of session, object and commit ids, requested from the daemon within 200 ms.

Completion never fails: if the daemon is unreachable or too slow, it offers nothing.
"""

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Final

import click
from click.shell_completion import CompletionItem

from ctxd.cli.daemon_socket import named_socket
from ctxd.cli.exit_codes import TIMEOUT
from ctxd.click_support import Stop

if TYPE_CHECKING:
    from ctxd_client.sync import SyncClient
    from ctxd_protocol.session_types import SessionStatus

ANSWER_S_MAX: Final = 0.2
"""Maximum seconds for all calls of the daemon: a person waits at the prompt."""

_Find = Callable[["SyncClient", str | None, str], list[CompletionItem]]


def sessions(ctx: click.Context, _: click.Parameter, begun: str) -> list[CompletionItem]:
    """Return the newest sessions whose id begins with ``begun``, with agent and state as help; for ``ctx session
    restore`` those in the trash."""
    state: SessionStatus | None = "removed" if ctx.info_name == "restore" else None

    def find(client: "SyncClient", _: str | None, begun: str) -> list[CompletionItem]:
        return [
            CompletionItem(each.session, help=f"{each.agent}, {each.state}")
            for each in client.session_list(state=state, limit=1000).sessions
            if each.session.startswith(begun)
        ]

    return _from_daemon(ctx, begun, find)


def objects(ctx: click.Context, _: click.Parameter, begun: str) -> list[CompletionItem]:
    """Return the objects of the command's session whose id or path begins with ``begun``."""

    def find(client: "SyncClient", session: str | None, begun: str) -> list[CompletionItem]:
        from ctxd.cli.revision_lookup import session_if_any

        listed = client.object_list(session=session_if_any(client, session), limit=1000).objects
        found = [CompletionItem(each.object, help=each.label) for each in listed if each.object.startswith(begun)]
        paths = [each for each in listed if each.type == "file" and each.label.startswith(begun)]
        return found + [CompletionItem(each.label, help=each.object[:12]) for each in paths]

    return _from_daemon(ctx, begun, find)


def commits(ctx: click.Context, _: click.Parameter, begun: str) -> list[CompletionItem]:
    """Return the newest commits whose id begins with ``begun``, tags of commits, and sessions, which stand for their
    newest commit. A branch is named by its newest commit."""

    def find(client: "SyncClient", session: str | None, begun: str) -> list[CompletionItem]:
        listed = client.commit_list(session=session, limit=1000).commits
        found = {tag: each.commit for each in listed for tag in each.tags}
        found |= {each.commit: each.summary.partition("\n")[0] or each.checkpoint for each in listed}
        if session is None:
            found |= {each.session: each.agent for each in client.session_list(limit=1000).sessions}
        return [CompletionItem(name, help=about) for name, about in found.items() if name.startswith(begun)]

    return _from_daemon(ctx, begun, find)


def tags(ctx: click.Context, _: click.Parameter, begun: str) -> list[CompletionItem]:
    """Return the tags of the newest commits that begin with ``begun``."""

    def find(client: "SyncClient", session: str | None, begun: str) -> list[CompletionItem]:
        listed = client.commit_list(session=session, limit=1000).commits
        found = {tag: each.commit for each in listed for tag in each.tags}
        return [CompletionItem(tag, help=commit) for tag, commit in found.items() if tag.startswith(begun)]

    return _from_daemon(ctx, begun, find)


def _from_daemon(ctx: click.Context, begun: str, find: _Find) -> list[CompletionItem]:
    from ctxd.config import ConfigError
    from ctxd_client.errors import CallFailed
    from ctxd_client.sync import connect_sync

    socket = ctx.params.get("socket") or ctx.find_root().params.get("socket")
    with suppress(CallFailed, ConfigError, Stop, OSError), _ended_after(ANSWER_S_MAX):
        with connect_sync(named_socket(socket), deadline_s=ANSWER_S_MAX, client="ctx") as client:
            return find(client, ctx.params.get("session"), begun)
    return []


@contextmanager
def _ended_after(seconds: float) -> Iterator[None]:
    """Raise Stop in the body after ``seconds``. Only for the main thread."""

    def end(*_: object) -> None:
        raise Stop(TIMEOUT)

    before = signal.signal(signal.SIGALRM, end)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
