"""The strategies of pipelines side by side, one after the other, against every change there is."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from meshwright.estimate.pricer import PlanPricer
from meshwright.planning.compose.composer import Composer
from meshwright.planning.compose.island_part import IslandPart
from meshwright.planning.compose.sources.native.execution import native_plan
from meshwright.planning.mixed.several_pipelines import SeveralPipelines
from tests.planning.compose.test_composer import SMALL, asked

PARTS = [IslandPart(0, 4), IslandPart(1, 4)]


@pytest.fixture(scope="module")
def several() -> SeveralPipelines:
    inputs = asked("4xH100,4xA100-80", 8, 4)
    composer = Composer(inputs.model, inputs.cluster, inputs.workload, SMALL)
    pricer = PlanPricer(inputs.model, inputs.cluster, inputs.workload)
    return SeveralPipelines(composer=composer, pricer=pricer, candidate=lambda plan: None)


def changes_of(several: SeveralPipelines, one_set: Any, number: int) -> list[Any]:
    """The set with one pipeline under each of its other strategies."""
    pipelines = one_set.pipelines
    others = several.composer.through.of_other_strategies(pipelines[number])
    return [replace(one_set, pipelines=(*pipelines[:number], one, *pipelines[number + 1 :])) for one in others]


def test_strategies_are_changed_where_that_is_quicker_until_none_of_the_last_pipeline_is(
    several: SeveralPipelines,
) -> None:
    def step_s(one_set: Any) -> float:
        return several.pricer.step_time_s(native_plan(one_set, several.composer.cluster))

    sets = [one for one in several.composer.made(PARTS, 200) if len(one.pipelines) == 2]
    single = [one for one in sets if all(len(pipeline.stages) == 1 for pipeline in one.pipelines)]
    assert single
    slowest = max(single, key=step_s)
    for made in (single[0], slowest):
        found = several._of_other_strategies(step_s(made), made)
        first = min([step_s(made), *(step_s(one) for one in changes_of(several, made, 0))])
        # The second pipeline is changed beside the best strategy of the first.
        assert step_s(found) <= first
        assert step_s(found) <= min(step_s(one) for one in changes_of(several, found, 1)) * (1 + 1e-12)
    # From the slowest strategies there is something to gain.
    worst = max((one for number in (0, 1) for one in changes_of(several, slowest, number)), key=step_s)
    assert step_s(several._of_other_strategies(step_s(worst), worst)) < step_s(worst)
