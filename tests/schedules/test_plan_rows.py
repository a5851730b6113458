"""Rows as plans: which stages each worker holds, and what no plan is made of."""

from __future__ import annotations

import pytest

from meshwright.errors import InputError
from meshwright.schedules import schedule_named
from meshwright.schedules.plan_rows import plan_of, row_of, schedule_of, spec_of, stages_held
from meshwright.specs.row import PlanRow
from meshwright.specs.row_of import homogeneous
from meshwright.zoo.tiny import TINY


@pytest.mark.parametrize(
    ("name", "pp", "vpp", "held"),
    [
        ("1f1b", 3, 1, [["0"], ["1"], ["2"]]),
        ("interleaved", 2, 2, [["0", "2"], ["1", "3"]]),
        ("zb-v", 2, 2, [["0", "3"], ["1", "2"]]),
        ("ftpipe-0_1_0", 2, 2, [["0", "2"], ["1"]]),
        ("chimera", 2, 1, [["0", "1 replica"], ["1", "0 replica"]]),
        ("bamboo", 3, 1, [["0", "1 redundant"], ["1", "2 redundant"], ["2", "0 redundant"]]),
        ("bamboo", 1, 1, [["0"]]),  # nobody to stand in for
        ("zb-v", 2, 3, [["0", "2", "4"], ["1", "3", "5"]]),  # a V has two chunks; the schedule says so itself
    ],
)
def test_workers_hold_their_stages_replicas_and_those_they_stand_in_for(
    name: str, pp: int, vpp: int, held: list[list[str]]
) -> None:
    found = stages_held(schedule_named(name), pp, vpp)
    assert [[f"{stage} {copy}".removesuffix(" primary") for stage, copy in own] for own in found] == held


def test_everything_wrong_with_a_row_is_said_at_once() -> None:
    with pytest.raises(InputError) as caught:
        plan_of(PlanRow(pp=2, vpp=2, dp=2, mbs=3, gbs=7, schedule="interleaved"), [4, 4, 4])
    layers, batch = caught.value.problems
    assert (layers.field, layers.why) == ("layers", "there are pp 2 x vpp 2 = 4 virtual stages")
    assert (batch.field, batch.why) == ("gbs", "it must be a multiple of dp 2 x mbs 3 = 6")


def test_a_large_batch_of_whole_micro_batches_is_a_plan() -> None:
    plan = plan_of(PlanRow(dp=8, mbs=2, gbs=4096), [12])
    assert (plan.global_batch, plan.pipelines[0].num_micro_batches) == (4096, 256)


def test_a_schedule_survives_its_statement_in_a_plan() -> None:
    for token in ("1f1b", "v-half", "slimpipe-segments4", "bfs"):
        schedule = schedule_named(token)
        assert schedule_of(spec_of(schedule)) == schedule


def test_stages_spread_unevenly_are_a_row_and_no_homogeneous_plan_of_frameworks() -> None:
    row = PlanRow(pp=2, vpp=2, mbs=1, gbs=4, schedule="ftpipe-0_1_0")
    plan = plan_of(row, [1, 2, 1])
    assert [[chunk.layers for chunk in worker.chunks] for worker in plan.pipelines[0].workers] == [
        [((0, 0),), ((3, 3),)],
        [((1, 2),)],
    ]
    assert row_of(plan, TINY["llama-tiny"]) == row
    none, problems = homogeneous(plan)
    assert none is None
    assert [problem.why for problem in problems] == ["must be spread evenly over the 2 workers"]


@pytest.mark.parametrize("schedule", ["dualpipe", "dualpipev"])
@pytest.mark.parametrize("ep", [1, 2, 4])
def test_schedules_of_paired_passes_hide_exchanges_of_experts_where_there_are_any(schedule: str, ep: int) -> None:
    def overlaps(**stated: str) -> set[str]:
        vpp = 2 if schedule == "dualpipev" else 1
        row = PlanRow(pp=2, vpp=vpp, dp=4, ep=ep, mbs=1, gbs=64, schedule=schedule, **stated)
        return {strategy.expert.overlap for strategy in plan_of(row, [3] * 2 * vpp).strategies}

    assert overlaps() == {"paired-wgrad" if ep > 1 else "none"}
    if ep > 1:
        assert overlaps(ep_overlap="paired") == {"paired"}
