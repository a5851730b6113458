"""Plans after a loss that leave most of the state where it is."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwright import plan
from meshwright.app.replan import LITTLE, replan
from meshwright.library.clusters import resolve_gpus
from meshwright.planning.changed_cluster import changed_cluster
from meshwright.planning.compose.moved_state import lost_share_bytes, moved_state
from meshwright.planning.mixed.kept import _spread, kept_plans, shared_again
from meshwright.specs.job import Job


@pytest.fixture(scope="module")
def staged() -> Job:
    """Four stages of one node of two devices each."""
    pin = ["pp=4", "tp=1", "cp=1", "vpp=1", "schedule=1f1b", "sharding=z1", "recompute=none"]
    return plan("gpt2", gpus="4x2xH100", global_batch=24, top=1, pin=pin)[0].job


def layers(one: Job) -> list[int]:
    return [sum(chunk.num_layers for chunk in worker.chunks) for worker in one.plan.pipelines[0].workers]


def test_an_idle_node_takes_the_place_of_a_lost_one(staged: Job) -> None:
    spare = replace(staged, cluster=resolve_gpus("5x2xH100"))
    change = changed_cluster(spare.cluster, lost="2-3")
    (same,) = kept_plans(spare, change)
    assert same.strategies == spare.plan.strategies
    assert [worker.chunks for worker in same.pipelines[0].workers] == [
        w.chunks for w in spare.plan.pipelines[0].workers
    ]
    state = moved_state(spare.model, spare.workload, spare.plan, same, change.cluster, change.number_after)
    held = lost_share_bytes(spare.model, spare.workload, spare.plan, change.number_after)
    # Nothing moves but what the lost node held, from a checkpoint where nobody else has it.
    assert state.moved_bytes + state.lost_bytes == pytest.approx(held)


def test_a_node_that_lost_some_devices_is_replaced_whole_or_its_stages_go(staged: Job) -> None:
    spare = replace(staged, cluster=resolve_gpus("5x2xH100"))
    change = changed_cluster(spare.cluster, lost="2")
    *shorter, same = kept_plans(spare, change)
    (whole,) = kept_plans(spare, changed_cluster(spare.cluster, lost="2-3"))
    assert [worker.chunks for worker in same.pipelines[0].workers] == [w.chunks for w in whole.pipelines[0].workers]
    places = [group.devices for group in change.cluster.groups]
    assert places == [8, 1]
    for one in (*shorter, same):
        for worker in one.pipelines[0].workers:
            # No stage stands on whole nodes and on the rest of one.
            assert len({device >= 8 for first, last in worker.devices for device in range(first, last + 1)}) == 1
    assert all(one.devices < same.devices for one in shorter)


def test_layers_of_a_lost_stage_go_to_its_neighbours_first(staged: Job) -> None:
    change = changed_cluster(staged.cluster, lost="2-3")
    found = list(kept_plans(staged, change))
    before = layers(staged)
    near = [w.chunks[0].num_layers for w in found[0].pipelines[0].workers]
    assert sum(near) == staged.model.num_layers
    assert near[-1] == before[-1]  # two stages away
    assert found[0].pipelines[0].workers[0].chunks[0].embedding
    assert found[0].global_batch == staged.plan.global_batch
    moved = [
        moved_state(staged.model, staged.workload, staged.plan, one, change.cluster, change.number_after).moved_bytes
        for one in found
    ]
    assert moved[0] == min(moved)


def twice(staged: Job) -> Job:
    """The same pipeline twice, on twice the devices, for twice the batch."""
    (one,) = staged.plan.pipelines
    other = replace(
        one,
        workers=tuple(
            replace(worker, devices=tuple((first + 8, last + 8) for first, last in worker.devices))
            for worker in one.workers
        ),
    )
    workload = replace(staged.workload, global_batch=2 * staged.workload.global_batch)
    whole = replace(staged.plan, pipelines=(one, other))
    return Job(model=staged.model, cluster=resolve_gpus("8x2xH100"), workload=workload, plan=whole)


@pytest.fixture(scope="module")
def doubled(staged: Job) -> Job:
    return twice(staged)


def test_the_pipeline_that_is_left_takes_the_whole_batch(doubled: Job) -> None:
    change = changed_cluster(doubled.cluster, lost="2-3")
    first = next(iter(kept_plans(doubled, change)))
    (left,) = first.pipelines
    assert first.global_batch == doubled.plan.global_batch
    assert left.num_micro_batches == 2 * doubled.plan.pipelines[1].num_micro_batches
    state = moved_state(doubled.model, doubled.workload, doubled.plan, first, change.cluster, change.number_after)
    assert state.moved_bytes + state.lost_bytes == pytest.approx(0, abs=1)


def test_the_batch_is_shared_by_the_speed_of_pipelines(doubled: Job) -> None:
    again = shared_again(doubled.plan, [1.0, 3.0])
    assert again is not None
    counts = [pipeline.num_micro_batches for pipeline in again.pipelines]
    assert again.global_batch == doubled.plan.global_batch
    assert counts[0] == 3 * counts[1]


def test_groups_of_chunks_are_those_of_the_shares() -> None:
    pin = ["pp=2", "tp=1", "cp=1", "vpp=2", "schedule=interleaved", "mbs=1", "sharding=z1", "recompute=none"]
    whole = twice(plan("gpt2", gpus="4x2xH100", global_batch=24, top=1, pin=pin)[0].job)
    again = shared_again(whole.plan, [1.0, 1.4])
    assert again is not None
    assert [(one.num_micro_batches, one.schedule.token) for one in again.pipelines] == [
        (7, "interleaved-group4"),
        (5, "interleaved-group3"),
    ]
    assert {one.schedule.token for one in whole.plan.pipelines} == {"interleaved"}


def test_one_plan_of_the_answer_moves_little_and_none_is_left_out_for_it(staged: Job) -> None:
    pins = replan(staged, lost="2-3", top=4)
    times = [move.worth_s(pins.horizon_s) for move in pins.moves]
    assert times[0] <= 1.01 * min(times)
    assert any(move.state.moved_bytes <= LITTLE * pins.lost_share_bytes for move in pins.moves)


def test_a_short_horizon_takes_the_plan_that_moves_less(staged: Job) -> None:
    long, short = (replan(staged, lost="2-3", top=4, horizon_s=time_s) for time_s in (1e6, 1e-3))
    assert short.best.state.moved_bytes <= long.best.state.moved_bytes
    assert "ordered by the steps trained in" in long.text


def test_a_stage_goes_on_with_the_data_ranks_that_are_whole() -> None:
    pin = ["pp=2", "tp=1", "cp=1", "vpp=1", "schedule=1f1b", "sharding=z1", "recompute=none"]
    job = plan("gpt2", gpus="8x1xH100", global_batch=16, top=1, pin=pin)[0].job
    change = changed_cluster(job.cluster, lost="6")
    narrow = [one for one in kept_plans(job, change) if len(one.pipelines[0].workers) == 2]
    sizes = [[worker.num_devices for worker in one.pipelines[0].workers] for one in narrow]
    # Of the three ranks left two divide the micro-batch; layers stay where they are, recompute may make room.
    assert sizes == [[4, 2]] * 4
    assert [layers(replace(job, plan=one)) for one in narrow] == [layers(job)] * 4
    assert all(one.global_batch == job.plan.global_batch for one in narrow)
    held = lost_share_bytes(job.model, job.workload, job.plan, change.number_after)
    moved = moved_state(job.model, job.workload, job.plan, narrow[0], change.cluster, change.number_after)
    assert moved.moved_bytes + moved.lost_bytes <= LITTLE * held


def test_a_stage_lost_whole_has_no_ranks_to_go_on_with() -> None:
    pin = ["pp=2", "tp=1", "cp=1", "vpp=1", "schedule=1f1b", "sharding=z1", "recompute=none"]
    job = plan("gpt2", gpus="2x4xH100", global_batch=16, top=1, pin=pin)[0].job
    change = changed_cluster(job.cluster, lost="4-7")
    assert all(len(one.pipelines[0].workers) == 1 for one in kept_plans(job, change))


@given(counts=st.lists(st.integers(0, 40), max_size=6), more=st.integers(0, 60))
def test_layers_are_spread_whole_and_in_proportion(counts: list[int], more: int) -> None:
    spread = _spread(counts, more)
    assert len(spread) == len(counts)
    if not counts:
        return
    total = sum(counts)
    assert sum(spread) == total + more
    if total:
        for before, after in zip(counts, spread, strict=True):
            assert abs(after - before * (total + more) / total) <= 1.0
    else:
        assert spread == [more, *counts[1:]]
