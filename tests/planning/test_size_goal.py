"""What devices must be enough for."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest

from meshwright.estimate.sequences import tokens_of_step
from meshwright.fields.job import JobFields
from meshwright.planning.question.job_inputs import job_inputs
from meshwright.planning.size_goal import CurvePoint, Goal
from meshwright.specs.failures import NEVER
from meshwright.units import DAY_S

POINT = CurvePoint(devices=8, name="dp8", step_time_s=2.0, mfu=0.4, days=10.0, price=500.0)


@pytest.mark.parametrize("field", ["days", "step_time_s", "max_price"])
def test_every_limit_holds_and_includes_itself(field: str) -> None:
    value = field.removeprefix("max_")
    here = getattr(POINT, value)
    unknown: dict[str, Any] = {value: None}
    assert Goal(**{field: here}).met(POINT)
    assert not Goal(**{field: here * 0.999}).met(POINT)
    assert not Goal(**{field: here}).met(replace(POINT, **unknown)), "what is not known keeps to no limit"
    assert Goal().met(replace(POINT, **unknown))


def test_the_aim_has_no_limit_where_none_is_stated() -> None:
    aim = Goal(days=3.0).aim
    assert (aim.days, aim.max_step_time_s, aim.max_price) == (3.0, math.inf, math.inf)


def test_a_run_of_steps_at_the_limit_takes_the_days() -> None:
    workload = job_inputs(JobFields(model="llama-3.2-1b", gpus="8xH100", global_batch=64, tokens=1e9)).workload
    calm, steps = replace(workload, failures=NEVER), 1e9 / tokens_of_step(workload)
    limit_s = Goal(days=2.0).step_limit_s(calm)
    assert limit_s is not None
    assert limit_s * steps == pytest.approx(2.0 * DAY_S)
    interrupted_s = Goal(days=2.0).step_limit_s(workload)
    assert interrupted_s is not None
    assert 0.99 * limit_s < interrupted_s < limit_s, "one device is seldom interrupted"
    assert Goal(days=2.0, step_time_s=0.5 * limit_s).step_limit_s(calm) == 0.5 * limit_s
    assert Goal(days=2.0, step_time_s=2.0 * limit_s).step_limit_s(calm) == limit_s
    assert Goal(step_time_s=3.0).step_limit_s(calm) == 3.0
    assert Goal().step_limit_s(calm) is None
    assert Goal(days=2.0).step_limit_s(replace(calm, tokens=None)) is None
