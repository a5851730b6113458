"""One ZeRO group of unlike shares computes what one device does of the whole batch."""

from __future__ import annotations

import os
import signal
import time
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from meshwright.app.elastic import training_on
from meshwright.errors import UnsupportedError
from meshwright.library.clusters import resolve_gpus
from meshwright.runtime.devices import jax_precision
from meshwright.runtime.mixed_plan import check_plan_runs
from meshwright.runtime.parity import StepsOutcome, parity_of, run_alone, run_parallel
from meshwright.runtime.timings import Machine
from meshwright.runtime.train import Recovery, Steps, train
from meshwright.runtime.training.job import JobTraining
from meshwright.runtime.training.joint import samples_by_rank
from meshwright.runtime.training.mixed import MixedTraining
from meshwright.runtime.training.of_job import job_training
from meshwright.specs import Workload
from meshwright.specs.job import Job
from meshwright.specs.model import ModelSpec
from meshwright.specs.plan import ExecutionPlan
from meshwright.specs.strategy import ContextParallel, DataParallel, LayerStrategy, Recompute, Tensor1D
from meshwright.zoo.quantised import padded
from meshwright.zoo.tiny import TINY, scaled_model
from tests.estimate.mixed import Stage, plan_of
from tests.virtual_devices import eight_devices

eight_devices()
MODEL, LENGTH, STEPS = scaled_model(TINY["llama-tiny"], layers=2), 8, 3
EXPERTS = scaled_model(TINY["moe-tiny"], layers=2)
MACHINE = Machine(kind="cpu", platform="cpu", devices=8, memory_bytes=4e9, units=8)


