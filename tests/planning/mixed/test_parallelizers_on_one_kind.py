"""A parallelizer on one kind of device finds the quickest of all plans that it can express."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Iterator

import pytest

from meshwright import plan
from meshwright.errors import MeshwrightError
from meshwright.estimate.layout import expand
from meshwright.estimate.price import estimate_plan
from meshwright.fields.job import JobFields
from meshwright.planning.compose.pipeline_sets import blended
from meshwright.planning.compose.sources.parallelizers.slice_pipeline import SlicePipeline
from meshwright.planning.question.job_inputs import JobInputs, job_inputs
from meshwright.specs.row import PlanRow


def rows_of_calculon(devices: int, batch: int, heads: int) -> Iterator[PlanRow]:
    """Degrees, micro-batches, optimizer sharding and recompute that Calculon has, one by one."""
    degrees = [d for d in range(1, devices + 1) if devices % d == 0]
    for tp, pp in itertools.product(degrees, degrees):
        if devices % (tp * pp) or heads % tp:
            continue
        dp = devices // (tp * pp)
        sizes = [mbs for mbs in range(1, batch // dp + 1) if batch % (dp * mbs) == 0]
        for mbs, sharding, again, sp in itertools.product(
            sizes, ("z0", "z1") if dp > 1 else ("z0",), ("none", "sel", "full"), (False, True) if tp > 1 else (False,)
        ):
            yield PlanRow(tp=tp, pp=pp, dp=dp, mbs=mbs, gbs=batch, sharding=sharding, recompute=again, sp=sp)


def least_s(inputs: JobInputs) -> float:
    found = math.inf
    for row in rows_of_calculon(inputs.cluster.devices, inputs.workload.global_batch, 12):
        try:
            one = estimate_plan(
                expand(row, inputs.model, inputs.workload.seq_len), inputs.model, inputs.cluster, inputs.workload
            )
        except MeshwrightError:
            continue
        if one.fits == "yes":
            found = min(found, one.step_time_s)
    return found


@pytest.mark.parametrize("batch", [4, 16, 48, 256])
def test_calculon_finds_the_quickest_plan_it_can_express(batch: int) -> None:
    inputs = job_inputs(JobFields(model="gpt2", gpus="4xH100", seq_len=1024, global_batch=batch))
    found = plan("gpt2", gpus="4xH100", seq_len=1024, global_batch=batch, parallelizer="calculon")
    # Layers that are not divided equally are Calculon's, too.
    assert found.best.estimate.step_time_s <= least_s(inputs) * (1 + 1e-9)


def test_a_pipeline_that_takes_the_batch_in_one_micro_batch_is_a_plan() -> None:
    draw = random.Random(7)
    for _ in range(100):
        busy_s, sync_s, batch = draw.uniform(0.001, 0.1), draw.uniform(0.0, 0.01), draw.randint(2, 500)
        one = SlicePipeline(
            stages=(), global_micro_batch=batch, hops_s=(), fill_s=busy_s, period_s=busy_s, sync_s=sync_s
        )
        assert blended([one], batch, 0.0).step_s == pytest.approx(busy_s + sync_s)
