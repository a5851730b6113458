"""Plans of unlike stages and several pipelines compute what one device does."""

from __future__ import annotations

import jax
import pytest

from meshwright.errors import UnsupportedError
from meshwright.runtime.devices import jax_precision
from meshwright.runtime.mixed_plan import check_plan_runs
from meshwright.runtime.parity import parity_of, run_alone, run_parallel
from tests.runtime.mixed_plans import CASES, LENGTH, Line, plan_of, stage, training_of
from tests.virtual_devices import eight_devices

eight_devices()
STEPS = 2
QUICK = ("two pipelines, micro-batches of 6 and 2 samples", "interleaved on unlike workers")
"""The others are compiled by `make test-full`."""


@pytest.mark.parametrize(
    "name", [name if name in QUICK else pytest.param(name, marks=pytest.mark.slow) for name in CASES]
)
def test_what_is_unlike_computes_what_one_device_does(name: str) -> None:
    plan, model = CASES[name]
    check_plan_runs(plan, LENGTH)
    with jax_precision("fp64"):
        training = training_of(plan, model)
        there = run_parallel(training, jax.devices(), STEPS)
        parity = parity_of(there, run_alone(training, STEPS), "fp64")
    assert parity.holds, (parity.loss, parity.gradient, parity.weight)


def test_what_cannot_run_is_refused_with_the_stage_and_the_remedy() -> None:
    for plan, said in (
        (plan_of(Line(1, 2, (stage(4, offload="o"),))), "off-o does not run here"),
        (plan_of(Line(3, 2, (stage(2), stage(2, dp=2)))), "micro-batches of 3 samples on 2 data ranks in pipeline 0"),
        (plan_of(Line(1, 2, (stage(4, cp=(("p2p", 3),)),))), "8 tokens on 3 context ranks in stage 0 of pipeline 0"),
        (plan_of(Line(2, 2, (stage(4, tp=2, tp_overlap="halves"),))), "tpov-halves in stage 0 of pipeline 0"),
        (plan_of(Line(1, 2, (stage(4, tp=2), stage(0)))), "stage 1 of pipeline 0 has 1 devices and no layers"),
    ):
        with pytest.raises(UnsupportedError, match=said) as error:
            check_plan_runs(plan, LENGTH)
        assert all(problem.fix for problem in error.value.problems)
