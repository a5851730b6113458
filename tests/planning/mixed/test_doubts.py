"""Doubts about data sheets: each is the step of the same plan on a cluster with that number worse."""

from __future__ import annotations

from dataclasses import replace

import pytest

from meshwright.estimate.price import estimate_plan
from meshwright.fields.job import JobFields
from meshwright.formats.cluster import default_links
from meshwright.planning.compose.island_part import IslandPart
from meshwright.planning.compose.pipeline_sets import with_whole_micro_batches
from meshwright.planning.compose.sources.native.execution import native_plan
from meshwright.planning.mixed.doubts import LINK_CHANGE, NUMBER_CHANGE, doubts_of_model
from meshwright.planning.mixed.native import NativeSource
from meshwright.planning.mixed.source import PricedPlan
from meshwright.planning.question.job_inputs import job_inputs
from meshwright.planning.sensitivity import scalable_numbers
from meshwright.search.space import Space
from meshwright.specs.job import Job

PINNED = Space(pins=(("tp", (1, 2)), ("cp", (1,)), ("sharding", ("z0",)), ("schedule", ("1f1b",))))


@pytest.fixture(scope="module")
def plans() -> list[PricedPlan]:
    """Of three groups: over all of them, over two, and within one."""
    asked = job_inputs(JobFields(model="llama-3-8b", gpus="4xH100,4xA100-80,4xL40S", global_batch=16, seq_len=512))
    (run,) = asked.model.runs
    short = replace(asked, model=replace(asked.model, runs=(replace(run, repeats=6),)))
    source = NativeSource(short, lambda part: PINNED)
    found = {}
    for parts in ([0, 1, 2], [0, 1], [0]):
        for one in source.composer.sets([IslandPart(number, 4) for number in parts], 12):
            whole = with_whole_micro_batches(one, 16)
            priced = None if whole is None else source.priced(native_plan(whole, source.cluster))
            if priced is not None:
                found[frozenset(stage.group for stage in priced.estimate.stages)] = priced
    assert {len(groups) for groups in found} >= {1, 2}
    return list(found.values())


def test_a_doubt_is_the_step_with_that_number_worse(plans: list[PricedPlan]) -> None:
    for one in plans:
        job = one.job
        assert isinstance(job, Job)
        used = {stage.group for stage in one.estimate.stages}
        links = tuple(default_links(job.cluster.groups))
        expected = []
        for number, link in enumerate(links):
            if set(link.between) <= used:
                slow = replace(link, bandwidth_bytes_per_s=link.bandwidth_bytes_per_s / LINK_CHANGE)
                slower = replace(job.cluster, links=(*links[:number], slow, *links[number + 1 :]))
                expected.append((f"{link.name} bandwidth -50%", slower))
        for number, group in enumerate(job.cluster.groups):
            numbers = {name: make for name, _, make in scalable_numbers(group)}
            for name in ("16-bit GEMM speed", f"{group.domains[-1].name} bandwidth"):
                if group.name in used and name in numbers:
                    groups = list(job.cluster.groups)
                    groups[number] = numbers[name](NUMBER_CHANGE)
                    expected.append((f"{group.name} {name} -20%", replace(job.cluster, groups=tuple(groups))))
        found = {name.rpartition(" [")[0]: share for name, share in doubts_of_model(one)}
        assert set(found) == {name for name, _ in expected}
        for name, cluster in expected:
            step_s = estimate_plan(job.plan, job.model, cluster, job.workload).step_time_s
            assert found[name] == pytest.approx(step_s / one.step_time_s - 1.0, abs=1e-12)
        assert max(found.values()) > 0.0
