"""Mixed clusters before planning: devices that cannot compute in the format, and kinds that count as one."""

from __future__ import annotations

from dataclasses import replace

import pytest

import meshwright as mw
from meshwright.errors import InfeasibleError, InputError, UnsupportedError
from meshwright.fields.job import JobFields
from meshwright.planning.question.job_inputs import job_inputs
from meshwright.planning.usable_islands import usable_islands


def test_devices_that_cannot_compute_in_the_format_are_left_out_and_named() -> None:
    inputs = job_inputs(JobFields(model="llama-3.1-8b", gpus="8xV100-32,8xH100,8xA100-80", global_batch=96))
    usable, left_out = usable_islands(inputs, None)
    assert [group.name for group in usable.cluster.groups] == ["H100", "A100-80"]
    assert all("V100-32" not in link.between for link in usable.cluster.links)
    assert len(left_out) == 1
    assert left_out[0].what == "8 V100-32 are left out: V100-32 does not compute in bf16"
    assert left_out[0].fix == "--dtype fp16 to plan with all of them"


def test_what_is_left_out_is_named_too_where_the_rest_is_too_small() -> None:
    with pytest.raises(InfeasibleError, match=r"none of the .* fits 2 x L40S") as caught:
        mw.plan("qwen2.5-14b", gpus="8xV100-32,2xL40S", global_batch=64)
    assert caught.value.problems[-1].what.startswith("8 V100-32 are left out")


def test_what_is_left_of_one_kind_is_planned_as_one_kind_is() -> None:
    mixed = mw.plan("llama-3.1-8b", gpus="8xH100,8xV100-32", global_batch=64, top=1)
    plain = mw.plan("llama-3.1-8b", gpus="8xH100", global_batch=64, top=1)
    assert mixed[0].name == plain[0].name
    assert mixed[0].estimate.step_time_s == plain[0].estimate.step_time_s
    assert any("left out" in warning for warning in mixed.warnings)


def test_no_device_that_can_is_the_plain_refusal() -> None:
    with pytest.raises(UnsupportedError, match="does not compute in bf16"):
        job_inputs(JobFields(model="llama-3.1-8b", gpus="8xV100-32,8xV100-16", global_batch=64, dtype="bf16"))
    inputs = job_inputs(JobFields(model="llama-3.1-8b", gpus="8xH100,8xV100-16", global_batch=64))
    old = replace(inputs, cluster=replace(inputs.cluster, groups=inputs.cluster.groups[1:], links=()))
    with pytest.raises(UnsupportedError, match="does not compute in bf16"):
        usable_islands(old, None)


def test_kinds_within_the_tolerance_count_as_the_weakest_of_them() -> None:
    inputs = job_inputs(JobFields(model="llama-3.1-8b", gpus="8xA100-80,8xA100-40,8xH100", global_batch=96))
    seen, _ = usable_islands(inputs, 1.1)
    assert seen.cluster.devices == 24
    assert len(seen.cluster.groups) == 2
    merged = next(group for group in seen.cluster.groups if group.devices == 16)
    weakest = min(group.device.memory_bytes for group in inputs.cluster.groups)
    assert merged.device.memory_bytes == weakest
    assert any("islands within 1.1" in one.name for one in seen.assumptions)
    fine, _ = usable_islands(inputs, 0.0)
    assert len(fine.cluster.groups) == 3
    with pytest.raises(InputError, match="tolerance"):
        usable_islands(inputs, -1.0)


@pytest.mark.parametrize(
    ("model", "halves", "whole", "batch"),
    [("llama-3.2-1b", "4x8xL40S,4x8xL40S", "8x8xL40S", 64), ("llama-3.2-1b", "2xH100,2xH100", "2x2xH100", 32)],
)
def test_halves_of_one_kind_are_planned_and_launched_as_the_whole(
    model: str, halves: str, whole: str, batch: int
) -> None:
    in_halves, as_one = (mw.plan(model, gpus=gpus, global_batch=batch, seq_len=2048, top=2) for gpus in (halves, whole))
    assert [one.name for one in in_halves] == [one.name for one in as_one]
    assert in_halves[0].estimate.step_time_s == as_one[0].estimate.step_time_s
    # No trainer is asked about groups that it would have to know by name.
    assert in_halves.trainers == as_one.trainers
    assert any("planned as one" in note.value for note in in_halves.assumptions)
