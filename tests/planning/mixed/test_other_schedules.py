"""Plans over several kinds of device under schedules that are named."""

from __future__ import annotations

from functools import cache

import pytest

from meshwright import plan
from meshwright.fields.job import JobFields
from meshwright.planning.compose.island_part import IslandPart
from meshwright.planning.mixed.native import NativeSource
from meshwright.planning.mixed.other_schedules import rescheduled, schedules_apart, through_several_kinds
from meshwright.planning.mixed.source import PricedPlan
from meshwright.planning.question.job_inputs import job_inputs
from meshwright.schedules import PLAN_SCHEDULES, schedule_named
from meshwright.search.space import Space
from meshwright.specs.plan import ExecutionPlan

THROUGH = [name for name in PLAN_SCHEDULES if through_several_kinds(schedule_named(name))]


@cache
def source(*schedules: str) -> NativeSource:
    inputs = job_inputs(JobFields(model="llama-3.1-8b", gpus="2xA100-80,2xH100", global_batch=16))
    space = Space(pins=(("schedule", schedules),) if schedules else ())
    return NativeSource(inputs, lambda cluster: space)


@cache
def together(*schedules: str) -> list[PricedPlan]:
    asked = source(*schedules)
    parts = [IslandPart(number, group.devices) for number, group in enumerate(asked.cluster.groups)]
    return asked.together(parts, thorough=True)


def piped(made: ExecutionPlan) -> bool:
    return any(len(pipeline.workers) > 1 for pipeline in made.pipelines)


@pytest.mark.parametrize("name", THROUGH)
def test_a_plan_keeps_workers_and_layers_under_another_schedule(name: str) -> None:
    plain = next(one.plan for one in together("1f1b") if piped(one.plan))
    made = rescheduled(plain, schedule_named(name))

    assert made is not None
    for before, after in zip(plain.pipelines, made.pipelines, strict=True):
        assert after.schedule.name == name
        held = sorted((chunk.virtual_stage, chunk) for chunk in after.chunks())
        layers = [layer for _, chunk in held for first, last in chunk.layers for layer in range(first, last + 1)]
        assert layers == list(range(source().model.num_layers))
        assert [chunk.embedding for _, chunk in held] == [number == 0 for number, _ in enumerate(held)]
        assert [chunk.head for _, chunk in held] == [number == len(held) - 1 for number, _ in enumerate(held)]
        for old, new in zip(before.workers, after.workers, strict=True):
            assert new.devices == old.devices
            assert sum(chunk.num_layers for chunk in new.chunks) == old.chunks[0].num_layers


@pytest.mark.parametrize("names", [("zb-h1",), ("zb-v", "gpipe"), ("interleaved-group4",)], ids="+".join)
def test_pipelines_have_the_schedules_that_are_named(names: tuple[str, ...]) -> None:
    found = [one for one in together(*names) if piped(one.plan)]

    assert found, "pipelines of a named schedule are found"
    used = {pipeline.schedule.token for one in found for pipeline in one.plan.pipelines if len(pipeline.workers) > 1}
    assert used <= set(names)
    assert [one.step_time_s for one in found] == sorted(one.step_time_s for one in found)


def test_a_schedule_more_is_never_slower() -> None:
    least, less = (min(one.step_time_s for one in together(*names)) for names in (("1f1b", "zb-h1"), ("1f1b",)))

    assert least <= less


def test_schedules_of_two_chains_stay_on_one_kind_of_device_and_that_is_said() -> None:
    (said,) = schedules_apart(Space(pins=(("schedule", ("1f1b", "dualpipe", "zb-h1")),)))
    answer = plan("llama-3.1-8b", gpus="2xA100-80,2xH100", global_batch=16, schedule="dualpipe", top=1)

    assert "dualpipe on one kind" in said.value
    assert "zb-h1" not in said.value
    assert not [*schedules_apart(Space())]
    assert "schedules apart" in {one.name for one in answer.assumptions}
