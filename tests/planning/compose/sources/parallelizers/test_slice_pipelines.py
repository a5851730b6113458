"""Which of two partial pipelines is kept, against the definition; a pipeline's time against its stages, one by one."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwright.estimate.memory import TIGHT_SHARE
from meshwright.planning.compose.island_part import IslandPart
from meshwright.planning.compose.sources.parallelizers.composed import SliceEffort
from meshwright.planning.compose.sources.parallelizers.slice_pipeline import cost_with_stage
from meshwright.planning.compose.sources.parallelizers.slice_pipelines import Allowed, SlicePipelines, _no_worse
from tests.planning.compose.sources.parallelizers.slices import Plain
from tests.planning.compose.sources.parallelizers.test_composed import composer_of

COSTS = list(itertools.product((0.0, 1.0), repeat=3))
TIMES = st.floats(0.0, 10.0)


@pytest.mark.parametrize("one", COSTS)
@pytest.mark.parametrize("other", COSTS)
def test_a_cost_is_no_worse_where_none_of_its_parts_is(one: tuple[float, ...], other: tuple[float, ...]) -> None:
    assert _no_worse(one, other) == (not any(own > its for own, its in zip(one, other, strict=True)))


@given(st.lists(st.tuples(TIMES, TIMES, TIMES), min_size=1, max_size=5))
def test_stages_in_front_fill_the_pipeline_and_the_slowest_sets_its_pace(stages: list[tuple[float, ...]]) -> None:
    cost = (0.0, 0.0, 0.0)
    for number, (busy_s, sync_s, hop_s) in enumerate(stages, start=1):
        cost = cost_with_stage(cost, busy_s, sync_s, hop_s, number)
    fills = list(itertools.accumulate(busy_s + 2 * hop_s for busy_s, _, hop_s in stages))
    assert cost[0] == pytest.approx(fills[-1])
    # No micro-batch follows the last before it has come through, shared by as many as there are stages to hold them.
    rounds = [fill / number for number, fill in enumerate(fills, start=1)]
    assert cost[1] == pytest.approx(max(*rounds, *(busy_s for busy_s, _, _ in stages)))
    assert cost[2] == max(sync_s for _, sync_s, _ in stages)


SIZED = [
    ("8x8xH100", 99, 99),
    ("8x8xH100", 16, 99),
    ("8x8xH100", 99, 4),
    ("2x4xH100", 4, 2),
    ("1x5xH100", 99, 99),
    ("3x8xH100", 99, 5),
]


@pytest.mark.parametrize(("gpus", "stages", "most"), SIZED)
def test_stages_are_parts_of_a_node_or_whole_nodes_and_few_where_they_are_too_many(
    gpus: str, stages: int, most: int
) -> None:
    effort = SliceEffort(near=1e9, lengths=99, refined=0, stages=stages, sizes=most, kept_of=((1, 9),))
    composer = composer_of(Plain(), gpus=gpus, effort=effort)
    group = composer.questions.cluster.groups[0]
    node, devices = group.devices_per_node, group.devices
    able = [n for n in range(1, devices + 1) if (node % n == 0 or n % node == 0) and devices // n <= stages]
    if len(able) > most:
        tiling = [n for n in able if devices % n == 0]
        assert composer._sizes(group) == tuple(tiling[-most:])
        assert composer.counts["sizes of stages: too many"] == len(able) - len(tiling[-most:])
    else:
        assert composer._sizes(group) == tuple(able)


@pytest.mark.parametrize("stages", [1, 2, 5, 99])
def test_an_answer_fits_where_it_fits_with_the_micro_batches_in_flight_there(stages: int) -> None:
    questions, global_micro_batch = composer_of(Plain(), gpus="4xA100-40").questions, 4
    answers = {
        end: questions.answers(0, end, 0, 1, global_micro_batch) for end in range(1, questions.model.num_layers + 1)
    }
    room = questions.cluster.groups[0].device.memory_bytes * (1.0 - TIGHT_SHARE)
    in_flight = min(stages, questions.workload.global_batch // global_micro_batch)
    allowed = Allowed(cuts=(), sizes={}, uneven=frozenset(), near=1.0, most_stages=99)
    search = SlicePipelines(questions=questions, allowed=allowed, prune=False)
    dropped = 0
    for end, every in answers.items():
        fit = [one for one in every if one.plan.state_bytes + in_flight * one.plan.activation_bytes <= room]
        assert search._fitting(0, end, 0, 1, global_micro_batch, stages) == fit
        dropped += len(every) - len(fit)
    assert search.counts["partial plans: too large at their place"] == dropped


def test_devices_without_bf16_have_the_layers_of_their_share_at_fp16() -> None:
    """What they compute at fp32, which stands first in their datasheet, is an eighth of it."""
    layers = 28
    questions = composer_of(Plain(), gpus="8xV100-32,8xA100-80", layers=layers).questions
    allowed = Allowed(cuts=tuple(range(layers)), sizes={}, uneven=frozenset(), near=1.0, most_stages=99)
    search = SlicePipelines(questions=questions, allowed=allowed)
    older, newer = (group.device for group in questions.cluster.groups)
    at_16_bits = older.peak("fp16"), newer.peak("bf16")
    assert all(at_16_bits)
    share = layers * at_16_bits[0] / sum(at_16_bits)
    most = layers - min(search._firsts((IslandPart(0, 8), IslandPart(1, 8)), 0, 8, layers))
    assert share <= most < share + 1
