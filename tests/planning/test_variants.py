"""Plans one change away from a plan of unequal stages, and the even ones it is compared with."""

from __future__ import annotations

import pytest

from meshwright.planning.variants import equal_shares, evenly, variants
from meshwright.specs.job import Job
from meshwright.specs.plan import ExecutionPlan
from meshwright.specs.strategy import DataParallel, LayerStrategy, Tensor1D
from meshwright.specs.workload import Workload
from tests.estimate.cases import DENSE
from tests.estimate.mixed import CLUSTER, Stage, plan_of

ALONE = LayerStrategy(tensor=Tensor1D(degree=4))
SHARDED = LayerStrategy(tensor=Tensor1D(degree=2), data=DataParallel(shard=2, zero=1))


def changes(plan: ExecutionPlan) -> dict[str, ExecutionPlan]:
    work = Workload(seq_len=4096, global_batch=plan.global_batch)
    return {one.change: one.plan for one in variants(Job(model=DENSE, cluster=CLUSTER, workload=work, plan=plan))}


def layers(plan: ExecutionPlan) -> list[list[int]]:
    return [[worker.chunks[0].num_layers for worker in pipeline.workers] for pipeline in plan.pipelines]


def test_layers_move_to_the_next_stage_and_back() -> None:
    found = changes(plan_of(([Stage(0, ALONE, 7), Stage(16, SHARDED, 5)], 2, 4)))
    assert sorted(layers(plan) for text, plan in found.items() if "->" not in text) == [[[6, 6]], [[8, 4]]]


@pytest.mark.parametrize(("front", "behind"), [(ALONE, SHARDED), (SHARDED, ALONE)])
def test_states_are_sharded_otherwise_where_there_are_data_ranks(front: LayerStrategy, behind: LayerStrategy) -> None:
    found = changes(plan_of(([Stage(0, front, 7), Stage(16, behind, 5)], 2, 4)))
    sharded = [text for text in found if " z" in text]
    assert [text.rpartition("z1 -> ")[2] for text in sharded] == ["z0", "z2", "z3"]
    place = 0 if front is SHARDED else 1
    assert all(f"stage {place}" in text for text in sharded)
    replicas = next(plan for text, plan in found.items() if text.endswith("z1 -> z0"))
    run = replicas.pipelines[0].workers[place].chunks[0].runs[0]
    assert (replicas.strategies[run.strategy].data.replicate, replicas.strategies[run.strategy].data.shard) == (2, 1)


def test_even_layers_and_equal_shares() -> None:
    uneven = plan_of(([Stage(0, ALONE, 9), Stage(4, ALONE, 3)], 1, 5), ([Stage(16, ALONE, 12)], 1, 2))
    even, shared = evenly(uneven), equal_shares(uneven)
    assert even is not None
    assert layers(even) == [[6, 6], [12]]
    assert shared is not None
    assert [pipeline.num_micro_batches for pipeline in shared.pipelines] == [4, 3]
