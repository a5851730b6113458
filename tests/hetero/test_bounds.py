from __future__ import annotations

import pytest

from meshwright.hetero.bounds import compute_bound_s
from meshwright.hetero.profile_costs import ProfileCosts
from tests.hetero.cases import costs_of, kind, published_cases, tiny_profiles


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
