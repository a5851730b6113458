"""The bound by whole stages against every list of stages, and against every plan of small clusters."""

from __future__ import annotations

import itertools
import math
import random

import numpy as np
import pytest

from benchmarks.every_plan import Axes, EveryPlan, small_job
from meshwright.estimate.hardware import hardware_of
from meshwright.planning.compose.links import widest_link
from meshwright.planning.compose.sources.native.bound import least_step_s
from meshwright.planning.compose.sources.native.whole_stages import (
    IN_ORDER,
    StageWays,
    bounds_stages,
    least_whole_s,
    least_worth,
)
from meshwright.planning.mixed.native import NativeSource
from meshwright.planning.question.job_inputs import JobInputs
from meshwright.search.space import Space
from tests.planning.compose.test_composer import asked


def drawn_ways(draw: random.Random, count: int) -> StageWays:
    """Ways of a stage that differ in all respects."""

    def column(low: float, high: float) -> np.ndarray:
        return np.array([draw.uniform(low, high) for _ in range(count)])

    layer_s = column(0.5, 3.0)
    return StageWays(
        worth=column(0.3, 4.0),
        layer_s=layer_s,
        wait_s=layer_s * column(0.6, 1.0),
        backward_s=column(0.1, 2.0),
        head_s=column(0.0, 2.0),
        ends=column(0.0, 1.0)[:, None] * np.ones((1, 2)),
        update_s=column(0.0, 0.5),
        sum_s=column(0.0, 1.0),
        shared_s=np.stack([column(0.1, 0.2), column(0.0, 0.1)], axis=1),
        scattered_s=np.stack([column(0.0, 0.4), column(0.3, 0.5)], axis=1),
        sequences=np.array([float(draw.randint(1, 3)) for _ in range(count)]),
        exposed=np.tile([0.2, 0.1], (count, 1)),
    )


def every_worth(ways: StageWays, layers: int, batch: int, step_s: float) -> float:
    """Least worth of a sequence over every list of stages and number of micro-batches, the rules taken literally."""
    return min(worth_of(ways, layers, n, batch, step_s) / n for n in range(1, batch + 1))


def worth_of(ways: StageWays, layers: int, n: int, batch: int, step_s: float) -> float:
    """The least over every list of stages of n micro-batches."""
    found = math.inf
    around_s, ends_s = ways.around_s(n, batch), ways.at_ends_s(n, batch)
    able = [i for i in range(len(ways.worth)) if n * ways.sequences[i] <= batch]
    for stages in range(1, layers + 1):
        for cuts in itertools.combinations(range(1, layers), stages - 1):
            held = [b - a for a, b in itertools.pairwise((0, *cuts, layers))]
            for chosen in itertools.product(able, repeat=stages):
                waited = 0.0
                way_s = sum(ways.wait_s[i] * own for i, own in zip(chosen, held, strict=True))
                fits = way_s + ways.head_s[chosen[-1]] <= step_s
                for place, (i, own) in enumerate(zip(chosen, held, strict=True)):
                    last = place == stages - 1
                    busy_s = n * own * ways.layer_s[i] + own * around_s[i]
                    busy_s += (n * ways.head_s[i] + ends_s[i, 1]) * last + ends_s[i, 0] * (stages > 1) * (not place)
                    fits = fits and busy_s + waited <= step_s
                    waited += ways.wait_s[i]
                if fits:
                    found = min(found, sum(ways.worth[list(chosen)]))
    return found


@pytest.mark.parametrize("seed", range(6))
def test_no_list_of_stages_is_worth_less(seed: int) -> None:
    draw = random.Random(seed)
    ways, layers, batch = drawn_ways(draw, 3), 4, draw.choice((3, 8))
    for step_s in (8.0, 16.0, 30.0):
        exact = every_worth(ways, layers, batch, step_s)
        if math.isfinite(exact):
            below, above = 0.5 * exact, exact * (1 + 1e-9)
            assert least_worth(ways, layers, float(batch), step_s, above) <= above
            assert least_worth(ways, layers, float(batch), step_s, below) > below


@pytest.mark.parametrize("seed", range(4))
def test_a_price_of_waiting_makes_no_stages_dearer_than_they_are(seed: int) -> None:
    draw = random.Random(seed)
    ways, layers, batch = drawn_ways(draw, 3), 5, 8
    higher = 0
    for n, step_s in itertools.product((1, 2, 5), (6.0, 9.0, 14.0, 30.0)):
        able = ways.take(n * ways.sequences <= batch)
        if not len(able.worth):
            continue
        own = able.in_a_step(able.around_s(n, batch), n, n, batch)
        exact, priced = worth_of(ways, layers, n, batch, step_s), own.waiting(layers, step_s)
        assert priced <= exact * (1 + 1e-9)
        fits = own.once_s <= step_s
        free = layers * float((own.worth * own.once_s)[fits].min(initial=math.inf)) / step_s
        higher += math.isfinite(exact) and priced > 1.02 * free
    assert higher


