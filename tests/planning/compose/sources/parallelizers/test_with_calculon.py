"""Calculon behind the seam."""

from __future__ import annotations

import pytest

from meshwright.errors import UnsupportedError
from meshwright.planning.compose.sources.parallelizers.guard import Guarded
from meshwright.planning.compose.sources.parallelizers.with_calculon import Calculon
from meshwright.specs.seam import ModelSlice, PartialPlan
from tests.planning.compose.sources.parallelizers.slices import island_of, job, slice_of

INPUTS = job()


def plans(layers: int, group: int = 0, devices: int = 8, micro_batch: int = 4, **edges: bool) -> list[PartialPlan]:
    guarded = Guarded(inner=Calculon())
    found = guarded.plan(
        slice_of(INPUTS, layers, **edges), island_of(INPUTS, group, devices), INPUTS.workload, micro_batch
    )
    assert not guarded.skips
    return found


def quickest(found: list[PartialPlan], devices: int) -> float:
    return min(plan.forward_s + plan.backward_s for plan in found if plan.devices == devices)


def test_every_answer_passes_the_guard_and_none_is_said_twice() -> None:
    found = plans(8)
    assert {1, 2, 4, 8} <= {plan.devices for plan in found}
    assert len({(plan.strategies, plan.runs) for plan in found}) == len(found)


def test_all_reduce_keeps_whole_sequences_on_every_tensor_rank() -> None:
    """Reduce-scatter and all-gather keep a part, so that less is held for the backward pass."""
    held: dict[tuple[object, ...], dict[bool, float]] = {}
    for plan in plans(8):
        (one,) = plan.strategies
        if one.tp > 1:
            found = held.setdefault((one.tp, one.dp, one.recompute, one.data.zero), {})
            found[one.tensor.shards_sequence] = plan.activation_bytes
    both = [found for found in held.values() if len(found) == 2]
    assert both
    assert all(found[True] < found[False] for found in both)


def test_slices_of_twice_the_layers_take_twice_as_long() -> None:
    assert quickest(plans(8), 8) == pytest.approx(2 * quickest(plans(4), 8), rel=1e-6)


def test_more_devices_are_quicker_and_older_ones_slower() -> None:
    newer = plans(8)
    assert quickest(newer, 8) < quickest(newer, 4) < quickest(newer, 1)
    assert quickest(plans(8, group=1), 8) > 1.5 * quickest(newer, 8)


def test_the_head_costs_what_its_product_costs() -> None:
    head_s = quickest(plans(4, head=True), 1) - quickest(plans(4), 1)
    device = INPUTS.cluster.groups[0].device
    peak = device.peak("bf16")
    assert peak is not None
    flop = 6 * INPUTS.model.head_parameters * 4 * INPUTS.workload.seq_len
    assert head_s == pytest.approx(flop / (peak * device.efficiency.gemm_fraction), rel=0.01)


@pytest.mark.parametrize("model", ["mixtral-8x7b", "deepseek-v3"])
def test_layers_that_calculon_does_not_know_are_refused_by_name(model: str) -> None:
    inputs = job(model)
    kinds = inputs.model.kinds()
    part = ModelSlice(model=inputs.model, layers=tuple((kind, 1) for kind in kinds))
    with pytest.raises(UnsupportedError, match="Calculon has no experts"):
        Calculon().plan(part, island_of(inputs), inputs.workload, 4)
