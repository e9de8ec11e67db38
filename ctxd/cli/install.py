"""``ctx install``: integrations that record the current context in other programs."""

from pathlib import Path

import click

from ctxd.cli.common_options import Invocation, common
from ctxd.cli.git_hook import install, uninstall
from ctxd.command_line import Command, Group


@click.group(cls=Group, name="install", examples="ctx install git\nctx install git --uninstall")
def install_group() -> None:
    """Install integrations (git hook)."""


@install_group.command(
    cls=Command, examples="ctx install git\nctx install git --repo ~/src/demo\nctx install git --uninstall"
)
@click.option("--repo", type=click.Path(path_type=Path), default=".", help="A work tree; else the one you are in.")
@click.option("--uninstall", "away", is_flag=True, help="Take the hook away, and put back the one that was there.")
@common
def git(run: Invocation, repo: Path, away: bool) -> None:
    """Add a trailer "Context-Id: ID" to each commit that is made in a context.

    Installs a commit-msg hook where git looks for one, in core.hooksPath as well; a hook that is there runs first. All
    work trees of a repository have the same. A commit never fails because of it.
    """
    done = uninstall(repo) if away else install(repo)
    if run.screen.as_json:
        run.screen.document({"hook": str(done.hook), "changed": done.changed, "kept": done.kept})
        return
    run.screen.line(f"{done.told}: {done.hook}")
    if done.shared:
        run.screen.note("core.hooksPath leads there: every repository that uses it has the hook")
