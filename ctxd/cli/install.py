"""``ctx install`` and ``ctx uninstall``: connect harnesses to ctxd, and record the current context in git commits."""

import os
import stat
import sys
import sysconfig
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from tempfile import gettempdir
from typing import Final

import click
import msgspec

from ctxd.cli import harness_hooks
from ctxd.cli.common_options import Invocation, common
from ctxd.cli.exit_codes import FAILURE, OK
from ctxd.cli.git_hook import GitHookChange
from ctxd.cli.git_hook import install as install_git_hook
from ctxd.cli.git_hook import uninstall as uninstall_git_hook
from ctxd.cli.hook_groups import UnsuitableFile
from ctxd.cli.unified_diff import print_diff, unified
from ctxd.click_support import Command, Group, Stop
from ctxd.doctor_findings import Finding, fail, ok, warn
from ctxd.transcripts.harness_names import HARNESS_OF, HarnessCommand
from ctxd_client.socket_lookup import find_socket
from ctxd_protocol.default_paths import home

_TOO_DEEP: Final = "it is nested too deeply"
_CORRECT: Final = "run the command again once it is corrected"

_MARK: Final = "\ufeff"
"""Byte order mark, which some editors write before the text, and which harnesses skip."""

BACKUP: Final = ".before-ctxd"
"""Suffix of the copy of a file that is made before its first change."""

_SHORTEN_LEAST: Final = 200

_HOOKS_ADDED: Final = (
    "Adds hooks to its settings file and changes nothing else in it; a copy of the earlier file is kept beside it."
    " Run the command again after an update of ctxd. `ctx uninstall` removes exactly what was added."
)
_FILE_ADDED: Final = (
    "Installs {}; the settings of {} are not changed. Run the command again after an update of ctxd. `ctx uninstall {}`"
    " deletes the file."
)
_INSTALLED: Final[dict[HarnessCommand, str]] = {
    "claude": _HOOKS_ADDED,
    "codex": _HOOKS_ADDED,
    "pi": _FILE_ADDED.format("an extension, extensions/ctxd.ts", "pi", "pi"),
    "opencode": _FILE_ADDED.format("a plugin, plugin/ctxd.js", "opencode", "opencode"),
}
"""The change that an installation makes, for its help."""

_HOOKS_REMOVED: Final = "If nothing else has changed, the file is the same as before, byte for byte."
_UNINSTALLED: Final[dict[HarnessCommand, str]] = {
    "claude": _HOOKS_REMOVED,
    "codex": _HOOKS_REMOVED,
    "pi": "Deletes the extension, extensions/ctxd.ts.",
    "opencode": "Deletes the plugin, plugin/ctxd.js.",
}


class HarnessState(msgspec.Struct, frozen=True, kw_only=True):
    """State of one harness: ``connected``; ``disabled``, its settings disable hooks; ``outdated``, its hooks are not
    current; ``broken``, its file cannot be read; ``not connected``. ``fix`` is the remedy, empty if none is needed."""

    harness: HarnessCommand
    state: str
    file: str
    found: str
    fix: str


@click.group(
    cls=Group,
    name="install",
    examples="ctx install claude\nctx install codex --dry-run\nctx install status\nctx install git",
)
@common
def install_group(run: Invocation) -> None:
    """Connect a harness or git to ctxd."""


_dry_run = click.option("--dry-run", is_flag=True, help="Print the change as a patch; change nothing.")


def _harness_command(name: HarnessCommand) -> None:
    title = {"claude": "Claude Code", "codex": "codex", "pi": "pi", "opencode": "opencode"}[name]

    @install_group.command(
        cls=Command,
        name=name,
        help=f"Capture the sessions of {title} live, from their next start on.\n\n"
        f"{_INSTALLED[name]}\n\n"
        f"To keep the history of a session that began earlier, run `ctx import {name}` before you resume the session.",
        examples=f"ctx install {name}\nctx install {name} --dry-run\nctx install {name} --shorten 20000",
    )
    @_dry_run
    @click.option(
        "--shorten",
        type=click.IntRange(min=_SHORTEN_LEAST),
        metavar="CHARS",
        help="Shorten tool outputs above CHARS for the model, and give the model the id of the full output.",
    )
    @common
    def connect(run: Invocation, dry_run: bool, shorten: int | None) -> None:
        words = _words(run, name, shorten)
        changed = _change(run, name, dry_run, lambda text, path: harness_hooks.add_hooks(name, text, words, path))
        socket = words[words.index("--socket") + 1] if "--socket" in words else ""
        if socket.startswith(f"{gettempdir()}/") and not (dry_run and run.screen.as_json):
            use = "would use" if dry_run else "use"
            run.screen.note(
                f"the hooks {use} {socket}, which is temporary: run this again once an installed daemon runs"
            )
        if not dry_run and (state := connection(name)).state == "disabled":
            run.screen.note(f"{state.file}: {state.found}; {state.fix}")
        if changed and not dry_run:
            run.screen.note(
                f"run ctx import {name} before you resume a session that began earlier: it adds the history"
            )


