"""What the devices of a plan over measured profiles cost, and which plan is wanted where cost counts."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from meshwright.errors import InputError, Problem
from meshwright.hetero.compose import Composed
from meshwright.hetero.costing import SECONDS_PER_HOUR, Rank, cheapest, quickest
from meshwright.specs.cluster import ClusterSpec
from meshwright.units import seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class Rent:
    """Price of the devices in use."""

    per_hour: float
    per_step: float
    whole_per_step: float
    """Of the quickest plan on the whole cluster."""
    whole_step_time_s: float


def device_prices(cluster: ClusterSpec, price: float | None) -> dict[str, float | None]:
    """Of one device and hour of each kind."""
    return {group.name: group.price_per_hour if price is None else price for group in cluster.groups}


def known_prices(prices: Mapping[str, float | None]) -> dict[str, float]:
    """The same, all of them known.

    Raises:
        InputError: a price is not known.
    """
    missing = [name for name, price in prices.items() if price is None]
    if missing:
        raise InputError(
            [
                Problem(
                    what=f"the price of {name} is not known",
                    why="a cost needs what each device costs per hour",
                    fix="write price_per_device_hour in its group of the cluster file, or give one price for all",
                    field="price",
                )
                for name in missing
            ],
            code="MW212",
        )
    return {name: price for name, price in prices.items() if price is not None}


def rank_of(objective: str, max_step_time_s: float | None, max_price_per_step: float | None) -> Rank:
    """What makes a plan better: its price, under a time if one is given, or its time under a budget."""
    if objective == "cost" or max_step_time_s is not None:
        return cheapest(math.inf if max_step_time_s is None else max_step_time_s)
    return quickest(math.inf if max_price_per_step is None else max_price_per_step)


def rent_of(composed: Composed, whole: Composed, prices: Mapping[str, float | None]) -> Rent | None:
    """What a composition costs beside the quickest one; None where a price is not known."""
    known = {name: price for name, price in prices.items() if price is not None}
    if len(known) < len(prices):
        return None

    def per_hour(one: Composed) -> float:
        return sum(price * one.composition.devices(name) for name, price in known.items())

    return Rent(
        per_hour=per_hour(composed),
        per_step=per_hour(composed) * composed.time.step_time_s / SECONDS_PER_HOUR,
        whole_per_step=per_hour(whole) * whole.time.step_time_s / SECONDS_PER_HOUR,
        whole_step_time_s=whole.time.step_time_s,
    )


def rent_said(rent: Rent) -> str:
    """The price in a sentence."""
    said = f"{rent.per_hour:.4g} USD per hour for the devices in use, {rent.per_step:.4g} USD per step"
    if rent.per_step < rent.whole_per_step * (1 - 1e-9):
        return f"{said}; the quickest plan takes {seconds(rent.whole_step_time_s)} for {rent.whole_per_step:.4g} USD"
    return said
