"""Hand-over of a context to a harness: writes a session file, and prints the command with which the harness resumes it.

The file has a new session id, so that no existing session is touched. The daemon's session for it is created at once:
it continues the commit, and the harness's hooks then record into it.
"""

import json
import os
import re
import secrets
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final, NamedTuple, NoReturn
from uuid import UUID, uuid4

import msgspec

from ctxd.cli.commit_context_download import downloaded
from ctxd.cli.common_options import Invocation
from ctxd.cli.exit_codes import FAILURE, NOT_FOUND, USAGE
from ctxd.click_support import Stop
from ctxd.clock import SystemClock
from ctxd.formats import events_v1
from ctxd.formats.cbor_array import items
from ctxd.formats.codex_v1 import timestamp
from ctxd.formats.harness_session import NewSession, written
from ctxd.formats.losses import Losses, content_loss
from ctxd.formats.translation import GONE, Output, reference_of, with_output
from ctxd.formatting import count, size
from ctxd.imports.handed_over_start import HandedOverStart
from ctxd.transcripts.harness_labels import HARNESS, NATIVE_SESSION
from ctxd.transcripts.harness_names import HARNESS_OF, HarnessCommand
from ctxd_client.errors import CallFailed, NotFound
from ctxd_client.sync import SyncClient
from ctxd_protocol.default_paths import state_home
from ctxd_protocol.event_types import Event
from ctxd_protocol.ids import captured_session_id
from ctxd_protocol.limits import PAGE_ITEMS_MAX
from ctxd_protocol.methods.commits import StartContext

CONTEXT_BYTES_MAX: Final = 256 * 1024 * 1024
"""Maximum size in bytes of a context that is handed over."""

_MODEL: Final = re.compile(r'(?:^|[{,])\s*"model"\s*:\s*"([^"/]+)/([^"]+)"', re.M)
_SLUG_CHARS_MAX: Final = 200
_TITLE_CHARS_MAX: Final = 100
_OUTPUTS_AT_ONCE: Final = 200
_BASE62: Final = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"


class HandedOver(NamedTuple):
    """Outcome of a hand-over. ``imports``: the command that must run before ``command``, empty for most harnesses."""

    session: str
    commit: str
    native_session: str
    file: str
    cwd: str
    imports: tuple[str, ...]
    command: tuple[str, ...]
    left_out: dict[str, int]


def hand_over(
    run: Invocation,
    harness: HarnessCommand,
    cwd: str | None,
    execute: bool,
    start: Callable[[SyncClient], StartContext],
    agent: str | None,
) -> None:
    """Write a session of ``harness`` that continues the context returned by ``start``, and print the command that
    resumes it; with ``execute``, replace this process with that command. Raises: Stop, CallFailed; the session is
    removed then, unless only the command failed."""
    place = _directory(cwd)
    if execute and shutil.which(harness) is None:
        raise Stop(FAILURE, f"{harness} is not on PATH", hint="install it, or leave --exec out", symbol="no_harness")
    model = _opencode_model() if harness == "opencode" else ("", "")
    new = NewSession(_native_id(harness, now := SystemClock().wall_ms()), place, now, model)
    file = _file(harness, new)
    with run.client() as client:
        context = start(client)
        made = client.session_create(
            agent or (None if context.principal is not None else HARNESS_OF[harness]),
            session=captured_session_id(HARNESS_OF[harness], new.id),
            context=context,
            workdir=place,
            labels={HARNESS: HARNESS_OF[harness], NATIVE_SESSION: new.id},
            checkpoint="turn",
        ).session.session
        try:
            commit, left_out = _write(client, made, harness, new, file, context.session or made)
        except BaseException:
            with suppress(CallFailed):  # The first failure is the one to report.
                client.session_remove(made)
            raise
    result = HandedOver(made, commit, new.id, str(file), place, *_commands(harness, new, file), left_out)
    _report(run, harness, result)
    if execute:
        _become(result)


def _write(
    client: SyncClient, session: str, harness: HarnessCommand, new: NewSession, file: Path, origin: str
) -> tuple[str, dict[str, int]]:
    """Write the file of ``session``, which continues ``origin``. Returns: its commit, and how often each part was left
    out."""
    commit = client.context_current(session=session).context_id
    if commit is None:
        hint = "name a commit, such as one that ctx log lists"
        raise Stop(NOT_FOUND, f"session {origin} has no commit to hand over", hint=hint)
    losses = Losses()
    found = _content(client, commit, harness, losses)
    events = _with_outputs(client, session, [*events_v1.events(items(found.content))])
    if client.commit_show(commit).commit.thread_id:
        # The context of a sub-agent: what it has done, and its callers before it, is the conversation to continue.
        events = [msgspec.structs.replace(event, sidechain=None) for event in events]
    new = new._replace(title=client.session_get(session).session.title[:_TITLE_CHARS_MAX])
    text = written(events, harness, new, own=found.is_own, losses=losses, first_format=found.first_format)
    if not text:
        raise Stop(NOT_FOUND, f"the context of {commit} has no message", hint="ctx log lists commits")
    client.session_annotate(session, labels=HandedOverStart.of(text, _count_events(client, session)).label)
    _create(file, text)
    return commit, {loss.part: loss.times for loss in losses.found()}


