from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from itertools import combinations, product

import numpy as np
import pytest

from benchmarks.sailor_rule import Replica, UniformStage, uniform_step
from meshwright.planning.compose.sources.profiles.columns import ShapeColumns, joined_columns, split_columns
from meshwright.planning.compose.sources.profiles.costs import ProfileCosts
from meshwright.planning.compose.sources.profiles.improve import merged_set
from meshwright.planning.compose.sources.profiles.pipeline_set import (
    EqualPipelines,
    PipelineShape,
    ShapeSet,
    StageShape,
)
from meshwright.planning.compose.sources.profiles.pruning import device_prices, undominated_shapes
from meshwright.planning.compose.sources.profiles.search import ComposedShapes, ShapeComposer, ShapeEffort, compose
from meshwright.planning.compose.sources.profiles.set_price import SetPricer
from meshwright.planning.compose.sources.profiles.stage_kinds import stage_costs, stage_kinds
from meshwright.planning.compose.sources.profiles.stage_sequences import sequences
from tests.planning.compose.cases import baseline_s, costs_of, kind, published_cases, shelf_profiles, tiny_profiles

BATCH = 24


@cache
def tiny_costs(alpha: int, beta: int) -> ProfileCosts:
    """The invented model on so many of the two invented devices, two per node."""
    counted = [("Alpha-32", alpha), ("Beta-12", beta)]
    return ProfileCosts(tiny_profiles(), "tiny", [kind(name, count, 2) for name, count in counted if count])


@cache
def found(alpha: int, beta: int, batch: int = BATCH) -> ComposedShapes:
    """The best pipeline set."""
    best = compose(tiny_costs(alpha, beta), batch)
    assert best is not None
    return best


def every_shape(pricer: SetPricer) -> Iterator[PipelineShape]:
    """All pipelines that can run: any order of any stages, any split of the layers."""
    costs = pricer.costs
    stages = [(name, tp, replicas) for name in costs.kinds for tp in costs.tensor_degrees(name) for replicas in (1, 2)]
    for count in range(1, sum(k.count for k in costs.kinds.values()) + 1):
        for chosen in product(stages, repeat=count):
            for cuts in combinations(range(1, costs.num_layers), count - 1):
                bounds = [0, *cuts, costs.num_layers]
                layers = np.diff(bounds).tolist()
                for micro_batch in (1, 2, 4, 8):
                    made = (StageShape(*one, n) for one, n in zip(chosen, layers, strict=True))
                    shape = PipelineShape(micro_batch, tuple(made))
                    if all(shape.devices(k.name) <= k.count for k in costs.kinds.values()) and pricer.pace(shape):
                        yield shape


def brute_force_s(pricer: SetPricer) -> float:
    """The least time of all pipeline sets of all shapes."""
    shapes = list(every_shape(pricer))
    kinds = list(pricer.costs.kinds.values())
    used = [tuple(shape.devices(k.name) for k in kinds) for shape in shapes]
    best = float("inf")

    def extend(parts: list[EqualPipelines], start: int, left: tuple[int, ...]) -> None:
        nonlocal best
        if parts:
            time = pricer.price(merged_set(parts))
            assert time is not None
            best = min(best, time.step_time_s)
        for index in range(start, len(shapes)):
            rest = tuple(a - b for a, b in zip(left, used[index], strict=True))
            if min(rest) >= 0:
                extend([*parts, EqualPipelines(shapes[index], 1)], index, rest)

    extend([], 0, tuple(k.count for k in kinds))
    return best


@pytest.mark.parametrize(
    ("alpha", "beta", "batch"), [(2, 0, 24), (1, 1, 23), (1, 1, 24), (2, 1, 24), (1, 2, 24), (1, 2, 61)]
)
def test_the_composition_equals_brute_force_over_all_compositions(alpha: int, beta: int, batch: int) -> None:
    pricer = SetPricer(tiny_costs(alpha, beta), batch)
    assert found(alpha, beta, batch).time.step_time_s == pytest.approx(brute_force_s(pricer), rel=1e-9)


def test_more_devices_are_never_worse() -> None:
    for smaller, larger in [((2, 0), (2, 1)), ((2, 1), (2, 2)), ((2, 2), (4, 2)), ((4, 2), (4, 4)), ((4, 0), (4, 4))]:
        assert found(*larger).time.step_time_s <= found(*smaller).time.step_time_s * (1 + 1e-9)


def test_all_layers_are_held_and_no_device_twice() -> None:
    best = found(4, 4)
    for part in best.one_set.parts:
        assert sum(stage.layers for stage in part.shape.stages) == 6
    assert all(best.one_set.devices(k.name) <= k.count for k in tiny_costs(4, 4).kinds.values())
    pairs = zip(best.one_set.parts, best.time.sequences, strict=True)
    assert sum(part.pipelines * number for part, number in pairs) >= BATCH


