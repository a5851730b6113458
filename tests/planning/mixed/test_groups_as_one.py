"""Groups of equal nodes that only cost differently train as one group does, and may still be left out."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import pytest

from meshwright import plan
from meshwright.library.clusters import resolve_gpus
from meshwright.specs.cluster import ClusterSpec

STEP = {"global_batch": 64, "seq_len": 2048}


def priced(gpus: str, *prices: float) -> ClusterSpec:
    cluster = resolve_gpus(gpus)
    groups = zip(cluster.groups, prices, strict=True)
    return replace(cluster, groups=tuple(replace(group, price_per_device_hour=price) for group, price in groups))


@cache
def as_one_s(gpus: str) -> float:
    """Seconds of a step where nodes of a kind are one group."""
    return plan("llama-3.1-8b", gpus=gpus, top=1, **STEP)[0].estimate.step_time_s


@pytest.mark.parametrize(
    ("parted", "whole", "prices"),
    [
        ("8xH100,8xH100", "16xH100", (2.0, 3.0)),
        ("8xH200,3x8xH200,4x8xL40S", "4x8xH200,4x8xL40S", (2.0, 3.0, 1.0)),
        ("8xH200,4x8xL40S,3x8xH200", "4x8xH200,4x8xL40S", (2.0, 1.0, 3.0)),
    ],
)
def test_prices_make_no_plan_slower(parted: str, whole: str, prices: tuple[float, ...]) -> None:
    own = plan("llama-3.1-8b", cluster=priced(parted, *prices), top=1, **STEP)
    assert own[0].estimate.step_time_s <= as_one_s(whole) * 1.001


def test_a_plan_over_both_costs_what_its_devices_cost() -> None:
    found = plan("llama-3.1-8b", cluster=priced("8xH100,3x8xH100", 2.0, 4.0), top=1, **STEP)
    best = found[0]
    used = {stage.group: stage.devices for stage in best.estimate.stages}
    assert sum(used.values()) == 32
    each = (8 * 2.0 + 24 * 4.0) * best.estimate.step_time_s / 3600
    assert best.estimate.price_per_step == pytest.approx(each, rel=1e-6)


def test_the_cheap_nodes_are_still_found_by_themselves() -> None:
    found = plan("llama-3.1-8b", cluster=priced("8xH100,8xH100", 1.0, 9.0), objective="cost", top=1, **STEP)
    assert {stage.group for stage in found[0].estimate.stages} == {"H100"}
