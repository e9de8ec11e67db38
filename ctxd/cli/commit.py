"""``ctx checkpoint``, ``log``, ``show``, ``materialize``, ``resolve``, ``annotate``, ``tag``, ``branch`` and ``diff``:
context commits."""

import sys
from base64 import b64encode
from collections import Counter
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import Final, TypedDict, get_args

import click
import msgspec

from ctxd.cli.artifact import input_file, sent_upload
from ctxd.cli.commit_context_download import download, downloaded
from ctxd.cli.commit_lines import beginnings, commit_line
from ctxd.cli.commit_lookup import is_tag, located_commit, newest_commit, owned_moment, tagged_commit
from ctxd.cli.common_options import (
    Invocation,
    common,
    listing,
    note_next_page,
    paged,
    require_one_scope,
    session_option,
)
from ctxd.cli.exit_codes import CONFLICT, NOT_FOUND, USAGE
from ctxd.cli.id_completion import commits as complete_commits
from ctxd.cli.id_completion import tags as complete_tags
from ctxd.cli.revision_lookup import located_assembly, session_id, session_if_any
from ctxd.cli.unified_diff import print_diff, unified
from ctxd.cli.whole_files import whole_file
from ctxd.click_support import Command, ExclusiveOptions, Stop
from ctxd.formatting import count, moment, size
from ctxd.terminal import cell
from ctxd_client.errors import CallFailed, NotFound
from ctxd_client.sync import SyncClient
from ctxd_protocol.context_types import AssembledContext
from ctxd_protocol.ids import is_context_id
from ctxd_protocol.methods.commits import Checkpoint, Commit, CommitMaterializeResult, CommitType

_SENT_WHOLE_MAX: Final = 512 * 1024
"""Maximum bytes of a delta sent in one call: other calls wait no longer than for that."""

_NARRATIVE: Final = "narrative-v1"

_WITHOUT_FILE: Final = "see ctx checkpoint --help; ctx current -s SESSION commits a session's new events without a file"


class _Delta(TypedDict, total=False):
    """The delta of a call: its bytes in base64, or the address of an artifact with them."""

    delta_base64: str
    artifact: str


def _sent(run: Invocation, client: SyncClient, path: str) -> _Delta:
    """Read a file or standard input; a delta too long for one call is sent as an artifact, in pieces."""
    with input_file(path) as file:
        first = file.read(_SENT_WHOLE_MAX + 1)
        if len(first) <= _SENT_WHOLE_MAX:
            return {"delta_base64": b64encode(first).decode()}
        upload = sent_upload(run, client, file, first)
    return {"artifact": client.artifact_put(upload=upload, policy="ephemeral").artifact}


commit_argument = click.argument("commit", metavar="[COMMIT]", required=False, shell_complete=complete_commits)
"""A commit; see ``ctxd.cli.commit_lookup``."""


