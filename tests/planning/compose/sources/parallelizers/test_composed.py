"""Plans composed of partial plans: equal to brute force over the same ones, and a stranger's faults lose nothing."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any

import pytest

from meshwright.estimate.memory import TIGHT_SHARE
from meshwright.estimate.rules.plan_checks import check_plan
from meshwright.planning.compose.island_part import IslandPart
from meshwright.planning.compose.links import link_between
from meshwright.planning.compose.pipeline_sets import gradient_sum_s, partitions
from meshwright.planning.compose.sources.parallelizers.composed import SliceComposer, SliceEffort, slice_composer
from meshwright.planning.compose.sources.parallelizers.execution import sliced_plan
from meshwright.planning.compose.sources.parallelizers.native import Native
from meshwright.planning.compose.sources.parallelizers.questions import undominated_answers
from meshwright.planning.compose.sources.parallelizers.slice_pipeline import PlannedStage, SlicePipeline
from meshwright.planning.compose.sources.parallelizers.with_calculon import Calculon
from meshwright.specs.model import LayerRun
from tests.planning.compose.sources.parallelizers.slices import Half, Plain, job
from tests.planning.compose.sources.parallelizers.test_guard import Raises

INPUTS = job("llama-3-8b", "4xH100,4xH200")
SMALL = replace(INPUTS.model, runs=(LayerRun(layers=INPUTS.model.runs[0].layers, repeats=5),))
WIDE = SliceEffort(near=1e9, lengths=99, refined=0, stages=4, sizes=9, kept_of=((1, 9**9), (2, 9**9)))


def whole(composer: SliceComposer, groups: Iterable[int]) -> list[IslandPart]:
    """All devices of some groups."""
    return [IslandPart(number, composer.questions.cluster.groups[number].devices) for number in groups]


def composer_of(
    *parallelizers: Any,
    gpus: str = "4xH100,4xH200",
    effort: SliceEffort | None = None,
    layers: int = 5,
    global_micro_batches: tuple[int, ...] = (4, 8),
) -> SliceComposer:
    model = replace(SMALL, runs=(LayerRun(layers=SMALL.runs[0].layers, repeats=layers),))
    inputs = job("llama-3-8b", gpus)
    return slice_composer(
        model, inputs.cluster, inputs.workload, parallelizers, micro_batches=global_micro_batches, effort=effort
    )


def best(*parallelizers: Any, **options: Any) -> Any:
    composer = composer_of(*parallelizers, **options)
    groups = range(len(composer.questions.cluster.groups))
    return next(iter(composer.sets(whole(composer, groups), 1)), None), composer


def every_pipeline(
    composer: SliceComposer, block: tuple[IslandPart, ...], global_micro_batch: int
) -> Iterator[SlicePipeline]:
    """All orders, numbers and sizes of stages inside a node, splits and partial plans, one by one."""
    questions = composer.questions
    groups, layers = questions.cluster.groups, questions.model.num_layers
    batch = questions.workload.global_batch

    def sizes(devices: int) -> Iterator[tuple[int, ...]]:
        for count in range(1, devices + 1):
            for found in itertools.product((1, 2, 4), repeat=count):
                if sum(found) <= devices:
                    yield found

    for order in itertools.permutations(block):
        for each in itertools.product(*(list(sizes(part.devices)) for part in order)):
            shape = [(part.group, n) for part, own in zip(order, each, strict=True) for n in own]
            if len(shape) > layers:
                continue
            for cuts in itertools.combinations(range(1, layers), len(shape) - 1):
                ends = [0, *cuts, layers]
                choices = []
                for place, (g, n) in enumerate(shape):
                    kept = min(len(shape) - place, batch // global_micro_batch)
                    room = groups[g].device.memory_bytes * (1 - TIGHT_SHARE)
                    answers = questions.answers(ends[place], ends[place + 1], g, n, global_micro_batch)
                    choices.append([a for a in answers if a.plan.state_bytes + kept * a.plan.activation_bytes <= room])
                for chosen in itertools.product(*choices):
                    stages = [
                        PlannedStage(
                            group=g,
                            first=ends[i],
                            last=ends[i + 1] - 1,
                            devices=n,
                            plan=a.plan,
                            parallelizer=a.parallelizer,
                        )
                        for i, ((g, n), a) in enumerate(zip(shape, chosen, strict=True))
                    ]
                    yield timed(composer, stages, global_micro_batch)


def timed(composer: SliceComposer, stages: list[PlannedStage], global_micro_batch: int) -> SlicePipeline:
    questions = composer.questions
    width = questions.workload.precision.bytes_of("activations")
    each = [stage.micro_batch_s for stage in stages]
    hops = []
    for here, there in itertools.pairwise(stages):
        bandwidth, latency_s = link_between(questions.cluster, here.group, there.group)
        tokens = global_micro_batch * questions.workload.seq_len / min(here.plan.devices, there.plan.devices)
        hops.append(latency_s + tokens * questions.model.hidden * width / bandwidth)
    loops = [sum(each[i:]) + 2 * sum(hops[i:]) for i in range(len(each))]
    period = max(*each, *(loop / (len(each) - i) for i, loop in enumerate(loops)))
    return SlicePipeline(
        stages=tuple(stages),
        hops_s=tuple(hops),
        global_micro_batch=global_micro_batch,
        fill_s=loops[0],
        period_s=period,
        sync_s=max(stage.plan.sync_s for stage in stages),
    )


def brute_force_s(composer: SliceComposer, global_micro_batches: tuple[int, ...]) -> float:
    """The least step over all ways to spread the islands over pipelines, and all whole shares of the batch."""
    questions = composer.questions
    batch = questions.workload.global_batch
    gradient_bytes = questions.model.parameters * questions.workload.precision.bytes_of("reduce")
    least = math.inf
    for blocks in partitions(tuple(IslandPart(n, group.devices) for n, group in enumerate(questions.cluster.groups))):
        found = []
        for block in blocks:
            paces = {}
            for global_micro_batch in global_micro_batches:
                for one in every_pipeline(composer, block, global_micro_batch):
                    paces[one.global_micro_batch, one.fill_s, one.period_s, one.sync_s] = one
            fronts = [p for key, p in paces.items() if not any(beats(other, key) for other in paces)]
            found.append(fronts)
        for chosen in itertools.product(*found):
            sync_s = gradient_sum_s(
                chosen, gradient_bytes, lambda a, b: link_between(questions.cluster, a, b)[0], anywhere=True
            )
            for counts in itertools.product(*(range(1, batch // one.global_micro_batch + 1) for one in chosen)):
                if sum(n * one.global_micro_batch for n, one in zip(counts, chosen, strict=True)) == batch:
                    step_s = max(one.step_s(n) for n, one in zip(counts, chosen, strict=True))
                    least = min(least, step_s + sync_s)
    return least


def beats(one: tuple[float, ...], other: tuple[float, ...]) -> bool:
    return one != other and one[0] == other[0] and all(a <= b for a, b in zip(one[1:], other[1:], strict=True))


@pytest.mark.parametrize(
    ("gpus", "layers", "global_micro_batches"),
    [("4xH100", 4, (4, 8)), ("2xH100,2xH200", 4, (4, 8)), ("2xV100-32,2xH100", 5, (8,))],
)
def test_the_best_pipeline_set_is_that_of_brute_force(
    gpus: str, layers: int, global_micro_batches: tuple[int, ...]
) -> None:
    found, _ = best(Plain(), gpus=gpus, layers=layers, global_micro_batches=global_micro_batches, effort=WIDE)
    assert found is not None
    everything = composer_of(
        Plain(), gpus=gpus, layers=layers, global_micro_batches=global_micro_batches, effort=replace(WIDE, prune=False)
    )
    assert found.step_s == pytest.approx(brute_force_s(everything, global_micro_batches), rel=1e-9)


class Wavering:
    """Beside each plan one that is slower and smaller, and one that is slower and no smaller."""

    name = "wavering"

    def plan(self, *asked: Any) -> list[Any]:
        plans = Plain().plan(*asked)
        smaller = [replace(p, backward_s=1.5 * p.backward_s, state_bytes=0.5 * p.state_bytes) for p in plans]
        return [*plans, *smaller, *(replace(p, sync_s=2 * p.sync_s) for p in plans)]


@pytest.mark.parametrize("gpus", ["4xH100", "2xH100,2xH200"])
def test_no_rule_of_pruning_loses_the_best(gpus: str) -> None:
    pruned, with_rules = best(Wavering(), gpus=gpus, layers=3, effort=WIDE)
    free, without = best(Wavering(), gpus=gpus, layers=3, effort=replace(WIDE, prune=False))
    assert pruned.step_s == pytest.approx(free.step_s, rel=1e-12)
    dropped = {name for name, count in with_rules.counts.items() if ":" in name and count}
    assert {
        "partial plans: dominated in devices, time and memory",
        "partial plans: slower at their place",
        "beginnings: dominated in fill, period and synchronisation",
        "beginnings: bound above a whole pipeline",
    } <= dropped
    assert without.counts["beginnings"] > with_rules.counts["beginnings"]


def test_dominated_answers_lose_nothing() -> None:
    composer = composer_of(Native())
    for first, behind in ((0, 2), (1, 3), (3, 5)):
        every = composer_of(Native(), effort=replace(WIDE, prune=False)).questions.answers(first, behind, 0, 4, 8)
        kept = undominated_answers(
            [*every, *(replace(one, plan=replace(one.plan, sync_s=one.plan.sync_s + 1)) for one in every)]
        )
        for one in every:
            assert any(
                other.busy_s <= one.busy_s
                and other.plan.sync_s <= one.plan.sync_s
                and other.plan.state_bytes <= one.plan.state_bytes
                and other.plan.activation_bytes <= one.plan.activation_bytes
                for other in kept
            )
        assert len(kept) <= len(every)
    assert composer.counts["questions"] == 0


def test_what_the_usual_effort_leaves_out_costs_little() -> None:
    for gpus in ("4xH100,4xH200", "8xA100-80,4xH100"):
        usual, _ = best(Plain(), gpus=gpus, layers=12, global_micro_batches=(8,))
        wide, _ = best(
            Plain(),
            gpus=gpus,
            layers=12,
            global_micro_batches=(8,),
            effort=replace(WIDE, kept_of=SliceEffort().kept_of),
        )
        assert wide.step_s <= usual.step_s <= 1.03 * wide.step_s


def test_several_pipelines_share_the_batch_and_hold_every_layer_once() -> None:
    composer = composer_of(Plain(), gpus="4xH100,4xH200,8xA100-80", effort=SliceEffort())
    sets = composer.sets(whole(composer, range(3)), 400)
    several = next(one_set for one_set in sets if len({round(share) for share in one_set.shares}) > 1)
    for one_set in (sets[0], several):
        plan = sliced_plan(one_set, composer.questions.cluster)
        assert plan.global_batch == composer.questions.workload.global_batch
        assert plan.num_layers == 5
        for pipeline in one_set.pipelines:
            for place, stage in enumerate(pipeline.stages):
                device = composer.questions.cluster.groups[stage.group].device
                held = stage.plan.state_bytes + (len(pipeline.stages) - place) * stage.plan.activation_bytes
                assert held <= device.memory_bytes * (1 - TIGHT_SHARE)


def test_halves_of_an_island_may_stand_in_pipelines_of_their_own() -> None:
    composer = composer_of(
        Plain(),
        gpus="16xH100,8xA100-80",
        effort=replace(SliceEffort(), global_micro_batches=3),
        global_micro_batches=(8,),
    )
    found = composer.sets(whole(composer, range(2)), 10_000)
    halved = [one_set for one_set in found if sum(0 in pipeline.islands for pipeline in one_set.pipelines) == 2]
    assert any(
        len({tuple(s.devices for s in pipeline.stages) for pipeline in one_set.pipelines}) > 1 for one_set in halved
    )
    for one_set in halved[:20]:
        plan = sliced_plan(one_set, composer.questions.cluster)
        check_plan(plan, composer.questions.model, composer.questions.cluster, composer.questions.workload)
    without = composer_of(
        Plain(), gpus="16xH100,8xA100-80", effort=replace(SliceEffort(), parts=0), global_micro_batches=(8,)
    )
    assert found[0].step_s <= without.sets(whole(without, range(2)), 1)[0].step_s


def test_equal_slices_on_equal_islands_are_asked_once() -> None:
    composer = composer_of(Plain(), gpus="4xH100,4xH100", effort=SliceEffort())
    composer.sets(whole(composer, range(2)), 1)
    alone = composer_of(Plain(), gpus="4xH100", effort=SliceEffort())
    alone.sets(whole(alone, range(1)), 1)
    first, second = composer.questions.answers(1, 3, 0, 2, 8), composer.questions.answers(2, 4, 1, 2, 8)
    assert first is second
    assert composer.counts["questions"] == sum(one.asked for one in composer.questions.parallelizers)


def test_more_devices_are_never_slower() -> None:
    alone, _ = best(Plain(), gpus="4xH200", effort=SliceEffort())
    both, _ = best(Plain(), effort=SliceEffort())
    assert both.step_s <= alone.step_s


def test_what_raises_or_lies_loses_no_search() -> None:
    alone, _ = best(Plain(), global_micro_batches=(8,))
    found, composer = best(Raises(), Half({"forward_s": 1e-9}), Plain(), global_micro_batches=(8,))
    assert found.step_s <= alone.step_s
    report = " ".join(composer.skips())
    assert "raised ZeroDivisionError" in report
    assert "at their peak" in report


def test_calculon_plans_a_slice_of_each_island() -> None:
    found, composer = best(Calculon(), gpus="2xH100,2xV100-16", global_micro_batches=(4,))
    assert {stage.parallelizer for pipeline in found.pipelines for stage in pipeline.stages} == {"calculon"}
    assert any("V100-16 has no rate in bf16" in line for line in composer.skips())
    assert composer.counts["questions: answered for all sizes of island at once"] > 0


def test_where_nobody_answers_there_is_no_plan_but_a_report() -> None:
    found, composer = best(Raises(), global_micro_batches=(8,))
    assert found is None
    assert len(composer.skips()) == 1
