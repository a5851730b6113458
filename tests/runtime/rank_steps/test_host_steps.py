"""Optimizers on the host: ranks end where one device ends, states wait in its memory, and less is sent back."""

from __future__ import annotations

import math
import re
from functools import cache
from typing import Any

import jax
import numpy as np
import pytest

from meshwright.compiler.sharding.hlo_collectives import count_collectives
from meshwright.errors import UnsupportedError
from meshwright.estimate.layers.items import FULL
from meshwright.estimate.rows import strategy_columns
from meshwright.ops.layers import work_of
from meshwright.runtime.devices import jax_precision
from meshwright.runtime.parity import StepsOutcome, parity_of, run_alone, run_parallel
from meshwright.runtime.rank_steps.host_steps import HostStep
from meshwright.runtime.rank_steps.rank_steps import HOST
from meshwright.runtime.rank_steps.shard_steps import ShardedStep
from meshwright.runtime.training.ranks import RankTraining
from meshwright.specs.precision import precision
from meshwright.specs.row import PlanRow
from meshwright.specs.row_text import parse_row
from meshwright.specs.workload import Workload
from meshwright.strategies.memory import kept_bytes
from meshwright.zoo.tiny import TINY, scaled_model
from tests.runtime.rank_steps.test_rank_steps import plain_steps, row, training

PLAIN_STEPS = 3


@pytest.mark.parametrize("words", ["z1.off-o", "z2.off-og", "z3.off-wog", "z2.off-og-dpu"])
def test_ranks_with_states_on_the_host_end_where_one_device_ends(words: str) -> None:
    with jax_precision("fp64"):
        one = training(words)
        state = one.initial()
        alone = run_alone(one, PLAIN_STEPS, state)
        assert parity_of(run_parallel(one, jax.devices(), PLAIN_STEPS, state), alone, "fp64").holds
        steps = plain_steps(PLAIN_STEPS).losses
    same = alone.losses == pytest.approx(steps, rel=1e-9)
    # The delayed optimizer is a step behind: the second loss is that of the first weights.
    assert same != words.endswith("dpu")
    if words.endswith("dpu"):
        assert alone.losses[0] == pytest.approx(steps[0], rel=1e-9)


def ran(words: str, *, staged: bool = False) -> tuple[Any, dict[str, Any], HostStep, str]:
    one = RankTraining(spec=None, row=row(words), stage_layers=(2,), seq_len=8, hidden=128)
    step = one.ranks
    assert isinstance(step, HostStep)
    state = one.initial()
    on = ShardedStep.on if staged else HostStep.on
    runs = on(step, jax.devices()[:8], gradients_too=False)
    after, _ = runs(state, one.batch(0))
    return state, after, step, runs.compiled_text(state, one.batch(0))


def test_main_weights_and_moments_wait_on_the_host_and_are_twelve_bytes_a_parameter() -> None:
    state, after, step, text = ran("z2.off-og")
    waiting = [leaf for name in step.host & set(after) for leaf in jax.tree.leaves(after[name])]
    assert {leaf.sharding.memory_kind for leaf in waiting} == {HOST}
    assert {leaf.sharding.memory_kind for leaf in jax.tree.leaves(after["weights"])} == {"device"}
    count = sum(leaf.size for leaf in jax.tree.leaves(state["weights"]))
    held = sum(shard.data.nbytes for leaf in waiting for shard in leaf.addressable_shards if shard.device.id == 0)
    assert held == pytest.approx(12 * count / 8, rel=0.01)
    sent = count_collectives(text).result_bytes
    # Each of two micro-batches scatters its gradients; new weights are gathered once.
    assert sent["reduce-scatter"] == pytest.approx(2 * 4 * count / 8, rel=0.01)
    assert sent["all-gather"] == pytest.approx(4 * count, rel=0.01)


def test_a_backend_without_memory_of_the_host_keeps_states_in_the_process() -> None:
    _, placed, _, _ = ran("z1.off-o")
    _, staged, _, _ = ran("z1.off-o", staged=True)
    assert all(isinstance(leaf, np.ndarray) for leaf in jax.tree.leaves(staged["moments"]))
    for one, other in zip(jax.tree.leaves(placed["weights"]), jax.tree.leaves(staged["weights"]), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-6)


