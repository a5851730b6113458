"""One step of a measured job, task by task, against the layers' own times."""

from __future__ import annotations

import numpy as np
import pytest

from meshwright.planning.compose.sources.profiles.costs import ProfileCosts
from meshwright.planning.compose.sources.profiles.pipeline_set import (
    EqualPipelines,
    PipelineShape,
    ShapeSet,
    StageShape,
)
from meshwright.planning.compose.sources.profiles.price import paced_pipelines
from meshwright.planning.compose.sources.profiles.timeline import _durations
from tests.planning.compose.cases import kind, tiny_profiles

STAGES = (
    StageShape(device="Alpha-32", tp=1, replicas=1, layers=2),
    StageShape(device="Alpha-32", tp=1, replicas=1, layers=3),
    StageShape(device="Beta-12", tp=1, replicas=1, layers=1),
)


def test_a_forward_takes_its_own_layers_and_half_of_the_transfers() -> None:
    costs = ProfileCosts(tiny_profiles(), "tiny", [kind("Alpha-32", 2), kind("Beta-12", 1)])
    (pipeline,) = paced_pipelines([(PipelineShape(1, STAGES), (1, 1, 1))], costs)
    forward_s, backward_s = _durations(pipeline, costs, 4)

    first = 0
    for place, stage in enumerate(STAGES):
        until = costs.forward_s(stage.device, 1, 1)
        layers_s = float(until[first + stage.layers] - until[first])
        transfers_s = pipeline.pace.stage_s[place] - pipeline.pace.compute_s[place]
        assert forward_s[place, 0, :3] == pytest.approx(layers_s + transfers_s / 2)
        assert forward_s[place, 0, :3] + backward_s[place, 0, :3] == pytest.approx(pipeline.pace.stage_s[place])
        first += stage.layers
    assert not np.any(forward_s[:, :, 3])
    assert not np.any(backward_s[:, :, 3])


def test_a_set_uses_the_devices_of_all_its_pipelines() -> None:
    pair = EqualPipelines(PipelineShape(1, STAGES), 3)
    alone = EqualPipelines(PipelineShape(2, STAGES[2:]), 1)
    assert ShapeSet((pair, alone)).devices("Alpha-32") == 6
    assert ShapeSet((pair, alone)).devices("Beta-12") == 4
