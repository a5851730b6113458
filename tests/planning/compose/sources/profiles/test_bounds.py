from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from meshwright.planning.compose.sources.profiles.bounds import compute_bound_s
from meshwright.planning.compose.sources.profiles.costs import ProfileCosts
from meshwright.planning.compose.sources.profiles.search import ShapeComposer
from tests.planning.compose.cases import SHELF, costs_of, kind, published_cases, shelf_profiles, tiny_profiles


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


@pytest.mark.parametrize("batch", [1, 5, 64, 500])
def test_no_pipelines_are_below_the_bound_of_layers_that_differ(batch: int) -> None:
    profiles, random = tiny_profiles(), np.random.default_rng(batch)
    (model,) = profiles.models.values()
    times = {
        point: replace(one, forward_s=one.forward_s * (1 + 0.4 * random.random(len(one.forward_s))))
        for point, one in model.times.items()
    }
    uneven = replace(profiles, models={model.name: replace(model, times=times)})
    kinds = [kind("Alpha-32", 4, 2), kind("Beta-12", 4, 2)]
    composer = ShapeComposer(ProfileCosts(uneven, model.name, kinds), batch)
    best = composer.best()
    assert best is not None
    assert composer.bound_s() <= best.time.step_time_s * (1 + 1e-9)


@pytest.mark.skipif(not (SHELF / "cases.json").is_file(), reason="the measured profiles are not here")
def test_a_norm_beside_the_head_is_no_layer_of_its_own() -> None:
    # The mean of 32 blocks and a norm, taken for a layer, put the bound 6% above this plan.
    costs = ProfileCosts(shelf_profiles(), "LLAMA-3-8", [kind("GH-96", 16, 4, "us-central1-a")])
    assert costs.ends == (1, 2)
    composer = ShapeComposer(costs, 4096)
    best = composer.best()
    assert best is not None
    assert 0.9 * best.time.step_time_s < composer.bound_s() < best.time.step_time_s
