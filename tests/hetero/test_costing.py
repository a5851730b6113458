from __future__ import annotations

import pytest

from meshwright.hetero.compose import Composer, Effort
from meshwright.hetero.costing import Priced, cheapest, quickest, rented
from tests.hetero.test_compose import tiny_costs

PRICES = {"Alpha-32": 3.0, "Beta-12": 0.5}


@pytest.fixture(scope="module")
def composer() -> Composer:
    return Composer(tiny_costs(4, 4), 48, Effort(priced=60, improved=2))


def of(composer: Composer, alpha: int, beta: int) -> Priced | None:
    composed = composer.best({"Alpha-32": alpha, "Beta-12": beta})
    hour = 0.0
    if composed is not None:
        hour = sum(price * composed.composition.devices(name) for name, price in PRICES.items())
    return composed and Priced(composed=composed, price_per_hour=hour)


def test_the_cheapest_part_is_no_dearer_than_any_part(composer: Composer) -> None:
    best = rented(composer, PRICES, cheapest())
    assert best is not None
    for alpha in (0, 1, 2, 4):
        for beta in (0, 1, 2, 4):
            other = of(composer, alpha, beta) if alpha + beta else None
            assert other is None or best.price_per_step <= other.price_per_step * (1 + 1e-9)
    assert best.step_time_s > 1.2 * composer.best().time.step_time_s


def test_a_time_is_kept_at_the_least_price_and_a_budget_at_the_least_time(composer: Composer) -> None:
    cheap, whole = rented(composer, PRICES, cheapest()), of(composer, 4, 4)
    assert cheap is not None
    assert whole is not None
    limit_s = 0.5 * (cheap.step_time_s + whole.step_time_s)
    timely = rented(composer, PRICES, cheapest(limit_s))
    assert timely is not None
    assert timely.step_time_s <= limit_s
    assert cheap.price_per_step <= timely.price_per_step
    budget = rented(composer, PRICES, quickest(timely.price_per_step))
    assert budget is not None
    assert budget.price_per_step <= timely.price_per_step
    assert budget.step_time_s <= timely.step_time_s


def test_free_devices_are_all_that_help(composer: Composer) -> None:
    best = rented(composer, dict.fromkeys(PRICES, 0.0), quickest())
    assert best is not None
    assert best.step_time_s <= composer.best().time.step_time_s * (1 + 1e-9)
