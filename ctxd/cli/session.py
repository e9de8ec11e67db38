"""``ctx session``: list, show, start and end sessions."""

import os
import shlex
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final, get_args

import click
import msgspec

from ctxd.cli import session_list
from ctxd.cli.call_failures import stop_for
from ctxd.cli.commit_lookup import located_commit, start_context
from ctxd.cli.common_options import (
    Invocation,
    WholeNumber,
    common,
    listing,
    revision_argument,
    session_argument,
    sessions_argument,
    streaming,
)
from ctxd.cli.exit_codes import FAILURE, NOT_FOUND, USAGE
from ctxd.cli.revision_lookup import Times, fork_times, locate, session_id, times
from ctxd.cli.revisions import is_revision
from ctxd.cli.session_lookup import named_session
from ctxd.cli.session_markdown import markdown
from ctxd.click_support import INTERRUPTED, Command, ExclusiveOptions, Group, Stop
from ctxd.formatting import count, moment
from ctxd.terminal import cell
from ctxd.transcripts.harness_labels import HARNESS
from ctxd.transcripts.record_decoding import Entry
from ctxd_client.errors import CallFailed, NotFound
from ctxd_client.session_values import as_mounts
from ctxd_client.sync import SyncClient
from ctxd_protocol.event_types import Event
from ctxd_protocol.limits import FRAME_BYTES_HOST_MAX, PAGE_ITEMS_MAX
from ctxd_protocol.methods.sessions import SessionOwnerResult, SessionResult, SessionResumeResult
from ctxd_protocol.session_types import CheckpointPolicy, Harness, Mount, Project, Removal, SessionView

_BATCH_EVENTS_MAX: Final = 500
_BATCH_BYTES: Final = 1024 * 1024
"""Maximum number of events, and of their bytes, in one write of an import: more would delay other sessions' writes."""

_EVENT_BYTES_MAX: Final = FRAME_BYTES_HOST_MAX - 4096
"""Maximum bytes of one event in JSON: it must fit in a line with the rest of the call."""


@click.group(
    cls=Group,
    lazy={"chat": "ctxd.cli.session_chat:chat"},
    examples="ctx session ls --state active\nctx session new demo --workdir /workspace",
)
@common
def session(run: Invocation) -> None:
    """List, show, start, fork, end and remove sessions."""


for command in (
    session_list.ls,
    session_list.archive,
    session_list.unarchive,
    session_list.title,
    session_list.label,
    session_list.moved,
):
    session.add_command(command)


@session.command(cls=Command, examples="ctx session hosts\nctx session hosts --json")
@common
def hosts(run: Invocation) -> None:
    """List the hosts on the shared log, with their sessions, lag and lease."""
    with run.client() as client:
        found = client.session_hosts().hosts
    if run.screen.as_json:
        run.screen.document(found)
        return
    run.screen.table(
        ("HOST", "SESSIONS", "RELEASED", "LAG", "LEASE"),
        [
            (
                each.host,
                count(each.sessions),
                count(each.released),
                count(each.lag_rows),
                "this host" if each.lease_left_ms is None else f"{each.lease_left_ms / 1000:.1f} s",
            )
            for each in found
        ],
        right=(1, 2, 3),
    )


@session.command(
    cls=Command, examples="ctx session show\nctx session show s1 --json\nctx session show 's1@{yesterday}'"
)
@revision_argument
@common
def show(run: Invocation, revision: str | None) -> None:
    """Show a session: its settings, and which objects are indexed, in the pool, active and pinned.

    REV may be a moment such as s1@12; see ctx --help.
    """
    session = revision
    with run.client() as client:
        if session and is_revision(session) and (at := times(client, past := locate(client, session))):
            _show(run, client.session_get(past.session, **at).session)
            return
        try:
            found = client.session_get(_here_or_elsewhere(client, session)).session
        except NotFound:
            if session is None or (owner := _owner(client, session)) is None:
                raise
            hint = "ctx session resume takes it over once it is paused there, or its host's lease has ended"
            raise Stop(NOT_FOUND, f"session {session} is {_whose(owner)}", hint=hint) from None
        owner = _owner(client, found.session)
    _show(run, found)
    if owner is not None and not run.screen.as_json:
        run.screen.line(f"{run.screen.paint('host     ', 'dim')} {cell(_whose(owner))}")