@pytest.mark.parametrize("seed", range(6))
def test_a_price_of_a_layer_makes_no_stages_dearer_than_they_are(seed: int) -> None:
    """Whatever the price; and of many micro-batches it sees waits and whole layers."""
    draw = random.Random(seed)
    ways, layers, batch = drawn_ways(draw, 3), 5, 8
    higher = 0
    for n, step_s, scale in itertools.product((1, 2, 5), (6.0, 9.0, 14.0, 30.0), (0.3, 1.0, 3.0)):
        able = ways.take(n * ways.sequences <= batch)
        if not len(able.worth):
            continue
        own = able.in_a_step(able.around_s(n, batch), n, n, batch)
        exact = worth_of(ways, layers, n, batch, step_s)
        fits = own.once_s <= step_s
        free = layers * float((own.worth * own.once_s)[fits].min(initial=math.inf)) / step_s
        if not math.isfinite(free):
            continue
        priced = own.at_a_price(layers, step_s, scale * free / layers)
        assert priced <= exact * (1 + 1e-9)
        higher += math.isfinite(exact) and priced > 1.02 * free
    assert higher


@pytest.mark.parametrize("seed", range(4))
def test_ways_that_are_left_out_are_beaten_by_others(seed: int) -> None:
    draw = random.Random(seed)
    ways, layers, batch = drawn_ways(draw, 12), 3, 8
    stages = ways.in_a_step(ways.around_s(2, batch), 2, 2, batch)
    kept = stages.undominated()
    assert 0 < len(kept.worth) <= len(stages.worth)
    for step_s in (8.0, 16.0):
        assert kept.in_their_places(layers, step_s) == pytest.approx(stages.in_their_places(layers, step_s))


def bounds_s(inputs: JobInputs) -> tuple[float, float]:
    """In any fractions, and by whole stages."""
    groups = inputs.cluster.groups
    devices = [(hardware_of(group, inputs.workload), group.devices) for group in groups]
    known_s = least_step_s(inputs.model, inputs.workload, devices, schedules=IN_ORDER)
    link = widest_link(inputs.cluster, range(len(groups)))
    return known_s, least_whole_s(inputs.model, inputs.workload, devices, IN_ORDER, link)


@pytest.mark.parametrize(
    ("model", "gpus", "batch"),
    [
        ("llama-3.2-1b", "2xH100,1xA100-80", 2),
        ("llama-3.2-3b", "1xH200,1xL40S", 3),
        ("qwen3-8b", "1xL40S,2xH200", 4),
        ("llama-3.2-1b", "1xH100,1xA100-80", 16),
    ],
)
def test_no_plan_of_a_small_cluster_is_quicker(model: str, gpus: str, batch: int) -> None:
    """Every plan there is, by an enumerator that shares nothing with the bound but prices."""
    inputs = small_job(model, gpus, batch)
    known_s, whole_s = bounds_s(inputs)
    best_s, _ = EveryPlan(inputs, Axes(tensor=(1, 2), context=(1, 2), shardings=("z0", "z1", "fsdp"))).best()
    assert known_s < whole_s <= best_s


@pytest.mark.parametrize(("gpus", "batch"), [("7xH100,7xH200", 8), ("4xL40S,6xH800", 8), ("6xA100-80,5xL40S", 16)])
def test_no_composition_is_quicker_and_the_bound_is_nearer(gpus: str, batch: int) -> None:
    inputs = asked(gpus, batch, 28)
    source = NativeSource(inputs, lambda part: Space())
    known_s, whole_s = bounds_s(inputs)
    assert known_s * 1.03 < whole_s == source.bound_s()
    assert min(one.step_time_s for one in source.composed(source.whole, 6)) >= whole_s


def test_no_composition_of_more_sequences_is_quicker_either() -> None:
    inputs = asked("3xA100-80,8xH800", 64, 28)
    source = NativeSource(inputs, lambda part: Space())
    known_s, whole_s = bounds_s(inputs)
    assert known_s * 1.01 < whole_s == source.bound_s()
    assert min(one.step_time_s for one in source.composed(source.whole, 6)) >= whole_s


@pytest.mark.parametrize(("gpus", "batch"), [("48xH100,48xL40S", 96), ("64xH800,40xH100", 256)])
def test_no_composition_of_few_sequences_on_many_devices_is_quicker(gpus: str, batch: int) -> None:
    inputs = asked(gpus, batch, 32)
    source = NativeSource(inputs, lambda part: Space())
    known_s, whole_s = bounds_s(inputs)
    assert known_s * 1.01 < whole_s == source.bound_s()
    assert min(one.step_time_s for one in source.composed(source.whole, 6)) >= whole_s


def test_only_few_sequences_that_pass_in_order_are_bounded_by_whole_stages() -> None:
    inputs = asked("2xH100,2xA100-80", 8, 8)
    job = inputs.model, inputs.workload
    assert bounds_stages(*job, 4, ("1f1b", "interleaved"))
    assert bounds_stages(*job, 1, ("1f1b",))
    many = asked("2xH100,2xA100-80", 128, 8)
    assert not bounds_stages(many.model, many.workload, 4, ("1f1b",))
    assert not bounds_stages(*job, 4, ("1f1b", "zb-v"))
    assert bounds_stages(*job, 128, ("1f1b",))
    assert not bounds_stages(*job, 1024, ("1f1b",))
    assert not bounds_stages(asked("2xH100", 1024, 8).model, asked("2xH100", 1024, 8).workload, 128, ("1f1b",))