@click.command(
    cls=Command,
    examples="ctx checkpoint --format claude-code-v1 delta.jsonl\n"
    "tail -n +40 session.jsonl | ctx checkpoint --format claude-code-v1 -m Fixed. -\n"
    "ctx checkpoint --format events-v1 --parent HEAD~1 --type compaction new.cbor",
)
@click.argument("file", metavar="FILE|-", required=False)
@click.option("--format", metavar="FORMAT", help="Format of the delta, such as events-v1.  [required]")
@click.option(
    "--parent",
    metavar="COMMIT",
    shell_complete=complete_commits,
    help="Commit that the delta continues [default: the newest of the session].",
)
@click.option("--root", is_flag=True, help="Make the commit a root, without a parent.")
@click.option("--type", "kind", type=click.Choice(get_args(CommitType)), default="delta", show_default=True)
@click.option("--trigger", type=click.Choice(get_args(Checkpoint)), default="explicit", show_default=True)
@click.option("-m", "--summary", default="", metavar="TEXT", help="Summary of the agent's current understanding.")
@click.option("--template", default="", metavar="NAME", help="The agent's template.")
@click.option("--ticket", default="", metavar="ID", help="The ticket that is worked on.")
@click.option("--thread", default="", metavar="ID", help="The thread of the conversation.")
@session_option
@common
def checkpoint(
    run: Invocation,
    file: str | None,
    format: str | None,
    parent: str | None,
    root: bool,
    kind: CommitType,
    trigger: Checkpoint,
    summary: str,
    template: str,
    ticket: str,
    thread: str,
    session: str | None,
) -> None:
    """Commit FILE, a delta with the events since the parent commit.

    '-' reads the delta from standard input. To commit the new events of a session, use `ctx current`; it needs no file.
    """
    if file is None or format is None:
        missing = "argument 'FILE|-'" if file is None else "option '--format'"
        raise Stop(USAGE, f"missing {missing}", hint=_WITHOUT_FILE)
    if root and parent is not None:
        raise ExclusiveOptions("--root", "--parent")
    with run.client() as client:
        before: str | None = None
        if parent is not None:
            before = located_commit(client, parent, session).commit
        elif not root and (newest := newest_commit(client, session)) is not None:
            before = newest.commit
        sent = _sent(run, client, file)
        made = client.commit_checkpoint(
            format,
            session=session_if_any(client, session, refuses_several=True),
            **sent,
            parent=before,
            commit_type=kind,
            checkpoint=trigger,
            summary=summary,
            template=template,
            ticket_id=ticket,
            thread_id=thread,
        ).commit
        if (artifact := sent.get("artifact")) is not None and made.artifact_ref != artifact:
            # The artifact has secrets, which were redacted in the commit.
            client.object_purge(f"artifact:{artifact}")
    from ctxd.formats.delta_formats import DELTA_FORMATS

    if format not in DELTA_FORMATS:
        known = ", ".join(sorted(DELTA_FORMATS))
        effect = "the delta is stored as it is, and its messages are not counted"
        run.screen.note(f"unknown format {format}: {effect}; known formats: {known}")
    if run.screen.as_json:
        run.screen.document(made)
    else:
        run.screen.line(made.commit)


@click.command(
    cls=Command, examples="ctx log\nctx log HEAD~3 --limit 5\nctx log --graph -s s1\nctx log --no-summary -q"
)
@commit_argument
@click.option("--graph", is_flag=True, help="Draw all branches of the session, and the chain that it continues.")
@click.option("--all", "everything", is_flag=True, help="The commits of all sessions, newest first.")
@click.option("--no-summary", "bare", is_flag=True, help="Only commits without a summary, newest first.")
@session_option
@paged
@listing
@common
def log(
    run: Invocation,
    commit: str | None,
    graph: bool,
    everything: bool,
    bare: bool,
    session: str | None,
    limit: int,
    cursor: str | None,
) -> None:
    """Show COMMIT and its ancestors, newest first.

    COMMIT defaults to the newest of the session. It is ctx-1a2b3c4d, a tag, HEAD, a session, s1@12 (turn 12), or
    PRINCIPAL@TIME; HEAD~2 is two commits back. With --graph, --all or --no-summary, list all commits that match
    instead.
    """
    for option, is_given in (("--graph", graph), ("--all", everything), ("--no-summary", bare)):
        if commit is not None and is_given:
            raise ExclusiveOptions("COMMIT", option)
    require_one_scope(everything, session)
    with run.client() as client:
        if graph or everything or bare:
            id = None if everything else session_if_any(client, session, refuses_several=True)
            if cursor is not None and is_context_id(cursor):
                found, next_cursor = _chain(client, cursor, limit)
            else:
                page = client.commit_list(session=id, without_summary=bare, limit=limit, cursor=cursor)
                found, next_cursor = page.commits, page.next_cursor
                if graph and id is not None and not bare and next_cursor is None:
                    next_cursor = _before_session(client, id, found)
                    if next_cursor is not None and len(found) < limit:
                        more, next_cursor = _chain(client, next_cursor, limit - len(found))
                        found += more
        else:
            found, next_cursor = _chain(client, cursor or located_commit(client, commit, session).commit, limit)
        if run.screen.listing(found, [each.commit for each in found], next_cursor=next_cursor):
            return
        texts = beginnings(client, found)
    rows = drawn(found) if graph else [("", each) for each in found]
    for lanes, each in rows:
        text = "" if each is None else texts.get(each.commit, "")
        run.screen.line(lanes if each is None else commit_line(run, each, text, lanes=lanes))
    note_next_page(run, next_cursor)


