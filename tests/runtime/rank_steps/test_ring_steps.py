"""Weights that travel round the ranks: as many devices end where one does, and send what is priced."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import jax
import pytest

from meshwright.compiler.sharding.hlo_collectives import count_collectives
from meshwright.errors import UnsupportedError
from meshwright.runtime.devices import jax_precision
from meshwright.runtime.parity import parity_of, run_alone, run_parallel
from meshwright.runtime.rank_steps.ring_steps import RingStep, hops
from meshwright.runtime.training.ranks import RankTraining
from meshwright.specs.model import LayerRun, ModelSpec
from meshwright.specs.row_text import parse_row
from meshwright.strategies.weight_ring import turns
from meshwright.zoo.tiny import TINY


def training(name: str, ranks: int, batch: int, layers: int) -> RankTraining:
    tiny = TINY[name]
    spec = replace(tiny, runs=(LayerRun(layers=tiny.runs[0].layers, repeats=layers),))
    return of(spec, f"dp{ranks}.weipipe.mbs1.gbs{batch}", layers)


def of(spec: ModelSpec | None, plan: str, layers: int) -> RankTraining:
    row = parse_row(plan, devices=8, global_batch=8, schedules=())
    return RankTraining(spec=spec, row=row, stage_layers=(layers,), seq_len=16, hidden=16)


@pytest.mark.parametrize(
    ("name", "ranks", "batch", "layers"), [("gpt-tiny", 4, 12, 8), ("llama-tiny", 8, 8, 8), ("llama-tiny", 2, 8, 4)]
)
def test_a_ring_ends_where_one_device_ends_and_sends_what_is_priced(
    name: str, ranks: int, batch: int, layers: int
) -> None:
    """Dropout, tied tables, one and several micro-batches; a group of each kind a turn of its pass, and one home."""
    with jax_precision("fp64"):
        one = training(name, ranks, batch, layers)
        state = one.initial()
        assert parity_of(run_parallel(one, jax.devices(), 2, state), run_alone(one, 2, state), "fp64").holds
        step = one.ranks.on(jax.devices()[:ranks], gradients_too=False)
        sent = count_collectives(step.compiled_text(state, one.batch(0))).result_bytes["collective-permute"]
    group_bytes = sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(state["weights"]["layers"])) / ranks
    found = hops(ranks, batch // ranks)
    assert found == (2 * turns(ranks, batch // ranks) + 1, turns(ranks, batch // ranks) + 1)
    assert sent == pytest.approx(sum(found) * group_bytes, rel=0.01)


def test_a_ring_rounds_16_bits_where_one_device_does() -> None:
    """Both are 2e-2 from the gradients in 64 bits; what is rounded in the same places differs by sums alone."""
    with jax_precision("bf16"):
        row = parse_row("dp4.weipipe.mbs1.gbs16", devices=4, global_batch=16, schedules=())
        one = RankTraining(spec=TINY["llama-tiny"], row=row, stage_layers=(4,), seq_len=64, compute="bfloat16")
        found = parity_of(run_parallel(one, jax.devices(), 2), run_alone(one, 2), "bf16", tolerance=1e-2)
        assert found.holds, (found.loss, found.gradient, found.weight)


def test_groups_come_back_to_the_ranks_that_keep_them() -> None:
    one = training("llama-tiny", 4, 8, 8)
    step = one.ranks
    assert isinstance(step, RingStep)
    weights = jax.jit(one.plain_model().init)(jax.random.key(0))
    again = step.whole(step.held(weights))
    assert all((a == b).all() for a, b in zip(*map(jax.tree.leaves, (weights, again)), strict=True))
    assert all(late.weights - soon.weights == 8 for soon, late in pairwise(hops(4, m) for m in range(1, 5)))


@pytest.mark.parametrize(
    ("spec", "plan", "layers", "what"),
    [
        (None, "dp2.weipipe.mbs1.gbs8", 2, "weipipe does not run with the perceptron"),
        (TINY["llama-tiny"], "dp8.weipipe.mbs1.gbs8", 4, "weipipe of 8 ranks with 4 layers"),
        (TINY["llama-tiny"], "tp2.dp4.weipipe.mbs1.gbs8", 4, "weipipe with tp2 does not run here"),
        (TINY["llama-tiny"], "dp4.weipipe.qw-int8.mbs1.gbs8", 4, "weipipe with qw-int8 does not run here"),
    ],
)
def test_what_a_ring_does_not_run_is_refused(spec: ModelSpec | None, plan: str, layers: int, what: str) -> None:
    with pytest.raises(UnsupportedError) as raised:
        of(spec, plan, layers)
    assert [problem.what for problem in raised.value.problems] == [what]
