"""The least price of a step: devices by the hour, and links that are paid for."""

from __future__ import annotations

from typing import TYPE_CHECKING

from meshwright.planning.objectives.base import Objective, amount_difference, require_prices
from meshwright.units import usd

if TYPE_CHECKING:
    from meshwright.estimate.result import StepPrice
    from meshwright.planning.reason import Reason


def _difference(best: StepPrice, other: StepPrice) -> Reason:
    """Share by which a step of another plan costs more: its price where known, else its device-seconds."""
    from meshwright.estimate.result import StepEstimate

    steps = (best, other)
    prices = [one.price_per_step if isinstance(one, StepEstimate) else None for one in steps]
    spent = [sum(stage.devices for stage in one.stages) * one.step_time_s for one in steps]
    paid = all(prices)
    mine, its = [price or 0.0 for price in prices] if paid else spent
    return amount_difference("cost difference", best, other, (mine, its), unit="USD" if paid else "device-seconds")


COST = Objective(
    name="cost",
    help="the cheapest step on any part of the cluster that is searched",
    best="cheapest",
    key=lambda offer: (offer.price_per_step / offer.kept, offer.step_time_s),
    difference=_difference,
    rule="cheapest step on the whole cluster, or on halves and three quarters of its nodes",
    proof="part",
    rents=True,
    requires=require_prices,
    orders_alike=True,
    compared=lambda offer: offer.price_per_step / offer.kept,
    compared_unit="usd",
    compared_text=usd,
    less="cheaper",
)
