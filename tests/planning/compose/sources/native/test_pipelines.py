"""Pipelines through islands: no order of their stages is quicker, one island at both ends among them."""

from __future__ import annotations

import itertools
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from meshwright import plan
from meshwright.estimate.layout import ModelLayout
from meshwright.fields.job import JobFields
from meshwright.library.clusters import resolve_gpus
from meshwright.planning.compose.composer import Composer
from meshwright.planning.compose.island_part import IslandPart
from meshwright.planning.compose.sources.native.pipelines import _parted
from meshwright.planning.compose.sources.native.split import SplitPipeline, split_pipeline
from meshwright.planning.question.job_inputs import job_inputs

MODEL, BATCH, LENGTH = "qwen3-8b", 64, 2048


def islands_of(one: SplitPipeline) -> list[int]:
    return [island for island, _ in itertools.groupby(stage.island for stage in one.stages)]


@pytest.mark.parametrize("gpus", ["8xH100,4xL40S", "4xL40S,8xH100", "3xH200,7xL40S", "5xH200,8xL40S"])
def test_no_order_of_the_stages_of_the_quickest_pipelines_is_quicker(gpus: str) -> None:
    inputs = job_inputs(JobFields(model=MODEL, gpus=gpus, global_batch=BATCH, seq_len=LENGTH))
    composer = Composer(inputs.model, inputs.cluster, inputs.workload)
    parts = [IslandPart(number, group.devices) for number, group in enumerate(inputs.cluster.groups)]
    found = composer.pipelines(parts)
    best_s = found[0].step_s(BATCH / found[0].global_micro_batch)
    assert any(len(islands_of(one)) == 3 for one in found)
    assert {len(set(islands_of(one))) for one in found} == {2}
    layout = ModelLayout.of(inputs.model, LENGTH)
    for one in found[:8]:
        if len(one.stages) > 4:
            continue
        for stages in set(itertools.permutations(one.stages)):
            other = split_pipeline(
                stages,
                layout.kinds_before,
                global_micro_batch=one.global_micro_batch,
                micro_batches=BATCH // one.global_micro_batch,
                hops_s=[composer.islands.hop_s(a, b, one.global_micro_batch) for a, b in itertools.pairwise(stages)],
                chunks=one.chunks,
            )
            entered = 0 if other is None else len(islands_of(other))
            # An island that is entered twice between others is not looked at.
            if other is not None and entered <= 3:
                assert best_s <= other.step_s(BATCH / other.global_micro_batch) * 1.002


def test_a_kind_named_as_two_groups_that_cannot_be_one_is_not_quicker_than_as_one() -> None:
    """Prices keep the two apart, so that the other kind may stand between them."""
    apart = resolve_gpus("4xH100,4xH100,4xL40S")
    priced = [replace(group, price_per_device_hour=1.0 + n) for n, group in enumerate(apart.groups)]
    cluster = replace(apart, groups=tuple(priced))
    three = plan(MODEL, cluster=cluster, global_batch=BATCH, seq_len=LENGTH)
    two = plan(MODEL, gpus="2x4xH100,4xL40S", global_batch=BATCH, seq_len=LENGTH)
    assert two[0].estimate.step_time_s <= three[0].estimate.step_time_s * 1.002


def test_one_half_or_all_but_one_of_the_stages_of_an_island_are_tried_at_the_other_end() -> None:
    stages: Any = tuple(SimpleNamespace(island=island) for island in (*[0] * 8, *[1] * 3, 2))
    orders = [tuple(stage.island for stage in order) for order in _parted(stages)]
    rest = (1, 1, 1, 2)
    assert orders == [(*[0] * (8 - moved), *rest, *[0] * moved) for moved in (1, 4, 7)]
    # Three at the end: one, and all but one.
    ends = [[stage.island for stage in order].index(0) for order in _parted(stages[:-1])]
    assert ends == [0, 0, 0, 1, 2]
    assert not list(_parted((*stages[:8], stages[0])))
