"""``ctx context``: the context of a model, block by block with reasons, and its changes."""

import re
from collections.abc import Iterable
from contextlib import suppress
from typing import Any, Final, TypedDict, get_args

import click
import msgspec

from ctxd.cli.commit_lookup import located_commit
from ctxd.cli.common_options import Invocation, WholeNumber, common, revision_argument
from ctxd.cli.context_list import list_assemblies
from ctxd.cli.context_why import show_why
from ctxd.cli.exit_codes import NOT_FOUND, USAGE
from ctxd.cli.object_lookup import object_id
from ctxd.cli.request_cost import cost_lines, newest_assembly, newest_cost_lines
from ctxd.cli.revision_lookup import AssemblyKey, Located, assembly, locate, session_id
from ctxd.cli.revisions import is_revision
from ctxd.cli.unified_diff import print_diff, unified
from ctxd.click_support import Command, ExclusiveOptions, Stop
from ctxd.formatting import count, short, size
from ctxd.terminal import Colour, cell
from ctxd_client.errors import InvalidCall, InvalidState, NotFound
from ctxd_client.sync import SyncClient
from ctxd_protocol.context_types import (
    AssembledContext,
    AssemblyRecord,
    Block,
    BudgetPlan,
    Layout,
    RequestFormat,
    SectionSize,
)
from ctxd_protocol.ids import is_context_id
from ctxd_protocol.limits import PATHS_MAX
from ctxd_protocol.object_types import ObjectVersion

BAR_COLUMNS: Final = 72
"""Columns of the bar of sections. Each section that is not empty gets at least one."""

LABEL_CHARS: Final = 44
"""Longest name of an object in the table of blocks."""

_START_CHARS_MAX: Final = 80
"""Longest start of a block in that table."""

FORMATS: Final[tuple[RequestFormat, ...]] = get_args(RequestFormat)

_LOOKS: Final[dict[str, tuple[str, Colour]]] = {
    "system_prompt": ("S", "magenta"),
    "metadata_pool": ("M", "blue"),
    "chat": ("C", "green"),
    "active_content": ("A", "yellow"),
}
"""Letter and colour of a section; one that is not listed has the first letter of its name."""


_MODES: Final = ("list", "commit", "diff", "plan", "format", "why", "turn", "assembly")
"""Options that choose what is shown: at most one. Without any, it is the newest context."""

_APPLIES: Final[dict[str, tuple[tuple[str, ...], str]]] = {
    "text": (("", "turn", "assembly"), "a context"),
    "layout": (("", "format"), "a new assembly"),
    "model": (("format",), "a request"),
    "record": (("format",), "a request"),
}
"""For each other option, the modes in which it applies, and what these show."""

_NEXT: Final[dict[Layout, str]] = {"spec": "next text", "append": "next request"}
"""Names of a context that is not recorded."""


class ContextParts(TypedDict):
    """Parts of a context to receive."""

    text: bool
    blocks: bool


def _is_given(value: object) -> bool:
    return value is not None and value is not False


def _mode(given: dict[str, Any]) -> str:
    """Return the one of ``_MODES`` that is given, else an empty text. Raises: ``Stop``, ``ExclusiveOptions`` for
    options that would be ignored."""
    modes = [name for name in _MODES if _is_given(given[name])]
    if len(modes) > 1:
        raise ExclusiveOptions(*(f"--{name}" for name in modes))
    mode = modes[0] if modes else ""
    for name, (those, shown) in _APPLIES.items():
        if _is_given(given[name]) and mode not in those:
            hint = "add --format, or leave it out" if those == ("format",) else "leave it out"
            raise Stop(USAGE, f"--{name} applies only to {shown}", hint=hint)
    return mode


