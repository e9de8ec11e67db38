"""``ctx activate``, ``deactivate``, ``pin`` and ``unpin``: control the window of a model."""

from collections.abc import Callable

import click

from ctxd.cli.common_options import Invocation, common, session_option
from ctxd.cli.id_completion import objects as complete_objects
from ctxd.cli.object_lookup import object_id
from ctxd.cli.revision_lookup import session_id
from ctxd.click_support import Command
from ctxd.terminal import cell
from ctxd_client.sync import SyncClient
from ctxd_protocol.methods.sessions import MembershipResult

_objects = click.argument("objects", nargs=-1, required=True, metavar="OBJECT...", shell_complete=complete_objects)


@click.command(cls=Command, examples="ctx activate 3f9a01bc\nctx activate /workspace/a.py -s s1")
@_objects
@session_option
@common
def activate(run: Invocation, objects: tuple[str, ...], session: str | None) -> None:
    """Load objects into the window.

    OBJECT is an id, a unique prefix of at least 8 characters, or a path.
    """
    _move(run, objects, session, SyncClient.session_activate)


@click.command(cls=Command, examples="ctx deactivate 3f9a01bc")
@_objects
@session_option
@common
def deactivate(run: Invocation, objects: tuple[str, ...], session: str | None) -> None:
    """Replace objects in the window with one line each."""
    _move(run, objects, session, SyncClient.session_deactivate)


@click.command(cls=Command, examples="ctx pin 3f9a01bc")
@_objects
@session_option
@common
def pin(run: Invocation, objects: tuple[str, ...], session: str | None) -> None:
    """Keep objects in the window despite auto-collapse and the token budget.

    `ctx deactivate` still removes a pinned object; `ctx activate` loads it again.
    """
    _move(run, objects, session, SyncClient.session_pin)


@click.command(cls=Command, examples="ctx unpin 3f9a01bc")
@_objects
@session_option
@common
def unpin(run: Invocation, objects: tuple[str, ...], session: str | None) -> None:
    """Unpin objects: auto-collapse and the token budget may remove them again."""
    _move(run, objects, session, SyncClient.session_unpin)


def _move(
    run: Invocation,
    objects: tuple[str, ...],
    session: str | None,
    call: Callable[[SyncClient, str, str], MembershipResult],
) -> None:
    moved: list[MembershipResult] = []
    try:
        with run.client() as client:
            id = session_id(client, session)
            for each in [object_id(client, id, name) for name in objects]:
                moved.append(call(client, id, each))
                _print_moved(run, moved[-1])
    finally:
        # Of several objects, an error may leave the first ones moved.
        if run.screen.as_json and moved:
            run.screen.document({"items": moved})


def _print_moved(run: Invocation, done: MembershipResult) -> None:
    if run.screen.as_json:
        return
    pinned = ", pinned" if done.pinned else ""
    unchanged = "" if done.changed else " (it was so already)"
    run.screen.line(f"{cell(done.object)} is {done.level}{pinned}{unchanged}")
    if done.pinned and done.level != "active":
        run.screen.note(f"{done.object} is out of the window despite its pin; ctx activate loads it again")
