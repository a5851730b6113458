"""Recompute chosen per layer, against every assignment there is."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwright.estimate.layout import expand
from meshwright.estimate.price import estimate_plan
from meshwright.estimate.rules.legality import plan_problems
from meshwright.search.recompute import RecomputeOption, cheapest_choices, options_of, refine_recompute
from meshwright.specs import ExecutionPlan, PlanRow, StrategyRun, Workload
from meshwright.specs.strategy import Recompute
from meshwright.units import GIB
from tests.search.spaces import DENSE, MOE, LayerRun, cluster, model

costs = st.floats(0, 10, allow_nan=False).map(lambda x: round(x, 2))


@given(
    st.lists(st.lists(st.tuples(costs, costs), min_size=1, max_size=4), min_size=1, max_size=4),
    st.floats(0, 30),
)
def test_the_knapsack_equals_trying_everything(table: list[list[tuple[float, float]]], budget: float) -> None:
    layers = [tuple(RecomputeOption(Recompute(), time, size) for time, size in options) for options in table]
    fitting = [
        sum(layers[i][option].time_s for i, option in enumerate(picked))
        for picked in itertools.product(*(range(len(options)) for options in layers))
        if sum(layers[i][option].kept_bytes for i, option in enumerate(picked)) <= budget - 1e-9
    ]
    picked = cheapest_choices(layers, budget)
    if picked is None:
        assert not fitting
        return
    assert sum(layers[i][option].kept_bytes for i, option in enumerate(picked)) <= budget + 1e-9
    cost = sum(layers[i][option].time_s for i, option in enumerate(picked))
    assert not fitting or cost <= min(fitting) + 1e-9


def every_assignment(plan: ExecutionPlan) -> list[ExecutionPlan]:
    """The plan with every option on every layer (options ordered within a worker do not matter to its cost)."""
    bare = plan.strategies[0]
    strategies = tuple(replace(bare, recompute=option) for option in options_of(DENSE))
    per_worker = [
        list(itertools.combinations_with_replacement(range(len(strategies)), worker.chunks[0].num_layers))
        for worker in plan.pipelines[0].workers
    ]
    found = []
    for combination in itertools.product(*per_worker):
        workers = tuple(
            replace(
                worker,
                chunks=(
                    replace(
                        worker.chunks[0],
                        runs=tuple(StrategyRun(layers=1, strategy=option) for option in options),
                    ),
                ),
            )
            for worker, options in zip(plan.pipelines[0].workers, combination, strict=True)
        )
        found.append(ExecutionPlan(strategies=strategies, pipelines=(replace(plan.pipelines[0], workers=workers),)))
    return found


@pytest.mark.parametrize("share", [0.02, 0.3, 0.7])
def test_refined_recompute_equals_brute_force_on_a_small_pipeline(share: float) -> None:
    """Memory between what full recompute and none need."""
    small = replace(model(LayerRun(layers=(DENSE,), repeats=3)), vocab=1000)
    workload = Workload(seq_len=8192, global_batch=4)
    row = PlanRow(pp=2, dp=1, mbs=1, gbs=4, recompute="full")
    bare = expand(replace(row, recompute="none"), small, 8192)
    full = expand(row, small, 8192)
    least, most = (estimate_plan(plan, small, cluster("2xH100"), workload).peak_memory_bytes for plan in (full, bare))
    where = cluster("2xH100", (least + share * (most - least)) / 0.92 / GIB)
    (refined,) = refine_recompute([row], small, where, workload)
    best = min(
        estimate.step_time_s
        for plan in every_assignment(bare)
        if (estimate := estimate_plan(plan, small, where, workload)).fits == "yes"
    )
    assert refined is not None
    assert refined[1].fits == "yes"
    assert refined[1].step_time_s == pytest.approx(best, rel=1e-9)


def test_no_layer_whose_exchanges_run_beside_a_backward_is_recomputed_whole() -> None:
    small, workload = model(LayerRun(layers=(MOE,), repeats=8)), Workload(seq_len=8192, global_batch=32)
    row = PlanRow(pp=2, vpp=2, schedule="interleaved", ep=2, dp=2, mbs=4, gbs=32, dispatcher="deduplicated")
    whole, paired = replace(row, recompute="full"), replace(row, ep_overlap="paired-wgrad")
    least, most = (
        estimate_plan(expand(one, small, 8192), small, cluster("4xH100"), workload).peak_memory_bytes
        for one in (whole, paired)
    )
    refined = [
        refine_recompute([paired], small, cluster("4xH100", (least + share * (most - least)) / 0.92 / GIB), workload)[0]
        for share in (0.9, 0.7, 0.5, 0.3, 0.1)
    ]
    plans = [plan for plan, _ in filter(None, refined)]
    assert plans
    assert all(not plan_problems(plan, small, 8192) for plan in plans)


def test_a_plan_that_fits_without_recompute_is_left_alone() -> None:
    small, where = model(LayerRun(layers=(DENSE,), repeats=4)), cluster("2xH100")
    workload = Workload(seq_len=1024, global_batch=4)
    assert refine_recompute([PlanRow(pp=2, gbs=4)], small, where, workload) == [None]


def test_a_choice_that_fills_the_room_to_the_byte_is_taken() -> None:
    layer = (RecomputeOption(Recompute(), 1.0, 4.0), RecomputeOption(Recompute(), 2.0, 1.0))
    assert cheapest_choices([layer, layer], 8.0) == (0, 0)
    assert cheapest_choices([layer, layer], 5.0) in ((0, 1), (1, 0))
    assert cheapest_choices([layer, layer], 2.0) == (1, 1)
    assert cheapest_choices([layer, layer], 1.9) is None