@click.command(
    cls=Command,
    examples="ctx context\nctx context s1 --text | less\nctx context s1@3\nctx context @~1\n"
    "ctx context 's1@{2 hours ago}'\nctx context ctx-1a2b3c4d --text\nctx context s1 --diff @3 @~1\n"
    "ctx context s1 --plan 8000\nctx context s1 --why call_1\n"
    "ctx context --commit HEAD\nctx context s1 --list\n"
    "ctx context s1 --format anthropic-messages --model claude-sonnet-5",
)
@revision_argument
@click.option("--text", is_flag=True, help="Print the text of the context, unchanged if piped.")
@click.option("--turn", type=WholeNumber(0), metavar="N", help="Show the context that the model saw at turn N.")
@click.option("--assembly", type=WholeNumber(1), metavar="N", help="Show recorded assembly N.")
@click.option("--diff", nargs=2, metavar="A B", help="Compare two assemblies: numbers, or revisions such as @~1.")
@click.option("--format", type=click.Choice(FORMATS), help="Show the request body for a provider's API.")
@click.option(
    "--layout",
    type=click.Choice(get_args(Layout)),
    help="Layout of the window [default: that of the newest context; append with --format].",
)
@click.option("--model", metavar="NAME", help="Model of the request [default: the model that replied last].")
@click.option("--record", is_flag=True, help="Record the request, as a harness's own call does.")
@click.option("--why", metavar="ID|PATH", help="Explain how the newest window shows an object, since when, and why.")
@click.option("--commit", metavar="COMMIT", help="Print the context of a commit as text; REV may be a commit id too.")
@click.option("--list", is_flag=True, help="List the recorded assemblies of the session.")
@click.option("--plan", is_flag=False, flag_value="", metavar="[TOKENS]", help="List objects that a budget would drop.")
@common
def context(run: Invocation, /, revision: str | None, **given: Any) -> None:  # noqa: ANN401 - click's options
    """Show the context of a session, block by block.

    Each block is shown with its reason. Without a moment in REV, the command shows the next context and records
    nothing: the window of the next request if the session has requests, else the next text. ctx context @N shows what
    the model received at turn N: the newest request of the turn, or its newest text if it has no request. REV is a
    session, SESSION@TURN, @~N (turns back), @{TIME} or a context id; see ctx --help. --why considers only requests if
    the session has any.

    --format shows the body of the next request and records nothing. --record also records it, so that the next request
    continues it. A model, provider or list of tools that differs from the harness's then breaks the harness's prompt
    cache and begins a context epoch.
    """
    mode = _mode(given)
    if mode == "commit" and revision is not None:
        raise ExclusiveOptions("--commit", "REV")
    with run.client() as client:
        if mode == "commit":
            _show_commit(run, client, located_commit(client, given["commit"]).commit)
        elif mode == "list":
            list_assemblies(run, client, session_id(client, revision))
        elif mode == "diff" and revision is None:
            _diff(run, client, None, *given["diff"])
        elif any(map(_is_given, given.values())) or (commit := _commit_with_id(client, revision)) is None:
            _show_session(run, client, locate(client, revision), mode, given)
        else:
            _show_commit(run, client, commit)


def _commit_with_id(client: SyncClient, id: str | None) -> str | None:
    """Return ``id`` if it is the id of a commit."""
    if id is not None and is_context_id(id):
        with suppress(NotFound):
            return client.commit_show(id).commit.commit
    return None


def _show_session(run: Invocation, client: SyncClient, found: Located, mode: str, given: dict[str, Any]) -> None:
    """Show the session or the moment ``found`` in ``mode``. Raises: ``Stop``."""
    id, key = found.session, assembly(client, found)
    if key and (mode or given["layout"]):
        option = f"--{mode or 'layout'}"
        reason = ": --why explains the newest window" if mode == "why" else ""
        message = f"{option} and a moment of a session exclude each other{reason}"
        raise Stop(USAGE, message, hint=f"write {id}, or leave {option} out")
    match mode:
        case "format":
            form, layout, model = given["format"], given["layout"], given["model"]
            dry_run = not given["record"]
            _show_request(run, client.context_assemble(id, format=form, layout=layout, model=model, dry_run=dry_run))
        case "why":
            explained = client.context_why(id, object_id(client, id, given["why"]))
            show_why(run, explained, labels_of(client, id, [explained.object])[explained.object])
        case "diff":
            _diff(run, client, id, *given["diff"])
        case "plan":
            _show_planned(run, client, id, _tokens(given["plan"]))
        case _:
            if mode == "turn":
                key = {"turn": given["turn"]}
            elif mode == "assembly":
                key = {"number": given["assembly"]}
            _show_seen(run, client, id, key, given["layout"], as_text=given["text"])


