"""The best plans of single groups, and which devices of them are searched."""

from __future__ import annotations

import pytest

from meshwright.fields.job import JobFields
from meshwright.planning.axes import space_of
from meshwright.planning.mixed import groups_alone
from meshwright.planning.mixed.native import NativeSource
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