class _Content(NamedTuple):
    """A context as ``content``, an array of events. ``is_own``: all of it is from the harness to which it is handed
    over. ``first_format``: the format of its oldest delta."""

    content: bytes
    is_own: bool
    first_format: str


def _content(client: SyncClient, commit: str, harness: HarnessCommand, losses: Losses) -> _Content:
    """Return the context of ``commit``. Raises: Stop if it is too large."""
    made = client.commit_materialize(commit, format=events_v1.NAME, content=False)
    if made.size > CONTEXT_BYTES_MAX:
        limit = size(CONTEXT_BYTES_MAX)
        message = f"the context of {commit} has {made.size:,} bytes; the limit for a hand-over is {limit}"
        raise Stop(FAILURE, message, hint="start from a commit after a compaction")
    content, made = downloaded(client, commit, format=events_v1.NAME)
    for part in made.lost:
        losses.add(part.part, part.times)
    first_format = client.commit_show(made.stop or commit).commit.format
    if made.commit_count > PAGE_ITEMS_MAX:
        return _Content(content, False, first_format)
    commits = client.commit_history(commit, depth=made.commit_count).commits
    by_session = {session: _harness_of(client, session) for session in {each.session for each in commits}}
    harnesses = {by_session[each.session] or each.template for each in commits}
    return _Content(content, harnesses == {HARNESS_OF[harness]}, first_format)


def _count_events(client: SyncClient, session: str) -> int:
    counted, cursor = 0, None
    while True:
        page = client.session_events(session, limit=PAGE_ITEMS_MAX, cursor=cursor)
        counted, cursor = counted + len(page.events), page.next_cursor
        if cursor is None:
            return counted


def _harness_of(client: SyncClient, session: str | None) -> str | None:
    if session is None:
        return None
    try:
        return client.session_get(session).session.labels.get(HARNESS)
    except NotFound:
        return None


