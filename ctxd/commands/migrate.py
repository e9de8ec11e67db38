"""``ctxd migrate``: bring a state directory to the current schema, or to another store."""

import os
import sys
from pathlib import Path
from typing import NoReturn

import click

from ctxd.click_support import ExclusiveOptions
from ctxd.commands.command_support import (
    config_option,
    end_verified,
    json_option,
    show,
    state_dir_option,
    state_root,
    stepped,
    working,
)
from ctxd.commands.xtdb_projection import (
    ProjectionTarget,
    end,
    find_target,
    perform,
    print_counts,
    projected,
    url_option,
)
from ctxd.errors import StateDirError
from ctxd.formatting import count


@click.command()
@click.option("--to", "store", type=click.Choice(["sqlite", "xtdb"]), help="Move to this store instead.")
@click.option("--dry-run", is_flag=True, help="List the steps to the current schema without taking one.")
@url_option
@json_option
@state_dir_option
@config_option
def migrate(
    store: str | None,
    dry_run: bool,
    store_url: str | None,
    as_json: bool,
    state_dir: Path | None,
    config: Path | None,
) -> None:
    """Bring the state directory to the current schema, or to another store. The daemon must be stopped.

    Without --to: the database is copied to state.db.before-N beside it and then migrated, as a start of the daemon
    also does.

    To "xtdb": the whole journal is copied to the node, and the node is compared with it. To "sqlite": the embedded
    versions are compared with the journal, and rebuilt from it if they differ; the node is not needed. Afterwards set
    "store" in ctxd.toml, and start the daemon.

    After an interruption, run the command again: it continues, and no data is lost.

    \b
    Examples:
      ctxd migrate --dry-run
      ctxd migrate
      ctxd migrate --to xtdb
    """
    if store is None:
        _to_current_schema(state_root(state_dir, config), as_json, dry_run=dry_run)
    if dry_run:
        raise ExclusiveOptions("--to", "--dry-run", reason="only a migration of the schema has steps to list")
    at = find_target(state_dir, store_url, config)
    if store == "xtdb":
        _to_xtdb(at, as_json)
    _to_sqlite(at, as_json)


def _to_current_schema(root: Path, as_json: bool, *, dry_run: bool) -> NoReturn:
    from ctxd import sqlite_file
    from ctxd.store import state_directory
    from ctxd.store.migrations import migrate, migrations_of
    from ctxd.store.schema import SCHEMA_VERSION

    with working():
        held = state_directory.hold_existing(root)
        try:
            steps = [f"{step.version} to {step.version + 1}: {step.what}" for step in migrations_of(held.database)]
            copy = None if dry_run else migrate(held.database)
        except (sqlite_file.DiskFull, sqlite_file.DiskFailed, sqlite_file.FileDamaged, sqlite_file.SqlFailed) as error:
            raise StateDirError(f"{root} cannot be migrated: {error}", exit_code=os.EX_IOERR) from error
        finally:
            held.close()
    lines = [f"schema {step}" for step in steps] or [f"the schema is current: {SCHEMA_VERSION}"]
    if copy is not None:
        lines.append(f"migrated; the database as it was: {copy}")
    show(as_json, {"steps": steps, "copy": None if copy is None else str(copy)}, "\n".join(lines))
    sys.exit(0)


def _to_xtdb(at: ProjectionTarget, as_json: bool) -> NoReturn:
    from ctxd.clock import SystemClock
    from ctxd.projection.node_maintenance import rebuild

    report = perform(lambda: rebuild(at.root, at.url, SystemClock(), projected, print_counts))
    end(as_json, report, f'{at.url}: set store = "xtdb" and start the daemon', store_url=at.url)


def _to_sqlite(at: ProjectionTarget, as_json: bool) -> NoReturn:
    from ctxd.store.rebuild import checked

    with working():
        report, folded = checked(at.root, stepped)
    how = f"{count(folded, 'row')} were rebuilt" if folded else "the embedded versions match the journal"
    end_verified(as_json, report, f'{how}: set store = "sqlite" and start the daemon\n', folded=folded)
