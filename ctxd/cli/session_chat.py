"""``ctx session chat``: show the events of one turn, or of a whole session."""

import shlex
from collections.abc import Iterator

import click
import msgspec

from ctxd.cli.common_options import Invocation, revision_argument, streaming
from ctxd.cli.revision_lookup import locate, turn_of
from ctxd.click_support import Command
from ctxd.terminal import Screen, cell
from ctxd_client.sync import SyncClient
from ctxd_protocol.limits import PAGE_ITEMS_MAX
from ctxd_protocol.methods.chat import LoggedEvent


@click.command(cls=Command, examples="ctx session chat s1@12\nctx session chat @~1\nctx session chat s1 --json")
@revision_argument
@streaming
def chat(run: Invocation, revision: str | None) -> None:
    """Print the events of turn REV, or of the whole session; with --json, one event per line."""
    with run.client() as client:
        found = locate(client, revision)
        turn = None if found.revision.is_now else turn_of(client, found).turn
        is_empty = True
        for logged in _events(client, found.session, turn):
            is_empty = False
            if run.screen.as_json:
                run.screen.record(logged)
            else:
                _print(run.screen, logged, found.session)
        if is_empty and turn is None:
            note_conversation_in_commits(run, client, found.session)


def note_conversation_in_commits(run: Invocation, client: SyncClient, session: str) -> None:
    """Note where the conversation of a session with an empty chat is: in its commits, if it has any."""
    if (tip := client.commit_resolve(session=session).commit) is not None:
        shown = f"ctx materialize {tip.commit} --stop root --format narrative-v1"
        run.screen.note(f"the chat of {session} is empty; its commits have a conversation: {shown}")


def _events(client: SyncClient, session: str, turn: int | None) -> Iterator[LoggedEvent]:
    page = client.session_events(session, first_turn=turn or 0, limit=PAGE_ITEMS_MAX)
    while True:
        for logged in page.events:
            if turn is not None and logged.turn > turn:
                return
            yield logged
        if page.next_cursor is None:
            return
        page = client.session_events(session, limit=PAGE_ITEMS_MAX, cursor=page.next_cursor)


def _print(screen: Screen, logged: LoggedEvent, session: str) -> None:
    event = logged.event
    name = " ".join(cell(str(event[key])) for key in ("event", "tool") if event.get(key)).replace("_", " ", 1)
    screen.line(screen.paint(f"turn {logged.turn}, {logged.place}: {name}", "yellow"))
    if event.get("object"):
        screen.line(f"    {cell(shlex.join(('ctx', 'object', 'cat', event['object'], '-s', session)))}")
    args = event.get("args")
    texts = [event.get("text"), event.get("summary"), args if isinstance(args, str | None) else _json(args)]
    for text in texts:
        for line in text.split("\n") if text else ():
            screen.line(f"    {cell(line)}")


def _json(value: object) -> str:
    return msgspec.json.encode(value).decode()