def _with_outputs(client: SyncClient, session: str, events: list[Event]) -> list[Event]:
    """Return ``events`` with the outputs of their tool calls, which the session keeps as objects."""
    references = [reference_of(event) for event in events]
    ids = [*dict.fromkeys(id for id in references if id is not None)]
    outputs = dict[str, Output]()
    parts = [ids[first : first + _OUTPUTS_AT_ONCE] for first in range(0, len(ids), _OUTPUTS_AT_ONCE)]
    while parts:
        part = parts.pop()
        try:
            found = client.object_bulk(part, session=session, content=True).objects
        except CallFailed as error:
            if error.code != "too_large" or len(part) == 1:
                raise
            parts += [part[: len(part) // 2], part[len(part) // 2 :]]
        else:
            outputs |= {each.id: Output.of(each.payload, each.payload.get("content"), each.state) for each in found}
    pairs = zip(events, references, strict=True)
    return [event if id is None else with_output(event, outputs.get(id, GONE)) for event, id in pairs]


def _create(file: Path, text: bytes) -> None:
    """Create ``file``, readable by the user alone. Raises: Stop; an incomplete file is removed."""
    try:
        file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        handle = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    except OSError as error:
        hint = "check the harness's directory and its permissions"
        raise Stop(FAILURE, f"cannot create {file}: {error.strerror}", hint=hint, symbol="file") from None
    try:
        with open(handle, "wb") as opened:
            opened.write(text)
            opened.flush()
            os.fsync(handle)
    except BaseException as error:
        file.unlink()
        if not isinstance(error, OSError):
            raise
        raise Stop(FAILURE, f"cannot write {file}: {error.strerror}", hint="free space there", symbol="file") from None


# --- the harnesses ---


def _directory(cwd: str | None) -> str:
    given = cwd or "."
    try:
        place = Path(os.path.realpath(given, strict=True))
        if not place.is_dir():
            raise NotADirectoryError(20, "Not a directory")
        str(place).encode()
    except UnicodeEncodeError:
        message = f"--cwd {ascii(str(place))}: the path is not UTF-8, which harnesses require"
        raise Stop(USAGE, message, hint="rename the directory", symbol="cwd") from None
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise Stop(USAGE, f"--cwd {given}: {reason}", hint="name a directory that exists", symbol="cwd") from None
    return str(place)


def _native_id(harness: HarnessCommand, now: int) -> str:
    """Return a fresh id in the form of ``harness``."""
    match harness:
        case "claude":
            return str(uuid4())
        case "opencode":
            # opencode lists sessions in the order of their ids: the newest must come first.
            newest_first = ~(now * 4096) & 0xFFFF_FFFF_FFFF
            return f"ses_{newest_first:012x}{''.join(secrets.choice(_BASE62) for _ in range(14))}"
        case _:
            random = secrets.randbits(74)
            high, low = random >> 62, random & ((1 << 62) - 1)
            return str(UUID(int=now << 80 | 7 << 76 | high << 64 | 2 << 62 | low))


def _file(harness: HarnessCommand, new: NewSession) -> Path:
    """Return the file in which ``harness`` looks for the session. Raises: Stop."""
    at = timestamp(new.at)
    match harness:
        case "claude":
            slug = re.sub(r"[^A-Za-z0-9]", "-", new.cwd)
            if len(slug) > _SLUG_CHARS_MAX:
                message = f"Claude Code has no fixed place for sessions of directories as long as {new.cwd}"
                raise Stop(USAGE, message, hint=f"choose a --cwd of at most {_SLUG_CHARS_MAX} characters", symbol="cwd")
            return _root("CLAUDE_CONFIG_DIR", ".claude") / "projects" / slug / f"{new.id}.jsonl"
        case "codex":
            day, name = at[:10].replace("-", "/"), f"rollout-{at[:19].replace(':', '-')}-{new.id}.jsonl"
            return _root("CODEX_HOME", ".codex") / "sessions" / day / name
        case "pi":
            folder = "--" + re.sub(r"[/\\:]", "-", new.cwd.lstrip("/")) + "--"
            own = os.environ.get("PI_CODING_AGENT_SESSION_DIR")
            root = Path(own) if own else _root("PI_CODING_AGENT_DIR", ".pi/agent") / "sessions" / folder
            return root / f"{re.sub('[:.]', '-', at)}_{new.id}.jsonl"
        case "opencode":
            return Path(tempfile.gettempdir()) / f"ctx-hand-over-{new.id}.json"


def _root(variable: str, folder: str) -> Path:
    named = os.environ.get(variable)
    return Path(named).absolute() if named else Path.home() / folder


def _opencode_model() -> tuple[str, str]:
    """Return the provider and the model that opencode used last, else those of its configuration: each prompt of a
    session must name them. Raises: Stop if there are none."""
    state = Path(state_home(os.environ)) / "opencode/model.json"
    config = Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config") / "opencode"
    with suppress(OSError, ValueError, KeyError, IndexError, TypeError, RecursionError):
        recent = json.loads(state.read_bytes())["recent"][0]
        return str(recent["providerID"]), str(recent["modelID"])
    for name in ("opencode.jsonc", "opencode.json", "config.json"):
        with suppress(OSError):
            # The file may have comments, so it is searched rather than parsed.
            if found := _MODEL.search((config / name).read_text(errors="replace")):
                return found[1], found[2]
    hint = f'use opencode once, or set "model": "PROVIDER/MODEL" in {config / "opencode.json"}'
    raise Stop(FAILURE, "opencode has no model yet, and a session of it needs one", hint=hint, symbol="no_model")


def _commands(harness: HarnessCommand, new: NewSession, file: Path) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the command that must run first, if any, and the one that resumes the session."""
    match harness:
        case "claude":
            return (), ("claude", "--resume", new.id)
        case "codex":
            return (), ("codex", "resume", new.id)
        case "pi":
            return (), ("pi", "--session", str(file))
        case "opencode":
            return ("opencode", "import", str(file)), ("opencode", "--session", new.id)


def _report(run: Invocation, harness: HarnessCommand, result: HandedOver) -> None:
    if run.screen.as_json:
        run.screen.document({**result._asdict(), "harness": harness})
        return
    if result.left_out:
        run.screen.note(f"left out of {result.native_session}: {_described(result.left_out)}")
    if run.screen.quiet:
        run.screen.line(result.native_session)
        return
    steps = [("cd", result.cwd), *([result.imports, ("rm", result.file)] if result.imports else []), result.command]
    run.screen.line(" && ".join(map(shlex.join, steps)))


def _described(left_out: dict[str, int]) -> str:
    """Return the parts of the conversation that were left out, then the number of the harness's own records."""
    named = [(name, times) for part, times in left_out.items() if (name := content_loss(part))]
    parts = [f"{name} ({times:,})" for name, times in named]
    if others := sum(left_out.values()) - sum(times for _, times in named):
        parts.append(f"{count(others, 'record')} of the harness itself (--json lists all)")
    return ", ".join(parts)


def _become(result: HandedOver) -> NoReturn:
    """Replace this process with the harness. Raises: Stop."""
    try:
        os.chdir(result.cwd)
    except OSError as error:
        hint = f"the session is written: {shlex.join(result.command)} resumes it"
        raise Stop(FAILURE, f"cannot enter {result.cwd}: {error.strerror}", hint=hint, symbol="cwd") from None
    if result.imports:
        done = subprocess.run(result.imports, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, check=False)
        if done.returncode != 0:
            hint = f"import it yourself: {shlex.join(result.imports)}"
            raise Stop(FAILURE, f"opencode import ended with exit code {done.returncode}", hint=hint, symbol="import")
        os.unlink(result.file)
    try:
        os.execvp(result.command[0], result.command)
    except OSError as error:
        hint = f"run it yourself: {shlex.join(result.command)}"
        raise Stop(FAILURE, f"cannot run {result.command[0]}: {error.strerror}", hint=hint, symbol="exec") from None
