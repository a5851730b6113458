"""Per-layer strategies behind the seam: what they claim is what `estimate` says, and they fit where they stand."""

from __future__ import annotations

import pytest

from meshwright import plan
from meshwright.estimate.memory import TIGHT_SHARE
from meshwright.estimate.price import estimate_plan
from meshwright.fields.job import JobFields
from meshwright.planning.compose.sources.parallelizers.guard import Guarded
from meshwright.planning.compose.sources.parallelizers.layerwise import Layerwise
from meshwright.planning.question.job_inputs import job_inputs
from meshwright.specs.cluster import Island
from meshwright.specs.plan import Chunk, ExecutionPlan, Pipeline, Worker
from meshwright.specs.seam import ModelSlice
from tests.planning.compose.sources.parallelizers.slices import island_of, job, slice_of

INPUTS = job_inputs(JobFields(model="llama-2-7b", gpus="8xA100-40", seq_len=4096, global_batch=64))
KIND = INPUTS.model.kinds()[0]


def test_a_whole_model_is_priced_as_estimate_prices_it() -> None:
    guarded = Guarded(inner=Layerwise())
    island = Island(group=INPUTS.cluster.groups[0], first_device=0, devices=8)
    part = ModelSlice(model=INPUTS.model, layers=((KIND, 32),), embedding=True, head=True)
    (found,) = guarded.plan(part, island, INPUTS.workload, 16)
    assert not guarded.skips
    assert len(found.runs) > 1, "memory does not bind: nothing is told layer by layer"
    chunk = Chunk(virtual_stage=0, layers=((0, 31),), runs=found.runs, embedding=True, head=True)
    ranks = found.strategies[found.runs[0].strategy].dp
    worker = Worker(devices=((0, 7),), chunks=(chunk,))
    pipeline = Pipeline(micro_batch=16 // ranks, num_micro_batches=4, workers=(worker,))
    made = ExecutionPlan(strategies=found.strategies, pipelines=(pipeline,))
    estimate = estimate_plan(made, INPUTS.model, INPUTS.cluster, INPUTS.workload)
    claimed_s = 4 * (found.forward_s + found.backward_s) + found.sync_s
    assert claimed_s == pytest.approx(estimate.step_time_s, rel=0.05)
    held = found.state_bytes + found.activation_bytes
    assert held == pytest.approx(estimate.peak_memory_bytes, rel=0.04)
    assert held <= INPUTS.cluster.groups[0].device.memory_bytes * (1 - TIGHT_SHARE)


def test_more_in_flight_leaves_less_memory_and_is_no_quicker() -> None:
    part = ModelSlice(model=INPUTS.model, layers=((KIND, 16),), embedding=True)
    island = Island(group=INPUTS.cluster.groups[0], first_device=0, devices=4)
    found = Layerwise().plan(part, island, INPUTS.workload, 16)
    assert len(found) > 1
    by_time = sorted(found, key=lambda one: one.forward_s + one.backward_s + one.sync_s / 4)
    kept = [one.activation_bytes for one in by_time]
    assert kept == sorted(kept, reverse=True)


def test_experts_are_a_reported_skip() -> None:
    inputs = job("mixtral-8x7b")
    guarded = Guarded(inner=Layerwise())
    assert guarded.plan(slice_of(inputs, 2), island_of(inputs), inputs.workload, 8) == []
    assert "dynamic program is over equal dense layers" in guarded.skips[0].reason


def test_it_plans_layers_unlike_where_memory_binds_and_is_compared_with_one_strategy_for_all() -> None:
    found = plan("llama-2-7b", gpus="4xA100-40", seq_len=4096, global_batch=16, parallelizer="layerwise", top=3)
    assert found.composition is not None
    assert all(one.estimate.fits == "yes" for one in found)
    assert any(len(set(one.plan.strategies)) > 1 for one in found)
    assert found.composition.own_s is not None
    assert any("meshwright's own search" in line for line in found.verdict.why)
