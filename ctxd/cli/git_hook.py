"""The commit-msg hook of ``ctx install git``: its text, installation and removal.

Owns one file in git's hooks directory, and the name under which an earlier hook is kept. An earlier hook still runs,
first, and is restored on removal.
"""

import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, NamedTuple

from ctxd.cli.exit_codes import CONFLICT, FAILURE, NOT_FOUND
from ctxd.cli.unified_diff import unified
from ctxd.click_support import Stop

TRAILER: Final = "Context-Id"
"""The trailer's name."""

_NAME: Final = "commit-msg"
_KEPT: Final = "commit-msg.before-ctxd"
_MARK: Final = "# Made by ctx install git"
_GIT_S: Final = 10.0

_HOOK: Final = f"""#!/bin/sh
{_MARK}; removed by ctx uninstall git.
# Runs the hook that was here before, then adds the context in which the commit is made, if there is one.
own=$(dirname "$0")/{_NAME}
before=$(dirname "$0")/{_KEPT}
if [ -x "$before" ]; then
    IFS= read -r first <"$before"
    case $first in
        # A shell script is read under the name that it had: husky's look by that for what to do.
        "#!"*/sh | "#!"*/dash | "#!"*/bash | "#!"*" sh" | "#!"*" bash")
            ${{first#??}} -c '. "$(dirname "$0")/{_KEPT}"' "$own" "$@" || exit $? ;;
        *) "$before" "$@" || exit $? ;;
    esac
fi
context=${{CTXD_CONTEXT_ID:-}}
if [ -z "$context" ] && command -v ctx >/dev/null 2>&1; then
    context=$(ctx current 2>/dev/null </dev/null) || context=
fi
if [ -z "$context" ]; then
    file=${{CTXD_CONTEXT_FILE:-/run/ctxd/current.json}}
    if [ -r "$file" ]; then
        context=$(sed -n 's/.*"context_id": *"\\([A-Za-z0-9-]*\\)".*/\\1/p' "$file" 2>/dev/null)
    fi
fi
case $context in
    *[!A-Za-z0-9-]*) exit 0 ;;
    ctx-?*) ;;
    *) exit 0 ;;
esac
# A message without the parts that git ignores: comments, the change that commit -v shows, and sign-offs.
written() {{
    sed '/^[^ ]* -\\{{24\\}} >8 -\\{{24\\}}$/,$d' "$1" | git stripspace --strip-comments | grep -v '^Signed-off-by: '
}}
# A commit that was given up has none, or its template's as it was: with a trailer git would make it all the same.
message=$(written "$1" 2>/dev/null)
template=$(git config --type=path commit.template 2>/dev/null)
if [ -z "$message" ] || {{ [ -r "$template" ] && [ "$message" = "$(written "$template" 2>/dev/null)" ]; }}; then
    exit 0
fi
# Without its last line's end, as git merge leaves it, the subject would take the trailer in.
[ -z "$(tail -c 1 "$1")" ] || echo >>"$1"
git interpret-trailers --in-place --no-divider --if-exists addIfDifferent \\
    --trailer "{TRAILER}: $context" "$1" 2>/dev/null
exit 0
"""


class GitHookChange(NamedTuple):
    """Result of an installation or a removal. ``kept``: an earlier hook still runs, or is restored. ``shared``: the
    hook is outside the repository. ``moved``: the old and the new path of the earlier hook, if it is renamed."""

    told: str
    hook: Path
    changed: bool
    kept: bool
    shared: bool
    patch: list[str]
    moved: tuple[Path, Path] | None = None