def joint(
    zero: int,
    *,
    reshard: bool = True,
    micro_batches: tuple[int, int] = (2, 2),
    cp: tuple[int, int] = (1, 1),
    tp: int = 1,
    layers: int = MODEL.num_layers,
) -> ExecutionPlan:
    """Four ranks of three samples, and two of one that recompute."""
    own = []
    for ranks, recompute, context in zip((4, 2), (Recompute(), Recompute(kind="full")), cp, strict=True):
        family = "zero" if reshard else "fsdp"
        shard = ranks // context // tp
        data = DataParallel(shard=shard, zero=zero, across=6 // tp, family=family, reshard=reshard)
        contexts = (ContextParallel(kind="p2p", degree=context),) if context > 1 else ()
        own.append(LayerStrategy(tensor=Tensor1D(degree=tp), context=contexts, data=data, recompute=recompute))
    stages = Stage(0, own[0], layers), Stage(4, own[1], layers)
    return plan_of(([stages[0]], 3, micro_batches[0]), ([stages[1]], 1, micro_batches[1]))


def training_of(plan: ExecutionPlan, model: ModelSpec = MODEL, **more: Any) -> JobTraining:
    workload = Workload(seq_len=LENGTH, global_batch=plan.global_batch)
    job = Job(model=model, cluster=resolve_gpus("4xH100,2xA100-80"), workload=workload, plan=plan)
    return job_training(spec=model, seq_len=LENGTH, job=job, name="joint", **more)


@cache
def alone(zero: int) -> StepsOutcome:
    """On one device, with weights as the ranks of this stage of ZeRO keep them; they decide nothing else."""
    return run_alone(training_of(joint(zero)), STEPS)


@pytest.mark.parametrize(("zero", "reshard"), [(2, True), (3, True), (3, False)])
def test_unequal_shares_compute_what_one_device_does(zero: int, *, reshard: bool) -> None:
    plan = joint(zero, reshard=reshard)
    check_plan_runs(plan, LENGTH)
    with jax_precision("fp64"):
        training = training_of(plan)
        there = run_parallel(training, jax.devices(), STEPS)
        # Weights are whole on every rank below ZeRO-3.
        parity = parity_of(there, alone(zero), "fp64")
    assert parity.holds, (parity.loss, parity.gradient, parity.weight)


@pytest.mark.parametrize("zero", [pytest.param(1, marks=pytest.mark.slow), 3])
def test_ranks_of_one_kind_with_unlike_shares_compute_what_one_device_does(zero: int) -> None:
    """Three ranks of two samples beside one of a single sample, and two of one on the other kind."""
    own = [LayerStrategy(data=DataParallel(shard=ranks, zero=zero, across=6)) for ranks in (3, 1, 2)]
    stages = [Stage(first, one, MODEL.num_layers) for first, one in zip((0, 3, 4), own, strict=True)]
    plan = plan_of(*(([stage], each, 2) for stage, each in zip(stages, (2, 1, 1), strict=True)))
    check_plan_runs(plan, LENGTH)
    with jax_precision("fp64"):
        training = training_of(plan)
        parity = parity_of(run_parallel(training, jax.devices(), STEPS), run_alone(training, STEPS), "fp64")
    assert parity.holds, (parity.loss, parity.gradient, parity.weight)


PIPELINES = {
    "unequal numbers of micro-batches": (joint(1, micro_batches=(1, 3)), MODEL),
    "context ranks, of each pipeline its own": (joint(1, cp=(4, 2), micro_batches=(1, 1)), MODEL),
    "context ranks, weights in parts": (joint(3, cp=(2, 1)), MODEL),
    "tensor ranks": (joint(2, tp=2), MODEL),
    "experts": (joint(1, layers=EXPERTS.num_layers), EXPERTS),
}
QUICK = ("context ranks, of each pipeline its own",)


@pytest.mark.parametrize(
    "name", [name if name in QUICK else pytest.param(name, marks=pytest.mark.slow) for name in PIPELINES]
)
def test_ranks_that_share_samples_or_meet_once_run_as_pipelines(name: str) -> None:
    plan, model = PIPELINES[name]
    check_plan_runs(plan, LENGTH)
    with jax_precision("fp64"):
        training = training_of(plan, model)
        assert isinstance(training, MixedTraining)
        parity = parity_of(run_parallel(training, jax.devices(), STEPS), run_alone(training, STEPS), "fp64")
    assert parity.holds, (parity.loss, parity.gradient, parity.weight)


@pytest.mark.slow
@pytest.mark.parametrize("hosts", [1, 2])
def test_workers_of_each_kind_share_the_mesh_of_all_ranks(hosts: int) -> None:
    with jax_precision("fp64"):
        training = training_of(joint(3), backend="processes", hosts_per_mesh=hosts)
        assert training.mesh_devices == ((0, 1), (2, 3), (4, 5))
        parity = parity_of(run_parallel(training, jax.devices(), STEPS), alone(3), "fp64")
    assert parity.holds, (parity.loss, parity.gradient, parity.weight)


def test_a_kind_that_is_lost_is_planned_away_and_the_run_goes_on(tmp_path: Path) -> None:
    """The worker of both A100-80 dies behind the second step, of which there is no checkpoint yet."""
    here, there = training_of(joint(2)), training_of(joint(2), backend="processes")
    losses: dict[int, float] = {}
    recoveries: list[Recovery] = []

    def on_step(number: int, loss: float, seconds: float, step: Any) -> None:
        if number == 1 and number not in losses:
            os.kill(step.ranks.runtime.crew.pids()[2], signal.SIGKILL)
        losses[number] = loss

    steps = Steps(count=4, folder=tmp_path / "state", every=1, plan_again=partial(training_on, machine=MACHINE))
    train(there, jax.devices(), steps, on_step=on_step, on_recovery=recoveries.append).step.close()
    (recovery,) = recoveries
    assert {group.device.name for group in recovery.training.job.cluster.groups} == {"H100"}
    assert recovery.devices == 6
    undisturbed = run_alone(here, 4).losses
    assert [losses[number] for number in range(4)] == pytest.approx(list(undisturbed), rel=1e-5)


def test_a_checkpoint_is_of_whole_states_whatever_the_plan(tmp_path: Path) -> None:
    count = Steps(count=1, folder=tmp_path / "state", every=1)
    train(training_of(joint(3)), jax.devices(), count, on_step=lambda *done: None)
    more = train(training_of(joint(1)), jax.devices(), replace(count, count=2), on_step=lambda *done: None)
    assert more.number == 2
    ended = jax.tree.leaves(more.training.saved(more.state)["weights"])
    expected = jax.tree.leaves(run_alone(training_of(joint(1)), 2).weights)
    for one, other in zip(ended, expected, strict=True):
        np.testing.assert_allclose(one, other, atol=1e-5)


def test_every_sample_is_dealt_to_one_rank() -> None:
    ranks = training_of(joint(3)).ranks
    dealt = samples_by_rank(ranks).reshape(6, 2, 3)
    of_first, of_second = dealt[:4].ravel(), dealt[4:, :, 0].ravel()
    assert sorted([*of_first, *of_second]) == list(range(ranks.samples))


def test_ranks_hold_a_part_of_every_state() -> None:
    for zero, whole in ((2, True), (3, False)):
        training = training_of(joint(zero))
        state = training.initial()
        parts = jax.tree.leaves(state["moments"]["mean"])
        assert {leaf.shape[0] for leaf in parts} == {6}
        leaves = jax.tree.leaves(jax.eval_shape(training.plain_model().init, jax.random.key(0)))
        assert [leaf.shape for leaf in parts] == [(6, padded(leaf.size, 6)) for leaf in leaves]
        weights = jax.tree.leaves(state["weights"])
        assert [leaf.shape for leaf in weights] == [leaf.shape for leaf in (leaves if whole else parts)]


def test_fp16_is_refused_with_a_remedy() -> None:
    with pytest.raises(UnsupportedError, match="fp16") as error:
        training_of(joint(3), compute="float16")
    assert error.value.problems[0].fix == "use bf16"


@pytest.mark.parametrize("zero", [2, 3])
def test_emulated_ranks_take_what_the_planner_prices(zero: int) -> None:
    training = training_of(joint(zero))
    planned_s = training.planned_step.estimate.step_time_s
    ranks = training_of(joint(zero), emulate=100.0).ranks
    ends = [ranks.micro_batches * share.pass_s + share.behind_s for share in ranks.shares]
    assert max(ends) + ranks.update_s == pytest.approx(100.0 * planned_s)
    assert ranks.shares[0].pass_s != ranks.shares[1].pass_s


def test_what_is_emulated_takes_that_long() -> None:
    training = training_of(joint(2, micro_batches=(1, 1)))
    scale = 0.5 / training.planned_step.estimate.step_time_s
    step = training_of(joint(2, micro_batches=(1, 1)), emulate=scale).step(jax.devices())
    state, batch = training.initial(), training.batch(0)
    step(state, batch)
    begun = time.monotonic()
    jax.block_until_ready(step(state, batch))
    assert time.monotonic() - begun >= 0.5