for _name in HARNESS_OF:
    _harness_command(_name)


@install_group.command(cls=Command, examples="ctx install status\nctx install status --json")
@common
def status(run: Invocation) -> int:
    """Show which harnesses are connected."""
    found = [connection(name) for name in HARNESS_OF]
    if run.screen.as_json:
        run.screen.document({"items": found})
    else:
        run.screen.table(("HARNESS", "STATE", "FILE"), [(each.harness, each.state, each.file) for each in found])
        for each in found:
            if each.fix:
                run.screen.note(f"{each.harness}: {each.found}; {each.fix}")
    return OK


_repo = click.option(
    "--repo", type=click.Path(path_type=Path), default=".", help="Work tree [default: that of the current directory]."
)


@click.group(
    cls=Group, examples="ctx uninstall claude\nctx uninstall codex --dry-run\nctx uninstall git --repo ~/src/demo"
)
@common
def uninstall(run: Invocation) -> None:
    """Remove what `ctx install` added."""


def _uninstall_command(name: HarnessCommand) -> None:
    @uninstall.command(
        cls=Command,
        name=name,
        help=f"Remove what `ctx install {name}` added.\n\n{_UNINSTALLED[name]}",
        examples=f"ctx uninstall {name}\nctx uninstall {name} --dry-run",
    )
    @_dry_run
    @common
    def disconnect(run: Invocation, dry_run: bool) -> None:
        _change(run, name, dry_run, lambda text, path: _restored(name, text, path))


for _name in HARNESS_OF:
    _uninstall_command(_name)


@install_group.command(
    cls=Command, examples="ctx install git\nctx install git --repo ~/src/demo\nctx install git --dry-run"
)
@_repo
@_dry_run
@click.option("--uninstall", "is_removed", is_flag=True, help="The same as ctx uninstall git.")
@common
def git(run: Invocation, repo: Path, dry_run: bool, is_removed: bool) -> None:
    """Add a trailer "Context-Id: ID" to git commits that are made in a context.

    The context is that of $CTXD_SESSION, else of the captured harness that makes the commit, else of the only open
    session. While several sessions are open, other commits get no trailer.

    Installs a commit-msg hook in the hooks directory that git uses (core.hooksPath if set). An existing hook runs
    first. All work trees of a repository share the hook. The hook never makes a commit fail.
    """
    change = uninstall_git_hook if is_removed else install_git_hook
    _print_git(run, change(repo, dry_run=dry_run), dry_run)
    if not (is_removed or dry_run or run.screen.as_json):
        run.screen.note(
            "while several sessions are open, only commits with $CTXD_SESSION or of a captured harness get the trailer"
        )


@uninstall.command(cls=Command, name="git", examples="ctx uninstall git\nctx uninstall git --repo ~/src/demo")
@_repo
@_dry_run
@common
def git_uninstall(run: Invocation, repo: Path, dry_run: bool) -> None:
    """Remove the commit-msg hook that `ctx install git` added, and restore the hook that was there before."""
    _print_git(run, uninstall_git_hook(repo, dry_run=dry_run), dry_run)


def _print_git(run: Invocation, done: GitHookChange, dry_run: bool) -> None:
    if run.screen.as_json:
        patch = "".join(done.patch)
        run.screen.document({"hook": str(done.hook), "changed": done.changed, "kept": done.kept, "patch": patch})
        return
    if dry_run:
        print_diff(run, done.patch)
        if done.moved is not None:
            run.screen.note("{} would be renamed to {}".format(*done.moved))
    else:
        run.screen.line(f"{done.told}: {done.hook}")
    if done.shared:
        run.screen.note("core.hooksPath leads there: every repository that uses it has the hook")


