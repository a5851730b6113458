"""The least memory of the fullest device."""

from __future__ import annotations

from meshwright.planning.objectives.base import Objective
from meshwright.planning.ties import memory_difference

MEMORY = Objective(
    name="memory",
    help="the least memory among plans at most 10% slower than the quickest",
    best="least memory of any",
    key=lambda offer: (offer.peak_memory_bytes, offer.step_time_s),
    difference=memory_difference,
    rule="least memory among plans at most 10% slower than the quickest",
    proof="front",
    from_front=True,
    measured=False,
)
