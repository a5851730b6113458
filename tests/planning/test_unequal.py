"""Unequal pipelines on one kind of device, where equal ones leave devices idle or stages uneven."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from meshwright import plan
from meshwright.library.clusters import resolve_gpus
from meshwright.units import GIB


def test_a_count_that_equal_pipelines_do_not_divide_is_used_by_unequal_ones() -> None:
    answer = plan("llama-3.1-70b", gpus="104xH100", global_batch=1024, top=2)
    unequal, equal = answer
    assert len(unequal.plan.pipelines) == 2
    assert len({len(pipeline.workers) for pipeline in unequal.plan.pipelines}) == 2
    assert unequal.plan.devices == 104
    assert len(equal.plan.pipelines) == 1
    assert unequal.estimate.step_time_s < 0.99 * equal.estimate.step_time_s
    assert unequal.estimate.fits == "yes"
    assert answer.certificate is not None
    assert not answer.certificate.optimal
    assert answer.certificate.bound_step_time_s is not None
    assert answer.certificate.bound_step_time_s < unequal.estimate.step_time_s
    assert re.fullmatch(r"14 x 4 devices \| \d+ x \d+ devices", unequal.title)


def test_where_equal_pipelines_use_all_devices_well_they_are_the_answer() -> None:
    answer = plan("llama-3-8b", gpus="8xH100", global_batch=64, top=2)
    assert all(len(one.plan.pipelines) == 1 for one in answer)


def test_layers_that_equal_chunks_do_not_divide_are_interleaved_in_unequal_ones() -> None:
    # 48 layers on 14 chunks: three or four each, of which equal ones need more memory than there is.
    cluster = resolve_gpus("7x8xH100")
    (group,) = cluster.groups
    larger = replace(group, device=replace(group.device, memory_bytes=84 * GIB))
    answer = plan("qwen3-30b-a3b", cluster=replace(cluster, groups=(larger,)), global_batch=256, top=6)
    assert len(answer.best.plan.pipelines) == 1
    alone = [one for one in answer if len(one.plan.pipelines) == 1]
    equal = [one for one in alone if not one.title.endswith(" + unequal chunks")]
    assert equal
    assert answer.best.estimate.step_time_s < 0.98 * min(one.estimate.step_time_s for one in equal)
    assert answer.best.title.endswith(" + unequal chunks")
    assert answer.best.estimate.fits == "yes"


@pytest.mark.parametrize("gpus", ["5xH200", "7xH100"])
def test_ranks_do_unlike_numbers_of_sequences_where_they_do_not_divide_the_batch(gpus: str) -> None:
    answer = plan("llama-3.2-3b", gpus=gpus, global_batch=64, seq_len=2048, top=2)
    shared, equal = answer
    assert shared.plan.joint_ranks == shared.plan.devices == int(gpus[0])
    each = [own.micro_batch * own.num_micro_batches for own in shared.plan.pipelines]
    assert sum(shared.plan.data_degree(own) * one for own, one in zip(shared.plan.pipelines, each, strict=True)) == 64
    assert 0 < max(each) - min(each) <= shared.plan.pipelines[0].num_micro_batches
    assert shared.estimate.step_time_s < 0.9 * equal.estimate.step_time_s
    assert answer.certificate.bound_step_time_s < shared.estimate.step_time_s
