"""Auto-collapse (spec 1 §4.3): the tool calls that newer calls or turns push out of the collapse. Pure."""

from ctxd.sessions.session_state import SessionState
from ctxd_protocol.session_types import Collapse


def overdue(state: SessionState, collapse: Collapse, *, turn: int, arriving: str | None = None) -> tuple[str, ...]:
    """Return the active tool calls that leave the window once ``turn`` is current and ``arriving`` is recorded.

    Recorded calls come first, then those activated by request, each in the order of activation.
    """
    oldest = turn - collapse.turns + 1
    counts = state.calls
    fallen: list[str] = []
    for id, (called, nth) in state.warm.items():
        count = counts[called] + (arriving is not None and called == turn)
        if called < oldest or nth < count - collapse.per_turn:
            fallen.append(id)
    if arriving is not None and collapse.per_turn == 0:
        fallen.append(arriving)
    for chosen_turn, ids in state.chosen_calls.items():
        if chosen_turn < oldest:
            fallen.extend(ids)
    return tuple(fallen)
