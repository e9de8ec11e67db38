"""``ctx session chat``: show the events of one turn, or of a whole session."""

import shlex
from collections.abc import Iterable, Iterator
from typing import Any, Final

import click
import msgspec

from ctxd.cli.common_options import Invocation, revision_argument, streaming
from ctxd.cli.revision_lookup import locate, turn_of
from ctxd.click_support import Command
from ctxd.formatting import count
from ctxd.terminal import Screen, cell
from ctxd_client.errors import CallFailed
from ctxd_client.sync import SyncClient
from ctxd_protocol.limits import PAGE_ITEMS_MAX
from ctxd_protocol.methods.chat import LoggedEvent
from ctxd_protocol.methods.commits import Commit

_OUTPUT_LINES: Final = 10
_OUTPUT_CHARS: Final = 1000
"""Lines and characters that are shown of the output of a tool call."""


@click.command(
    cls=Command,
    examples="ctx session chat s1@12\nctx session chat @~1\nctx session chat s1 --all\nctx session chat s1 --json",
)
@click.option("--all", "everything", is_flag=True, help="Also hidden events, and the whole output of tool calls.")
@revision_argument
@streaming
def chat(run: Invocation, revision: str | None, everything: bool) -> None:
    """Print the events of turn REV, or of the whole session; with --json, one event per line.

    For a session whose events are only in commits, such as an imported one, print the events of its newest commit.
    Events without text, such as records of the harness, are hidden, and long output of tool calls is cut, unless --all
    or --json is given.
    """
    with run.client() as client:
        found = locate(client, revision)
        turn = None if found.revision.is_now else turn_of(client, found).turn
        shown = _Shown(run.screen, client, found.session, everything=everything)
        is_empty = True
        for logged in _events(client, found.session, turn):
            is_empty = False
            shown.show(logged)
        if is_empty and turn is None and (tip := client.commit_resolve(session=found.session).commit) is not None:
            _show_commit(run, client, shown, found.session, tip)
        if not is_empty and turn is None:
            _note_events_in_commits(run, client, found.session)
    if shown.hidden:
        run.screen.note(f"hidden: {count(shown.hidden, 'event')} without text; --all shows them")


def note_conversation_in_commits(run: Invocation, client: SyncClient, session: str) -> None:
    """Note where the conversation of a session with an empty chat is: in its commits, if it has any."""
    if (tip := client.commit_resolve(session=session).commit) is not None:
        shown = f"ctx materialize {tip.commit} --stop root --format narrative-v1"
        run.screen.note(f"the chat of {session} is empty; its commits hold the conversation: {shown} prints it")


