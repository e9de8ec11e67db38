"""``ctx context --why``: the reason why a window has an object. Separate: pure output of a result."""

from typing import Final

from ctxd.cli.common_options import Invocation
from ctxd.formatting import moment, short
from ctxd.terminal import cell
from ctxd_protocol.context_types import ShownAs, WhyRule
from ctxd_protocol.methods.context import WhyResult

_SHOWN: Final[dict[ShownAs, str]] = {
    "whole": "is in the window",
    "cut": "is in the window in part",
    "stub": "has a stub in the window",
    "line": "is one line in the window",
    "none": "is not in the window",
}

_RULES: Final[dict[WhyRule, str]] = {
    "pinned": "it is pinned",
    "activated": "it was activated by request",
    "read": "it was read",
    "recorded": "its call was recorded",
    "changed": "it changed since it was shown",
    "read_by_call": "the output of a call has its content",
    "cut_on_entry": "it was cut when it came, as it is long",
    "cut_for_budget": "it was cut for the budget",
    "repacked_cache_expired": "a repack removed it once the cache had expired",
    "repacked_budget": "a repack removed it for the budget",
    "repacked_cost": "a repack removed it, as carrying it had cost as much as rewriting what stands behind it",
    "purged": "its content was purged",
    "removed_budget": "the responses around it were removed for the budget",
    "compacted": "a compaction replaced the conversation",
    "dropped_budget": "the budget left it out",
    "listed": "it is in the metadata pool, and its content was never shown",
    "known_by_name": "it is known by name and was never read",
    "not_active": "it is not active, or not any more",
    "left_pool": "it was taken out of the metadata pool",
    "not_in_pool": "it is hidden: it is not in the metadata pool",
    "not_assembled": "nothing was assembled since it came",
}


def show_why(run: Invocation, found: WhyResult, label: str) -> None:
    """Print the explanation ``found`` for the object named ``label``."""
    if run.screen.as_json:
        run.screen.document(found)
        return
    detail = "" if found.detail is None else f" ({found.detail})"
    joined = ", because " if found.rule == "purged" else ": "
    run.screen.line(f"{cell(label)} {_SHOWN[found.shown]}{joined}{_RULES[found.rule]}{detail}")
    if (since := found.since) is not None:
        run.screen.line(
            f"since assembly {since.number}, turn {since.turn}, {moment(since.assembled_at)}, {cell(since.context_id)}"
        )
    pinned = ", pinned" if found.pinned else ""
    run.screen.line(f"now {found.level}{pinned}; id {short(found.object)}; layout {found.layout}")