def _show_commit(run: Invocation, client: SyncClient, commit: str) -> None:
    made = client.commit_materialize(commit, format="narrative-v1")
    if run.screen.as_json:
        run.screen.document(made)
        return
    run.screen.content(made.content or "")
    told = f"{count(made.message_count, 'message')}, about {count(made.token_count, 'token')}"
    run.screen.note(f"{commit}, {count(made.commit_count, 'commit')} back to {made.stop}: {told}")


def _show_request(run: Invocation, made: AssembledContext) -> None:
    if run.screen.as_json:
        run.screen.document(made)
        return
    run.screen.content(_body(made))
    for each in made.omitted:
        run.screen.note(f"{each.kind} at {each.place[0]}.{each.place[1]} is left out: {each.reason}")
    for line in cost_lines(made):
        run.screen.note(line)


def _body(made: AssembledContext) -> str:
    """The request of ``made`` as indented JSON."""
    return msgspec.json.format(msgspec.json.encode(made.request)).decode()


def _content(shown: AssembledContext) -> str:
    """The request of ``shown``, or for text and blocks the text."""
    return shown.text if shown.request is None else _body(shown)


def bar(sections: tuple[SectionSize, ...], columns: int = BAR_COLUMNS) -> list[tuple[str, int]]:
    """Return the columns of each section: ``columns`` divided by tokens, at least one for a section with tokens."""
    filled = [each for each in sections if each.tokens > 0]
    total = sum(each.tokens for each in filled)
    if not total:
        return []
    exact = {each.section: each.tokens * columns / total for each in filled}
    widths = {section: max(1, int(width)) for section, width in exact.items()}
    for section in sorted(exact, key=lambda each: exact[each] - widths[each], reverse=True):
        if sum(widths.values()) < columns:
            widths[section] += 1
    while sum(widths.values()) > columns:
        widths[max(widths, key=lambda each: widths[each])] -= 1
    return [(each.section, widths[each.section]) for each in filled]


def labels_of(client: SyncClient, session: str, objects: Iterable[str]) -> dict[str, str]:
    """Return a readable name for each object: a file's path, a tool call's tool and command."""
    ids = [id for id in dict.fromkeys(objects) if not id.startswith(("chat:", "session:"))]
    labels = {id: short(id) for id in ids}
    with suppress(InvalidCall):  # not granted to this sandbox: the ids must do
        for first in range(0, len(ids), PATHS_MAX):
            found = client.object_bulk(ids[first : first + PATHS_MAX], session=session)
            labels |= {version.id: _label(version) for version in found.objects}
    return labels


def _label(version: ObjectVersion) -> str:
    if version.type != "toolcall":
        path = version.display_path or short(version.id)
        # The end of a path is more distinctive than its start.
        return path if len(path) <= LABEL_CHARS else f"…{path[1 - LABEL_CHARS :]}"
    tool, args = version.payload.get("tool", ""), version.payload.get("args")
    texts = [value for value in args.values() if isinstance(value, str)] if isinstance(args, dict) else []
    command = version.payload.get("args_display") or (texts[0] if texts else "")
    label = f"{tool}: {command}" if command else f"{tool} {short(version.id)}"
    return label if len(label) <= LABEL_CHARS else f"{label[: LABEL_CHARS - 1]}…"