def _here_or_elsewhere(client: SyncClient, given: str | None) -> str:
    """As ``session_id``, but also return the full id of a session that another host owns."""
    try:
        return session_id(client, given)
    except (NotFound, Stop) as missing:
        symbol = missing.symbol if isinstance(missing, Stop) else missing.code
        if symbol != "session_not_found" or given is None or _owner(client, given) is None:
            raise
        return given


def _owner(client: SyncClient, session: str) -> SessionOwnerResult | None:
    """Return the owner of the session; None without other hosts, for an unknown session, or if the node is
    unavailable."""
    try:
        return client.session_owner(session)
    except CallFailed as error:
        if error.code in ("unsupported", "session_not_found", "store_unavailable", "method_not_found"):
            return None
        raise


def _whose(owner: SessionOwnerResult) -> str:
    whose = f"owned by this host, {owner.host}" if owner.here else f"owned by host {owner.host}"
    free = ", released: any host may resume it" if owner.released else ""
    kept = f"; what was written here after the takeover is in session {owner.branch}" if owner.branch else ""
    return whose + free + kept


@session.command(
    cls=Command,
    examples="ctx session new demo\nctx session new demo --id s1 --mount /workspace=. --budget 128000\n"
    "export CTXD_SESSION=$(ctx session new demo -q)",
)
@click.argument("agent")
@click.option("--id", metavar="SESSION", help="Id of the session [default: chosen by the daemon].")
@click.option(
    "--workdir", metavar="PATH", help="The agent's working directory [default: the current one, mapped by --mount]."
)
@click.option("--mount", multiple=True, metavar="AGENT=HOST", help="Map the agent's path AGENT to the host path HOST.")
@click.option("--detect-filesystems", is_flag=True, help="Assign paths outside mounts to their device's filesystem.")
@click.option("--system-prompt", metavar="TEXT", default="", help="The system prompt; @FILE reads it from a file.")
@click.option("--budget", type=WholeNumber(1), metavar="TOKENS", help="The token budget.")
@click.option("--label", multiple=True, metavar="KEY=VALUE", help="A label.")
@click.option(
    "--checkpoint",
    type=click.Choice(get_args(CheckpointPolicy)),
    default="none",
    help="Events after which the daemon commits the session.",
)
@click.option("--context", metavar="COMMIT|REV", help="Begin with this context: a commit, or a session such as s1@12.")
@listing
@common
def new(
    run: Invocation,
    agent: str,
    id: str | None,
    workdir: str | None,
    mount: tuple[str, ...],
    detect_filesystems: bool,
    system_prompt: str,
    budget: int | None,
    label: tuple[str, ...],
    checkpoint: CheckpointPolicy,
    context: str | None,
) -> None:
    """Start a session for AGENT (the name of the agent's template).

    Without --context it is empty.
    """
    mounts = as_mounts(_pairs(mount, "--mount", "AGENT=HOST"))
    for each in mounts:
        if not each.agent_prefix.startswith("/"):
            message = f"--mount {each.agent_prefix!r}: the agent's path is not absolute"
            raise Stop(USAGE, message, hint="write --mount /AGENT/PATH=HOST")
    # With --context, the default is the working directory of its session.
    here = "/" if workdir is not None or context is not None else _workdir_here(mounts)
    with run.client() as client:
        made = client.session_create(
            agent,
            session=id,
            workdir=here if workdir is None else os.path.abspath(workdir),
            detect_filesystems=detect_filesystems,
            mounts=mounts,
            system_prompt=text_or_file(system_prompt, "--system-prompt"),
            budget_tokens=budget,
            labels=_pairs(label, "--label", "KEY=VALUE"),
            checkpoint=checkpoint,
            context=None if context is None else start_context(client, context),
        )
    if run.screen.quiet:
        run.screen.line(made.session.session)
    elif run.screen.as_json:
        run.screen.document(made)
    else:
        _show(run, made.session)


@session.command(cls=Command, examples="ctx session pause s1")
@session_argument
@click.option("--wait/--no-wait", default=True, help="Wait until another host may resume it [default: wait].")
@common
def pause(run: Invocation, session: str | None, wait: bool) -> None:
    """Pause a session; nothing is lost."""
    with run.client() as client:
        done = client.session_pause(session_id(client, session), wait=wait)
    _changed(run, done)


