"""The memory that a stage's layers may take, against the micro-batches that its schedule has in flight there."""

from __future__ import annotations

from dataclasses import replace

import pytest

from meshwright.estimate.layout import ModelLayout
from meshwright.planning.compose.composer import Composer
from meshwright.planning.compose.island_part import IslandPart
from meshwright.planning.compose.sources.native.split import SplitStage, _Memory, _Sums, split_pipeline
from meshwright.schedules import SCHEDULES
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
    sums = _Sums.of(stage, ModelLayout.of(inputs.model, inputs.workload.seq_len).kinds_before)
    micro_batches = 8 * count
    schedule = SCHEDULES["interleaved" if chunks > 1 else "1f1b"]
    for index, peak in enumerate(schedule.peak_activations(count, micro_batches, chunks)):
        memory = _Memory.of(stage, sums, index, count, micro_batches, chunks)
        # Bytes before a cut are the state of those layers and, for each chunk of them, what is in flight of it.
        alive = (memory.bytes_[-1] - sums.state_bytes[-1]) / sums.kept_bytes[-1]
        assert alive == pytest.approx(peak / chunks)
        held = [sums.edges[0]] * (index == 0) + [sums.edges[1]] * (index == count - 1)
        edges = sum(edge[-3] + alive * edge[-2] for edge in held)
        most = max([sums.transient_bytes, *(edge[-1] for edge in held)])
        fixed = float(stage.options.fixed_bytes[0])
        assert chunks * memory.room_bytes == pytest.approx(stage.limit_bytes - fixed - most - edges)


def test_no_more_micro_batches_are_in_flight_than_there_are(stage: SplitStage) -> None:
    inputs = asked("4xH100,4xA100-80", 32, LAYERS)
    sums = _Sums.of(stage, ModelLayout.of(inputs.model, inputs.workload.seq_len).kinds_before)
    memory = _Memory.of(stage, sums, 0, 4, 2, 1)
    assert memory.bytes_[-1] == pytest.approx(sums.state_bytes[-1] + 2 * sums.kept_bytes[-1])


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
