"""Workers slowed as the devices of a plan: how long each instruction takes, and when a step of them ends."""

from __future__ import annotations

import jax
import pytest

from meshwright.compiler.instructions import Op
from meshwright.runtime.emulation import emulated_paces
from meshwright.runtime.moments import end_s, replay_paced
from tests.runtime.mixed_plans import Line, plan_of, stage, training_of
from tests.virtual_devices import eight_devices

eight_devices()


@pytest.mark.parametrize(
    "lines",
    [
        (Line(1, 6, (stage(1), stage(3), stage(0))),),
        (Line(2, 6, (stage(1, 1), stage(1, 1)), schedule="interleaved"),),
        (Line(1, 6, (stage(3), stage(1))), Line(2, 2, (stage(4),))),
    ],
    ids=["stages", "chunks", "pipelines"],
)
def test_a_step_of_planned_tasks_ends_when_the_planned_step_does(lines: tuple[Line, ...]) -> None:
    training = training_of(plan_of(*lines))
    planned = training.planned_step
    program = training.step(jax.devices()).lower(jax.eval_shape(training.initial), training.batch(0)).program
    paces = emulated_paces(planned, program, scale=100.0)
    assert end_s(replay_paced(program, paces)) == pytest.approx(100.0 * planned.estimate.step_time_s, rel=0.02)

    first = [paces[0][place] for place, one in enumerate(program.lists[0]) if one.op is Op.RUN and one.label == "F0.0"]
    assert first == [pytest.approx(100.0 * float(planned.times[0].forward_s[0, 0]))]