def _chain(client: SyncClient, tip: str, limit: int) -> tuple[tuple[Commit, ...], str | None]:
    """``tip`` and its ancestors, at most ``limit`` in all, and the id of the next ancestor, if any."""
    history = client.commit_history(tip, depth=limit)
    return history.commits, history.next_commit


def _before_session(client: SyncClient, session: str, oldest: tuple[Commit, ...]) -> str | None:
    """The commit that ``session`` continues, found by its ``oldest`` commits; None if it begins a chain."""
    if not oldest:
        first = newest_commit(client, session)
        return None if first is None else first.commit
    own = {each.commit for each in oldest}
    parent = next((each.parent for each in reversed(oldest) if each.parent and each.parent not in own), None)
    # The graph ends at a parent that a sandbox may not see, and at one of the session, which an earlier page has shown.
    with suppress(NotFound):
        return parent if parent and client.commit_show(parent).commit.session != session else None
    return None


def drawn(commits: tuple[Commit, ...]) -> list[tuple[str, Commit | None]]:
    """The lines of a graph of ``commits``, newest first: lanes, and the commit of the line. Pure."""
    lanes: list[str | None] = []
    lines: list[tuple[str, Commit | None]] = []
    for each in _children_first(commits):
        mine = [number for number, waits in enumerate(lanes) if waits == each.commit]
        if not mine:
            mine = [len(lanes)]
            lanes.append(each.commit)
        first, *others = mine
        if others:
            # Branches join in the lane of their common parent.
            joining = list("| " * len(lanes))
            for number in others:
                joining[2 * number - 1 : 2 * number + 1] = "/ "
            lines.append(("".join(joining), None))
            lanes = [waits for number, waits in enumerate(lanes) if number not in others]
        lines.append(("".join("|*"[number == first] + " " for number in range(len(lanes))), each))
        lanes[first] = each.parent
        if each.parent is None:
            del lanes[first]
    return lines


def _children_first(commits: tuple[Commit, ...]) -> list[Commit]:
    """``commits`` in their order, except that parents follow their children: imported children may be older."""
    by_id = {each.commit: each for each in commits}
    children = Counter(each.parent for each in commits)
    ordered: list[Commit] = []
    waiting: set[str] = set()
    for each in commits:
        if children[each.commit]:
            waiting.add(each.commit)
            continue
        following: Commit | None = each
        while following is not None:
            ordered.append(following)
            children[following.parent] -= 1
            parent = by_id.get(following.parent or "")
            is_due = parent is not None and parent.commit in waiting and not children[parent.commit]
            following = parent if is_due else None
    return ordered


@click.command(cls=Command, examples="ctx show\nctx show HEAD~1\nctx show ctx-1a2b3c4d --json")
@commit_argument
@click.option("--content/--no-content", default=True, help="Include or omit the messages.")
@session_option
@common
def show(run: Invocation, commit: str | None, content: bool, session: str | None) -> None:
    """Show COMMIT: its metadata, and the content that it adds to its parent.

    COMMIT defaults to the newest of the session. A purged commit has only its metadata. If COMMIT is the id of an
    assembly (a recorded context), show that assembly.
    """
    with run.client() as client:
        if commit is not None and is_context_id(commit) and not _is_commit(client, commit):
            owner, record = located_assembly(client, commit, session)
            _show_assembly(run, client.context_show(owner, number=record.number, blocks=False), content=content)
            return
        found = located_commit(client, commit, session)
        shown = client.commit_show(found.commit)
        delta = ""
        if content and not run.screen.as_json and found.artifact_ref:
            delta = _messages(client, found.commit)
    if run.screen.as_json:
        run.screen.document({"commit": shown.commit, "children": shown.children})
        return
    screen = run.screen
    screen.line(screen.paint(f"commit {found.commit}", "yellow"))
    for name, value in _metadata(found):
        screen.line(f"{name + ':':<11}{cell(value)}")
    for child in shown.children:
        screen.line(f"child:     {child}")
    if found.summary:
        screen.line()
        for text in found.summary.split("\n"):
            screen.line(f"    {cell(text)}".rstrip())
    if delta:
        screen.line()
        screen.content(delta)


