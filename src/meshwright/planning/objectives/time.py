"""The least time of a step."""

from __future__ import annotations

from typing import TYPE_CHECKING

from meshwright.planning.objectives.base import Objective, lasting_s

if TYPE_CHECKING:
    from meshwright.estimate.result import StepPrice
    from meshwright.planning.reason import Reason


def _difference(best: StepPrice, other: StepPrice) -> Reason:
    from meshwright.planning.ties import time_difference

    return time_difference(best, other)


TIME = Objective(
    name="time",
    help="the quickest step",
    best="quickest",
    key=lambda offer: (lasting_s(offer), offer.price_per_step),
    difference=_difference,
    exact=True,
)
