"""One ZeRO group over unlike devices where that is the quickest plan, and never where a pin is against it."""

from __future__ import annotations

import itertools
import math
import random
from dataclasses import replace

import pytest

from meshwright import plan
from meshwright.app.plans.plan_set import PlanSet
from meshwright.estimate.price import estimate_of
from meshwright.estimate.pricer import PlanPricer
from meshwright.planning.compose.island_part import IslandPart
from meshwright.planning.mixed.joint_groups import JointGroups, by_rank
from meshwright.planning.mixed.source import PricedPlan
from meshwright.planning.plan_source import planned_job
from meshwright.search.space import Space
from meshwright.specs.job import Job
from meshwright.specs.strategy import ContextParallel, DataParallel, LayerStrategy
from tests.estimate.mixed import Stage, plan_of

MODEL, GPUS, BATCH, LENGTH = "llama-3.2-3b", "4xH100,4xA100-80", 8, 4096


def asked(**more: object) -> PlanSet:
    return plan(MODEL, gpus=GPUS, global_batch=BATCH, seq_len=LENGTH, **more)


@pytest.fixture(scope="module")
def plans() -> PlanSet:
    return asked()


def test_a_small_batch_is_shared_by_speed_in_one_group(plans: PlanSet) -> None:
    job = planned_job(plans[0])[0]
    assert job.plan.joint_ranks == 8
    by_kind = [job.plan.data_degree(one) * one.micro_batch for one in job.plan.pipelines]
    assert by_kind == [6, 2]
    assert plans[0].estimate.fits == "yes"


def test_the_answer_says_who_holds_the_states(plans: PlanSet) -> None:
    assert "states over all 8 ranks" in " ".join(plans.verdict.why)


