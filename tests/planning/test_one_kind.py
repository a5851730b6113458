"""Devices of one kind that a plan leaves idle: more of them are never slower."""

from __future__ import annotations

import math

import pytest

from meshwright import plan
from meshwright.errors import Problem
from meshwright.library.clusters import resolve_gpus
from meshwright.library.models import spec
from meshwright.planning.fewer_nodes import dividing_part, fewer_devices, fewer_of_each, rounder_parts, roundest_devices
from meshwright.planning.one_kind import accepted
from meshwright.search.space import Space
from meshwright.specs.job import Job
from meshwright.specs.workload import Workload


def test_a_node_that_lost_a_device_is_no_slower_than_one_of_six() -> None:
    seven, six = (plan("llama-3.2-1b", gpus=f"1x{each}xH100", global_batch=12, top=1) for each in (7, 6))
    assert seven[0].estimate.step_time_s <= six[0].estimate.step_time_s
    assert any("6 of 7 devices used" in line for line in seven.warnings)


def test_nodes_that_do_not_divide_the_batch_are_no_slower_than_those_that_do() -> None:
    nine, eight = (plan("llama-3.2-1b", gpus=f"{nodes}x8xH100", global_batch=64, top=1) for nodes in (9, 8))
    assert nine[0].estimate.step_time_s <= eight[0].estimate.step_time_s
    assert any("64 of 72 devices used" in line for line in nine.warnings)


def test_racks_of_72_are_no_slower_than_64_devices_of_each() -> None:
    whole, fewer = (plan("llama-3.1-70b", gpus=f"{count}xGB200", global_batch=64, top=1) for count in (576, 512))
    assert whole[0].estimate.step_time_s <= fewer[0].estimate.step_time_s
    idle = "512 of 576 devices used (64 of each NVLink5 domain of 72), 64 idle"
    assert any(idle in " ".join(line.split()) for line in whole.warnings)


@pytest.mark.parametrize(
    ("gpus", "batch", "found"),
    [
        ("9216xGB200", 1024, [(8192, 64)]),
        ("10224xGB200", 1024, [(9088, 64), (8192, 64)]),  # 142 domains: 128 of them divide the batch
        ("1036xGB200", 1024, [(896, 64), (768, 64)]),  # 14 whole domains
        ("8192xGB200", 1024, []),  # read as domains of 64
        ("72xGB200", 1024, []),
        ("9x8xH100", 64, []),
        ("9x7xH100", 64, [(54, 6), (36, 4)]),
    ],
)
def test_every_node_or_domain_may_leave_devices_idle(gpus: str, batch: int, found: list[tuple[int, int]]) -> None:
    some = fewer_of_each(resolve_gpus(gpus), batch)
    assert [(part.devices, part.groups[0].domains[0].size) for part in some] == found


@pytest.mark.parametrize(
    ("nodes", "each", "batch", "part"),
    [
        (18, 8, 512, (16, 8)),
        (18, 8, 576, None),
        (19, 8, 768, (16, 8)),
        (24, 8, 512, None),
        (5, 7, 64, None),
        (1, 6, 8, (1, 4)),
    ],
)
def test_parts_divide_the_batch_without_odd_factors_of_their_own(
    nodes: int, each: int, batch: int, part: tuple[int, int] | None
) -> None:
    assert dividing_part(nodes, each, batch) == part


@pytest.mark.parametrize(
    ("nodes", "each", "batch", "some"),
    [
        (21, 8, 512, [(20, 8), (18, 8), (16, 8)]),
        (21, 8, 504, []),
        (11, 8, 512, [(10, 8), (9, 8)]),
        (16, 8, 512, []),
        (1, 7, 64, [(1, 6), (1, 5), (1, 4)]),
    ],
)
def test_fewer_nodes_have_small_odd_factors_or_those_of_the_batch(
    nodes: int, each: int, batch: int, some: list[tuple[int, int]]
) -> None:
    assert rounder_parts(nodes, each, batch) == some


def test_racks_with_a_large_factor_are_no_slower_than_fewer_with_a_small_one() -> None:
    """168 = 8 x 21 racks, of which only stages take a factor; 160 leave them a five."""
    question = {"global_batch": 1024, "pin": "tp=16,cp=1,mbs=1,sharding=z1", "top": 1}
    more, fewer = (plan("llama-3.1-405b", gpus=f"{count}xGB200", **question) for count in (10_752, 10_240))
    assert more[0].estimate.step_time_s <= fewer[0].estimate.step_time_s


