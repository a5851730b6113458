"""How many devices are enough, in words: the goal, the answer, and which counts were searched."""

from __future__ import annotations

from typing import TYPE_CHECKING

from meshwright.units import seconds, significant

if TYPE_CHECKING:
    from meshwright.planning.size import Sizing
    from meshwright.planning.size_goal import Goal


def of_things(count: int, name: str) -> str:
    """A number of things: `1 device`, `1,024 devices`."""
    return f"{count:,} {name}" if count == 1 else f"{count:,} {name}s"


def goal_text(goal: Goal) -> str:
    """The limits: `30 days and a price of 1,000,000 USD`."""
    parts = [
        f"{significant(goal.days)} day{'s' if goal.days != 1 else ''}" if goal.days is not None else "",
        f"{seconds(goal.step_time_s)} per step" if goal.step_time_s is not None else "",
        f"a price of {goal.max_price:,.0f} USD" if goal.max_price is not None else "",
    ]
    return " and ".join(part for part in parts if part)


def considered_text(sizing: Sizing) -> str:
    """Which counts were considered, and what became of them."""
    counts = f"parts of a node, and nodes of {sizing.group.devices_per_node} in numbers with the primes 2, 3, 5 and 7"
    skipped = f", {sizing.skipped:,} skipped after {len(sizing.tried):,} searches" if sizing.skipped else ""
    return (
        f"{of_things(sizing.considered, 'count')} from {of_things(sizing.fewest(), 'device')} up ({counts}): "
        f"{sizing.ruled_out:,} excluded by lower bounds of time and memory, {len(sizing.tried):,} searched{skipped}"
    )


def unproven_text(devices: int, at_least: int) -> str:
    """What a limit left open of the fewest devices; nothing where no count between could be enough.

    Args:
        devices: the number of devices that are enough.
        at_least: the count that may be enough; fewer are not.
    """
    if at_least >= devices:
        return ""
    fewer = f"fewer than {at_least:,} are not enough, and " if at_least > 1 else ""
    return (
        f" That is not proven to be the fewest: {fewer}not every count from {at_least:,} to {devices:,} was searched."
    )


def limiting_batch_text(devices: int, batch: int, seq_len: int, usual_devices: int) -> str:
    """What an assumed batch has to do with many devices; nothing where it was chosen for as many.

    Args:
        devices: the number of devices that are the answer.
        batch: sequences of a step that nobody stated.
        seq_len: tokens of each.
        usual_devices: the number of usual devices for whose number the batch was chosen.
    """
    if devices <= usual_devices:
        return ""
    tokens = significant(batch * seq_len / 1e6)
    return f" The batch is assumed, {tokens}M tokens a step: with a larger one (--gbs) fewer devices may do."
