"""Ranks with errors or weights of their own: as many devices end where one does, and send what is priced."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, PartitionSpec

from meshwright.compiler.sharding.hlo_collectives import count_collectives
from meshwright.errors import UnsupportedError
from meshwright.runtime.devices import jax_precision
from meshwright.runtime.parity import parity_of, run_alone, run_parallel
from meshwright.runtime.training.ranks import RankTraining
from meshwright.runtime.training.run import Training
from meshwright.specs.row import PlanRow
from meshwright.specs.row_text import parse_row
from meshwright.strategies.compression import chosen
from meshwright.zoo.compressed import ERROR_FEEDBACK, SETTINGS, sign_bytes, signs

ROWS, COLUMNS, RANKS, ELEMENT = 64, 256, 8, 4


def row(words: str) -> PlanRow:
    return parse_row(f"dp8.{words}.mbs1.gbs16", devices=8, global_batch=16, schedules=())


def training(words: str, kind: type[Training] = RankTraining, plan: PlanRow | None = None) -> Training:
    """Of the perceptron, whose layers are matrices and vectors."""
    return kind(spec=None, row=plan or row(words), stage_layers=(2,), seq_len=8, hidden=16)


@pytest.mark.parametrize(
    "words", ["gc-powersgd2", "gc-topk5", "gc-onebit1", "local2", "hsdp2.diloco2", "z3.qw-int8.qg-int4.hpz4"]
)
def test_ranks_end_where_one_device_ends(words: str) -> None:
    with jax_precision("fp64"):
        one = training(words)
        state = one.initial()
        parity = parity_of(run_parallel(one, jax.devices(), 3, state), run_alone(one, 3, state), "fp64")
    assert parity.holds


@cache
def plain_steps(steps: int) -> Any:
    with jax_precision("fp64"):
        one = training("z0", Training)
        return run_alone(one, steps, one.initial())


def test_zero_plus_plus_sends_the_priced_bytes() -> None:
    """N int8 weights over all ranks, N of their own format over 4 neighbours, N gradients of half a byte."""
    one = RankTraining(spec=None, row=row("z3.qw-int8.qg-int4.hpz4"), stage_layers=(2,), seq_len=8, hidden=128)
    plain = replace(one.ranks, micro_batches=1)
    state = plain.initial(jax.jit(one.plain_model().init)(jax.random.key(0)))
    text = plain.on(jax.devices(), gradients_too=False).compiled_text(state, one.batch(0))
    sent, count = count_collectives(text).result_bytes, sum(leaf.size for leaf in jax.tree.leaves(state["weights"]))
    assert sent["all-gather"] == pytest.approx(count * (1 + 4), rel=0.01)
    assert sent["all-to-all"] == pytest.approx(count * 0.5, rel=0.01)
    assert "reduce-scatter" not in sent


def test_a_second_copy_alone_changes_nothing() -> None:
    with jax_precision("fp64"):
        one = training("z3.hpz2")
        assert run_alone(one, 2, one.initial()).losses == pytest.approx(plain_steps(2).losses, rel=1e-9)


@pytest.mark.parametrize("words", ["gc-powersgd4096", "gc-onebit9"])
def test_what_leaves_nothing_out_is_a_plain_step(words: str) -> None:
    """Of full rank, and while the variance warms up."""
    with jax_precision("fp64"):
        one = training(words)
        found = run_alone(one, 2, one.initial())
        assert parity_of(found, plain_steps(2), "fp64").holds


def test_lossy_ones_are_no_plain_steps() -> None:
    with jax_precision("fp64"):
        one = training("gc-topk5")
        assert not parity_of(run_alone(one, 2, one.initial()), plain_steps(2), "fp64").holds


def test_replicas_agree_after_a_round_and_not_before() -> None:
    with jax_precision("fp64"):
        one = training("local2")
        step, state = one.alone(), one.initial()
        apart = []
        for number in range(2):
            state, *_ = step(state, one.batch(number))
            leaf = np.asarray(jax.tree.leaves(state["weights"])[0])
            apart.append(float(np.abs(leaf - leaf[:1]).max()))
    assert apart[0] > 1e-6
    assert apart[1] == 0.0


def on_ranks(word: str) -> tuple[np.ndarray, dict[str, float], np.ndarray]:
    """The mean that 8 ranks find of their matrices, bytes of the collectives' results, and the true mean."""
    mesh = Mesh(np.array(jax.devices()[:RANKS]), ("replicas",))
    values = jax.random.normal(jax.random.key(1), (RANKS, ROWS, COLUMNS), jnp.float32)
    found = chosen(word)
    assert found is not None

    def one(own: jax.Array) -> jax.Array:
        if found.kind.name == "onebit":
            error = jnp.zeros(sign_bytes(ROWS * COLUMNS, RANKS), jnp.float32)
            return signs(own[0], error, "replicas")[0]
        given = {SETTINGS[found.kind.name]: found.setting, "key": jax.random.key(0)}
        return ERROR_FEEDBACK[found.kind.name](own[0], "replicas", **given)[0]

    run = jax.jit(
        jax.shard_map(one, mesh=mesh, in_specs=PartitionSpec("replicas"), out_specs=PartitionSpec(), check_vma=False)
    )
    compiled = run.lower(values).compile()
    sent = count_collectives(compiled.as_text()).result_bytes
    return np.asarray(compiled(values)), dict(sent), np.asarray(values.mean(0))


@pytest.mark.parametrize(
    ("word", "kinds", "times"),
    [("powersgd4", ("all-reduce",), 1), ("topk3", ("all-gather",), RANKS), ("onebit", ("all-to-all", "all-gather"), 2)],
)
def test_compressed_gradients_send_the_priced_bytes(word: str, kinds: tuple[str, ...], times: int) -> None:
    """A sum has the payload as its result, a gather that of all ranks; signs are scattered and gathered."""
    found, (_, sent, _) = chosen(word), on_ranks(word)
    assert found is not None
    payload = float(np.asarray(found.kind.payload_bytes(ROWS, COLUMNS, found.setting, ELEMENT)))
    assert sum(sent[kind] for kind in kinds) == pytest.approx(times * payload, rel=0.02 if word == "onebit" else 0.01)
    assert set(sent) == set(kinds)


def test_the_best_rank_of_random_matrices_is_nearer_with_more_of_it() -> None:
    errors = [float(np.linalg.norm(mean - true)) for mean, _, true in map(on_ranks, ("powersgd1", "powersgd40"))]
    assert errors[1] < errors[0]


@pytest.mark.parametrize("words", ["z3.qw-fp8", "z1.qg-int4", "z3.hpz2.rc-full"])
def test_what_does_not_run_is_refused_with_what_does(words: str) -> None:
    with pytest.raises(UnsupportedError, match="does not run") as caught:
        training(words)
    assert all(problem.fix for problem in caught.value.problems)


def test_ranks_alone_run_so() -> None:
    with pytest.raises(UnsupportedError, match="gc-topk1 with tp2"):
        training("", plan=parse_row("tp2.dp4.gc-topk1.mbs1.gbs16", devices=8, global_batch=16, schedules=()))
