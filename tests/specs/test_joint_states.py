"""Pipelines that hold one copy of their states together: what a plan may say, and what becomes of it with fewer."""

from __future__ import annotations

import pytest

from meshwright.errors import InputError
from meshwright.specs.plan import ExecutionPlan
from meshwright.specs.strategy import DataParallel, LayerStrategy, Offload, Tensor1D
from tests.estimate.mixed import Stage, plan_of


def strategy(dp: int, across: int, *, zero: int = 3, tp: int = 1, **more: object) -> LayerStrategy:
    data = DataParallel(shard=dp, zero=zero, across=across)
    return LayerStrategy(tensor=Tensor1D(degree=tp), data=data, **more)


def joint(first: LayerStrategy, second: LayerStrategy, counts: tuple[int, int] = (2, 2)) -> ExecutionPlan:
    """Twelve layers on each of two kinds."""
    stages = Stage(0, first, 12), Stage(8, second, 12)
    return plan_of(([stages[0]], 3, counts[0]), ([stages[1]], 1, counts[1]))


def test_all_ranks_of_all_pipelines_hold_one_copy() -> None:
    plan = joint(strategy(4, 6), strategy(2, 6))
    assert plan.joint_ranks == 6
    assert plan.global_batch == 2 * (3 * 4 + 1 * 2)
    assert joint(strategy(4, 0), strategy(2, 0)).joint_ranks == 0


def test_tensor_ranks_hold_parts_of_their_own() -> None:
    assert joint(strategy(2, 3, tp=2), strategy(1, 3, tp=2)).joint_ranks == 3


@pytest.mark.parametrize(
    ("first", "second", "counts", "said"),
    [
        (strategy(4, 5), strategy(2, 6), (2, 2), "6 data and context ranks"),
        (strategy(4, 6), strategy(2, 0), (2, 2), "6 data and context ranks"),
        (strategy(4, 6), strategy(2, 6), (2, 3), "as many micro-batches"),
        (strategy(4, 6), strategy(2, 6, zero=1), (2, 2), "sharded one way"),
        (strategy(4, 6, zero=0), strategy(2, 6, zero=0), (2, 2), "zero must be 1 or more"),
        (strategy(2, 4, tp=2), strategy(2, 4), (2, 2), "cut matrices alike"),
        (strategy(4, 6, offload=Offload(optimizer=1.0)), strategy(2, 6), (2, 2), "nothing is offloaded"),
    ],
)
def test_what_does_not_go_together_is_said(
    first: LayerStrategy, second: LayerStrategy, counts: tuple[int, int], said: str
) -> None:
    with pytest.raises(InputError, match=said):
        joint(first, second, counts)


def test_sharded_optimizers_alone_do_not_run_in_step() -> None:
    assert joint(strategy(4, 6, zero=1), strategy(2, 6, zero=1), (2, 3)).pipelines[1].num_micro_batches == 3


def test_stages_behind_one_another_hold_no_joint_states() -> None:
    own = strategy(2, 4)
    with pytest.raises(InputError, match="one stage of one chunk"):
        plan_of(([Stage(0, own, 6), Stage(2, own, 6)], 1, 2))


def test_the_ranks_that_are_left_hold_all() -> None:
    plan = joint(strategy(4, 6), strategy(2, 6))
    alone = plan.with_pipelines(plan.pipelines[:1])
    assert alone.joint_ranks == 0
    assert alone.strategies[0].data == DataParallel(shard=4, zero=3)
    assert plan.with_pipelines(plan.pipelines).joint_ranks == 6