class _Shown:
    """The events that are printed. ``hidden``: the number of those that are not."""

    def __init__(self, screen: Screen, client: SyncClient, session: str, *, everything: bool) -> None:
        self._screen = screen
        self._client = client
        self._session = session
        self._everything = everything
        self._tools: dict[str, str] = {}
        self.hidden = 0

    def show(self, logged: LoggedEvent) -> None:
        """Print an event of the chat."""
        if self._screen.as_json:
            self._screen.record(logged)
        else:
            self.show_text(logged.turn, logged.place, logged.event)

    def show_text(self, turn: int, place: int, event: dict[str, Any]) -> None:
        """Print an event as text, or count it as hidden."""
        is_thought = event["event"] == "thinking" and not (event.get("text") or "").strip()
        if (is_thought or event["event"] == "opaque") and not self._everything:
            self.hidden += 1
            return
        self._screen.line(self._screen.paint(f"turn {turn}, {place}: {cell(self._heading(event))}", "yellow"))
        if event["event"] == "tool_result":
            self._print_output(event)
            return
        args = event.get("args")
        texts = [event.get("text"), event.get("summary"), args if isinstance(args, str | None) else _json(args)]
        for text in texts:
            self._print_lines(text.split("\n") if text else ())

    def _heading(self, event: dict[str, Any]) -> str:
        """The kind of an event; its tool, failure and agent. Calls may run at once, so a result names its tool too."""
        words = [event["event"].replace("_", " "), event.get("tool") or ""]
        match event["event"]:
            case "tool_call":
                self._tools[event["call"]] = event["tool"]
            case "tool_result":
                words.append(self._tools.pop(event.get("call") or "", ""))
                words.append("(failed)" if event.get("is_error") else "")
            case "system" | "opaque":
                words.append(event.get("kind") or "")
        words.append(f"(sub-agent {event['sidechain']})" if event.get("sidechain") else "")
        return " ".join(filter(None, words))

    def _print_output(self, event: dict[str, Any]) -> None:
        object, text = event.get("object"), event.get("text") or ""
        whole = "--all shows it"
        if object:
            whole = shlex.join(("ctx", "object", "cat", object, "-s", self._session))
            text = text or self._recorded_output(object, whole)
        lines, left = (text.split("\n"), 0) if self._everything else _beginning(text)
        self._print_lines(lines if text else ())
        if left:
            self._screen.line(self._screen.paint(f"    … {count(left, 'more character')}: {cell(whole)}", "dim"))

    def _recorded_output(self, object: str, command: str) -> str:
        """The output of a recorded call, or a note in its place; ``command`` if it cannot be read here."""
        try:
            found = self._client.object_get(object, session=self._session).object
        except CallFailed:
            return command
        if found.state == "purged":
            return "[purged]"
        if "encoding" in found.payload or found.payload.get("content") is None:
            return command
        return found.payload["content"] or "(no output)"

    def _print_lines(self, lines: Iterable[str]) -> None:
        for line in lines:
            self._screen.line(f"    {cell(line.expandtabs())}")


def _show_commit(run: Invocation, client: SyncClient, shown: _Shown, session: str, tip: Commit) -> None:
    """Print the conversation that ends with the newest commit of ``session``, ``tip``."""
    # Imported here, as a session with a chat needs no reader of deltas.
    from ctxd.cli.commit_context_download import downloaded
    from ctxd.formats import events_v1
    from ctxd.formats.cbor_array import items

    content, made = downloaded(client, tip.commit, stop="root", format=events_v1.NAME)
    if not made.message_count:
        run.screen.note(f"{session} has no messages, and neither has its newest commit, {tip.commit}")
        return
    run.screen.note(f"the conversation of commit {tip.commit}, as the session has no events of its own:")
    turn = place = 0
    for event in events_v1.events(items(content)):
        members = msgspec.to_builtins(event)
        if members["event"] == "prompt" and members.get("sidechain") is None:
            turn, place = turn + 1, 0
        if run.screen.as_json:
            run.screen.record({"turn": turn, "place": place, "commit": tip.commit, "event": members})
        else:
            shown.show_text(turn, place, members)
        place += 1


def _note_events_in_commits(run: Invocation, client: SyncClient, session: str) -> None:
    """Note that commits of a session have messages that its chat lacks: an import adds those that hooks missed."""
    from ctxd.formats import events_v1

    for each in client.commit_list(session=session, limit=PAGE_ITEMS_MAX).commits:
        # The daemon's own commits of a chat are in its own format.
        if each.message_count and each.format != events_v1.NAME:
            shown = f"ctx materialize {session} --format narrative-v1"
            run.screen.note(f"some messages are only in commits, such as {each.commit}, and not in the chat: {shown}")
            return


def _beginning(text: str) -> tuple[list[str], int]:
    """Return the first lines of ``text``, and the number of characters after them."""
    shown = "\n".join(text[:_OUTPUT_CHARS].split("\n")[:_OUTPUT_LINES])
    left = len(text.rstrip("\n")) - len(shown)
    return shown.split("\n"), max(0, left)


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


def _json(value: object) -> str:
    return msgspec.json.encode(value).decode()