@session.command(cls=Command, examples="ctx session resume s1")
@session_argument
@common
def resume(run: Invocation, session: str | None) -> None:
    """Reactivate a paused session; its files are checked.

    `ctx resume` instead starts a new session that continues your newest work.
    """
    with run.client() as client:
        done = client.session_resume(_here_or_elsewhere(client, session))
    found = done.reconciled
    files = (
        f": {count(found.unchanged, 'file')} unchanged, {count(len(found.updated))} updated, "
        f"{count(len(found.deleted))} deleted, {count(len(found.orphaned))} out of reach, {count(found.unread)} unread"
    )
    _changed(run, done, files)


@session.command(cls=Command, examples="ctx session close s1")
@session_argument
@common
def close(run: Invocation, session: str | None) -> None:
    """End a session for good; it stays readable."""
    with run.client() as client:
        done = client.session_close(session_id(client, session))
    _changed(run, done)


@session.command(
    cls=Command,
    examples="ctx session fork s1\nctx session fork s1@12 --id s1-again\nctx session fork s1 --at ctx-1a2b3c4d\n"
    "export CTXD_SESSION=$(ctx session fork -q)",
)
@revision_argument
@click.option("--at", metavar="COMMIT", help="Continue from a commit of the session: an id, a tag, HEAD~2.")
@click.option("--id", metavar="SESSION", help="Id of the new session [default: chosen by the daemon].")
@listing
@common
def fork(run: Invocation, revision: str | None, at: str | None, id: str | None) -> None:
    """Start a session that continues another one, from now, from REV or from a commit.

    The fork begins with the settings, the chat, the sets and the context of that moment, such as s1@12. Later changes
    in one session do not appear in the other. To rewind a session, fork it at an earlier moment and continue in the
    fork. `ctx fork` can also change settings, and starts from commits of other sessions.
    """
    with run.client() as client:
        moment = Times()
        session = revision
        if revision is not None and is_revision(revision):
            past = locate(client, revision)
            # The id of a session may look like a moment.
            if at is not None and not past.revision.is_now:
                raise ExclusiveOptions("--at", "a moment in REV", reason="both name where the fork begins")
            moment, session = fork_times(client, past), past.session
        commit = None
        if at is not None:
            found = located_commit(client, at, session)
            commit, session = found.commit, session or found.session
        done = client.session_fork(session_id(client, session), commit=commit, fork=id, **moment)
    if run.screen.quiet:
        run.screen.line(done.session)
    elif run.screen.as_json:
        run.screen.document(done)
    else:
        run.screen.line(f"{done.session} continues from {done.base} at turn {done.turn:,}")
        note_default(run, done.session)


def note_default(run: Invocation, session: str) -> None:
    """Note how to make a new ``session`` the default one: its source is usually open as well."""
    run.screen.note(f"export CTXD_SESSION={shlex.quote(session)}")


@session.command(cls=Command, examples="ctx session rm s1\nctx session rm s1 s2 s3 --json")
@sessions_argument
@common
def rm(run: Invocation, sessions: tuple[str, ...]) -> None:
    """Move sessions to the trash: listings omit them, and they refuse writes.

    `ctx session restore` restores them until `ctxd gc` erases them for good.
    """
    _each(run, sessions, lambda client, each: client.session_remove(each))
    if not run.screen.as_json:
        run.screen.note("moved to the trash; ctx session restore SESSION brings one back")


@session.command(cls=Command, examples="ctx session restore s1\nctx session ls --state removed")
@sessions_argument
@common
def restore(run: Invocation, sessions: tuple[str, ...]) -> None:
    """Bring sessions back from the trash, in the state that they had."""
    _each(run, sessions, lambda client, each: client.session_restore(each))


def _each(run: Invocation, names: Sequence[str], change: Callable[[SyncClient, str], SessionResult]) -> None:
    """Change the sessions ``names``; none unless every one is found."""
    with run.client() as client:
        ids = dict.fromkeys([named_session(client, name) for name in names])
        done: list[SessionResult] = []
        for id in ids:
            done.append(change(client, id))
            if not run.screen.as_json:
                _changed(run, done[-1])
    if run.screen.as_json:
        run.screen.document({"sessions": done})