def test_equal_pipelines_take_what_sailors_rule_says() -> None:
    costs = tiny_costs(4, 4)
    for micro_batch, pipelines, first in product((1, 2, 4), (1, 2), (1, 2, 3)):
        shape = PipelineShape(
            micro_batch, (StageShape("Beta-12", 2, 1, first), StageShape("Alpha-32", 1, 1, 6 - first))
        )
        stages = (
            UniformStage(0, first, (Replica("Beta-12", 2),) * pipelines),
            UniformStage(first, 6 - first, (Replica("Alpha-32", 1),) * pipelines),
        )
        pricer = SetPricer(costs, 32)
        if pricer.pace(shape) is None:
            continue
        ours = pricer.price(ShapeSet((EqualPipelines(shape, pipelines),)))
        theirs = uniform_step(costs, stages, micro_batch, 32)
        assert ours is not None
        assert ours.step_time_s == pytest.approx(theirs.step_time_s, rel=1e-12)
        assert ours.sync_s == pytest.approx(theirs.sync_s, rel=1e-12)


def test_a_stage_that_does_not_fit_is_not_priced() -> None:
    pricer = SetPricer(tiny_costs(0, 2), BATCH)
    whole = PipelineShape(4, (StageShape("Beta-12", 1, 1, 6),))
    early = PipelineShape(4, (StageShape("Beta-12", 1, 1, 5), StageShape("Beta-12", 1, 1, 1)))
    assert pricer.pace(whole) is not None
    assert pricer.pace(early) is None  # two micro-batches of five layers
    assert pricer.price(ShapeSet((EqualPipelines(early, 1),))) is None


def test_nothing_fits_is_an_answer() -> None:
    small = ProfileCosts(tiny_profiles(), "tiny", [replace(kind("Beta-12", 1, 1), memory_bytes=4e9)])
    assert compose(small, 8) is None


def tiny_columns(alpha: int, beta: int) -> ShapeColumns:
    """All pipelines of up to four stages."""
    costs = tiny_costs(alpha, beta)
    kinds = stage_kinds(costs, 2)
    every = [
        split_columns(costs, kinds, stage_costs(costs, kinds, micro_batch), table, 1e12)
        for micro_batch in (1, 2, 4)
        for table in sequences(kinds, np.array([alpha, beta]), 4)
    ]
    return joined_columns([part for part in every if part is not None])


def test_dropping_dominated_shapes_loses_nothing() -> None:
    every, counts = tiny_columns(2, 2), np.array([2, 2])
    keep = undominated_shapes(every)
    assert 0 < keep.sum() < len(every)
    for row in np.flatnonzero(~keep):
        same = keep & (every.used == every.used[row]).all(axis=1) & (every.least_tp == every.least_tp[row])
        better = same & (every.sequences_per_s >= every.sequences_per_s[row])
        better &= every.lost_sequences <= every.lost_sequences[row] + 1e-9
        better &= every.micro_batch <= every.micro_batch[row]
        assert (better & (every.parameters <= every.parameters[row])).any()
    prices = device_prices(every, counts)
    assert (prices.of(every.used) >= every.sequences_per_s * (1 - 1e-12)).all()


def test_columns_agree_with_the_price_of_their_shape() -> None:
    costs = tiny_costs(4, 4)
    kinds = stage_kinds(costs, 2)
    pricer = SetPricer(costs, BATCH)
    checked = 0
    for table in sequences(kinds, np.array([4, 4]), 4):
        part = split_columns(costs, kinds, stage_costs(costs, kinds, 2), table, 1e12)
        for row in range(0 if part is None else len(part)):
            assert part is not None
            pace = pricer.pace(part.shape(row, kinds))
            assert pace is not None
            assert 2 / pace.slowest_s == pytest.approx(part.sequences_per_s[row], rel=1e-6)
            assert 2 * pace.fill_s / pace.slowest_s == pytest.approx(part.lost_sequences[row], rel=1e-6, abs=1e-6)
            checked += 1
    assert checked > 20


@pytest.mark.skipif(not published_cases(), reason="needs the measured profiles")
def test_published_mixed_clusters_are_planned_better_than_by_both_baselines() -> None:
    ratios = []
    for case in published_cases():
        best = compose(costs_of(case), case["global_batch"])
        assert best is not None
        ratios.append(best.time.step_time_s / baseline_s(case))
    assert max(ratios) < 0.98
    assert np.exp(np.mean(np.log(ratios))) < 0.93


@pytest.mark.skipif(not published_cases(), reason="needs the measured profiles")
@pytest.mark.parametrize(
    ("few", "many", "batch"),
    [
        ({"GH-96": 8}, {"A100-40": 8, "V100-16": 16}, 512),
        ({"A100-40": 128}, {"V100-16": 128}, 1024),
    ],
    ids=["8 GH-96", "128 A100-40"],
)
def test_devices_that_make_sailors_plans_no_better_make_these_better(few: dict, many: dict, batch: int) -> None:
    kinds = [kind(name, count, 4, "us-central1-a") for name, count in (few | many).items()]
    composer = ShapeComposer(
        ProfileCosts(shelf_profiles(), "OPT-350", kinds), batch, ShapeEffort(priced=200, improved=2)
    )
    together, alone = composer.best(), composer.best(few)
    assert together is not None
    assert alone is not None
    assert together.time.step_time_s < 0.99 * alone.time.step_time_s
    assert all(together.one_set.devices(name) for name in few)
