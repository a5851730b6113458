"""Plans for a changed cluster: the devices that equal pipelines are tried on."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from meshwright import plan
from meshwright.library.clusters import resolve_gpus
from meshwright.planning.axes import space_of
from meshwright.planning.compose.sources.native.effort import QUICK
from meshwright.planning.mixed import again
from meshwright.planning.mixed.native import NativeSource
from meshwright.planning.question.job_inputs import JobInputs
from meshwright.specs.job import Job


@pytest.fixture(scope="module")
def job() -> Job:
    return plan("gpt2-large", gpus="32xH100", global_batch=60, seq_len=1024, pin=["tp=2", "cp=1"], top=1)[0].job


@pytest.mark.parametrize("gpus", ["8xH100", "24xH100", "56xH100", "12x4xA100-80", "5x6xV100-32"])
def test_equal_pipelines_are_tried_on_the_whole_nodes_that_promise_most(job: Job, gpus: str) -> None:
    cluster = resolve_gpus(gpus)
    group, tp, layers = cluster.groups[0], 2, 36

    def promised(devices: int) -> float:
        shapes = [(dp, pp) for pp in range(1, layers + 1) for dp in range(1, 61) if dp * pp * tp == devices]
        able = [(60 // dp, pp) for dp, pp in shapes if 60 % dp == 0]
        # What of the devices is busy: all but the bubble, and stages with fewer layers than the fullest.
        return max((devices * m / (m + pp - 1) * layers / (pp * -(-layers // pp)) for m, pp in able), default=0.0)

    sizes = range(group.devices_per_node, group.devices + 1, group.devices_per_node)
    (chosen,) = again._equal_sizes(job, group)
    assert chosen in sizes
    assert promised(chosen) == pytest.approx(max(promised(devices) for devices in sizes))


def test_a_plan_that_is_kept_is_priced_with_its_batch_shared_again_too() -> None:
    """A micro-batch of the H100 is given to the L40S, which the H100 then wait for."""
    quick = plan("llama-3.2-1b", gpus="4xH100,4xL40S", global_batch=64, seq_len=2048, top=1)[0].job
    first, second = quick.plan.pipelines
    inputs = JobInputs(
        model=quick.model, cluster=quick.cluster, workload=quick.workload, assumptions=(), batch_given=True
    )
    source = NativeSource(inputs, lambda part: space_of(quick.model, quick.workload, part.devices), QUICK)
    sizes = [one.micro_batch * quick.plan.data_degree(one) for one in (first, second)]
    moved = sizes[0] * sizes[1] // math.gcd(*sizes)
    waiting = replace(
        quick.plan,
        pipelines=(
            replace(first, num_micro_batches=first.num_micro_batches - moved // sizes[0]),
            replace(second, num_micro_batches=second.num_micro_batches + moved // sizes[1]),
        ),
    )

    as_it_is, shared = again._with_shares(source, waiting)
    assert as_it_is.plan == waiting
    assert shared.step_time_s < as_it_is.step_time_s
