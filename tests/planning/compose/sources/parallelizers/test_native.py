"""Ours behind the seam: what it answers for a whole model is what `estimate` says of the plan."""

from __future__ import annotations

import pytest

from meshwright.estimate.price import estimate_plan
from meshwright.fields.job import JobFields
from meshwright.planning.compose.sources.parallelizers.native import Native
from meshwright.planning.question.job_inputs import JobInputs, job_inputs
from meshwright.specs.cluster import Island
from meshwright.specs.plan import Chunk, ExecutionPlan, Pipeline, Worker
from meshwright.specs.seam import ModelSlice, Parallelizer, PartialPlan


@pytest.fixture(scope="module")
def inputs() -> JobInputs:
    return job_inputs(JobFields(model="llama-3-8b", gpus="8xH100", global_batch=8))


@pytest.fixture(scope="module")
def plans(inputs: JobInputs) -> list[PartialPlan]:
    ours: Parallelizer = Native()
    layers = tuple(inputs.model.kind_counts().items())
    part = ModelSlice(model=inputs.model, layers=layers, embedding=True, head=True)
    return ours.plan(part, Island(group=inputs.cluster.groups[0], first_device=0, devices=8), inputs.workload, 8)


def test_every_partial_plan_is_priced_as_estimate_prices_it(inputs: JobInputs, plans: list[PartialPlan]) -> None:
    assert len(plans) > 10
    for found in plans[:12]:
        dp = found.strategies[0].dp
        chunk = Chunk(virtual_stage=0, layers=((0, 31),), runs=found.runs, embedding=True, head=True)
        worker = Worker(devices=((0, 7),), chunks=(chunk,))
        pipeline = Pipeline(micro_batch=8 // dp, num_micro_batches=1, workers=(worker,))
        plan = ExecutionPlan(strategies=found.strategies, pipelines=(pipeline,))
        estimate = estimate_plan(plan, inputs.model, inputs.cluster, inputs.workload)
        assert found.forward_s + found.backward_s + found.sync_s == pytest.approx(estimate.step_time_s, rel=0.03)
        assert found.state_bytes + found.activation_bytes == pytest.approx(estimate.peak_memory_bytes, rel=0.03)


def test_no_partial_plan_beats_another(plans: list[PartialPlan]) -> None:
    for one in plans:
        for other in plans:
            better = (
                other.forward_s + other.backward_s < one.forward_s + one.backward_s
                and other.state_bytes < one.state_bytes
                and other.activation_bytes < one.activation_bytes
                and other.sync_s < one.sync_s
            )
            assert not better


def test_equal_slices_give_equal_answers_wherever_they_stand(inputs: JobInputs) -> None:
    ours, kind = Native(), inputs.model.kinds()[0]
    part = ModelSlice(model=inputs.model, layers=((kind, 4),))
    group = inputs.cluster.groups[0]
    answers = [
        ours.plan(part, Island(group=group, first_device=first, devices=4), inputs.workload, 4) for first in (0, 4)
    ]
    assert answers[0] == answers[1]
