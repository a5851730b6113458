from __future__ import annotations

import pytest

from meshwright.planning.compose.sources.profiles.bounds import compute_bound_s
from meshwright.planning.compose.sources.profiles.costs import ProfileCosts
from meshwright.planning.compose.sources.profiles.search import ShapeComposer
from tests.planning.compose.cases import costs_of, kind, published_cases, tiny_profiles


@pytest.mark.parametrize("case", published_cases(), ids=lambda case: case["id"])
def test_the_bound_is_the_published_one(case: dict) -> None:
    assert compute_bound_s(costs_of(case), case["global_batch"]) == pytest.approx(
        case["strict_compute_lower_bound_s"], rel=2e-3
    )


def test_equal_devices_share_the_work_evenly() -> None:
    costs = ProfileCosts(tiny_profiles(), "tiny", [kind("Alpha-32", 4)])
    sums = costs.sums("Alpha-32", 1, 4)
    assert sums is not None
    assert compute_bound_s(costs, 32) == pytest.approx(32 * sums.seconds[-1] / 4 / 4)


@pytest.mark.parametrize(("alpha", "beta", "batch"), [(2, 0, 24), (4, 4, 24), (4, 8, 96), (16, 16, 256)])
def test_transfers_and_gradients_raise_the_bound_and_no_composition_is_below(alpha: int, beta: int, batch: int) -> None:
    kinds = [kind(name, count, 2) for name, count in (("Alpha-32", alpha), ("Beta-12", beta)) if count]
    composer = ShapeComposer(ProfileCosts(tiny_profiles(), "tiny", kinds), batch)
    best = composer.best()
    assert best is not None
    assert compute_bound_s(composer.costs, batch) < composer.bound_s() <= best.time.step_time_s * (1 + 1e-9)