@session.command(
    "import",
    cls=Command,
    examples="ctx session import ~/.claude/projects/-srv-app/0b1c….jsonl\nctx session import rollout.jsonl --json",
)
@click.argument("file", type=click.Path(path_type=Path))
@click.option(
    "--id", "--session", "wanted", metavar="SESSION", help="Id of the new session [default: chosen by the daemon]."
)
@common
def import_(run: Invocation, file: Path, wanted: str | None) -> None:
    """Store one transcript as the chat of a new session.

    FILE is a session of Claude Code, codex, pi or opencode; it is only read. Every event is kept as a typed event,
    outputs of tools too; `ctx session chat` shows them. `ctx capture --from FILE` commits one transcript instead, and
    `ctx import` all sessions of a harness.
    """
    # Imported here, as other commands do not need the readers of transcripts.
    from ctxd.cli.transcript import opened

    with opened(file) as (_, entries):
        # The whole file is checked before a session is created, so that a file that cannot be stored leaves nothing.
        for entry in entries:
            _require_storable(file, entry)
    with run.client() as client:
        events = 0
        with opened(file) as (format, entries):
            # The name may be in another encoding than UTF-8.
            name = os.fsencode(file.name).decode(errors="replace")
            labels = {"transcript": name, **({HARNESS: format} if format in get_args(Harness) else {})}
            made = client.session_create(format, session=wanted, labels=labels).session.session
            try:
                for batch in _batches(entry.event for entry in entries):
                    client.session_append(made, events=batch)
                    events += len(batch)
            except KeyboardInterrupt as interrupt:
                raise _broken_off(Stop(INTERRUPTED, "interrupted"), made, events, exact=False) from interrupt
            except CallFailed as error:
                raise _broken_off(stop_for(error), made, events, exact=error.outcome != "unknown") from error
            except (OSError, ValueError, sqlite3.Error) as error:
                stop = Stop(FAILURE, f"cannot read {file}: {error}", symbol="unreadable")
                raise _broken_off(stop, made, events) from error
    if run.screen.as_json:
        run.screen.document({"session": made, "format": format, "events": events})
    else:
        run.screen.line(f"{made} holds {count(events, 'event')} of {cell(file.name)}")


def _require_storable(file: Path, entry: Entry) -> None:
    """Raises: Stop if the event of ``entry`` does not fit in one call."""
    size = len(msgspec.json.encode(entry.event))
    if size > _EVENT_BYTES_MAX:
        message = f"{file}:{entry.line}: the event has {size:,} bytes; the maximum is {_EVENT_BYTES_MAX:,}"
        hint = "nothing was imported; remove that line from a copy of the file, and import the copy"
        raise Stop(FAILURE, message, hint=hint, symbol="too_large")


def _broken_off(stop: Stop, session: str, events: int, *, exact: bool = True) -> Stop:
    """``stop`` with the incomplete session of an import added, and the remedy. Not ``exact``: a write was in flight."""
    message = (
        f"{stop.message}; session {session} holds {'' if exact else 'at least '}the first {count(events, 'event')}"
    )
    hint = f"run ctx session close {session}, then import again as another session"
    return Stop(stop.code, message, hint=f"{stop.hint}; {hint}" if stop.hint else hint, symbol=stop.symbol)


def _batches(events: Iterable[Event]) -> Iterator[list[Event]]:
    """``events`` in batches for one call each."""
    batch: list[Event] = []
    size = 0
    for event in events:
        more = len(msgspec.json.encode(event))
        if batch and (len(batch) == _BATCH_EVENTS_MAX or size + more > _BATCH_BYTES):
            yield batch
            batch, size = [], 0
        batch.append(event)
        size += more
    if batch:
        yield batch


@session.command(cls=Command, examples="ctx session export s1 > s1.md\nctx session export s1 --json > s1.jsonl")
@session_argument
@streaming
def export(run: Invocation, session: str | None) -> None:
    """Write a transcript as Markdown, with --json as JSON lines.

    It has the prompt, the turns, the tool calls and the files that the session read. Every secret that matches a rule
    is redacted, whatever the session's policy.
    """
    from ctxd.cli.session_chat import note_conversation_in_commits

    with run.client() as client:
        id = session_id(client, session)
        records = _records(client, id)
        if run.screen.as_json:
            for record in records:
                run.screen.record(record)
        else:
            for part in markdown(records):
                run.screen.content(part)
        if not client.session_events(id, limit=1).events:
            note_conversation_in_commits(run, client, id)


def _records(client: SyncClient, session: str) -> Iterator[dict[str, Any]]:
    cursor: str | None = None
    while True:
        page = client.session_export(session, limit=PAGE_ITEMS_MAX, cursor=cursor)
        yield from page.records
        cursor = page.next_cursor
        if cursor is None:
            return


def _changed(run: Invocation, done: SessionResult | SessionResumeResult, more: str = "") -> None:
    if run.screen.as_json:
        run.screen.document(done)
    else:
        run.screen.line(f"{done.session.session} is {done.session.state}{more}")


