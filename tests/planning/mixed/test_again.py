"""Plans for a changed cluster: the devices that equal pipelines are tried on."""

from __future__ import annotations

import pytest

from meshwright import plan
from meshwright.library.clusters import resolve_gpus
from meshwright.planning.mixed import again
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
