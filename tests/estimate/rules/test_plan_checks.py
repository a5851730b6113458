"""Plans as wholes: what is refused whatever the rows are."""

from __future__ import annotations

import pytest

from meshwright.errors import InputError
from meshwright.estimate.rules.plan_checks import check_plan
from meshwright.library.clusters import resolve_gpus
from meshwright.schedules import SCHEDULES, schedule_named
from meshwright.schedules.plan_rows import plan_of
from meshwright.specs import PlanRow, Workload
from tests.estimate.cases import DENSE

AGAIN = [name for name in SCHEDULES if schedule_named(name).recomputes_in_tasks]


@pytest.mark.parametrize("schedule", AGAIN)
@pytest.mark.parametrize("recompute", ["none", "full"])
@pytest.mark.parametrize("workers", [1, 2])
def test_tasks_that_make_a_stage_again_need_layers_made_again_where_there_is_a_pipeline(
    workers: int, recompute: str, schedule: str
) -> None:
    row = PlanRow(pp=workers, mbs=1, gbs=4, schedule=schedule, recompute=recompute)
    plan, cluster = plan_of(row, [DENSE.num_layers // workers] * workers), resolve_gpus(f"{workers}xH100")
    workload = Workload(seq_len=4096, global_batch=4)
    if workers > 1 and recompute != "full":
        with pytest.raises(InputError, match=f"schedule {schedule}"):
            check_plan(plan, DENSE, cluster, workload)
    else:
        check_plan(plan, DENSE, cluster, workload)


def test_some_schedules_make_stages_again_in_tasks() -> None:
    assert AGAIN