def connection(name: HarnessCommand) -> HarnessState:
    """Return the state of the harness ``name``, read from its file."""
    path = harness_hooks.place(name, os.environ)

    def found(state: str, text: str, fix: str = "") -> HarnessState:
        return HarnessState(harness=name, state=state, file=str(path), found=text, fix=fix)

    try:
        text = (_read(path) or b"").decode().removeprefix(_MARK)
        words = harness_hooks.command(name, text)
        switch = harness_hooks.switch_off(name, text, path)
        stale = None if words is None else _stale(name, text, words, path)
    except (Stop, UnsuitableFile, UnicodeDecodeError) as error:
        return found("broken", str(error), f"correct it, then run ctx install {name}")
    except RecursionError:
        return found("broken", _TOO_DEEP, f"correct it, then run ctx install {name}")
    if words is None:
        return found("not connected", "not connected")
    if switch is not None:
        return found("disabled", switch.found, switch.remedy)
    if stale is not None:
        return found("outdated", stale, f"run ctx install {name}")
    return found("connected", f"connected through {words[0]}")


def _stale(name: HarnessCommand, text: str, words: list[str], path: Path) -> str | None:
    """The reason why the hooks in ``text`` are not current; None if they are. Raises: RecursionError."""
    try:
        if harness_hooks.add_hooks(name, text, words, path) != text:
            return "some of its hooks are not current"
    except UnsuitableFile as refused:
        return f"some of its hooks are not current, and {refused}"
    if not os.access(words[0], os.X_OK):
        return f"{words[0]} cannot be run"
    if "--socket" not in words and (socket := _socket_by_environment()) is not None:
        return f"where XDG_RUNTIME_DIR and XDG_STATE_HOME are not set, its hooks do not find {socket}"
    return None


def findings() -> list[Finding]:
    """Check the hooks of every harness, for ``ctx doctor``."""
    found = []
    for each in map(connection, HARNESS_OF):
        title = f"hooks of {each.harness}"
        if not each.fix:
            found.append(ok(title, each.found))
        else:
            check = fail if each.state == "broken" else warn
            found.append(check(title, f"{each.file}: {each.found}", each.fix))
    return found


def _words(run: Invocation, name: HarnessCommand, shorten: int | None) -> list[str]:
    """The command of the hooks of ``name``. Raises: ``Stop``."""
    beside = [Path(sysconfig.get_path("scripts"), "ctx-hook"), Path(sys.argv[0]).absolute().with_name("ctx-hook")]
    program = next((str(path) for path in beside if os.access(path, os.X_OK)), None)
    if program is None:
        raise Stop(FAILURE, f"{beside[0]} does not exist", hint="install ctxd again", symbol="not_found")
    words = [program, name]
    # A harness may be started with another environment than this command.
    if socket := run.socket_path() or os.environ.get("CTXD_SOCKET") or _socket_by_environment():
        words += ["--socket", os.path.abspath(socket)]
    return [*words, "--shorten", str(shorten)] if shorten is not None else words


def _socket_by_environment() -> str | None:
    """The default socket of this environment, if a program without ``$XDG_RUNTIME_DIR`` and ``$XDG_STATE_HOME``, such
    as one started by cron, would use another one; else None."""
    here = find_socket(environ={name: value for name, value in os.environ.items() if name != "CTXD_SOCKET"}).path
    return here if here != find_socket(environ={"HOME": home(os.environ)}).path else None


def _restored(name: HarnessCommand, text: str, path: Path) -> str:
    """The file's ``text`` without our hooks: its earlier copy, byte for byte, if nothing else has changed."""
    words, kept = harness_hooks.command(name, text), _read(_backup(path))
    copy = None if kept is None else kept.decode().removeprefix(_MARK)
    if words is not None and copy is not None and harness_hooks.add_hooks(name, copy, words, path) == text:
        return copy
    left = harness_hooks.remove_hooks(name, text, path, copy)
    # Without a copy, the file was created by `ctx install`.
    return "" if words is not None and copy is None and left.split() in (["{}"], ["{", "}"]) else left


