"""Losses of data ranks add up to the loss, their gradients to its gradient; where they would not, that is told."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.extend import core
from jax.sharding import Mesh, PartitionSpec

from meshwright.compiler.cuts.cut import body_of, cut
from meshwright.compiler.marking import value_and_grad
from meshwright.compiler.ranks.stages import RankStages, rank_stages
from meshwright.compiler.samples.placements import OWN, NotShared
from meshwright.compiler.tracing.trace import trace_step

RANKS, SAMPLES, WIDTH = 4, 8, 6
AXES = (("data", RANKS),)
Loss = Callable[[jax.Array, dict[str, jax.Array]], jax.Array]


def weight() -> jax.Array:
    return jnp.asarray(np.random.RandomState(0).randn(WIDTH, WIDTH) * 0.3, jnp.float32)


def batch(samples: int = SAMPLES) -> dict[str, jax.Array]:
    drawn = np.random.RandomState(1)
    return {
        "x": jnp.asarray(drawn.randn(samples, WIDTH), jnp.float32),
        "seen": jnp.asarray(drawn.rand(samples, WIDTH) > 0.4),
        "number": jnp.arange(samples),
    }


def shared_out(loss: Loss, samples: int = SAMPLES) -> RankStages:
    def step(state: jax.Array, given: Any) -> Any:
        value, gradient = value_and_grad(loss)(state, given)
        return state - gradient, value

    traced = trace_step(step, (weight(), batch(samples)))
    body = body_of(traced.loss, traced.wrt)
    return rank_stages(traced, cut(body, traced.wrt, [len(body.spine)]), AXES)


def of_all_ranks(found: RankStages, given: dict[str, jax.Array]) -> tuple[jax.Array, jax.Array]:
    """Loss and gradient, summed over ranks that each hold their own samples."""
    (stage,) = found.stages
    inputs = dict(zip(found.step.mark.invars, [weight(), *jax.tree.leaves(given)], strict=False))
    if found.number is not None:
        inputs[found.step.mark.invars[found.number]] = jnp.arange(RANKS)
    operands = (*stage.parameters, *stage.others)
    placements = [OWN if place == found.number else found.operands[place] for place in operands]
    program = core.jaxpr_as_fun(stage.program)

    def differentiated(*local: Any) -> Any:
        return jax.value_and_grad(lambda own: program(own, *local[1:])[0])(local[0])

    local_program = jax.make_jaxpr(differentiated, axis_env=list(AXES))(*stage.program.in_avals)

    def run(*local: Any) -> Any:
        local = tuple(one[0] if placement == OWN else one for one, placement in zip(local, placements, strict=True))
        return jax.lax.psum(core.jaxpr_as_fun(local_program)(*local), "data")

    along = {OWN: PartitionSpec("data")}
    specs = [
        along.get(placement, PartitionSpec(*[None] * placement, "data") if placement >= 0 else PartitionSpec())
        for placement in placements
    ]
    mesh = Mesh(np.array(jax.devices()[:RANKS]), ("data",))
    shared = jax.shard_map(run, mesh=mesh, in_specs=tuple(specs), out_specs=PartitionSpec(), check_vma=False)
    value, gradient = jax.jit(shared)(*(inputs[found.step.mark.invars[place]] for place in operands))
    return value, gradient


def recurrent(w: jax.Array, b: dict[str, jax.Array]) -> jax.Array:
    def round_of(hidden: jax.Array, x: jax.Array) -> tuple[jax.Array, jax.Array]:
        hidden = jnp.tanh(hidden @ w + x)
        return hidden, jnp.mean(hidden)

    hidden, means = jax.lax.scan(jax.checkpoint(round_of), jnp.zeros((SAMPLES, WIDTH)), jnp.stack([b["x"], 2 * b["x"]]))
    return jnp.mean(hidden**2) + means.sum()


def summing(w: jax.Array, b: dict[str, jax.Array]) -> jax.Array:
    return jax.lax.scan(lambda total, i: (total + i * jnp.mean((b["x"] @ w) ** 2), None), 0.0, jnp.arange(3.0))[0]


def dropped(w: jax.Array, b: dict[str, jax.Array]) -> jax.Array:
    """One key for all samples."""
    kept = jax.random.bernoulli(jax.random.key(3), 0.5, (SAMPLES, WIDTH))
    return jnp.mean(jnp.where(kept, b["x"] @ w, 0.0) ** 2)


def dropped_by_sample(w: jax.Array, b: dict[str, jax.Array]) -> jax.Array:
    keys = jax.vmap(lambda number: jax.random.fold_in(jax.random.key(3), number))(b["number"])
    kept = jax.vmap(lambda key: jax.random.bernoulli(key, 0.5, (WIDTH,)))(keys)
    return jnp.mean(jnp.where(kept, b["x"] @ w, 0.0) ** 2)


def normed(w: jax.Array, b: dict[str, jax.Array]) -> jax.Array:
    """Moments of the batch."""
    h = b["x"] @ w
    return jnp.mean(jnp.sin((h - h.mean(0)) / jnp.sqrt(h.var(0) + 1e-3)))


def chosen(w: jax.Array, b: dict[str, jax.Array]) -> jax.Array:
    logits = jax.nn.log_softmax(b["x"] @ w)
    best = jax.lax.top_k(logits, 2)[0].sum(-1).mean()
    return best - jnp.take_along_axis(logits, jnp.argmax(b["x"], -1)[:, None], axis=-1).mean()


ADDED: dict[str, Loss] = {
    "mean": lambda w, b: jnp.mean(jnp.tanh(b["x"] @ w) ** 2),
    "rules of their own": lambda w, b: jnp.mean(jax.nn.softmax(jax.nn.relu(b["x"] @ w)) * jax.nn.elu(b["x"])),
    "weighted mean": lambda w, b: jnp.sum(jnp.where(b["seen"], (b["x"] @ w) ** 2, 0.0)) / jnp.sum(b["seen"]),
    "beside the samples": lambda w, b: jnp.mean((b["x"] @ w) ** 3) + 0.1 * jnp.sum(w**2),
    "root of a mean": lambda w, b: jnp.sqrt(jnp.mean((b["x"] @ w) ** 2)),
    "by position in the batch": lambda w, b: jnp.mean((b["x"] @ w) * jnp.arange(float(SAMPLES))[:, None]),
    "moments of the batch": normed,
    "one key": dropped,
    "a key for each sample": dropped_by_sample,
    "loop": recurrent,
    "loop over a sum": summing,
    "rows": chosen,
}


@pytest.mark.parametrize("name", ADDED)
def test_losses_and_gradients_of_ranks_add_up(name: str) -> None:
    loss, given = ADDED[name], batch()
    value, gradient = of_all_ranks(shared_out(loss), given)
    expected, expected_gradient = jax.value_and_grad(loss)(weight(), given)
    assert float(value) == pytest.approx(float(expected), rel=1e-5)
    np.testing.assert_allclose(gradient, expected_gradient, rtol=1e-4, atol=1e-6)


def test_one_sample_for_each_rank() -> None:
    value, _ = of_all_ranks(shared_out(chosen, RANKS), batch(RANKS))
    assert float(value) == pytest.approx(float(chosen(weight(), batch(RANKS))), rel=1e-5)


def test_sums_are_taken_between_ranks_only_where_they_are_scaled_by_data() -> None:
    taken = {name: str(shared_out(ADDED[name]).stages[0].program).count("psum") for name in ADDED}
    assert {name for name, count in taken.items() if count} == {
        "weighted mean",
        "root of a mean",
        "moments of the batch",
    }
    assert taken["weighted mean"] == 2


@jax.custom_vjp
def doubled(x: jax.Array) -> jax.Array:
    return 2 * x


doubled.defvjp(lambda x: (2 * x, None), lambda _, change: (2 * jnp.sort(change, 0),))

MIXED: dict[str, tuple[Loss, str]] = {
    "every pair": (lambda w, b: jnp.mean(jax.nn.log_softmax((b["x"] @ w) @ b["x"].T)), "dot_general mixes samples"),
    "largest sample": (lambda w, b: jnp.mean(jnp.max(b["x"] @ w, 0)), "reduce_max over samples is no sum"),
    "half of the batch": (lambda w, b: jnp.mean((b["x"] @ w)[: SAMPLES // 2]), "slice mixes samples"),
    "sorted samples": (lambda w, b: jnp.mean(jnp.sort(b["x"] @ w, 0) * b["x"]), "sort mixes samples"),
    "reverse rule": (lambda w, b: jnp.mean(doubled(b["x"] @ w)), "sort mixes samples"),
}


@pytest.mark.parametrize("name", MIXED)
def test_what_mixes_samples_is_named(name: str) -> None:
    loss, why = MIXED[name]
    with pytest.raises(NotShared, match=why):
        shared_out(loss)


def test_samples_that_ranks_do_not_divide() -> None:
    with pytest.raises(NotShared, match="micro-batches of 6 samples on 4 data ranks"):
        shared_out(ADDED["mean"], 6)
