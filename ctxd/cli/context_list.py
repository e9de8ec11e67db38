"""``ctx context --list``: the recorded assemblies of a session.

Separate from the rest of ``ctx context``: it reads the records alone, no context.
"""

from ctxd.cli.common_options import Invocation
from ctxd.formatting import count, moment
from ctxd_client.sync import SyncClient
from ctxd_protocol.context_types import AssemblyRecord
from ctxd_protocol.limits import PAGE_ITEMS_MAX


def list_assemblies(run: Invocation, client: SyncClient, session: str) -> None:
    """Print the assemblies of ``session``, oldest first."""
    found: list[AssemblyRecord] = []
    after: int | None = 0
    while after is not None:
        page = client.context_list(session, after=after, limit=PAGE_ITEMS_MAX)
        found += page.assemblies
        after = page.next_after
    if run.screen.listing(found, [each.context_id for each in found]):
        return
    run.screen.table(
        ("NUMBER", "TURN", "CONTEXT", "FORMAT", "TOKENS", "TIME"),
        [
            (
                str(each.number),
                str(each.turn),
                each.context_id,
                each.format or "text",
                count(each.tokens),
                moment(each.assembled_at),
            )
            for each in found
        ],
        right=(0, 1, 4),
    )
