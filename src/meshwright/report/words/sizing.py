"""How many devices are enough, in words: the goal, the answer, and which counts were searched."""

from __future__ import annotations

from meshwright.planning.size import Goal, Sizing
from meshwright.units import seconds, significant


def goal_text(goal: Goal) -> str:
    """The limits: `30 days and a price of 1,000,000`."""
    parts = [
        f"{significant(goal.days)} days" if goal.days is not None else "",
        f"{seconds(goal.step_time_s)} per step" if goal.step_time_s is not None else "",
        f"a price of {goal.max_price:,.0f}" if goal.max_price is not None else "",
    ]
    return " and ".join(part for part in parts if part)


def considered_text(sizing: Sizing) -> str:
    """Which counts were considered, and what became of them."""
    counts = f"parts of a node, and nodes of {sizing.group.devices_per_node} in numbers with the primes 2, 3, 5 and 7"
    skipped = f", {sizing.skipped:,} skipped after {len(sizing.tried):,} searches" if sizing.skipped else ""
    return (
        f"{sizing.considered:,} counts from {sizing.fewest():,} devices up ({counts}): {sizing.ruled_out:,} excluded "
        f"by lower bounds of time and memory, {len(sizing.tried):,} searched{skipped}"
    )