def test_a_count_whose_odd_factors_no_degree_takes_is_planned_on_fewer_nodes() -> None:
    """100,000 = 2^5 x 5^5, and of 1,024 sequences, 128 heads and 126 layers only the layers take a factor of 5."""
    found = plan("llama-3.1-405b", gpus="100000xH100", global_batch=1024, pin="tp=8,cp=1,mbs=1,sharding=z1", top=1)
    assert found.best.job.cluster.devices == 98_304
    assert any("98,304 of 100,000 devices used" in line for line in found.warnings)


def test_plans_that_a_target_takes_are_no_quicker_than_their_bound() -> None:
    model, cluster = spec("llama-3.1-8b"), resolve_gpus("8xH100")
    workload = Workload(global_batch=64, seq_len=4096)
    space = Space(pins=(("tp", (4,)), ("tp_overlap", ("bulk", "ring"))))
    taken: list[str | None] = []

    def refuses(job: Job) -> tuple[Problem, ...]:
        taken.append(job.name)
        ring = any(strategy.tensor.overlap == "ring" for strategy in job.plan.strategies)
        why = Problem(what="ring overlap", why="one plan may have it", field="tensor.overlap")
        return (why,) if ring and len(taken) > 1 else ()

    found = accepted(model, cluster, workload, space, 3, refuses)
    assert ".tpov" in (found.plans[0].row or "").format()
    bound_s = found.certificate.bound_step_time_s
    assert bound_s is not None
    assert bound_s <= found.plans[0].estimate.step_time_s


def test_plans_near_the_quickest_are_near_the_quickest_that_is_not_refused() -> None:
    model, cluster = spec("llama-3.1-8b"), resolve_gpus("8xH100")
    workload = Workload(global_batch=64, seq_len=4096)
    refused: list[str | None] = []

    def refuses(job: Job) -> tuple[Problem, ...]:
        if len(job.plan.pipelines[0].workers) == 1:
            return ()
        refused.append(job.name)
        return (Problem(what="a pipeline", why="it has none", field="pp"),)

    whole, near = (accepted(model, cluster, workload, Space(near=one), 3, refuses) for one in (math.inf, 1.001))
    assert refused
    assert near.plans[0].row == whole.plans[0].row


def test_groups_of_several_are_planned_on_fewer_devices_that_divide_well() -> None:
    cluster = resolve_gpus("16x8xL40S,11x8xA100-80")
    assert fewer_devices(cluster, 1, 88, batch=256) == [48, 64, 80]  # six nodes, eight, and ten
    assert fewer_devices(cluster, 0, 128, batch=256) == [96]  # sixteen divide as well as any, but into thirds
    three = resolve_gpus("16x8xH100,11x8xL40S,8xA100-80")
    assert not fewer_devices(three, 0, 128, batch=256)
    assert fewer_devices(three, 1, 88, batch=256) == [64, 80]
    assert roundest_devices(cluster, batch=256) == {1: (80,)}
    assert roundest_devices(resolve_gpus("16x8xL40S,27x8xA100-80"), batch=256) == {1: (192, 208)}  # 24 nodes, and 26
    assert roundest_devices(resolve_gpus("16x8xL40S,29x8xA100-80"), batch=256) == {1: (192, 224)}  # 24 of them, too
    assert roundest_devices(resolve_gpus("16x8xL40S,27x8xA100-80,8x8xH100"), batch=256) == {1: (192,)}
    small = resolve_gpus("4xH100,4xA100-80")
    assert fewer_devices(small, 0, 4, batch=8) == [1, 2, 3]


def test_workers_that_divide_no_number_of_micro_batches_are_interleaved_in_larger_groups() -> None:
    found = plan("qwen3-30b-a3b", gpus="48xH100", global_batch=256, top=1)
    row = found.best.plan.pipelines[0]

    assert len(row.workers) == 3
    assert row.num_micro_batches % 3
    assert row.schedule.name == "interleaved"
    assert found.certificate is not None
    assert found.certificate.optimal
    plain = plan("qwen3-30b-a3b", gpus="48xH100", global_batch=256, top=1, pin={"vpp": 1})
    assert found.best.estimate.step_time_s < 0.95 * plain.best.estimate.step_time_s
