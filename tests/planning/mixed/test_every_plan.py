"""The planner against an enumerator that shares none of its closed forms: whole plans, priced by `estimate` alone."""

from __future__ import annotations

import pytest

from benchmarks.every_plan import Axes, EveryPlan, small_job
from meshwright.planning.mixed.native import NativeSource
from meshwright.planning.mixed.search import mixed_plans
from meshwright.search.space import Space

AXES = Axes(tensor=(1, 2), context=(1,), shardings=("z0", "z1", "fsdp"))


@pytest.mark.parametrize(
    ("gpus", "batch", "within"),
    # From the number of pipelines up within 1%, at 16 times it within 0.2%.
    [("1xH200,1xL40S", 2, 0.01), ("2xH100,1xA100-80", 3, 0.01), ("1xH100,1xA100-80", 32, 0.002)],
)
def test_no_plan_of_a_small_cluster_is_clearly_quicker(gpus: str, batch: int, within: float) -> None:
    inputs = small_job("llama-3.2-1b", gpus, batch)
    own_s = mixed_plans(NativeSource(inputs, lambda part: Space())).quickest.step_time_s
    every = EveryPlan(inputs, AXES)
    best_s, _ = every.best()
    assert every.priced > 20
    assert own_s <= best_s * (1 + within)


def test_the_enumerator_finds_both_devices_at_work() -> None:
    inputs = small_job("llama-3.2-1b", "1xH100,1xH200", 8)
    both_s, best = EveryPlan(inputs, AXES).best()
    alone_s = EveryPlan(small_job("llama-3.2-1b", "1xH100", 8), AXES).best()[0]
    assert best is not None
    assert both_s < alone_s
