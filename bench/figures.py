"""What a bench hands out: a figure, its goal, and whether the goal is met. Owns no measuring."""

from typing import Literal

import msgspec


class Figure(msgspec.Struct, frozen=True, kw_only=True):
    """One measured figure. ``goal`` null: it is shown, not held to anything. ``detail`` says how it was measured."""

    name: str
    value: float
    goal: float | None
    better: Literal["higher", "lower"]
    detail: str = ""

    @property
    def ok(self) -> bool:
        """Whether the figure meets its goal."""
        if self.goal is None:
            return True
        return self.value >= self.goal if self.better == "higher" else self.value <= self.goal