def _turns(found: SessionView) -> str:
    if found.turn_count or found.recorded is None:
        return count(found.turn_count)
    return f"in its commits (ctx log {shlex.quote(found.session)})"


def _show(run: Invocation, found: SessionView) -> None:
    if run.screen.as_json:
        run.screen.document(found)
        return
    pinned = set(found.pinned_set)
    lines = [
        ("session", found.session),
        ("agent", f"{found.agent} ({found.principal})"),
        ("state", found.state),
        *([("title", found.title)] if found.title else []),
        *([("archived", "left out of lists; ctx session unarchive lists it again")] if found.archived else []),
        *([("removed", _removal(found.removed))] if found.removed is not None else []),
        *([("began", moment(began))] if found.recorded and (began := found.recorded.began_at) is not None else []),
        ("created", moment(found.created_at)),
        ("updated", moment(found.updated_at)),
        ("turns", _turns(found)),
        ("workdir", found.workdir),
        *_project_lines(found.project),
        *([("devices", "distinguish filesystems")] if found.detect_filesystems else []),
        *(("mount", f"{each.agent_prefix} is {each.canonical_prefix}") for each in found.mounts),
        ("collapse", f"{count(found.collapse.per_turn, 'tool call')} a turn, {count(found.collapse.turns, 'turn')}"),
        ("budget", "none" if found.budget_tokens is None else f"{count(found.budget_tokens, 'token')}"),
        *([("commits", f"at each {found.checkpoint}")] if found.checkpoint != "none" else []),
        *(("label", f"{key}={value}") for key, value in found.labels.items()),
        *(
            ("granted", f"{name} {value if isinstance(value, str) else msgspec.json.encode(value).decode()}")
            for name, value in (found.recorded.permissions if found.recorded is not None else {}).items()
        ),
        ("objects", f"{count(len(found.session_index))} indexed, {count(len(found.metadata_pool))} in the pool"),
        *(("active", each + (" (pinned)" if each in pinned else "")) for each in found.active_set),
    ]
    for name, value in lines:
        run.screen.field(name, cell(value), 9)


def _project_lines(project: Project | None) -> Iterator[tuple[str, str]]:
    if project is None:
        return
    yield "project", f"{project.directory} {project.path}" if project.path else project.directory
    yield from (("remote", remote) for remote in project.remotes)
    yield from (("root", root) for root in project.roots)


def _removal(removed: Removal) -> str:
    how = "retired by ctxd gc, for" if removed.idle else "by"
    return f"{moment(removed.at)} {how} {removed.by}, {removed.via}; it was {removed.state}"


def _workdir_here(mounts: Sequence[Mount]) -> str:
    """Return the agent's path of the current directory, by the deepest of ``mounts`` that contains it."""
    here = Path.cwd()
    holding = [each for each in mounts if here.is_relative_to(each.canonical_prefix)]
    if not holding:
        return str(here)
    deepest = max(holding, key=lambda each: len(each.canonical_prefix))
    return str(Path(deepest.agent_prefix, here.relative_to(deepest.canonical_prefix)))


def _pairs(texts: tuple[str, ...], option: str, form: str) -> dict[str, str]:
    """Return the values of ``option``, which has the ``form`` KEY=VALUE. Raises: ``Stop``, also for a repeated key."""
    pairs: dict[str, str] = {}
    for text in texts:
        key, equals, value = text.partition("=")
        if not (key and equals):
            lacks = f"{form.partition('=')[0]} before '='" if equals else "'='"
            raise Stop(USAGE, f"{option} {text!r} has no {lacks}", hint=f"write {option} {form}")
        if key in pairs:
            raise Stop(USAGE, f"{option} gives {key!r} twice", hint="leave one of them out")
        pairs[key] = value
    return pairs


def text_or_file(text: str, option: str) -> str:
    """Return the value of ``option``: ``text``, or the content of the file that ``@FILE`` names. Raises: ``Stop``."""
    if not text.startswith("@"):
        return text
    try:
        if not text[1:]:
            raise Stop(USAGE, f"{option} has no file name after @", hint=f"write {option} @FILE")
        return Path(text[1:]).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = os.strerror(error.errno) if isinstance(error, OSError) and error.errno else "it is not UTF-8"
        raise Stop(USAGE, f"{option} {text}: {reason}", hint="name a readable text file") from error
