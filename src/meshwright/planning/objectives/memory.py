"""The least memory of the fullest device."""

from __future__ import annotations

from typing import TYPE_CHECKING

from meshwright.planning.objectives.base import Objective

if TYPE_CHECKING:
    from meshwright.estimate.result import StepPrice
    from meshwright.planning.reason import Reason


def _difference(best: StepPrice, other: StepPrice) -> Reason:
    from meshwright.planning.ties import memory_difference

    return memory_difference(best, other)


MEMORY = Objective(
    name="memory",
    help="the least memory among plans at most 10% slower than the quickest",
    best="least memory of any",
    key=lambda offer: (offer.peak_memory_bytes, offer.step_time_s),
    difference=_difference,
    rule="least memory among plans at most 10% slower than the quickest",
    proof="front",
    from_front=True,
    measured=False,
)
