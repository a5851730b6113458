"""The best plans of single groups, and which devices of them are searched."""

from __future__ import annotations

import pytest

from meshwright.fields.job import JobFields
from meshwright.planning.axes import space_of
from meshwright.planning.mixed import groups_alone
from meshwright.planning.mixed.native import NativeSource
from meshwright.planning.one_kind import find_plans
from meshwright.planning.question.job_inputs import job_inputs
from meshwright.search.space import Space
from meshwright.specs.cluster import ClusterSpec


@pytest.mark.parametrize(("promised_s", "devices"), [(None, [40]), (0.0, [40, 32])])
def test_fewer_devices_are_searched_only_where_they_promise_to_be_about_as_quick(
    promised_s: float | None, devices: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    searched: list[int] = []
    accepted = groups_alone.accepted

    def noted(model: object, cluster: ClusterSpec, *rest: object, **named: object) -> object:
        searched.append(cluster.devices)
        return accepted(model, cluster, *rest, **named)

    monkeypatch.setattr(groups_alone, "accepted", noted)
    if promised_s is not None:
        monkeypatch.setattr(groups_alone.GroupsAlone, "_promised_s", lambda self, part: promised_s)
    inputs = job_inputs(JobFields(model="llama-3-8b", gpus="5x8xA100-80,1x8xH100", global_batch=512))

    def space_for(part: ClusterSpec) -> Space:
        return space_of(inputs.model, inputs.workload, part.devices)

    source = NativeSource(inputs, space_for)
    (best,) = source.alone(source.whole[0])
    # Thirty-two of them divide the batch, and lose a fifth of the devices.
    assert searched == devices
    assert sum(stage.devices for stage in best.estimate.stages) == 40


@pytest.mark.parametrize("group", [0, 1])
def test_devices_that_the_model_barely_fits_are_as_quick_in_a_comparison_as_by_themselves(group: int) -> None:
    """One stage of FSDP takes all of their memory: embedding, head and what passes between stages count once or not."""
    kinds, batch = ("16xH100", "16xA100-80"), 1024
    mixed = job_inputs(JobFields(model="llama-3.1-70b", gpus=",".join(kinds), global_batch=batch))
    alone = job_inputs(JobFields(model="llama-3.1-70b", gpus=kinds[group], global_batch=batch))
    source = NativeSource(mixed, lambda part: space_of(mixed.model, mixed.workload, part.devices))
    (found,) = source.alone(source.whole[group])
    best = find_plans(
        alone.model, alone.cluster, alone.workload, lambda part: space_of(alone.model, alone.workload, part.devices)
    ).result.plans[0]
    assert found.step_time_s == pytest.approx(best.estimate.step_time_s)