def test_no_other_shares_are_quicker(plans: PlanSet) -> None:
    """All divisions of the batch into micro-batches and shares, all context degrees, without recompute."""
    job = planned_job(plans[0])[0]
    assert isinstance(job, Job)
    pricer = PlanPricer(job.model, job.cluster, job.workload)
    layers, best_s = job.model.num_layers, plans[0].estimate.step_time_s
    for count, contexts in itertools.product((1, 2, 4), itertools.product((1, 2, 4), repeat=2)):
        ranks = [4 // context for context in contexts]
        for first in range(ranks[0], BATCH // count, ranks[0]):
            sequences = first, BATCH // count - first
            if any(own % dp for own, dp in zip(sequences, ranks, strict=True)):
                continue
            for zero in (1, 2, 3):
                own = [
                    LayerStrategy(
                        context=(ContextParallel(kind="p2p", degree=context),) if context > 1 else (),
                        data=DataParallel(shard=dp, zero=zero, across=8),
                    )
                    for context, dp in zip(contexts, ranks, strict=True)
                ]
                stages = [([Stage(4 * n, one, layers)], sequences[n] // ranks[n], count) for n, one in enumerate(own)]
                found = estimate_of(plan_of(*stages), pricer)
                assert found.fits == "no" or found.step_time_s > 0.995 * best_s


@pytest.mark.parametrize("pins", [{"sharding": "z0"}, {"pp": 2}])
def test_pins_that_leave_nothing_to_share_hold(pins: dict[str, object]) -> None:
    assert not any(planned_job(entry)[0].plan.joint_ranks for entry in asked(pin=pins))


def test_pinned_degrees_hold_in_one_group() -> None:
    for entry in asked(pin={"cp": 1, "tp": 1}):
        assert all((own.cp, own.tp) == (1, 1) for own in planned_job(entry)[0].plan.strategies)


@pytest.mark.parametrize(("vendor", "found"), [("NVIDIA", True), ("AMD", False)])
def test_two_collective_libraries_form_no_one_group(plans: PlanSet, vendor: str, *, found: bool) -> None:
    job = planned_job(plans[0])[0]
    assert isinstance(job, Job)
    first, second = job.cluster.groups
    other = replace(second, device=replace(second.device, vendor=vendor))
    cluster = replace(job.cluster, groups=(first, other))
    joint = JointGroups(
        pricer=PlanPricer(job.model, cluster, job.workload),
        space=Space(),
        rate=lambda part: 1.0 * part.devices,
        candidate=lambda plan: PricedPlan(job=replace(job, plan=plan), estimate=plans[0].estimate),
    )
    assert bool(joint.quicker([IslandPart(0, 4), IslandPart(1, 4)], math.inf)) == found


def test_devices_that_share_the_batch_badly_are_left_idle() -> None:
    """Sixteen sequences divide over eight and four devices; two more share them in nothing better."""
    fewer, more = (
        min(one.estimate.step_time_s for one in plan("llama-3.2-1b", gpus=gpus, global_batch=16, seq_len=2048, top=2))
        for gpus in ("8xH100,4xH800", "8xH100,6xH800")
    )
    assert more <= 1.001 * fewer


@pytest.mark.parametrize("seed", range(8))
def test_ranks_share_a_micro_batch_as_evenly_as_whole_sequences_allow(seed: int) -> None:
    """Against every number of sequences on every rank."""
    draw = random.Random(seed)
    parts = [IslandPart(number, draw.randint(1, 3)) for number in range(2)]
    rates = [draw.choice((1.0, 1.0, 1.7, 3.0)) * part.devices for part in parts]
    ranks = [rate / part.devices for part, rate in zip(parts, rates, strict=True) for _ in range(part.devices)]
    for total in range(len(ranks), 12):
        slowest = min(
            max(own / rate for own, rate in zip(shares, ranks, strict=True))
            for shares in itertools.product(range(total + 1), repeat=len(ranks))
            if sum(shares) == total
        )
        found = by_rank(parts, rates, 1, total)
        if found is None:
            continue
        assert found[0] == pytest.approx(slowest)
        assert sum(found[2]) == total
        assert all(own % part.devices == 0 for part, own in zip(found[1], found[2], strict=True))
        each = {part.group: rate / part.devices for part, rate in zip(parts, rates, strict=True)}
        times = [own / part.devices / each[part.group] for part, own in zip(found[1], found[2], strict=True)]
        assert max(times) <= slowest * (1 + 1e-9)
        for number, part in enumerate(parts):
            assert sum(own.devices for own in found[1] if own.group == number) <= part.devices


def test_ranks_of_a_kind_do_unlike_shares_where_devices_do_not_divide_the_batch() -> None:
    """Sixty-four sequences on ten equal devices: seven on four of them, six on the others."""
    found = plan(MODEL, gpus="1x5xH200,1x5xH100", global_batch=64, seq_len=2048, top=2)
    job = planned_job(min(found.plans, key=lambda one: one.estimate.step_time_s))[0]
    assert job.plan.joint_ranks == 10
    shares = [(one.micro_batch, job.plan.data_degree(one)) for one in job.plan.pipelines]
    assert sum(own * ranks for own, ranks in shares) == 64
    assert {own for own, _ in shares} == {6, 7}
    assert max(len(one.workers) for one in job.plan.pipelines) == 1


def test_ranks_apart_cost_what_they_do_together(plans: PlanSet) -> None:
    """Two pipelines of one kind in a group, each rank with as many sequences, are one pipeline of it."""
    job = planned_job(plans[0])[0]
    assert isinstance(job, Job)
    pricer = PlanPricer(job.model, job.cluster, job.workload)
    whole, strategy = [], LayerStrategy(data=DataParallel(shard=4, zero=1, across=8))
    for sizes in ((4,), (3, 1)):
        firsts = itertools.accumulate(sizes, initial=0)
        stages = [
            ([Stage(first, replace(strategy, data=replace(strategy.data, shard=size)), job.model.num_layers)], 1, 1)
            for first, size in zip(firsts, sizes, strict=False)
        ]
        other = ([Stage(4, strategy, job.model.num_layers)], 1, 1)
        whole.append(pricer.step_time_s(plan_of(*stages, other)))
    assert whole[0] == pytest.approx(whole[1])
