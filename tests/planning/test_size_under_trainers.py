"""The fewest devices for adapters are those that asking every trainer for all its plans would give."""

from __future__ import annotations

from dataclasses import replace

import pytest

from meshwright.fields.job import JobFields, SpaceFields
from meshwright.planning.for_target import priced_as, running
from meshwright.planning.question.job_inputs import job_inputs
from meshwright.planning.size import MOST_DEVICES, Sized, Sizing
from meshwright.planning.size_goal import Goal
from meshwright.planning.size_under_trainers import BATCH_DEVICES, sized_under_trainers
from meshwright.targets import FINE_TUNING

JOB = JobFields(model="llama-3.2-1b", gpus="8xH100", lora="r=16", global_batch=64)


def each_whole(goal: Goal) -> list[Sized]:
    """What each trainer finds that knows of no other."""
    found = []
    for trainer in running(FINE_TUNING, JOB):
        base = job_inputs(priced_as(JOB, trainer), usual_devices=BATCH_DEVICES)
        sizing = Sizing(base, goal, (), (), target=trainer)
        if sizing.runs:
            found.append(Sized.of(sizing, trainer))
    return found


@pytest.mark.parametrize("step_time_s", [0.6, 0.3])
def test_what_other_trainers_found_spares_searches_and_changes_nothing(step_time_s: float) -> None:
    goal = Goal(step_time_s=step_time_s)
    together = sized_under_trainers(JOB, goal, SpaceFields())
    alone = [one for one in each_whole(goal) if one.found is not None]

    best = min(alone, key=lambda one: (one.found.devices, one.found.step_time_s) if one.found else (MOST_DEVICES, 0.0))
    assert best.found is not None
    assert together.found == best.found
    assert together.trainer == best.trainer
    assert together.sizing.tried == best.sizing.tried


def test_plans_that_are_of_no_use_are_not_looked_for() -> None:
    base = job_inputs(priced_as(JOB, "torchtitan"), usual_devices=BATCH_DEVICES)
    whole = Sizing(base, Goal(step_time_s=0.3), (), (), target="torchtitan")
    found = whole.first()
    assert found is not None
    assert found.step_time_s is not None
    quicker = Sizing(base, whole.goal, (), (), target="torchtitan", most=found.devices, known=found)
    as_quick = quicker.first()
    assert as_quick == found

    unbeaten = replace(found, step_time_s=0.9 * found.step_time_s)
    assert Sizing(base, whole.goal, (), (), target="torchtitan", most=found.devices, known=unbeaten).first() is None
