"""The execution plan refuses what cannot run: layers twice or missing, shared devices, degrees that do not multiply."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwright.errors import InputError, Problem
from meshwright.schedules.plan_rows import plan_of, row_of
from meshwright.specs import Chunk, ExecutionPlan, LayerStrategy, Pipeline, PlanRow, StrategyRun, Worker
from meshwright.specs.row_of import homogeneous
from meshwright.specs.strategy import (
    ContextParallel,
    DataParallel,
    ExpertParallel,
    Offload,
    Recompute,
    Tensor1D,
    TensorNamed,
)
from tests.formats.jobs import job, model
from tests.formats.rows import rows


def chunk(first: int, last: int, **more: Any) -> Chunk:
    values: dict[str, Any] = {
        "virtual_stage": 0,
        "layers": ((first, last),),
        "runs": (StrategyRun(layers=last - first + 1, strategy=0),),
    }
    return Chunk(**(values | more))


def plan(
    *chunks: Chunk, devices: tuple[tuple[tuple[int, int], ...], ...] = (), strategy: LayerStrategy | None = None
) -> ExecutionPlan:
    places = devices or tuple(((r, r),) for r in range(len(chunks)))
    workers = tuple(Worker(devices=place, chunks=(held,)) for place, held in zip(places, chunks, strict=True))
    pipeline = Pipeline(micro_batch=1, num_micro_batches=2, workers=workers)
    return ExecutionPlan(strategies=(strategy or LayerStrategy(),), pipelines=(pipeline,))


def refused(build: Any) -> list[Problem]:
    with pytest.raises(InputError) as caught:
        build()
    return list(caught.value.problems)


@pytest.mark.parametrize(
    "chunks",
    [
        (chunk(0, 3), chunk(5, 7)),  # layer 4 is nowhere
        (chunk(0, 3), chunk(3, 7)),  # layer 3 is twice
        (chunk(1, 3), chunk(4, 7)),  # layer 0 is nowhere
        (chunk(0, 3), chunk(7, 4, runs=(StrategyRun(layers=-2, strategy=0),))),  # backwards
    ],
)
def test_layers_must_be_there_once(chunks: tuple[Chunk, ...]) -> None:
    problems = refused(lambda: plan(*chunks))
    assert any("layers" in problem.field and "expected" in problem.why for problem in problems)


def test_runs_must_cover_their_chunk() -> None:
    (problem,) = refused(lambda: plan(chunk(0, 3, runs=(StrategyRun(layers=3, strategy=0),))))
    assert (problem.field, problem.what) == ("pipelines[0].runs", "plan: pipelines[0].runs is 3")
    assert "4 layers" in problem.why


def test_a_device_belongs_to_one_worker() -> None:
    problems = refused(lambda: plan(chunk(0, 3), chunk(4, 7), devices=(((0, 0),), ((0, 0),))))
    assert [problem.field for problem in problems] == ["devices"]


def test_device_ranges_run_upwards_from_zero() -> None:
    problems = refused(lambda: plan(chunk(0, 3), devices=(((-1, -1),),)))
    assert "first <= last" in problems[0].why


def test_degrees_must_multiply_to_the_devices() -> None:
    strategy = LayerStrategy(tensor=Tensor1D(degree=2), data=DataParallel(replicate=3))
    (problem,) = refused(lambda: plan(chunk(0, 3), devices=(((0, 3),),), strategy=strategy))
    assert problem.field == "pipelines[0].workers[0].devices"
    assert problem.why == "must be tp 2 x cp 1 x dp 3 = 6"


def test_experts_must_divide_the_devices() -> None:
    strategy = LayerStrategy(expert=ExpertParallel(ep=3), data=DataParallel(replicate=4))
    (problem,) = refused(lambda: plan(chunk(0, 3), devices=(((0, 3),),), strategy=strategy))
    assert "ep 3 x etp 1 must divide the 4 devices" in problem.why


def test_a_strategy_must_be_in_the_table() -> None:
    (problem,) = refused(lambda: plan(chunk(0, 3, runs=(StrategyRun(layers=4, strategy=1),))))
    assert problem.what.endswith("strategy is 1")


def test_shapes_are_one_for_each_micro_batch() -> None:
    good = plan(chunk(0, 3)).pipelines[0]
    problems = refused(
        lambda: ExecutionPlan(strategies=(LayerStrategy(),), pipelines=(replace(good, shapes=((1, 64),)),))
    )
    assert problems[0].field == "pipelines[0].shapes"


def test_all_problems_come_together() -> None:
    def build() -> ExecutionPlan:
        return plan(chunk(0, 3), chunk(5, 7, runs=()), devices=(((0, 0),), ((0, 1),)))

    assert {problem.field for problem in refused(build)} >= {
        "pipelines[0].layers",
        "pipelines[0].runs",
        "devices",
    }


def test_scattered_blocks_count_all_their_layers() -> None:
    scattered = Chunk(
        virtual_stage=0, layers=((0, 1), (6, 7)), runs=(StrategyRun(layers=4, strategy=0),), embedding=True
    )
    built = plan(scattered, chunk(2, 5, virtual_stage=1, head=True))
    assert built.num_layers == 8
    assert homogeneous(built)[0] is None


def test_the_embedding_may_have_a_stage_to_itself() -> None:
    alone = Chunk(virtual_stage=0, layers=(), runs=(), embedding=True)
    built = plan(alone, chunk(0, 3, virtual_stage=1, head=True))
    assert (built.num_layers, built.global_batch) == (4, 2)
    found, problems = homogeneous(built)
    assert not problems
    assert found is not None
    assert found.layers == (0, 4)


@given(rows(), st.data())
def test_a_row_is_not_found_in_a_plan_that_needs_more(row: PlanRow, data: st.DataObject) -> None:
    split = [10] * (row.pp * row.vpp)
    built = plan_of(row, split)
    changed = data.draw(
        st.sampled_from(
            [
                {"tensor": TensorNamed(name="2d", degree=4), "data": DataParallel(replicate=1), "context": ()},
                {"recompute": Recompute(kind="selective", group=2)},
                {"offload": Offload(optimizer=0.5)},
                {"expert": ExpertParallel(expert_shards=2)},
                {"context": (ContextParallel(kind="p2p", degree=row.cp_degree, layout="contiguous"),)},
            ]
        )
    )
    strategy = replace(built.strategies[0], **changed)
    if strategy.devices != built.strategies[0].devices or (row.cp_degree == 1 and "context" in changed):
        return
    other = ExecutionPlan(
        strategies=(strategy, *(replace(s, **changed) for s in built.strategies[1:])), pipelines=built.pipelines
    )
    assert row_of(other, model(sum(split))) is None


def test_differences_between_stages_are_named() -> None:
    first = LayerStrategy(tensor=Tensor1D(degree=2), recompute=Recompute(kind="full"))
    second = LayerStrategy(data=DataParallel(replicate=2))
    workers = tuple(
        Worker(
            devices=((2 * r, 2 * r + 1),),
            chunks=(
                chunk(
                    4 * r,
                    4 * r + 3,
                    virtual_stage=r,
                    runs=(StrategyRun(layers=4, strategy=r),),
                    embedding=r == 0,
                    head=r == 1,
                ),
            ),
        )
        for r in range(2)
    )
    built = ExecutionPlan(
        strategies=(first, second), pipelines=(Pipeline(micro_batch=2, num_micro_batches=2, workers=workers),)
    )
    found, problems = homogeneous(built)
    assert found is None
    assert {problem.field for problem in problems} == {
        "strategies.tensor.degree",
        "strategies.data.replicate",
        "strategies.recompute.kind",
    }


def test_a_job_holds_plan_model_cluster_and_batch_together() -> None:
    good = job(plan_of(PlanRow(pp=2, dp=2, gbs=8), [4, 4]))
    with pytest.raises(InputError) as caught:
        replace(good, model=model(9), workload=good.workload.with_batch(16))
    assert [problem.field for problem in caught.value.problems] == ["plan.num_layers", "plan.global_batch"]


def test_a_plan_needs_one_layer_count_for_each_virtual_stage() -> None:
    with pytest.raises(InputError, match="pp 4 x vpp 1 = 4 virtual stages"):
        plan_of(PlanRow(pp=4, gbs=4), [8, 8])


def test_a_batch_must_be_whole_micro_batches() -> None:
    with pytest.raises(InputError, match="multiple of dp 2 x mbs 3 = 6"):
        plan_of(PlanRow(dp=2, mbs=3, gbs=8), [8])
