"""Parts of a cluster to rent, told apart by a price model that a table can hold."""

from __future__ import annotations

import itertools
from functools import partial

import pytest

from meshwright.planning.compose.sources.profiles.search import ComposedShapes, ShapeComposer, ShapeEffort
from meshwright.planning.costing import Counts, rented
from meshwright.planning.objectives import Aim, Offer
from meshwright.units import HOUR_S
from tests.planning.compose.sources.profiles.test_search import tiny_costs

PRICES = {"Alpha-32": 3.0, "Beta-12": 0.5}
MOST = {"Alpha-32": 4, "Beta-12": 4}
NODE = {"Alpha-32": 2, "Beta-12": 2}


@pytest.fixture(scope="module")
def composer() -> ShapeComposer:
    return ShapeComposer(tiny_costs(4, 4), 48, ShapeEffort(priced=60, improved=2))


def offers_on(counts: Counts, *, composer: ShapeComposer) -> list[Offer[ComposedShapes]]:
    composed = composer.best(counts)
    if composed is None:
        return []
    hour = sum(price * composed.one_set.devices(name) for name, price in PRICES.items())
    time_s = composed.time.step_time_s
    price = hour * time_s / HOUR_S
    return [Offer(plan=composed, step_time_s=time_s, price_per_step=price, peak_memory_bytes=0.0, on="")]


def best(composer: ShapeComposer, aim: Aim) -> Offer[ComposedShapes]:
    return rented(MOST, NODE, partial(offers_on, composer=composer), aim.rank)[0]


def test_the_cheapest_part_is_no_dearer_than_any_part(composer: ShapeComposer) -> None:
    cheap = best(composer, Aim(objective="cost"))
    for counts in itertools.product((0, 1, 2, 4), repeat=2):
        part = dict(zip(MOST, counts, strict=True))
        for other in offers_on(part, composer=composer) if any(counts) else ():
            assert cheap.price_per_step <= other.price_per_step * (1 + 1e-9)
    whole = composer.best()
    assert whole is not None
    assert cheap.step_time_s > 1.2 * whole.time.step_time_s


def test_a_time_is_kept_at_the_least_price_and_a_budget_at_the_least_time(composer: ShapeComposer) -> None:
    cheap, quick = best(composer, Aim(objective="cost")), best(composer, Aim())
    limit_s = 0.5 * (cheap.step_time_s + quick.step_time_s)
    timely = best(composer, Aim(objective="cost", max_step_time_s=limit_s))
    assert timely.step_time_s <= limit_s
    assert cheap.price_per_step <= timely.price_per_step
    budget = best(composer, Aim(max_price_per_step=timely.price_per_step))
    assert budget.price_per_step <= timely.price_per_step
    assert budget.step_time_s <= timely.step_time_s


def test_parts_are_whole_nodes_or_fewer_devices_of_one() -> None:
    seen: list[Counts] = []

    def look(counts: Counts) -> list[Offer[None]]:
        seen.append(counts)
        devices = sum(counts.values())
        return [Offer(plan=None, step_time_s=1 / devices, price_per_step=devices, peak_memory_bytes=0, on="")]

    found = rented({"a": 12, "b": 8}, {"a": 4, "b": 8}, look, Aim(objective="cost").rank)
    assert all(counts["a"] < 4 or counts["a"] % 4 == 0 for counts in seen)
    assert len({tuple(counts.values()) for counts in seen}) == len(seen)
    assert found[0].price_per_step == 1