def install(repo: Path, *, dry_run: bool = False) -> GitHookChange:
    """Install the hook; idempotent. ``dry_run``: change nothing. Raises: ``Stop``."""
    folder, shared = _hooks(repo)
    hook, kept = folder / _NAME, folder / _KEPT
    if _is_ours(hook):
        before = hook.read_text()
        changed = before != _HOOK or not os.access(hook, os.X_OK)
        if changed and not dry_run:
            _write(hook)
        told = "renewed" if changed else "already there"
        return GitHookChange(told, hook, changed, _is_there(kept), shared, _patch(hook, before, _HOOK))
    is_moved = _is_there(hook)
    if is_moved and _is_there(kept):
        raise Stop(CONFLICT, f"both {hook} and {kept} exist", hint="remove one of them", symbol="conflict")
    if not dry_run:
        if is_moved:
            _do(lambda: hook.rename(kept))
        _do(lambda: folder.mkdir(parents=True, exist_ok=True))
        _write(hook)
    moved = (hook, kept) if is_moved else None
    return GitHookChange("installed", hook, True, is_moved or _is_there(kept), shared, _patch(hook, "", _HOOK), moved)


def uninstall(repo: Path, *, dry_run: bool = False) -> GitHookChange:
    """Remove the hook and restore the earlier one; idempotent. ``dry_run``: change nothing. Raises: ``Stop``."""
    folder, shared = _hooks(repo)
    hook, kept = folder / _NAME, folder / _KEPT
    if not _is_ours(hook):
        return GitHookChange("not there", hook, False, False, shared, [])
    was_kept = _is_there(kept)
    patch = _patch(hook, hook.read_text(errors="replace"), "")
    if not dry_run:
        _do(lambda: kept.replace(hook) if was_kept else hook.unlink())
    return GitHookChange("removed", hook, True, was_kept, shared, patch, (kept, hook) if was_kept else None)


def _patch(hook: Path, before: str, after: str) -> list[str]:
    return unified(before, after, str(hook), str(hook))


def _hooks(repo: Path) -> tuple[Path, bool]:
    """Return the hooks directory of the work tree ``repo``, and True if it is outside. Raises: ``Stop``."""
    hooks = repo / _git(repo, "rev-parse", "--git-path", "hooks")
    own = _real(repo / _git(repo, "rev-parse", "--git-common-dir")), _top(repo)
    place = _real(hooks)
    return place, not any(place.is_relative_to(each) for each in own)


def _top(repo: Path) -> Path:
    try:
        return _real(Path(_git(repo, "rev-parse", "--show-toplevel")))
    except Stop:
        return _real(repo)  # A bare repository has no work tree.


def _real(path: Path) -> Path:
    # Path.resolve raises a RuntimeError for a loop of links.
    return Path(os.path.realpath(path))


def _git(repo: Path, *words: str) -> str:
    try:
        done = subprocess.run(
            ["git", "-C", os.fspath(repo), *words], capture_output=True, text=True, timeout=_GIT_S, check=False
        )
    except FileNotFoundError:
        raise Stop(FAILURE, "git is not installed", hint="install it", symbol="unsupported") from None
    except subprocess.TimeoutExpired:
        raise Stop(FAILURE, f"git does not respond in {repo}", symbol="timeout") from None
    if done.returncode:
        raise Stop(NOT_FOUND, f"{repo} is not in a git repository", hint="name one: --repo PATH")
    return done.stdout.rstrip("\n")


def _is_ours(hook: Path) -> bool:
    try:
        return not hook.is_symlink() and _MARK in hook.read_text(errors="replace")
    except OSError:
        return False


def _is_there(path: Path) -> bool:
    return os.path.lexists(path)


def _write(hook: Path) -> None:
    fresh = hook.with_name(f".{hook.name}.ctxd")

    def written() -> None:
        # The hooks of a repository may be files of others: write through no link of theirs.
        fresh.unlink(missing_ok=True)
        descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o755)
        with open(descriptor, "w") as file:
            file.write(_HOOK)
            os.fchmod(descriptor, 0o755)
        fresh.replace(hook)

    _do(written)


def _do(work: Callable[[], Any]) -> None:
    try:
        work()
    except OSError as error:
        raise Stop(FAILURE, f"{error.filename}: {error.strerror}") from error
