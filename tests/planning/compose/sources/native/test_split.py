"""The memory that a stage's layers may take, against the micro-batches that its schedule has in flight there."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from meshwright.estimate.layout import ModelLayout
from meshwright.estimate.price import estimate_of
from meshwright.estimate.pricer import PlanPricer
from meshwright.fields.job import JobFields
from meshwright.planning.compose.composer import Composer
from meshwright.planning.compose.island_part import IslandPart
from meshwright.planning.compose.sources.native.execution import native_plan
from meshwright.planning.compose.sources.native.split import SplitPipeline, split_pipeline
from meshwright.planning.compose.sources.native.split_stage import (
    ERR_BYTES,
    SplitStage,
    StageMemory,
    StageSums,
    in_flight,
)
from meshwright.planning.question.job_inputs import job_inputs
from meshwright.schedules import SCHEDULES
from meshwright.schedules.named.interleaved import Interleaved, smallest_group
from meshwright.search.space import Space
from tests.planning.compose.test_composer import SMALL, asked

LAYERS = 8


@pytest.fixture(scope="module")
def stage() -> SplitStage:
    inputs = asked("4xH100,4xA100-80", 32, LAYERS)
    composer = Composer(inputs.model, inputs.cluster, inputs.workload, SMALL)
    options = composer.islands.options(IslandPart(0, 4))
    assert options is not None
    return SplitStage(island=0, devices=int(options.devices[0]), options=options, row=0, limit_bytes=80e9)


@pytest.mark.parametrize("count", [2, 3, 4])
@pytest.mark.parametrize("chunks", [1, 2, 3, 4])
def test_a_stage_leaves_room_for_what_its_schedule_has_in_flight(stage: SplitStage, count: int, chunks: int) -> None:
    inputs = asked("4xH100,4xA100-80", 32, LAYERS)
    sums = StageSums.of(stage, ModelLayout.of(inputs.model, inputs.workload.seq_len).kinds_before)
    micro_batches = 8 * count
    schedule = SCHEDULES["interleaved" if chunks > 1 else "1f1b"]
    memory = StageMemory.of([stage] * count, [sums] * count, micro_batches, chunks)
    for index, peak in enumerate(schedule.peak_activations(count, micro_batches, chunks)):
        # Bytes before a cut are the state of those layers and, for each chunk of them, what is in flight of it.
        alive = (memory.bytes_[index][-1] - sums.state_bytes[-1]) / sums.kept_bytes[-1]
        assert alive == pytest.approx(peak / chunks)
        held = [sums.edges[0]] * (index == 0) + [sums.edges[1]] * (index == count - 1)
        edges = sum(edge[-3] + alive * edge[-2] for edge in held)
        most = max([sums.transient_bytes, *(edge[-1] for edge in held)])
        fixed = float(stage.options.fixed_bytes[0])
        assert chunks * memory.room_bytes[index] == pytest.approx(stage.limit_bytes - fixed - most - edges)


@pytest.mark.parametrize(("model", "gpus"), [("qwen3-30b-a3b", "8xA100-80,4xH100"), ("llama-3-8b", "4xH100,4xL40S")])
def test_the_memory_that_stages_promise_is_what_their_plan_is_priced_with(model: str, gpus: str) -> None:
    inputs = job_inputs(JobFields(model=model, gpus=gpus, global_batch=64))
    composer = Composer(inputs.model, inputs.cluster, inputs.workload, Space(pins=(("schedule", ("1f1b",)),)))
    kinds_before = ModelLayout.of(inputs.model, inputs.workload.seq_len).kinds_before
    parts = [IslandPart(number, group.devices) for number, group in enumerate(inputs.cluster.groups)]
    pricer = PlanPricer(inputs.model, inputs.cluster, inputs.workload)
    made = [one for some in (parts, parts[:1]) for one in composer.made(some, 12) if len(one.pipelines) == 1]
    assert {len(one.pipelines[0].stages) for one in made} >= {1, 2}
    for one_set in made:
        (pipeline,) = one_set.pipelines
        sums = [StageSums.of(stage, kinds_before) for stage in pipeline.stages]
        memory = StageMemory.of(pipeline.stages, sums, round(one_set.shares[0]), 1)
        cuts = np.cumsum([0, *pipeline.layers])
        for priced in estimate_of(native_plan(one_set, inputs.cluster), pricer).stages:
            index = priced.stage
            layers = memory.bytes_[index][cuts[index + 1]] - memory.bytes_[index][cuts[index]]
            promised = pipeline.stages[index].limit_bytes - memory.room_bytes[index] + layers
            # Of layers that are recomputed in part, a plan rounds up how many.
            assert 0.98 * promised <= priced.peak_memory_bytes <= promised * (1 + 1e-3)


def test_no_more_micro_batches_are_in_flight_than_there_are(stage: SplitStage) -> None:
    inputs = asked("4xH100,4xA100-80", 32, LAYERS)
    sums = StageSums.of(stage, ModelLayout.of(inputs.model, inputs.workload.seq_len).kinds_before)
    memory = StageMemory.of([stage] * 4, [sums] * 4, 2, 1)
    assert memory.bytes_[0][-1] == pytest.approx(sums.state_bytes[-1] + 2 * sums.kept_bytes[-1])


@pytest.mark.parametrize("micro_batches", [6, 8, 9, 14, 26])
def test_groups_wider_than_the_stages_need_room_for_what_they_keep_in_flight(
    stage: SplitStage, micro_batches: int
) -> None:
    count, chunks = 6, 3
    kinds_before = np.arange(4 * count * chunks + 1)[:, None]
    group = smallest_group(count, micro_batches)
    peaks = Interleaved(group=group).peak_activations(count, micro_batches, chunks)
    assert in_flight(count, micro_batches, chunks, group) == pytest.approx(np.array(peaks) / chunks)

    def made(limit_bytes: float) -> SplitPipeline | None:
        stages = [replace(stage, limit_bytes=limit_bytes)] * count
        return split_pipeline(
            stages, kinds_before, global_micro_batch=1, micro_batches=1000, hops_s=[0.0] * (count - 1), chunks=chunks
        )

    low, high = 1e9, 1e15
    while high / low > 1.001:
        middle = (low * high) ** 0.5
        low, high = (low, middle) if made(middle) else (middle, high)
    tight = made(high)
    assert tight is not None
    options, row = stage.options, stage.row
    for limit_bytes in (high, 1.1 * high, 1.3 * high, 1e15):
        pipeline = replace(tight, room=_room(tight, limit_bytes))
        needed = []
        for index, peak in enumerate(peaks):
            parts = np.zeros(3)
            parts[0] = sum(tight.layers[index::count])
            parts[1:] = index == 0, index == count - 1
            held = options.fixed_bytes[row] + (options.transient_bytes[row] * (parts > 0)).max()
            held += (options.state_bytes[row] + peak / chunks * options.kept_bytes[row]) @ parts
            needed.append(held)
        assert pipeline.holds(micro_batches) == (max(needed) <= (1 + ERR_BYTES) * limit_bytes)


def _room(pipeline: SplitPipeline, limit_bytes: float) -> np.ndarray:
    kinds_before = np.arange(sum(pipeline.layers) + 1)[:, None]
    stages = [replace(one, limit_bytes=limit_bytes) for one in pipeline.stages]
    sums = [StageSums.of(one, kinds_before) for one in stages]
    return StageMemory.of(stages, sums, 1000, pipeline.chunks).in_flight_of(stages, sums, pipeline.layers)


@pytest.mark.parametrize("chunks", [2, 4])
@pytest.mark.parametrize("micro_batches", [1, 2, 8])
def test_what_follows_a_step_hides_behind_the_passes_of_other_chunks(
    stage: SplitStage, chunks: int, micro_batches: int
) -> None:
    inputs = asked("4xH100,4xA100-80", 32, LAYERS)
    kinds_before = ModelLayout.of(inputs.model, inputs.workload.seq_len).kinds_before
    options = stage.options
    long = replace(options, sync_s=options.sync_s + 5 * (options.forward_s + options.backward_s))
    stages = [replace(stage, options=long, limit_bytes=1e15)] * 2
    made = split_pipeline(
        stages, kinds_before, global_micro_batch=1, micro_batches=micro_batches, hops_s=[0.0], chunks=chunks
    )
    assert made is not None
    after_s = []
    for place in range(2):
        layers = sum(made.layers[chunk * 2 + place] for chunk in range(chunks))
        after_s.append(layers * long.sync_s[0, 0] + long.sync_s[0, 1 + place])
    # Of a chunk's last backwards, as many as stages or micro-batches, all but the last run beside other chunks' sums.
    hidden = (chunks - 1) / chunks * (min(2, micro_batches) - 1)
    assert made.sync_s == pytest.approx(
        max(seconds - hidden * stage_s for seconds, stage_s in zip(after_s, made.stage_s, strict=True))
    )


@pytest.mark.parametrize("chunks", [1, 2, 4])
def test_gradients_of_other_pipelines_find_the_last_backwards_that_own_ones_leave(
    stage: SplitStage, chunks: int
) -> None:
    inputs = asked("4xH100,4xA100-80", 32, LAYERS)
    kinds_before = ModelLayout.of(inputs.model, inputs.workload.seq_len).kinds_before
    options = stage.options

    def spare_s(times: float) -> float:
        own = replace(options, beside_s=times * (options.forward_s + options.backward_s))
        stages = [replace(stage, options=own, limit_bytes=1e15)] * 2
        made = split_pipeline(stages, kinds_before, global_micro_batch=1, micro_batches=8, hops_s=[0.0], chunks=chunks)
        assert made is not None
        return made.spare_s / min(made.stage_s)

    passes = (1 + (chunks - 1) * 2) / chunks
    assert passes / 2 < spare_s(0.0) < passes  # those of backward alone
    assert 0 < spare_s(0.8 * passes) < spare_s(0.0)
    assert spare_s(2 * passes) == 0
