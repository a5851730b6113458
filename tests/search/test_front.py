"""The front of time, memory, devices and cost."""

from __future__ import annotations

from dataclasses import replace

import pytest

from meshwright.search.front import FRONT_STEP, device_front, smaller_clusters
from meshwright.search.search import search
from meshwright.search.space import Space
from tests.search.spaces import SPACES, cluster


def test_clusters_are_halved_down_to_one_device() -> None:
    sizes = [part.devices for part in smaller_clusters(cluster("4x8xH100"))]
    assert sizes == [16, 8, 4, 2, 1]


def test_no_plan_of_the_front_is_beaten_in_every_wish() -> None:
    small = SPACES[0]
    space = Space()
    whole = search(small.model, small.cluster, small.workload, space, top=3, pareto=True)
    front = device_front(small.model, small.cluster, small.workload, lambda part: space, whole)
    assert front[0].plan == whole.plans[0] or front[0].plan.estimate.step_time_s <= whole.plans[0].estimate.step_time_s
    assert {plan.devices for plan in front} > {small.cluster.devices}
    for one in front:
        for other in front:
            if one is not other:
                assert any(a < b * (1 - FRONT_STEP) for a, b in zip(one.wishes, other.wishes, strict=True)) or any(
                    b < a for a, b in zip(one.wishes, other.wishes, strict=True)
                )


def test_cost_is_time_times_devices_where_no_price_is_known() -> None:
    small = SPACES[0]
    whole = search(small.model, small.cluster, small.workload, top=1, pareto=True)
    for plan in device_front(small.model, small.cluster, small.workload, lambda part: Space(), whole):
        price = small.cluster.groups[0].price_per_hour
        seconds = plan.plan.estimate.step_time_s * plan.devices
        assert plan.cost == (seconds if price is None else seconds * price / 3600)


def test_cost_is_device_hours_times_the_price_that_is_stated() -> None:
    small = SPACES[0]
    (group,) = small.cluster.groups
    priced = replace(small.cluster, groups=(replace(group, price_per_device_hour=7.0),))
    whole = search(small.model, priced, small.workload, top=1, pareto=True)
    for plan in device_front(small.model, priced, small.workload, lambda part: Space(), whole):
        hours = plan.plan.estimate.step_time_s * plan.devices / 3600
        assert plan.cost == pytest.approx(7 * hours)
