"""Pipelines composed of partial plans: equal to brute force, and a stranger's faults lose nothing."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import pytest

from meshwright.estimate.memory import TIGHT_SHARE
from meshwright.hetero.parallelizers.composed import SliceComposer, compose_slices
from meshwright.hetero.parallelizers.guard import Guarded
from meshwright.hetero.parallelizers.with_calculon import Calculon
from meshwright.specs.model import LayerRun
from tests.hetero.parallelizers.slices import Half, Plain, job
from tests.hetero.parallelizers.test_guard import Raises

INPUTS = job("llama-3-8b", "4xH100,4xH200")
SMALL = replace(INPUTS.model, runs=(LayerRun(layers=INPUTS.model.runs[0].layers, repeats=5),))


def compose(*parallelizers: Any, micro_batches: tuple[int, ...] = (4, 8)) -> Any:
    return compose_slices(SMALL, INPUTS.cluster, INPUTS.workload, parallelizers, micro_batches=micro_batches)


def test_the_slowest_stage_is_that_of_brute_force() -> None:
    composer = SliceComposer(
        model=SMALL, cluster=INPUTS.cluster, workload=INPUTS.workload, parallelizers=[Guarded(inner=Plain())]
    )
    compared = 0
    for shape in composer._shapes():
        if len(shape) > 3:
            continue
        found = composer._split(shape, 8)
        slowest = []
        for cuts in itertools.combinations(range(1, 5), len(shape) - 1):
            ends = [0, *cuts, 5]
            stages = [
                composer._stage(ends[i], ends[i + 1], group, devices, 8, len(shape) - i)
                for i, (group, devices) in enumerate(shape)
            ]
            if all(stages):
                slowest.append(max(stage.micro_batch_s for stage in stages if stage))
        assert found is not None
        assert max(stage.micro_batch_s for stage in found.stages) == min(slowest)
        compared += 1
    assert compared > 5


def test_the_plan_holds_every_layer_once_on_devices_of_its_islands_and_fits() -> None:
    best, composer = compose(Plain())
    assert best is not None
    assert [stage.first for stage in best.stages] == [0, *(stage.last + 1 for stage in best.stages[:-1])]
    assert best.stages[-1].last == 4
    assert best.execution.pipelines[0].num_micro_batches * best.micro_batch == INPUTS.workload.global_batch
    for place, stage in enumerate(best.stages):
        device = INPUTS.cluster.groups[stage.group].device
        held = stage.plan.state_bytes + (len(best.stages) - place) * stage.plan.activation_bytes
        assert held <= device.memory_bytes * (1 - TIGHT_SHARE)
    each = [stage.micro_batch_s for stage in best.stages]
    least = sum(each) + (best.num_micro_batches - 1) * max(each)
    assert least <= best.step_s < 1.2 * least
    assert composer.counts["questions"] == sum(one.asked for one in composer.parallelizers)


def test_more_devices_are_never_slower() -> None:
    alone, _ = compose_slices(
        SMALL, job("llama-3-8b", "4xH200").cluster, INPUTS.workload, [Plain()], micro_batches=(4, 8)
    )
    both, _ = compose(Plain())
    assert alone is not None
    assert both is not None
    assert both.step_s <= alone.step_s


def test_what_raises_or_lies_loses_no_search() -> None:
    alone, _ = compose(Plain(), micro_batches=(8,))
    best, composer = compose(Raises(), Half({"forward_s": 1e-9}), Plain(), micro_batches=(8,))
    assert alone is not None
    assert best is not None
    assert best.step_s <= alone.step_s
    report = " ".join(composer.skips())
    assert "raised ZeroDivisionError" in report
    assert "at their peak" in report


def test_calculon_plans_a_slice_of_each_island() -> None:
    best, composer = compose_slices(
        SMALL, job("llama-3-8b", "2xH100,2xV100-16").cluster, job().workload, [Calculon()], micro_batches=(4,), grain=5
    )
    assert best is not None
    assert {stage.parallelizer for stage in best.stages} == {"calculon"}
    assert any("V100-16 has no rate in bf16" in line for line in composer.skips())


def test_where_nobody_answers_there_is_no_pipeline_but_a_report() -> None:
    best, composer = compose(Raises(), micro_batches=(8,))
    assert best is None
    assert len(composer.skips()) == 1


@pytest.mark.parametrize("micro_batches", [(7,), ()])
def test_micro_batches_that_do_not_divide_the_batch_are_not_tried(micro_batches: tuple[int, ...]) -> None:
    best, composer = compose(Plain(), micro_batches=micro_batches)
    assert best is None
    assert not composer.counts["questions"]
