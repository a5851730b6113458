"""The least time of a step."""

from __future__ import annotations

from meshwright.planning.objectives.base import Objective
from meshwright.planning.ties import time_difference

TIME = Objective(
    name="time",
    help="the quickest step",
    best="quickest",
    key=lambda offer: (offer.step_time_s, offer.price_per_step),
    difference=time_difference,
    exact=True,
)
