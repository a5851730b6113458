"""Unequal pipelines on one kind of device, where equal ones leave devices idle or stages uneven."""

from __future__ import annotations

import re

from meshwright import plan


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
    # 48 layers on 14 chunks: three or four each.
    answer = plan("qwen3-30b-a3b", gpus="7x8xH100", global_batch=256, top=6)
    assert len(answer.best.plan.pipelines) == 1
    alone = [one for one in answer if len(one.plan.pipelines) == 1]
    equal = [one for one in alone if not one.title.endswith(" + unequal chunks")]
    assert equal
    assert answer.best.estimate.step_time_s < 0.98 * min(one.estimate.step_time_s for one in equal)
    assert answer.best.title.endswith(" + unequal chunks")
    assert answer.best.estimate.fits == "yes"
