"""The sliding window over tool calls (spec 1 §4.3).

A tool call stays active while its turn is among the newest ``turns`` (the current one included) and it is among the
newest ``per_turn`` of its turn. One that was activated by request counts as recent from that turn on, however many are
newer in it. Pins exempt, files never collapse, and nothing here activates: what was deactivated stays so.

Cost: the number of active tool calls that no pin holds, which this very rule keeps small; never the session's length.
"""

from ctxd.sessions.state import SessionState
from ctxd_protocol.sessions import Collapse


def overdue(state: SessionState, window: Collapse, *, turn: int, arriving: str | None = None) -> tuple[str, ...]:
    """The active tool calls that fall out of the window once ``turn`` is current and ``arriving`` has come in.

    The order is that of activation within each kind: those left over from their turn first, then those chosen.
    """
    oldest = turn - window.turns + 1
    counts = state.calls
    fallen: list[str] = []
    for id, (called, nth) in state.warm.items():
        count = counts[called] + (arriving is not None and called == turn)
        if called < oldest or nth < count - window.per_turn:
            fallen.append(id)
    if arriving is not None and window.per_turn == 0:
        fallen.append(arriving)
    for chosen_turn, ids in state.chosen_calls.items():
        if chosen_turn < oldest:
            fallen.extend(ids)
    return tuple(fallen)
