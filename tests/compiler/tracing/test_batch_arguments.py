"""Which argument of a step is its batch."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

import meshwright as mw
from meshwright.compiler.tracing.batch_arguments import batch_argument

SAMPLES, WIDTH = 16, 4
PARAMS = {"w": jnp.ones((WIDTH, WIDTH)), "b": jnp.zeros((WIDTH,))}
UNLIKE = {"w": jnp.ones((WIDTH, WIDTH)), "b": jnp.zeros((2 * WIDTH,))}
BATCH = {"x": jnp.ones((SAMPLES, WIDTH)), "y": jnp.zeros((SAMPLES,))}


def alike(params: Any, moments: Any, batch: Any) -> Any:
    return params, jax.tree.map(jnp.sin, moments), batch["y"].mean()


def test_the_second_argument_is_the_batch() -> None:
    assert batch_argument(lambda state, batch: state, (PARAMS, BATCH)) == (1,)
    assert batch_argument(lambda state, batch, key: state, (PARAMS, BATCH, jax.random.key(0))) == (1,)


def test_a_state_alone_has_none() -> None:
    assert batch_argument(lambda state: state, (PARAMS,)) == ()


def test_moments_of_several_first_axes_are_no_batch() -> None:
    assert batch_argument(alike, (PARAMS, UNLIKE, BATCH)) == (2,)


def test_moments_of_one_first_axis_come_back_and_are_no_batch() -> None:
    assert batch_argument(alike, (PARAMS, PARAMS, BATCH)) == (2,)


def test_frozen_weights_that_do_not_come_back_are_told_by_their_axes() -> None:
    assert batch_argument(lambda params, frozen, batch: params, (PARAMS, UNLIKE, BATCH)) == (2,)


def test_a_batch_of_several_first_axes_is_what_does_not_come_back() -> None:
    graphs = {"y": jnp.zeros((SAMPLES,)), "edges": jnp.ones((5, 2))}
    assert batch_argument(alike, (PARAMS, UNLIKE, graphs)) == (2,)


def test_optimizers_without_moments_are_no_batch() -> None:
    assert batch_argument(alike, (PARAMS, (), BATCH)) == (2,)


def test_a_key_behind_the_batch_is_none() -> None:
    step = lambda params, moments, batch, key: (params, moments)  # noqa: E731
    assert batch_argument(step, (PARAMS, PARAMS, BATCH, jax.random.PRNGKey(0))) == (2,)


def test_a_step_that_cannot_be_traced_keeps_the_second() -> None:
    def fails(params: Any, first: Any, second: Any) -> Any:
        raise ValueError

    assert batch_argument(fails, (PARAMS, BATCH, BATCH)) == (1,)


def test_a_step_of_weights_moments_and_a_batch_runs_without_saying_so() -> None:
    def error(params: Any, batch: Any) -> jax.Array:
        return (((batch["x"] @ params["w"] + params["b"]).sum(-1) - batch["y"]) ** 2).mean()

    def step(params: Any, moments: Any, batch: Any) -> Any:
        loss, gradients = jax.value_and_grad(error)(params, batch)
        moments = jax.tree.map(lambda m, g: 0.9 * m + g, moments, gradients)
        return jax.tree.map(lambda p, m: p - 0.01 * m, params, moments), moments, loss

    parallel = mw.parallelize(step, method=mw.DataParallel(num_micro_batches=2))
    found = parallel(PARAMS, PARAMS, BATCH)
    assert parallel.compiled().step.micro_batches == 2
    for one, other in zip(jax.tree.leaves(found), jax.tree.leaves(jax.jit(step)(PARAMS, PARAMS, BATCH)), strict=True):
        assert jnp.allclose(one, other, rtol=1e-6)
