"""Number formats as options, and back."""

from __future__ import annotations

from dataclasses import replace

import pytest

from meshwright.formats.megatron import megatron_script, read_flags
from meshwright.schedules.plan_rows import plan_of
from meshwright.specs import PlanRow
from meshwright.specs.workload import PRECISIONS
from tests.formats.jobs import job


@pytest.mark.parametrize("name", PRECISIONS)
def test_every_recipe_survives_its_flags(name: str) -> None:
    plan = plan_of(PlanRow(dp=2, sharding="z1", gbs=2), [4])
    for changed in ({}, {"moments": "bf16"}):
        recipe = replace(PRECISIONS[name], **changed)
        made = job(plan)
        made = replace(made, workload=replace(made.workload, precision=recipe))
        read = read_flags(megatron_script(made).text)
        assert read.problems == ()
        assert read.workload["precision"] == recipe