def _messages(client: SyncClient, commit: str) -> str:
    """The content that ``commit`` adds, as text without the title, which is for an agent that continues it."""
    from ctxd.formats.narrative_v1 import TITLE

    content, made = _content(client, commit, commit, _NARRATIVE)
    return str(content).removeprefix(TITLE).removeprefix("\n") if made.format == _NARRATIVE else str(content)


def _is_commit(client: SyncClient, id: str) -> bool:
    try:
        client.commit_show(id)
    except NotFound:
        return False
    return True


def _show_assembly(run: Invocation, shown: AssembledContext, *, content: bool) -> None:
    screen = run.screen
    if screen.as_json:
        screen.document(shown)
        return
    screen.line(screen.paint(f"assembly {shown.context_id}", "yellow"))
    screen.line(f"session:   {cell(shown.session)}, assembly {shown.number}, turn {shown.turn}")
    screen.line(f"size:      {count(shown.tokens, 'token')}, {size(shown.bytes)}")
    if content:
        screen.line()
        screen.content(shown.text if shown.request is None else msgspec.json.encode(shown.request).decode() + "\n")


def _metadata(commit: Commit) -> list[tuple[str, str]]:
    rows = [
        ("parent", commit.parent or "none: a root"),
        ("type", f"{commit.commit_type}, {commit.format}, {commit.checkpoint}"),
        ("principal", commit.principal + (f" on {commit.machine}" if commit.machine else "")),
        ("session", commit.session or ""),
        ("template", commit.template),
        ("ticket", commit.ticket_id),
        ("thread", commit.thread_id),
        ("tags", ", ".join(commit.tags)),
        ("created", moment(commit.created_at_ms)),
        ("messages", f"{count(commit.message_count)}, about {count(commit.token_count, 'token')}"),
        ("artifact", commit.artifact_ref or "purged"),
    ]
    return [(name, value) for name, value in rows if value]


@click.command(
    cls=Command,
    examples="ctx materialize --format claude-code-v1 > context.jsonl\n"
    "ctx materialize HEAD~2 --stop root -o context.cbor\nctx materialize ctx-1a2b3c4d --format narrative-v1\n"
    "ctx materialize --counts --json",
)
@commit_argument
@click.option(
    "--stop", default="compaction", show_default=True, metavar="compaction|root|COMMIT", help="Oldest commit to read."
)
@click.option(
    "--format", metavar="FORMAT",
    help="Format of the context: events-v1, bureau-agent-v1, claude-code-v1, narrative-v1 or raw-v1 [default: that of "
    "the commits]. Other formats, such as codex-v1, require that all commits have them; else narrative-v1 is written.",
)  # fmt: skip
@click.option("--counts", is_flag=True, help="Print only the counts.")
@click.option(
    "-o", "--output", type=click.Path(dir_okay=False, path_type=Path), metavar="FILE",
    help="Write the context to FILE, whole or not at all.",
)  # fmt: skip
@session_option
@common
def materialize(
    run: Invocation,
    commit: str | None,
    stop: str,
    format: str | None,
    counts: bool,
    output: Path | None,
    session: str | None,
) -> None:
    """Print the conversation that an agent would continue from COMMIT.

    COMMIT defaults to the newest of the session. The context has the format of its commits unless --format names
    another. Commits of the daemon and of the client library have the format events-v1, which is binary.
    """
    if output is not None and (counts or run.screen.as_json):
        raise ExclusiveOptions("-o", "--counts" if counts else "--json", reason="only the context is written to FILE")
    with run.client() as client:
        tip = located_commit(client, commit, session).commit
        last = stop if stop in ("compaction", "root") else located_commit(client, stop, session).commit
        if counts or run.screen.as_json:
            made = client.commit_materialize(tip, stop=last, format=format, content=not counts)
        elif output is None and run.screen.terminal:
            content, made = _content(client, tip, last, format)
            if isinstance(content, bytes):
                hint = "write it to a file with -o FILE, or read it with --format narrative-v1"
                raise Stop(USAGE, f"the format {made.format} is binary", hint=hint)
            run.screen.content(content)
        else:
            with nullcontext(sys.stdout.buffer) if output in (None, Path("-")) else whole_file(output) as file:
                made = download(client, tip, last, format, file.write)
    if run.screen.as_json:
        run.screen.document(made)
    elif counts:
        run.screen.line(_counts(made))
    else:
        if format is not None and made.format != format:
            run.screen.note(f"the commits cannot be written as {format}; the output is {made.format}")
        run.screen.note(_counts(made))


