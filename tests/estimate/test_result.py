"""What an estimate says of itself."""

from __future__ import annotations

from meshwright.estimate.price import estimate_plan
from meshwright.library.clusters import resolve_gpus
from meshwright.specs import Workload
from meshwright.specs.strategy import LayerStrategy
from tests.estimate.cases import DENSE
from tests.estimate.mixed import Stage, plan_of


def test_a_stage_is_named_with_its_pipeline_where_there_are_several() -> None:
    where = resolve_gpus("1x4xH100")
    for pipelines, names in (
        (1, {"stage 0", "stage 1"}),
        (2, {f"pipeline {i} stage {j}" for i in (0, 1) for j in (0, 1)}),
    ):
        made = [
            ([Stage(2 * at, LayerStrategy(), 6), Stage(2 * at + 1, LayerStrategy(), 6)], 1, 2)
            for at in range(pipelines)
        ]
        found = estimate_plan(plan_of(*made), DENSE, where, Workload(seq_len=512, global_batch=2 * pipelines))
        assert {found.place(stage) for stage in found.stages} == names