def test_one_device_alone_has_its_optimizer_on_the_host_too() -> None:
    with jax_precision("fp64"):
        one = training("", plan=parse_row("mbs2.gbs4.off-og", devices=1, global_batch=4, schedules=()))
        state = one.initial()
        assert parity_of(run_parallel(one, jax.devices(), 2, state), run_alone(one, 2, state), "fp64").holds


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("z0.off-o", "off-o with z0"),
        ("z2.off-wo", "off-wo with z2"),
        ("z2.off-aog", "with the perceptron"),
        ("hsdp4.off-a", "off-a with hsdp"),
        ("z3.off-w", "with their optimizer states"),
        ("z3.off-wo-nvme", "not to disks"),
        ("tp2.z2.off-og", "with tp2"),
    ],
)
def test_what_does_not_wait_on_the_host_is_refused_with_what_does(words: str, said: str) -> None:
    plan = (
        row(words)
        if not words.startswith("tp")
        else row(words.removeprefix("tp2.")).__class__(tp=2, dp=4, gbs=16, sharding="z2", offload="og")
    )
    with pytest.raises(UnsupportedError) as caught:
        training(words, RankTraining, plan)
    assert any(said in f"{one.what} {one.why}" for one in caught.value.problems)


def decoder(words: str, name: str = "llama-tiny", plan: PlanRow | None = None) -> RankTraining:
    return RankTraining(
        spec=scaled_model(TINY[name], layers=2), row=plan or row(words), stage_layers=(2,), seq_len=16, hidden=None
    )


def of_one_micro_batch(words: str) -> RankTraining:
    """Half the program of two: how they add up on the host is tested with the perceptron."""
    plan = parse_row(f"dp8.{words}.mbs1.gbs8", devices=8, global_batch=8, schedules=())
    return decoder(words, "gpt-tiny", plan)


@cache
def activations_on_the_device() -> StepsOutcome:
    with jax_precision("fp64"):
        one = of_one_micro_batch("z1.off-o")
        return run_alone(one, 2, one.initial())


@pytest.mark.parametrize(
    "words", ["z0.off-a", "z1.off-a", pytest.param("z2.rc-sel.off-aog", marks=pytest.mark.slow), "z3.rc-full.off-waog"]
)
def test_ranks_whose_activations_wait_on_the_host_end_where_one_device_ends(words: str) -> None:
    plain = activations_on_the_device()
    with jax_precision("fp64"):
        one = of_one_micro_batch(words)
        state = one.initial()
        # Of one device, states in the same parts are the same program, wherever they wait.
        alone = plain if words.startswith("z1") else run_alone(one, 2, state)
        assert parity_of(run_parallel(one, jax.devices(), 2, state), alone, "fp64").holds
        assert alone.losses == pytest.approx(plain.losses, rel=1e-9)


def sent_to_host(one: RankTraining) -> tuple[int, int]:
    """Tensors and bytes that a rank's step places in the host's memory, as it is lowered for GPUs."""
    state, runs = one.initial(), one.ranks.on(jax.devices()[:8], gradients_too=False)
    text = runs.lowered_text(state, one.batch(0), "cuda")
    found = [line for line in text.splitlines() if "pinned_host" in line]
    sizes = [re.findall(r"-> tensor<([0-9x]+)xf32>", line)[0].split("x") for line in found]
    return len(found), sum(4 * math.prod(map(int, size)) for size in sizes)


def test_inputs_of_layers_that_are_computed_again_leave_at_the_priced_bytes() -> None:
    one = decoder("z1.rc-full.off-a")
    assert one.spec is not None
    workload = Workload(seq_len=16, global_batch=16, precision=precision("fp32"))
    columns = strategy_columns([one.row.strategy()], np.array([1.0]), workload)
    work = work_of(one.spec, one.spec.last_layer(), workload.attention_kernel)
    priced = float(kept_bytes(work, columns, workload.precision, FULL)[0])
    layers, micro_batches = 2, one.row.micro_batches
    assert sent_to_host(one) == (layers * micro_batches, layers * micro_batches * priced)


def test_all_that_layers_keep_leaves_where_nothing_is_computed_again() -> None:
    again, kept = sent_to_host(decoder("z1.rc-sel.off-a"))[1], sent_to_host(decoder("z1.off-a"))[1]
    assert kept > again > 10 * sent_to_host(decoder("z1.rc-full.off-a"))[1]


def test_a_backend_without_memory_of_the_host_keeps_no_activations_there() -> None:
    class Memory:
        kind = "device"

    class Device:
        platform = "cpu"

        def addressable_memories(self) -> list[Memory]:
            return [Memory()]

    with pytest.raises(UnsupportedError, match="without memory of the host"):
        decoder("z1.off-a").ranks.on([Device()] * 8)