def _content(
    client: SyncClient, commit: str, stop: str, format: str | None
) -> tuple[str | bytes, CommitMaterializeResult]:
    """A context of any size: text, or bytes if it is not text."""
    content, made = downloaded(client, commit, stop=stop, format=format)
    try:
        return content.decode(), made
    except UnicodeDecodeError:
        return content, made


def _counts(made: CommitMaterializeResult) -> str:
    lost = "; lost: " + ", ".join(f"{each.part} ({each.times:,})" for each in made.lost) if made.lost else ""
    told = f"{count(made.commit_count, 'commit')} back to {made.stop}: {count(made.message_count, 'message')}"
    return (
        f"{told}, about {count(made.token_count, 'token')}, {size(made.size)} of {made.format}, tier: {made.tier}{lost}"
    )


@click.command(
    cls=Command, examples="ctx resolve uid:1000@13:44\nctx resolve 'uid:1000@{2 hours ago}'\nctx resolve @2h"
)
@click.argument("principal", metavar="PRINCIPAL@TIME")
@common
def resolve(run: Invocation, principal: str) -> None:
    """Print the newest commit that PRINCIPAL had made by TIME.

    PRINCIPAL defaults to the caller.
    """
    owner, at, until = owned_moment(principal, "write PRINCIPAL@TIME, such as uid:1000@2h")
    with run.client() as client:
        found = client.commit_resolve(principal=owner or None, at=at).commit
    if found is None:
        message = f"{f'{owner} has' if owner else 'you have'} no commit at or before {until}"
        raise Stop(NOT_FOUND, message, hint="ctx log --all lists commits", symbol="commit_not_found")
    if run.screen.as_json:
        run.screen.document(found)
    else:
        run.screen.line(found.commit)


@click.command(cls=Command, examples="ctx annotate -m 'The parser drops the last line.'\nctx annotate HEAD~1 -m ''")
@commit_argument
@click.option("-m", "--summary", required=True, metavar="TEXT", help="The new summary; an empty one removes it.")
@session_option
@common
def annotate(run: Invocation, commit: str | None, summary: str, session: str | None) -> None:
    """Set the summary of COMMIT.

    COMMIT defaults to the newest of the session.
    """
    with run.client() as client:
        id = located_commit(client, commit, session).commit
        made = client.commit_annotate(id, summary).commit
    _print_changed(run, made)


