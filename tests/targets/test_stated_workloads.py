"""What a user states beside a plan, for every target: its files say it again, or it is refused by name."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from meshwright.errors import MeshwrightError
from meshwright.fields.job import JobFields
from meshwright.planning.plan_source import plan_question
from meshwright.specs.job import Job
from meshwright.specs.precision import Precision
from meshwright.specs.row import PlanRow
from meshwright.specs.workload import Workload
from meshwright.targets import TARGETS, readers
from tests.targets.cases import runs_of
from tests.targets.drawn import software_under
from tests.targets.test_drawn_plans import read_back, same_plan
from tests.targets.test_round_trip import row_of

STATED: tuple[dict[str, Any], ...] = (
    {"dtype": "tf32"},
    {"dtype": "fp8", "bf16_first": 2},
    {"dtype": "fp8", "grad_dtype": "bf16"},
    {"reduce_dtype": "bf16"},
    {"gather_dtype": "int8"},
    {"moment_dtype": "fp8"},
    {"main_copy": "fp16"},
    {"weight_dtype": "fp8"},
    {"optimizer": "galore:rank=64"},
    {"optimizer": "sgd-momentum"},
    {"lora": "r=8,base=int8,dropout=0.1,train=head"},
    {"freeze": ("embedding", "layers.0-3")},
    {"loss_tiles": 8},
    {"mlp_tiles": 4},
    {"attention_kernel": "materialised"},
    {"lengths": "lognormal:mean=800,sigma=1,max=4096", "packing": "pad"},
)


def base(target: str) -> Job:
    """A plan of few degrees that a target runs, of a dense model."""
    every = (one.job() for one in runs_of(target))
    few = (one for one in every if not one.model.is_moe and row_of(one).tp * row_of(one).pp == 1)
    return next(few)


def stating(row: PlanRow, one: Job, target: str, stated: dict[str, Any]) -> Job | None:
    """The plan with more said of its workload; None where no plan of it is legal."""
    common: dict[str, Any] = {"model": one.model.name, "gpus": "16xH100", "global_batch": row.gbs, "seq_len": 4096}
    software = software_under(target, stated.get("lora"))
    try:
        return plan_question(row, JobFields(**common, software=software, **stated)).job
    except MeshwrightError:
        return None


def in_substance(workload: Workload) -> Workload:
    """A workload without names of the same: of formats, and of Adam with decay."""
    precision: Precision = workload.precision
    gathered = None if precision.gathered == precision.weights else precision.gathered
    optimizer = "adam" if workload.optimizer == "adamw" else workload.optimizer
    return replace(workload, precision=replace(precision, name="", gathered=gathered), optimizer=optimizer)


@pytest.mark.parametrize("target", readers())
def test_what_is_stated_comes_back_or_is_refused(target: str, tmp_path: Path) -> None:
    plain = base(target)
    row = row_of(plain)
    for number, stated in enumerate(STATED):
        one = stating(row, plain, target, stated)
        if one is None:
            continue
        if problems := TARGETS[target].problems(one):
            assert all(problem.what and problem.why for problem in problems), stated
            continue
        folder = tmp_path / str(number)
        folder.mkdir()
        found = read_back(target, one, folder)
        assert found.plan is not None, stated
        assert same_plan(one.plan, found.plan), stated
        assert in_substance(one.workload) == in_substance(found.inputs.workload), stated
        assert (one.model.tuning is None) == (found.inputs.model.tuning is None), stated
