"""The least price of a step: devices by the hour, and links that are paid for."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from meshwright.errors import InputError, Problem
from meshwright.planning.objectives.base import Objective

if TYPE_CHECKING:
    from meshwright.estimate.result import StepPrice
    from meshwright.planning.reason import Reason


def _cost_difference(best: StepPrice, other: StepPrice) -> Reason:
    """By what share a step of another plan costs more: its price where known, else its device-seconds."""
    from meshwright.estimate.result import StepEstimate
    from meshwright.planning.reason import Reason
    from meshwright.planning.ties import differing_parts

    prices = [one.price_per_step if isinstance(one, StepEstimate) else None for one in (best, other)]
    spent = [sum(stage.devices for stage in one.stages) * one.step_time_s for one in (best, other)]
    paid = all(prices)
    amounts = [price or 0.0 for price in prices] if paid else spent
    return Reason.of(
        "cost difference",
        ratio=amounts[1] / amounts[0] - 1.0,
        unit="USD" if paid else "device-seconds",
        best=amounts[0],
        other=amounts[1],
        parts=differing_parts(best, other),
    )


def require_prices(unknown: Iterable[str]) -> None:
    """Cost compares devices by their prices.

    Args:
        unknown: devices whose price nobody said.

    Raises:
        InputError: there are any.
    """
    problems = [
        Problem(
            what=f"no price is known for {name}",
            why="what a step costs is that of the devices it uses, each at its own price",
            fix="give price_per_device_hour of its group in a cluster file, one --price for all devices, or --prices",
            field="price_per_device_hour",
        )
        for name in unknown
    ]
    if problems:
        raise InputError(problems, code="MW212")


COST = Objective(
    name="cost",
    help="the cheapest step on any part of the cluster that is searched",
    best="cheapest",
    key=lambda offer: (offer.price_per_step, offer.step_time_s),
    difference=_cost_difference,
    rule="cheapest step on the whole cluster, or on halves and three quarters of its nodes",
    proof="part",
    rents=True,
    requires=require_prices,
    orders_alike=True,
)