@click.command(cls=Command, examples="ctx tag before-refactoring\nctx tag before-refactoring HEAD~3\nctx tag -d old")
@click.argument("name", shell_complete=complete_tags)
@commit_argument
@click.option(
    "-d", "--delete", "--remove", "delete", is_flag=True,
    help="Remove the tag. With COMMIT, only if COMMIT has it; with -s, only if a commit of that session has it.",
)  # fmt: skip
@click.option("-f", "--force", is_flag=True, help="Move the tag if another commit has it.")
@session_option
@common
def tag(run: Invocation, name: str, commit: str | None, delete: bool, force: bool, session: str | None) -> None:
    """Tag COMMIT with NAME, or with -d remove the tag NAME.

    COMMIT defaults to the newest of the session; NAME then identifies it. Tags belong to a session: another session
    can use the same NAME for one of its own commits.
    """
    if not is_tag(name):
        hint = "a tag begins with a letter or digit; up to 127 letters, digits and . _ / - may follow"
        raise Stop(USAGE, f"{name!r} is not a valid tag", hint=hint)
    with run.client() as client:
        is_named = commit is not None or not delete
        id = (located_commit(client, commit, session) if is_named else _tagged(client, name, session)).commit
        # A tag is only removed from the named commit, and only moved with --force.
        expected = id if delete else None if force else ""
        try:
            made = client.commit_tag(id, name, remove=delete, expected=expected).commit
        except CallFailed as error:
            if error.code != "tag_conflict":
                raise
            if not delete and name in (made := client.commit_show(id).commit).tags:
                _print_changed(run, made)
                return
            hint = f"ctx tag -d {name} removes it from the commit that has it" if delete else "-f moves it"
            raise Stop(CONFLICT, error.message, hint=hint, symbol=error.code) from error
    _print_changed(run, made)


def _tagged(client: SyncClient, tag: str, session: str | None) -> Commit:
    """Return the commit with ``tag``, even if the name means something else, as those that earlier versions accepted.
    Raises: ``Stop``."""
    own = None if session is None else session_id(client, session)
    found = tagged_commit(client, tag, own, only_its=own is not None)
    if found is None:
        whose = "" if own is None else f" of session {own}"
        hint = "ctx log --all lists commits with their tags"
        raise Stop(NOT_FOUND, f"no commit{whose} has the tag {tag!r}", hint=hint, symbol="commit_not_found")
    return found


def _print_changed(run: Invocation, made: Commit) -> None:
    if run.screen.as_json:
        run.screen.document(made)
    else:
        run.screen.line(commit_line(run, made))


@click.command(cls=Command, examples="ctx branch\nctx branch --all -q")
@click.option("--all", "everything", is_flag=True, help="Of all sessions.")
@session_option
@paged
@listing
@common
def branch(run: Invocation, everything: bool, session: str | None, limit: int, cursor: str | None) -> None:
    """List the branch tips of a session, newest first.

    A branch tip is a commit without children.
    """
    require_one_scope(everything, session)
    with run.client() as client:
        id = None if everything else session_if_any(client, session, refuses_several=True)
        page = client.commit_list(session=id, tips=True, limit=limit, cursor=cursor)
        if run.screen.listing(page.commits, [each.commit for each in page.commits], next_cursor=page.next_cursor):
            return
        texts = beginnings(client, page.commits)
    for each in page.commits:
        chain = count(each.depth + 1, "commit")
        run.screen.line(commit_line(run, each, texts.get(each.commit, ""), chain=chain))
    note_next_page(run, page.next_cursor)


@click.command(cls=Command, examples="ctx diff HEAD~3\nctx diff ctx-1a2b3c4d HEAD\nctx diff left right --stop root")
@click.argument("before", metavar="COMMIT", shell_complete=complete_commits)
@click.argument("after", metavar="[COMMIT]", required=False, shell_complete=complete_commits)
@click.option(
    "--stop",
    type=click.Choice(["compaction", "root"]),
    default="compaction",
    show_default=True,
    help="Where contexts begin.",
)
@session_option
@common
def diff(run: Invocation, before: str, after: str | None, stop: str, session: str | None) -> None:
    """Compare the contexts of two commits as text.

    The second COMMIT defaults to the newest of the session.
    """
    with run.client() as client:
        names = [located_commit(client, text, session).commit for text in (before, after)]
        first, second = (str(_content(client, name, stop, _NARRATIVE)[0]) for name in names)
    lines = unified(first, second, *names)
    if run.screen.as_json:
        run.screen.document({"before": names[0], "after": names[1], "diff": "".join(lines)})
        return
    print_diff(run, lines)
