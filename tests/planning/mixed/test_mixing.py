"""What is said of a plan over several kinds, against its devices and stages counted one by one."""

from __future__ import annotations

from collections import Counter
from typing import Any, cast

import pytest

from meshwright.library.clusters import resolve_gpus
from meshwright.planning.compose.island_part import IslandPart
from meshwright.planning.fewer_nodes import fewer_devices
from meshwright.planning.mixed.devices_used import counted_devices, devices_used, even_part
from meshwright.planning.mixed.groups_alone import _moved
from meshwright.planning.mixed.idle_devices import numbers_of_devices
from meshwright.planning.mixed.mixing import Mixing, Subset, _held, _places, _slowest, idle_devices
from meshwright.planning.mixed.source import PricedPlan
from meshwright.specs.job import Job
from tests.planning.mixed.test_doubts import plans

__all__ = ["plans"]


def workers_of(one: PricedPlan) -> list[tuple[int, int, str, list[int]]]:
    """Pipeline, stage, group and devices of each worker."""
    names = [group.name for group in one.job.cluster.groups for _ in range(group.devices)]
    found = []
    for number, pipeline in enumerate(one.plan.pipelines):
        for stage, worker in enumerate(pipeline.workers):
            devices = [device for first, last in worker.devices for device in range(first, last + 1)]
            (group,) = {names[device] for device in devices}
            found.append((number, stage, group, devices))
    return found


def test_devices_are_in_use_or_idle(plans: list[PricedPlan]) -> None:
    for one in plans:
        used = Counter[str]()
        for _, _, group, devices in workers_of(one):
            used[group] += len(devices)
        assert devices_used(one.job.cluster, one.estimate) == used
        idle = {found.group: found for found in idle_devices(one.job.cluster, one.estimate, rented=False)}
        rest = {group.name: group.devices - used[group.name] for group in one.job.cluster.groups}
        assert {name: found.idle for name, found in idle.items()} == {name: n for name, n in rest.items() if n}
        for group in one.job.cluster.groups:
            if group.name in idle:
                assert idle[group.name].devices == group.devices
        rented = list(idle_devices(one.job.cluster, one.estimate, rented=True, preempted=list(idle)[:1]))
        assert all(found.rented for found in rented)
        assert [found.preempted for found in rented] == [number == 0 for number in range(len(rented))]


def test_each_pipeline_holds_all_layers_on_the_devices_of_its_workers(plans: list[PricedPlan]) -> None:
    for one in plans:
        job = one.job
        assert isinstance(job, Job)
        seen: Counter[int] = Counter()
        for held in _held(job, one.estimate):
            for number in range(held.pipelines[0], held.pipelines[1] + 1):
                pipeline = job.plan.pipelines[number]
                seen[number] += sum(held.layers)
                stages = [s for s in one.estimate.stages if s.pipeline == number and s.group == held.group]
                assert {stage.devices for stage in stages} >= {held.devices}
                assert (held.micro_batches, held.mbs) == (pipeline.num_micro_batches, stages[0].mbs)
        assert seen == dict.fromkeys(range(len(job.plan.pipelines)), job.model.num_layers)


def test_the_bottleneck_is_the_busiest_stage_against_its_own_pipeline(plans: list[PricedPlan]) -> None:
    for one in plans:
        found = _slowest(one.estimate)
        busy_s = {(stage.pipeline, stage.stage): stage.busy_s for stage in one.estimate.stages}
        assert found.busy_s == max(busy_s.values()) == busy_s[found.pipeline, found.stage]
        own = [seconds for (pipeline, _), seconds in busy_s.items() if pipeline == found.pipeline]
        assert (1.0 + found.above_mean) * sum(own) == pytest.approx(len(own) * found.busy_s)


