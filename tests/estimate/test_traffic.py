"""Bytes between groups, counted message by message."""

from __future__ import annotations

from dataclasses import replace

import pytest

from meshwright.estimate.price import estimate_plan
from meshwright.estimate.result import LinkTraffic
from meshwright.estimate.traffic import ring_edges
from meshwright.library.clusters import resolve_gpus
from meshwright.library.models import resolve
from meshwright.specs import ClusterSpec, Workload
from meshwright.specs.plan import ExecutionPlan
from meshwright.specs.strategy import DataParallel, LayerStrategy, Tensor1D
from meshwright.units import GIGA
from tests.estimate.mixed import Stage, plan_of

MODEL = resolve("gpt2")
WHOLE = LayerStrategy(tensor=Tensor1D(degree=4))
HALF = LayerStrategy(tensor=Tensor1D(degree=2), data=DataParallel(replicate=2))
NARROW = LayerStrategy(tensor=Tensor1D(degree=2))


def cluster(price_per_gb: float = 0.02) -> ClusterSpec:
    found = resolve_gpus("8xH100,8xA100-80,8xL40S")
    groups = tuple(replace(group, price_per_device_hour=2.0) for group in found.groups)
    return replace(found, groups=groups, links=tuple(replace(link, price_per_gb=price_per_gb) for link in found.links))


def traffic(plan: ExecutionPlan, where: ClusterSpec | None = None) -> dict[tuple[str, str], LinkTraffic]:
    workload = Workload(seq_len=1024, global_batch=plan.global_batch)
    found = estimate_plan(plan, MODEL, where or cluster(), workload)
    return {link.between: link for link in found.traffic}


def activations(sequences: int) -> float:
    """Forward and backward, bf16."""
    return 2 * sequences * 1024 * MODEL.hidden * 2


@pytest.mark.parametrize("second", [WHOLE, HALF, NARROW])
def test_every_sequence_crosses_once_each_way_whatever_the_degrees(second: LayerStrategy) -> None:
    plan = plan_of(([Stage(0, HALF, 5), Stage(8, second, 7)], 2, 3))
    ((pair, link),) = traffic(plan).items()
    table = MODEL.vocab * MODEL.hidden * 4
    assert pair == ("H100", "A100-80")
    assert link.activation_bytes == activations(2 * 2 * 3)
    # A ring of two sends half of the table twice, either way, for each data rank that both ends have.
    assert MODEL.tied_embeddings
    assert link.gradient_bytes == 2 * table * min(2, second.devices // second.tp)
    assert link.price_per_step == pytest.approx(0.02 * link.total_bytes / GIGA)


def test_gradients_of_two_pipelines_cross_both_ways() -> None:
    plan = plan_of(([Stage(0, WHOLE, 12)], 1, 3), ([Stage(8, HALF, 12)], 1, 2))
    (link,) = traffic(plan).values()
    assert link.activation_bytes == 0
    assert link.gradient_bytes == pytest.approx(2 * 4 * MODEL.parameters, rel=1e-3)


@pytest.mark.parametrize(
    ("zero", "reshard", "bytes_each"),
    [
        (1, True, 4 + 2),  # a scatter of fp32 and a gather of bf16 in a step
        (2, True, 3 * 4 + 2),  # a scatter for each of 3 micro-batches
        (3, True, 3 * 4 + 2 * 3 * 2),  # and a gather for each forward and each backward
        (3, False, 3 * 4 + 2),
    ],
)
def test_a_state_that_pipelines_hold_together_goes_around_all_their_ranks(
    zero: int, reshard: bool, bytes_each: int
) -> None:
    """A ring of 16 ranks passes 15/16 of every parameter over each of its two crossings, out and back."""
    data = DataParallel(shard=8, zero=zero, reshard=reshard, across=16)
    own = LayerStrategy(data=data)
    (link,) = traffic(plan_of(([Stage(0, own, 12)], 1, 3), ([Stage(8, own, 12)], 1, 3))).values()
    assert link.activation_bytes == 0
    assert link.gradient_bytes == pytest.approx(2 * 15 / 16 * bytes_each * MODEL.parameters, rel=1e-3)


def test_a_ring_of_three_groups_crosses_each_link_by_four_thirds() -> None:
    assert dict(ring_edges([0, 1, 2])) == dict.fromkeys([(0, 1), (1, 2), (0, 2)], pytest.approx(4 / 3))
    plan = plan_of(*(([Stage(first, WHOLE, 12)], 1, 2) for first in (0, 8, 16)))
    sent = [link.gradient_bytes for link in traffic(plan).values()]
    assert sent == pytest.approx([4 / 3 * 4 * MODEL.parameters] * 3, rel=1e-3)


def test_a_plan_on_one_group_sends_nothing_and_a_free_link_costs_nothing() -> None:
    assert traffic(plan_of(([Stage(0, HALF, 5), Stage(4, HALF, 7)], 2, 3))) == {}
    (link,) = traffic(plan_of(([Stage(0, HALF, 5), Stage(8, HALF, 7)], 2, 3)), cluster(0.0)).values()
    assert link.total_bytes > 0
    assert link.price_per_step == 0


def test_the_price_of_a_step_is_that_of_devices_and_links() -> None:
    plan = plan_of(([Stage(0, HALF, 5), Stage(8, HALF, 7)], 2, 3))
    found = estimate_plan(plan, MODEL, cluster(), Workload(seq_len=1024, global_batch=plan.global_batch))
    devices = 2.0 * plan.devices * found.step_time_s / 3600
    assert found.price_per_step == pytest.approx(devices + found.traffic_price_per_step)
    assert found.traffic_price_per_step > 0


def test_gradients_cross_in_the_format_that_is_stated() -> None:
    """Of the layer's data strategy, else of the workload."""
    plan = plan_of(([Stage(0, WHOLE, 12)], 1, 3), ([Stage(8, HALF, 12)], 1, 2))
    (usual,) = traffic(plan).values()
    narrow = tuple(replace(one, data=replace(one.data, reduce_dtype="bf16")) for one in plan.strategies)
    (halved,) = traffic(replace(plan, strategies=narrow)).values()
    assert halved.gradient_bytes == usual.gradient_bytes / 2
    (mixed,) = traffic(replace(plan, strategies=(narrow[0], *plan.strategies[1:]))).values()
    assert mixed.gradient_bytes == usual.gradient_bytes
