"""The least energy of a step: the power of the devices it uses, over its time."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from meshwright.planning.objectives.base import Objective, amount_difference, require_known
from meshwright.units import JOULES_PER_KWH, energy

if TYPE_CHECKING:
    from meshwright.estimate.result import StepPrice
    from meshwright.planning.reason import Reason
    from meshwright.specs.cluster import NodeGroup


def _difference(best: StepPrice, other: StepPrice) -> Reason:
    """Share by which a step of another plan takes more energy."""
    return amount_difference("energy difference", best, other, (best.energy_j or 0.0, other.energy_j or 0.0))


def _power_w(group: NodeGroup) -> float | None:
    return group.busy_power_w


def require_power(unknown: Iterable[str]) -> None:
    """Energy compares devices by their power; devices whose power nobody said are an `InputError`."""
    require_known(
        "power",
        unknown,
        why="the energy of a step is the power of the devices it uses over its time, and its maker states none",
        fix="give the mean over a step as measured: --power 300W, or power_w of its group in a cluster file",
        field="power",
    )


ENERGY = Objective(
    name="energy",
    help="the step of least energy on any part of the cluster that is searched",
    best="least energy",
    key=lambda offer: (offer.energy_j / offer.kept, offer.step_time_s),
    difference=_difference,
    rule="least energy of a step on the whole cluster, or on halves and three quarters of its nodes",
    proof="part",
    rents=True,
    per_hour=_power_w,
    requires=require_power,
    paid_links=False,
    counts_energy=True,
    compared=lambda offer: offer.energy_j / offer.kept,
    compared_unit="j",
    compared_text=lambda energy_j: energy(energy_j / JOULES_PER_KWH),
    less="less energy",
    saves="less energy",
    measured=False,
)