def test_places_are_the_nodes_that_the_devices_stand_on(plans: list[PricedPlan]) -> None:
    for one in plans:
        cluster = one.job.cluster
        first, nodes = 0, {}
        for group in cluster.groups:
            nodes |= {first + device: device // group.devices_per_node for device in range(group.devices)}
            first += group.devices
        for place in _places(cluster, one.job, one.estimate):
            stages = range(place.stages[0], place.stages[1] + 1)
            held = [w for w in workers_of(one) if w[0] == place.pipeline and w[1] in stages]
            assert {group for _, _, group, _ in held} == {place.group}
            stood = {nodes[device] for _, _, _, devices in held for device in devices}
            assert place.nodes == (min(stood), max(stood))
        assert sum(place.layers for place in _places(cluster, one.job, one.estimate)) == sum(
            last - start + 1 for stage in one.estimate.stages for start, last in stage.layers
        )


def test_groups_that_count_as_one_use_all_of_each_node_or_a_multiple() -> None:
    cluster = resolve_gpus("2x8xH100,3x5xA100-80")
    names = [group.name for group in cluster.groups]
    for unit in range(1, 9):
        each = [group.nodes * (group.devices_per_node // unit * unit) for group in cluster.groups]
        found = counted_devices(cluster, names, sum(each))
        assert found.total() == sum(each)
        for group in cluster.groups:
            assert found[group.name] % group.nodes == 0, "every node of a group gives as many"
    assert counted_devices(cluster, names, 999) == {names[0]: 16, names[1]: 15}
    assert counted_devices(cluster, names[1:], 12) == {names[1]: 12}
    assert [even_part(devices, 4) for devices in range(9)] == [0, 0, 0, 0, 4, 4, 4, 4, 8]


def test_every_number_of_devices_is_tried_but_all_of_them() -> None:
    cluster = resolve_gpus("8xH100,4xA100-80")
    parts = [IslandPart(0, 8), IslandPart(1, 4)]
    found = numbers_of_devices(cluster, parts, 16)
    able = [{*fewer_devices(cluster, part.group, part.devices, 16), part.devices} for part in parts]
    assert {(one.devices, other.devices) for one, other in found} == {
        (a, b) for a in able[0] for b in able[1] if (a, b) != (8, 4)
    }
    sums = [sum(part.devices for part in one) for one in found]
    assert sums == sorted(sums, reverse=True)


@pytest.mark.parametrize("by", [0, 1, 7])
def test_a_plan_moved_stands_so_many_devices_further_and_is_the_same_else(plans: list[PricedPlan], by: int) -> None:
    plan = plans[0].plan
    moved = _moved(plan, by)
    for before, after in zip(plan.pipelines, moved.pipelines, strict=True):
        for own, its in zip(before.workers, after.workers, strict=True):
            assert its.devices == tuple((first + by, last + by) for first, last in own.devices)
            assert its.chunks == own.chunks
    assert _moved(moved, -by) == plan


def subset(amount: float | None, kept: float = 1.0) -> Subset:
    return Subset(devices="8 H100", step_time_s=amount, amount=amount, kept=kept)


@pytest.mark.parametrize(
    ("alone", "amount", "gain"),
    [
        ((2.0, 4.0), 1.0, 0.5),
        ((None, 4.0), 3.0, 0.25),
        ((None, None), 1.0, None),
        ((), 1.0, None),
        ((0.0,), 1.0, None),
        ((1.0, 2.0), 1.5, -0.5),
    ],
)
def test_what_mixing_gains_is_counted_against_the_best_kind(
    alone: tuple[float | None, ...], amount: float, gain: float | None
) -> None:
    class Facts:
        best_alone = Mixing.best_alone
        gain = Mixing.gain
        preempted = Mixing.preempted

        def __init__(self, kept: float, others_kept: float) -> None:
            self.alone = tuple(subset(one, others_kept) for one in alone)
            self.amount, self.kept = amount, kept

    found: Any = Facts(1.0, 1.0)
    assert cast(Any, found).gain == gain
    assert not found.preempted
    assert cast(Any, Facts(0.9, 1.0)).preempted
    able = [one for one in alone if one is not None]
    assert cast(Any, Facts(1.0, 0.9)).preempted == bool(able)
