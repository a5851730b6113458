"""Pipeline sets of native stages against every pipeline set there is, on clusters small enough to try them all."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest

from meshwright.estimate.layout import ModelLayout
from meshwright.estimate.price import estimate_plan
from meshwright.fields.job import JobFields
from meshwright.planning.compose.composer import Composer
from meshwright.planning.compose.island_part import IslandPart
from meshwright.planning.compose.pipeline_sets import blended, gradient_sum_s, with_whole_micro_batches
from meshwright.planning.compose.sources.native.execution import native_plan
from meshwright.planning.compose.sources.native.split import SplitPipeline, split_pipeline
from meshwright.planning.compose.sources.native.split_stage import SplitStage
from meshwright.planning.mixed.native import NativeSource
from meshwright.planning.question.job_inputs import JobInputs, job_inputs
from meshwright.schedules.named.interleaved import smallest_group
from meshwright.search.space import Space

SMALL = Space(
    pins=(
        ("tp", (1, 2)),
        ("cp", (1,)),
        ("sharding", ("z0", "z1")),
        ("recompute", ("none", "full")),
        ("tp_overlap", ("bulk",)),
        ("schedule", ("1f1b",)),
    )
)


def asked(gpus: str, batch: int, layers: int) -> JobInputs:
    found = job_inputs(JobFields(model="llama-3-8b", gpus=gpus, global_batch=batch))
    (run,) = found.model.runs
    return replace(found, model=replace(found.model, runs=(replace(run, repeats=layers),)))


def every_pipeline(composer: Composer, order: tuple[IslandPart, ...]) -> list[SplitPipeline]:
    """All stage counts, global micro-batches and strategies, dominated ones too."""
    found = []
    islands = composer.islands
    options = [islands.options(part) for part in order]
    kinds_before = ModelLayout.of(composer.model, composer.workload.seq_len).kinds_before
    for global_micro_batch in islands.global_micro_batches:
        choices = []
        for part, own in zip(order, options, strict=True):
            assert own is not None
            rows = np.flatnonzero(
                (own.global_micro_batch == global_micro_batch) & (part.devices % own.devices == 0)
            ).tolist()
            choices.append([(part, own, row) for row in rows])
        for chosen in itertools.product(*choices):
            stages: list[SplitStage] = []
            for part, own, row in chosen:
                size = int(own.devices[row])
                limit = islands.limit_bytes(part.group)
                one = SplitStage(island=part.group, devices=size, options=own, row=row, limit_bytes=limit)
                stages += [one] * (part.devices // size)
            if len(stages) > composer.model.num_layers:
                continue
            made = split_pipeline(
                stages,
                kinds_before,
                global_micro_batch=global_micro_batch,
                micro_batches=composer.workload.global_batch // global_micro_batch,
                hops_s=[islands.hop_s(a, b, global_micro_batch) for a, b in itertools.pairwise(stages)],
            )
            if made is not None:
                found.append(made)
    return found


@pytest.mark.parametrize(("gpus", "batch"), [("2xH100,2xA100-80", 16), ("4xH100,2xA100-40", 8), ("1xH100,3xL40S", 12)])
def test_the_best_pipeline_is_the_best_of_all(gpus: str, batch: int) -> None:
    inputs = asked(gpus, batch, 32)
    composer = Composer(inputs.model, inputs.cluster, inputs.workload, SMALL)
    parts = tuple(IslandPart(number, group.devices) for number, group in enumerate(inputs.cluster.groups))
    every = [one for order in itertools.permutations(parts) for one in every_pipeline(composer, order)]
    best_s = min(one.step_s(batch / one.global_micro_batch) for one in every)
    found = composer.pipelines(parts)
    assert found[0].step_s(batch / found[0].global_micro_batch) == pytest.approx(best_s, rel=2e-3)


def test_pipeline_sets_are_the_best_of_all_partitions_and_shares() -> None:
    inputs = asked("2xH100,2xA100-80", 24, 32)
    composer = Composer(inputs.model, inputs.cluster, inputs.workload, SMALL)
    parts = [IslandPart(number, group.devices) for number, group in enumerate(inputs.cluster.groups)]
    pairs = itertools.product(*([composer.pipelines([part])[:4] for part in parts]))
    for pair in pairs:
        assert [one.islands for one in pair] == [{0}, {1}]
        assert [one.devices for one in pair] == [2, 2]
        made = with_whole_micro_batches(blended(pair, 24, 0.0), 24)
        counts = [
            (first, (24 - first * pair[0].global_micro_batch) // pair[1].global_micro_batch)
            for first in range(1, 25)
            if (24 - first * pair[0].global_micro_batch) % pair[1].global_micro_batch == 0
            and first * pair[0].global_micro_batch < 24
        ]
        best_s = min(max(one.step_s(n) for one, n in zip(pair, both, strict=True)) for both in counts)
        assert made is not None
        assert sum(int(n) * one.global_micro_batch for n, one in zip(made.shares, pair, strict=True)) == 24
        assert made.step_s == pytest.approx(best_s, rel=1e-9)


def test_the_closed_form_is_near_the_priced_plan_and_memory_never_above_the_limit() -> None:
    inputs = asked("8xH100,8xA100-80", 64, 32)
    composer = Composer(inputs.model, inputs.cluster, inputs.workload)
    parts = [IslandPart(number, group.devices) for number, group in enumerate(inputs.cluster.groups)]
    for one_set in composer.sets(parts, 12):
        made = with_whole_micro_batches(one_set, 64)
        assert made is not None
        plan = native_plan(made, inputs.cluster)
        estimate = estimate_plan(plan, inputs.model, inputs.cluster, inputs.workload)
        assert estimate.step_time_s == pytest.approx(made.step_s, rel=0.12)
        assert estimate.fits == "yes"


def test_gradients_between_pipelines_cross_links_only_between_who_holds_the_same_layers() -> None:
    """Two pipelines through two islands in the same order never meet on the link between these."""
    inputs = asked("8xH100,8xA100-80", 64, 32)
    composer = Composer(inputs.model, inputs.cluster, inputs.workload, SMALL)
    pipelines = composer.pipelines([IslandPart(0, 4), IslandPart(1, 4)])
    alike = next(
        [one, one] for one in pipelines if one.chunks == 1 and len(set(one.stage_islands)) == len(one.stages) == 2
    )
    turned = replace(alike[0], stages=alike[0].stages[::-1], layers=alike[0].layers[::-1])

    def bandwidth(here: int, there: int) -> float:
        return 100.0 if here == there else 1.0

    across_s, along_s = (gradient_sum_s(own, 1e3, bandwidth) for own in ([alike[0], turned], alike))
    layers, devices = np.array(alike[0].layers), np.array(alike[0].stage_devices)
    assert along_s == pytest.approx(1e3 / 100 * (layers / devices).max() / layers.sum())
    assert across_s > 10 * along_s


def test_more_devices_never_make_the_composition_slower() -> None:
    times = []
    for gpus in ("8xH100", "8xH100,4xA100-80", "8xH100,4xA100-80,4xL40S"):
        inputs = asked(gpus, 32, 32)
        source = NativeSource(inputs, lambda part: Space())
        times.append(source.composed(source.whole, 8)[0].step_time_s)
    assert times == sorted(times, reverse=True)


@pytest.mark.parametrize(("stages", "micro_batches"), [(4, 190), (2, 33), (8, 8), (5, 7)])
def test_groups_of_interleaved_leave_no_short_rest(stages: int, micro_batches: int) -> None:
    group = smallest_group(stages, micro_batches)
    rest = micro_batches % group
    assert group >= stages
    assert rest == 0 or rest >= stages


def test_interleaved_pipelines_alone_are_those_of_all_sets() -> None:
    inputs = asked("4xH100,2xA100-80", 12, 8)
    composer = Composer(inputs.model, inputs.cluster, inputs.workload)
    parts = NativeSource(inputs, lambda part: SMALL).whole
    alone = composer.of_chunks_alone()
    assert alone.pipelines(parts) == [one for one in composer.pipelines(parts) if one.chunks > 1]
    made = alone.made(parts, 20)
    assert made
    assert all(one.chunks > 1 for one_set in made for one in one_set.pipelines)