def _show_seen(
    run: Invocation, client: SyncClient, session: str, key: AssemblyKey, layout: Layout | None, *, as_text: bool
) -> None:
    parts = ContextParts(text=run.screen.as_json or as_text, blocks=run.screen.as_json or not as_text)
    newest = None if key else newest_assembly(client, session)
    shown = client.context_show(session, **key, **parts) if key else _next(run, client, session, layout, newest, parts)
    if not key and (shown is None or not (shown.tokens or run.screen.as_json)):
        if (tip := client.commit_resolve(session=session).commit) is not None:
            run.screen.note(f"session {session} has assembled no context; this is the one of its newest commit")
            _show_commit(run, client, tip.commit)
            return
        if shown is None:
            hint = f"ctx session resume {session} makes it active again"
            message = f"session {session} is not active, and has no context and no commit"
            raise Stop(NOT_FOUND, message, hint=hint, symbol="assembly_not_found")
    assert shown is not None, "a recorded assembly was read"
    wants_labels = not (run.screen.as_json or as_text)
    header: list[str] = []
    if wants_labels and shown.cost:
        header = cost_lines(shown)
    elif wants_labels and newest is not None and shown.layout == "append":
        header = newest_cost_lines(client, newest, session)
    objects = [each.object for each in shown.blocks if each.object] + [each.object for each in shown.plan.dropped]
    _show(run, shown, header, labels_of(client, session, objects if wants_labels else ()), as_text=as_text)


def _next(
    run: Invocation,
    client: SyncClient,
    session: str,
    layout: Layout | None,
    newest: AssemblyRecord | None,
    parts: ContextParts,
) -> AssembledContext | None:
    """Return the context that the model would receive now, unrecorded; of a session that is not active, what its model
    received last, None without any. ``layout`` None: that of ``newest``, the newest request or else assembly."""
    layout = layout or (None if newest is None else newest.layout)
    try:
        return client.context_assemble(session, **parts, layout=layout, dry_run=True)
    except InvalidState as error:
        if error.code not in ("session_not_active", "session_closed"):
            raise
        try:
            turn = client.context_show(session, text=False, blocks=False).turn
        except NotFound:
            return None
        run.screen.note(f"{error.message}: this is what its model saw last")
        return client.context_show(session, turn=turn, **parts)


def _show(
    run: Invocation,
    shown: AssembledContext,
    header: list[str],
    labels: dict[str, str],
    *,
    as_text: bool,
) -> None:
    """Print ``shown``, with the lines ``header`` on its request, or the newest one before it."""
    screen = run.screen
    if screen.as_json:
        screen.document(shown)
        return
    if as_text:
        screen.content(_content(shown))
        return
    named = f"assembly {shown.number}" if shown.number else _NEXT[shown.layout]
    screen.line(
        f"{screen.paint(cell(shown.session), 'bold')}  turn {shown.turn}  {named}  "
        f"{count(shown.tokens, 'token')}  {size(shown.bytes)}"
    )
    if shown.number:
        kept = "" if shown.stable_prefix is None else f"  {size(shown.stable_prefix)} unchanged at the start"
        screen.line(f"context       {cell(shown.context_id)}{kept}")
    for line in header:
        screen.line(line)
    _show_bar(run, shown.sections)
    screen.line()
    screen.table(
        ("SECTION", "OBJECT", "TOKENS", "REASON", "TEXT"),
        [
            (_look(b.section)[0], labels.get(b.object or "", ""), count(b.tokens), b.reason, _start(b))
            for b in shown.blocks
        ],
        right=(2,),
    )
    if shown.plan.budget_tokens is not None:
        screen.line()
        _show_plan(run, shown.plan, labels)


def _look(section: str) -> tuple[str, Colour]:
    return _LOOKS.get(section, (cell(section[:1]), "cyan"))