def _change(run: Invocation, name: HarnessCommand, dry_run: bool, change: Callable[[str, Path], str]) -> bool:
    """Make, or print, a change of the settings file. Returns: True if the text changes. Raises: Stop."""
    path = harness_hooks.place(name, os.environ)
    before = _read(path)
    try:
        text = (before or b"").decode()
        bare = text.removeprefix(_MARK)
        after = text[: len(text) - len(bare)] + change(bare, path)
    except UnicodeDecodeError:
        raise Stop(FAILURE, f"{path} is not UTF-8; nothing was changed", hint=_CORRECT, symbol="unsupported") from None
    except UnsuitableFile as refused:
        raise Stop(FAILURE, f"{path}: {refused}; nothing was changed", hint=_CORRECT, symbol="unsupported") from None
    except RecursionError:
        raise Stop(FAILURE, f"{path}: {_TOO_DEEP}; nothing was changed", hint=_CORRECT, symbol="unsupported") from None
    changed = after != text
    is_removed = changed and not dry_run and _write(name, path, before, after)
    patch = unified(text, after, str(path), str(path))
    if run.screen.as_json:
        run.screen.document({"file": str(path), "changed": changed, "patch": "".join(patch)})
    elif dry_run:
        print_diff(run, patch)
    else:
        run.screen.line(f"{'removed' if is_removed else 'changed' if changed else 'unchanged'}: {path}")
    return changed


def _read(path: Path) -> bytes | None:
    if path.exists() and not path.is_file():
        raise Stop(FAILURE, f"{path} is not a regular file", hint="move it away")
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise Stop(FAILURE, f"{path}: {error.strerror}", hint="make it readable") from None


def _backup(path: Path) -> Path:
    return path.with_name(path.name + BACKUP)


def _write(name: HarnessCommand, path: Path, before: bytes | None, after: str) -> bool:
    """Replace the file at ``path``, or the target of a symbolic link there, atomically. Returns: True if it was
    removed, as nothing is left in it. Raises: ``Stop``."""
    target, copy = Path(os.path.realpath(path)), _backup(path)
    try:
        like = None if before is None else target.stat()
        if like is not None and not like.st_mode & 0o200:
            raise Stop(FAILURE, f"{target} is read-only", hint="make it writable", symbol="permission_denied")
        text = (before or b"").decode().removeprefix(_MARK)
        was_ours = harness_hooks.command(name, text) is not None if text else False
        if not after and not copy.exists():
            _require_unchanged(path, before)
            target.unlink()
            return True
        target.parent.mkdir(parents=True, exist_ok=True)
        with ExitStack() as drafts:
            new = drafts.enter_context(_draft(target, after.encode(), like))
            kept = None if before is None or was_ours else drafts.enter_context(_draft(copy, before, like))
            _require_unchanged(path, before)
            if kept is not None:
                kept.replace(copy)
            new.replace(target)
        if was_ours and _read(copy) == after.encode():
            copy.unlink()
    except OSError as error:
        raise Stop(FAILURE, f"{error.filename}: {error.strerror}") from error
    return False


def _require_unchanged(path: Path, before: bytes | None) -> None:
    """Raises: ``Stop`` if the file at ``path`` no longer has the content ``before``."""
    if _read(path) != before:
        raise Stop(FAILURE, f"{path} changed meanwhile", hint="run the command again", symbol="conflict")


@contextmanager
def _draft(path: Path, content: bytes, like: os.stat_result | None) -> Iterator[Path]:
    """A file beside ``path`` that can replace it, with ``content`` and the owner, group and mode of ``like``. Removed
    at the end. Raises: ``Stop``, OSError."""
    draft = path.with_name(f".{path.name}.ctxd-{os.getpid()}")
    try:
        with open(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600), "wb") as file:
            file.write(content)
            if like is not None:
                _give(file.fileno(), path, like)
                os.fchmod(file.fileno(), stat.S_IMODE(like.st_mode))
            os.fsync(file.fileno())
        yield draft
    finally:
        draft.unlink(missing_ok=True)


def _give(file: int, path: Path, like: os.stat_result) -> None:
    """Give ``file``, which will replace ``path``, to the owner and the group of ``like``. Raises: ``Stop``."""
    found = os.fstat(file)
    if (found.st_uid, found.st_gid) == (like.st_uid, like.st_gid):
        return
    try:
        os.fchown(file, like.st_uid, like.st_gid)
    except OSError as error:
        refused = f"{path} could not keep its owner and group: {error.strerror}; nothing was changed"
        raise Stop(FAILURE, refused, hint="run it as the owner of the file", symbol="permission_denied") from None