def _show_bar(run: Invocation, sections: tuple[SectionSize, ...]) -> None:
    screen = run.screen
    looks = {each.section: _look(each.section) for each in sections}
    drawn = (screen.paint(looks[section][0] * width, looks[section][1]) for section, width in bar(sections))
    screen.line(f"[{''.join(drawn)}]")
    for each in sections:
        letter, colour = looks[each.section]
        name = f"{letter} {each.section:<15}"
        screen.line(
            f"{screen.paint(name, colour)} {count(each.tokens, 'token'):>16}  {count(each.entries, 'entry'):>13}"
        )


_WINDOW_ITEM: Final = re.compile(r"WINDOW_ITEM kind=(\S+)(?: id=\S+)?(?: tool=(\S+))?")


def _start(block: Block) -> str:
    """Return the start of a block without its structural line."""
    head, _, rest = block.text.partition("\n")
    if head.startswith("ACTIVE_CONTENT "):
        head = ""
    elif head.startswith("CHAT_MESSAGE role="):
        head = head.removeprefix("CHAT_MESSAGE role=").removeprefix("tool tool=") + ":"
    elif (item := _WINDOW_ITEM.match(head)) is not None:
        head = " ".join(filter(None, item.groups())) + ":"
    start = f"{head} {rest}".strip().replace("\n", " ")
    return start if len(start) <= _START_CHARS_MAX else f"{start[: _START_CHARS_MAX - 1].rstrip()}…"


def _show_planned(run: Invocation, client: SyncClient, session: str, budget_tokens: int | None) -> None:
    planned = client.context_plan(session, budget_tokens=budget_tokens).plan
    if run.screen.as_json:
        run.screen.document(planned)
    else:
        _show_plan(run, planned, labels_of(client, session, [each.object for each in planned.dropped]))


def _show_plan(run: Invocation, plan: BudgetPlan, labels: dict[str, str]) -> None:
    screen = run.screen
    if plan.budget_tokens is None:
        screen.line(f"no budget, {count(plan.tokens, 'token')}")
        return
    over = f", over by {count(plan.over_by)} whatever is left out" if plan.over_by else ""
    dropped = f", {count(plan.tokens_after)} without {count(len(plan.dropped), 'object')}" if plan.dropped else ""
    screen.line(f"budget {count(plan.budget_tokens, 'token')}, context {count(plan.tokens)}{dropped}{over}")
    if plan.dropped:
        rows = [(labels.get(each.object, short(each.object)), count(each.tokens), each.reason) for each in plan.dropped]
        screen.table(("LEFT OUT", "TOKENS", "REASON"), rows, right=(1,))


def _diff(run: Invocation, client: SyncClient, session: str | None, a: str, b: str) -> None:
    before, after = (_recorded(client, session, each) for each in (a, b))
    names = [f"assembly {each.number} (turn {each.turn})" for each in (before, after)]
    if before.session != after.session:
        names = [f"{each.session} {name}" for each, name in zip((before, after), names, strict=True)]
    lines = unified(_content(before), _content(after), *names)
    if run.screen.as_json:
        run.screen.document({"from": before.number, "to": after.number, "diff": "".join(lines)})
        return
    print_diff(run, lines)


def _recorded(client: SyncClient, session: str | None, which: str) -> AssembledContext:
    """Return the assembly ``which`` of ``session``, None for that of the revision or the default one."""
    if is_revision(which):
        found = locate(client, which, session)
        return client.context_show(found.session, **assembly(client, found), blocks=False)
    digits = which.removeprefix("t")
    if not (digits.isascii() and digits.isdigit()) or which == "0":
        hint = "write its number, from 1 on, or a revision: ctx context --diff 3 @5"
        raise Stop(USAGE, f"{which!r} is not an assembly", hint=hint)
    key: AssemblyKey = {"number": int(digits)} if digits == which else {"turn": int(digits)}
    return client.context_show(session or session_id(client, None), **key, blocks=False)


def _tokens(text: str) -> int | None:
    try:
        return int(text.replace("_", "").replace(",", "")) if text else None
    except ValueError:
        raise Stop(
            USAGE, f"--plan {text!r} is not a number of tokens", hint="write --plan 8000, or --plan alone"
        ) from None
